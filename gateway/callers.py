"""Callers whom others vouch for: ServiceAccounts of the cluster, and issuers of JWTs. Pure.

The ConfigMap `sandman-callers` says who is which tenant, one entry of JSON each:

    account.<name>   {"namespace": "ml", "name": "trainer", "tenant": "acme", …share}
    issuer.<name>    {"issuer": "https://…", "audience": "sandman", "jwks_url": "https://…" or "jwks": {…},
                      "callers": {"<rule>": {"claims": {"sub": "…"}, "tenant": "acme", …share}}}

A bad entry is named and locks nobody else out; a member that nobody knows makes an entry bad, for a slip in
`audience` must not open a door. No rule, no entry: a token that is good and mapped to no tenant may nothing.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from gateway import jose, tokens
from gateway.model import DEFAULT_SHARE, Identity, Principal, Share
from sandman import apikeys, names
from sandman.errors import ForbiddenError, UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ACCOUNT = "account."
ISSUER = "issuer."
USER_PREFIX = "system:serviceaccount:"
AUDIENCE = "sandman"
LEEWAY_S = 30.0
"""Seconds by which clocks may differ where an issuer's entry says nothing: with NTP it is milliseconds."""
LEEWAY_MAX_S = 300.0
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SHARE = frozenset({"weight", "images", "networks", *apikeys.LIMITS})
_ACCOUNT = frozenset({"namespace", "name", "tenant"}) | _SHARE
_RULE = frozenset({"claims", "tenant", "tenant_claim", "kubernetes"}) | _SHARE
_ISSUER = frozenset(
    {"issuer", "audience", "algorithms", "jwks", "jwks_url", "ca", "leeway_s", "callers"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Who it is for, as which tenant. `key_id` names it as an API key's id does: no key's has a dot."""

    key_id: str
    tenant: str | None
    """None: the value of `tenant_claim` is the tenant."""
    share: Share = DEFAULT_SHARE
    tenant_claim: str = ""
    claims: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Claims that must be there, each with one of these values, or with a list that has one of them."""
    identity: Identity | None = None

    def allows(self, tenant: str) -> bool:
        """Whether this tenant can be one of its."""
        return self.tenant is None or self.tenant == tenant


class Account(NamedTuple):
    """A ServiceAccount; without a name all of the namespace."""

    namespace: str
    name: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Issuer:
    """Whose JWTs are taken, and as what."""

    name: str
    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    keys: tuple[jose.Key, ...]
    """Those in the entry itself; none where they are fetched."""
    jwks_url: str | None
    ca: str | None
    """PEM of who vouches for that address; None: whom the system trusts."""
    leeway_s: float
    rules: tuple[Rule, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Callers:
    """All of the ConfigMap."""

    accounts: Mapping[Account, Rule]
    issuers: Mapping[str, Issuer]
    """By what their tokens say in `iss`."""
    rules: Mapping[str, Rule]
    """All rules by `key_id`."""


NOBODY = Callers({}, {}, {})


# --- the ConfigMap --------------------------------------------------------------------------------


def parse(data: Mapping[str, str]) -> tuple[Callers, list[str]]:
    """What the entries say, and the names of those that cannot be used, each with the reason."""
    accounts: dict[Account, Rule] = {}
    issuers: dict[str, Issuer] = {}
    bad: list[str] = []
    for name, text in sorted(data.items()):
        try:
            _read(name, _load(text), accounts, issuers)
        except KeyError as error:
            bad.append(f"{name}: {error.args[0]} is missing")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            bad.append(f"{name}: {error}")
    rules = [*accounts.values(), *(rule for one in issuers.values() for rule in one.rules)]
    return Callers(accounts, issuers, {rule.key_id: rule for rule in rules}), bad


def _read(
    name: str, entry: Mapping[str, Any], accounts: dict[Account, Rule], issuers: dict[str, Issuer]
) -> None:
    if name.startswith(ACCOUNT):
        account, rule = _account(name, entry)
        if account in accounts:
            raise ValueError(f"{accounts[account].key_id} is for the same account")
        accounts[account] = rule
    elif name.startswith(ISSUER):
        issuer = _issuer(name, entry)
        if issuer.issuer in issuers:
            raise ValueError(f"{ISSUER}{issuers[issuer.issuer].name} has the same issuer")
        issuers[issuer.issuer] = issuer
    else:
        raise ValueError(f"entries begin with {ACCOUNT} or {ISSUER}")


def _load(text: str) -> dict[str, Any]:
    entry = json.loads(text, object_pairs_hook=_unique)
    if not isinstance(entry, dict):
        raise TypeError("not a JSON object")
    return entry


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands in it twice")
    return values


def _known(entry: Mapping[str, Any], known: frozenset[str]) -> None:
    if extra := sorted(set(entry) - known):
        raise ValueError(f"{extra[0]} is not known; known: {', '.join(sorted(known))}")


def _account(name: str, entry: Mapping[str, Any]) -> tuple[Account, Rule]:
    _known(entry, _ACCOUNT)
    apikeys.check_id(name.removeprefix(ACCOUNT))
    account = Account(_text(entry, "namespace"), _text(entry, "name") if "name" in entry else None)
    tenant = apikeys.check_tenant(entry["tenant"])
    return account, Rule(name, tenant, tokens.read_share(entry))


def _issuer(name: str, entry: Mapping[str, Any]) -> Issuer:
    _known(entry, _ISSUER)
    own = apikeys.check_id(name.removeprefix(ISSUER))
    if ("jwks" in entry) == ("jwks_url" in entry):
        raise ValueError("give exactly one of jwks and jwks_url")
    algorithms = _texts(entry.get("algorithms", list(jose.ALGORITHMS)), "algorithms")
    if not set(algorithms) <= set(jose.ALGORITHMS):
        raise ValueError(f"algorithms are of {', '.join(jose.ALGORITHMS)}")
    leeway_s = entry.get("leeway_s", LEEWAY_S)
    if jose.number(leeway_s) is None or not 0 <= leeway_s <= LEEWAY_MAX_S:
        raise ValueError(f"leeway_s is a number from 0 to {LEEWAY_MAX_S:g}")
    callers = entry["callers"]
    if not isinstance(callers, dict) or not callers:
        raise ValueError("callers has no rule")
    return Issuer(
        own,
        _text(entry, "issuer"),
        _texts(entry["audience"], "audience"),
        algorithms,
        jose.read_keys(entry["jwks"]) if "jwks" in entry else (),
        _address(_text(entry, "jwks_url")) if "jwks_url" in entry else None,
        _text(entry, "ca") if "ca" in entry else None,
        float(leeway_s),
        tuple(_rule(f"{name}.{apikeys.check_id(one)}", rule) for one, rule in callers.items()),
    )


def _rule(key_id: str, entry: Mapping[str, Any]) -> Rule:
    _known(entry, _RULE)
    if ("tenant" in entry) == ("tenant_claim" in entry):
        raise ValueError(f"{key_id}: give exactly one of tenant and tenant_claim")
    claims = entry["claims"]
    if not isinstance(claims, dict) or not claims:
        # Whoever has any token of that issuer would be a caller: where that is meant, `iss` says so.
        raise ValueError(f"{key_id}: claims names no claim")
    return Rule(
        key_id,
        apikeys.check_tenant(entry["tenant"]) if "tenant" in entry else None,
        tokens.read_share(entry),
        _text(entry, "tenant_claim") if "tenant_claim" in entry else "",
        tuple((claim, _texts(values, claim)) for claim, values in claims.items()),
        tokens.read_identity(entry.get("kubernetes")),
    )


def _text(entry: Mapping[str, Any], name: str) -> str:
    if not isinstance(entry[name], str) or not entry[name]:
        raise ValueError(f"{name} is a text")
    return str(entry[name])


def _texts(value: object, name: str) -> tuple[str, ...]:
    """One text, or a list of them."""
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(one, str) and one for one in listed):
        raise ValueError(f"{name} is a text, or a list of texts")
    return tuple(listed)


def _address(url: str) -> str:
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not is_safe or not parts.hostname or parts.username is not None:
        # Who can change an answer on its way could make himself any tenant.
        raise ValueError("jwks_url is an address https://…")
    return url


# --- verdicts -------------------------------------------------------------------------------------


def is_due(token: jose.Token, audience: str, now: float) -> bool:
    """Whether a token could be a ServiceAccount's and for us: else the API server is not asked.

    Nothing of it is verified yet; what is wrong with it already now need not be asked about.
    """
    account = _account_of(token.claims.get("sub"))
    ends = jose.number(token.claims.get("exp"))
    is_ours = audience in listed(token.claims.get("aud"))
    return account is not None and is_ours and ends is not None and now < ends + LEEWAY_S


def is_account(token: jose.Token) -> bool:
    """Whether it says that it is a ServiceAccount's."""
    return _account_of(token.claims.get("sub")) is not None


def reviewed(status: Mapping[str, Any], callers: Callers, audience: str) -> Principal:
    """Who it is, by the API server's word on a token.

    Raises:
        UnauthenticatedError: nobody, or a token for another audience.
        ForbiddenError: a ServiceAccount that no rule gives a tenant.
    """
    if status.get("authenticated") is not True or status.get("error"):
        raise UnauthenticatedError("the API server does not know this ServiceAccount token")
    # A server that knows nothing of audiences leaves them out, and would take any token.
    if audience not in listed(status.get("audiences")):
        raise UnauthenticatedError(f"the token is not for the audience {audience}")
    user = status.get("user") or {}
    account = _account_of(user.get("username"))
    if account is None:
        raise ForbiddenError("the token is not a ServiceAccount's")
    rule = callers.accounts.get(account) or callers.accounts.get(account._replace(name=None))
    if rule is None or rule.tenant is None:
        raise ForbiddenError(
            f"no tenant for the ServiceAccount {account.name} of {account.namespace}: see sandman-callers"
        )
    groups = tuple(one for one in user.get("groups") or () if isinstance(one, str))
    identity = Identity(str(user["username"]), groups)
    return Principal(rule.tenant, rule.key_id, share=rule.share, identity=identity)


def judged(token: jose.Token, issuer: Issuer, now: float) -> Principal:
    """Who it is, by a token whose signature was verified.

    Raises:
        UnauthenticatedError: it is over, not yet valid, or not for us.
        ForbiddenError: no rule gives it a tenant.
    """
    claims, leeway_s = token.claims, issuer.leeway_s
    if not set(listed(claims.get("aud"))) & set(issuer.audiences):
        raise UnauthenticatedError(
            "the token is not for the audience that its issuer is taken with"
        )
    ends = jose.number(claims.get("exp"))
    if ends is None or now >= ends + leeway_s:
        raise UnauthenticatedError("the token has expired, or does not say when it does")
    for name in ("nbf", "iat"):
        begins = jose.number(claims.get(name, 0))
        if begins is None or now < begins - leeway_s:
            raise UnauthenticatedError(f"the token is not valid yet, by its {name}")
    return _ruled(claims, issuer.rules)


def _ruled(claims: Mapping[str, Any], rules: Iterable[Rule]) -> Principal:
    for rule in rules:
        if all(set(listed(claims.get(name))) & set(values) for name, values in rule.claims):
            tenant = rule.tenant or claims.get(rule.tenant_claim)
            if not names.is_label(tenant):
                raise ForbiddenError(f"the claim {rule.tenant_claim} names no tenant")
            return Principal(str(tenant), rule.key_id, share=rule.share, identity=rule.identity)
    raise ForbiddenError(
        "no tenant for this token: none of its issuer's rules in sandman-callers fits"
    )


def listed(claim: object) -> tuple[str, ...]:
    """The texts of a claim that is a text or a list of them; none where it is anything else."""
    values = claim if isinstance(claim, list) else [claim]
    return tuple(one for one in values if isinstance(one, str))


def _account_of(user: object) -> Account | None:
    if not isinstance(user, str) or not user.startswith(USER_PREFIX):
        return None
    namespace, colon, name = user.removeprefix(USER_PREFIX).partition(":")
    return Account(namespace, name) if colon and namespace and name and ":" not in name else None

"""Attempts from outside with proofs of who one is: keys that are over, tokens in the wrong place, forged JWTs, and
ServiceAccounts' tokens that were made for others."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gateway import jose, tokens
from sandman import apikeys, names
from tests.cluster import faults, hostile
from tests.cluster.bed import kubectl
from tests.cluster.hostile import Gates, Said, said
from tests.fakes.issuers import ISSUER, Signer, encode, entry, hs256, keyset, said_by_default

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.cluster.deployed import Deployed

UNKNOWN = Said(401, "unauthenticated", "the token is not known")
SEND_ONE = Said(401, "unauthenticated", "send Authorization: Bearer <token>")
LIST = "/v1/sandboxes"


@pytest.fixture(scope="module")
def gates(sandman: Deployed) -> Iterator[Gates]:
    with hostile.gates(sandman) as made:
        yield made


# --- API keys -----------------------------------------------------------------------------------


def patched(sandman: Deployed, kind: str, name: str, data: Mapping[str, str | None]) -> None:
    """Entries of a Secret or ConfigMap written, or taken away."""
    patch = json.dumps({"data": data})
    faults.system(sandman, "patch", kind, name, "--type=merge", "-p", patch)


@contextlib.contextmanager
def keys(sandman: Deployed, **entries: bytes) -> Iterator[Callable[[], None]]:
    """Keys for the length of the block; what is yielded takes them away before."""

    def revoke() -> None:
        patched(sandman, "secret", names.API_KEYS_SECRET, dict.fromkeys(entries))

    written = {name: base64.b64encode(one).decode() for name, one in entries.items()}
    patched(sandman, "secret", names.API_KEYS_SECRET, written)
    try:
        yield revoke
    finally:
        revoke()


def test_keys_that_are_revoked_or_over_and_what_was_made_with_them(
    sandman: Deployed, gates: Gates
) -> None:
    token, old = (tokens.make_api_key(name) for name in ("hostile-now", "hostile-old"))
    over = json.dumps(apikeys.entry(old, "demo", expires_at=time.time() - 60))
    made = {"hostile-now": tokens.api_key_entry(token, "demo"), "hostile-old": over.encode()}
    with (
        keys(sandman, **made) as revoke,
        hostile.box(gates, sandman.installation.token, image=sandman.image("python")) as box,
    ):
        gates.soon("the key is known", 200, token)
        expired = "the API key hostile-old has expired: ask for another"
        answers = {said(one) for one in gates.each("GET", LIST, old)}
        assert answers == {Said(401, "unauthenticated", expired)}
        path = f"{LIST}/{box.id}"
        scoped = gates.ask("POST", f"{path}/tokens", token, json={}).json()["token"]
        assert {one.status_code for one in gates.each("GET", f"{path}/info", scoped)} == {200}
        revoke()
        gates.soon("the key is revoked", 401, token)
        assert {said(one) for one in gates.each("GET", LIST, token)} == {UNKNOWN}
        revoked = "the key that this sandbox token was made for is revoked"
        answers = {said(one) for one in gates.each("GET", f"{path}/info", scoped)}
        assert answers == {Said(401, "unauthenticated", revoked)}
        box.is_whole()


def swapped(sandman: Deployed) -> str:
    """The attacker's secret under the victim's key id."""
    return f"smk_demo_{sandman.installation.other_token.split('_', 2)[2]}"


BAD: dict[str, tuple[Callable[[str, Deployed], dict[str, Any]], Said]] = {
    "nothing": (lambda _t, _s: {}, SEND_ONE),
    "in the query": (lambda t, _: {"params": {"token": t, "access_token": t}}, SEND_ONE),
    "as a cookie": (lambda t, _: {"headers": {"cookie": f"token={t}; authorization=Bearer {t}"}}, SEND_ONE),
    "in another header": (lambda t, _: {"headers": {"x-api-key": t, "proxy-authorization": f"Bearer {t}"}}, SEND_ONE),
    "as a password": (lambda t, _: {"headers": {"authorization": basic(t)}}, SEND_ONE),
    "without the scheme": (lambda t, _: {"headers": {"authorization": t}}, SEND_ONE),
    "its last character off": (lambda t, _: bearer(t[:-1]), UNKNOWN),
    "in capitals": (lambda t, _: bearer(t.upper()), UNKNOWN),
    "another's id with my secret": (lambda _, s: bearer(swapped(s)), UNKNOWN),
    "its hash for itself": (lambda t, _: bearer(f"smk_demo_{apikeys.digest(t)}"), UNKNOWN),
    "a known one after a bad one": (lambda t, _: twice("smk_demo_x", t), UNKNOWN),
    "very long": (lambda t, _: bearer(f"{t}{'x' * 4096}"), UNKNOWN),
    "impersonation": (lambda _t, _s: {"headers": {"impersonate-user": "system:admin", "x-remote-user": "demo"}}, SEND_ONE),
}  # fmt: skip


def bearer(token: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {token}"}}


def basic(token: str) -> str:
    return f"Basic {base64.b64encode(f'demo:{token}'.encode()).decode()}"


def twice(*texts: str) -> dict[str, Any]:
    return {"headers": [("authorization", f"Bearer {one}") for one in texts]}


@pytest.mark.parametrize("case", BAD)
def test_a_key_counts_where_it_belongs_and_as_it_is(
    sandman: Deployed, gates: Gates, case: str
) -> None:
    given, wanted = BAD[case]
    for door in gates.doors():
        answer = door.get(LIST, **given(sandman.installation.token, sandman))
        assert said(answer) == wanted
        assert answer.headers["www-authenticate"] == "Bearer"


HANDSHAKE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": base64.b64encode(b"0" * 16).decode(),
    "origin": "https://evil.example",
}


@pytest.mark.parametrize("path", ["ports/8000/ws", "processes/x/terminal"])
def test_a_page_of_another_site_opens_no_websocket(
    sandman: Deployed, gates: Gates, path: str
) -> None:
    """All that a page can set: the query, subprotocols, and cookies that a browser brings along."""
    token = sandman.installation.token
    headers = HANDSHAKE | {"cookie": f"token={token}", "sec-websocket-protocol": f"bearer, {token}"}
    for door in gates.doors():
        answer = door.get(f"{LIST}/x/{path}", params={"token": token}, headers=headers)
        assert said(answer) == SEND_ONE


# --- JWTs and ServiceAccounts -------------------------------------------------------------------

HOME, AWAY = "sandman-test-proofs", "sandman-test-proofs-away"
UNSIGNED = f"the token is not signed by a key of {ISSUER}"
UNREADABLE = "the token cannot be read: "
ALGORITHM = f"{UNREADABLE}its algorithm is none of {', '.join(jose.ALGORITHMS)}"
OVER = "the token has expired, or does not say when it does"


class Others(NamedTuple):
    """An issuer that is taken, with its key of ES256, and somebody who is not it."""

    sandman: Deployed
    signer: Signer
    stranger: Signer
    rsa: Signer

    def claims(self, **changes: Any) -> dict[str, Any]:
        return said_by_default(time.time(), **changes)

    def account(self, namespace: str, name: str, *audience: str) -> str:
        given = [f"--audience={one}" for one in audience]
        return kubectl(self.sandman.bed, "-n", namespace, "create", "token", name, *given).strip()


@pytest.fixture(scope="module")
def others(sandman: Deployed, gates: Gates) -> Iterator[Others]:
    """Rules for one issuer and one ServiceAccount."""
    made = Others(sandman, Signer("ES256"), Signer("ES256"), Signer("RS256"))
    rule = {"ci": {"claims": {"sub": "ci"}, "tenant": "demo"}}
    rules = {
        "issuer.hostile": entry(keyset(made.signer, made.rsa), algorithms=["ES256"], callers=rule),
        "account.hostile": {"namespace": HOME, "name": "trainer", "tenant": "demo"},
    }
    for namespace in (HOME, AWAY):
        kubectl(sandman.bed, "create", "namespace", namespace)
        for name in ("trainer", "stranger"):
            kubectl(sandman.bed, "-n", namespace, "create", "serviceaccount", name)
    try:
        texts = {name: json.dumps(one) for name, one in rules.items()}
        patched(sandman, "configmap", names.CALLERS_CONFIG, texts)
        gates.soon("the issuer is taken", 200, made.signer.token(made.claims()))
        gates.soon("the account is taken", 200, made.account(HOME, "trainer", "sandman"))
        yield made
    finally:
        patched(sandman, "configmap", names.CALLERS_CONFIG, dict.fromkeys(rules))
        kubectl(sandman.bed, "delete", "namespace", HOME, AWAY, "--wait=false")


def unsigned(claims: Mapping[str, Any]) -> str:
    return f"{encode({'alg': 'none', 'typ': 'JWT'})}.{encode(claims)}."


def doubled(one: Others) -> str:
    """A subject twice, of which two readers read one each."""
    text = json.dumps(one.claims(sub="nobody"))
    return one.signer.token(text.replace("{", '{"sub": "ci", ', 1))


def as_account(one: Others) -> str:
    """The token of an account, with a signature of one's own."""
    real = one.account(HOME, "trainer", "sandman")
    claims = base64.urlsafe_b64decode(real.split(".")[1] + "==")
    return one.stranger.token(json.loads(claims))


FORGED: dict[str, tuple[Callable[[Others], str], Said]] = {
    name: (make, Said(status, "unauthenticated" if status == 401 else "forbidden", detail))
    for name, (make, status, detail) in {
        "without a signature": (lambda o: unsigned(o.claims()), 401, ALGORITHM),
        "an HMAC with the public key": (lambda o: hs256(o.signer.pem, o.claims(), kid="k1"), 401, ALGORITHM),
        "another's signature": (lambda o: o.stranger.token(o.claims()), 401, UNSIGNED),
        "a key that it brings along": (lambda o: o.stranger.token(o.claims(), jwk=o.stranger.jwk), 401, UNSIGNED),
        "a key at its own address": (lambda o: o.stranger.token(o.claims(), jku="https://127.0.0.1/"), 401, UNSIGNED),
        "another key's id": (lambda o: o.signer.token(o.claims(), kid="k2"), 401, UNSIGNED),
        "an algorithm that is not taken": (lambda o: o.rsa.token(o.claims()), 401, f"{ISSUER} is not taken with RS256"),
        "extensions": (lambda o: o.signer.token(o.claims(), crit=["x"]), 401, f"{UNREADABLE}it asks for extensions"),
        "a claim twice": (doubled, 401, f"{UNREADABLE}it says something twice"),
        "another issuer": (
            lambda o: o.signer.token(o.claims(iss="https://x")), 401,
            "the token's issuer is not known here: see sandman-callers"),
        "another audience": (
            lambda o: o.signer.token(o.claims(aud="x")), 401,
            "the token is not for the audience that its issuer is taken with"),
        "expired": (lambda o: o.signer.token(o.claims(exp=time.time() - 60)), 401, OVER),
        "without an end": (lambda o: o.signer.token(o.claims(exp=None)), 401, OVER),
        "not yet valid": (
            lambda o: o.signer.token(o.claims(nbf=time.time() + 600)), 401,
            "the token is not valid yet, by its nbf"),
        "nobody's subject": (
            lambda o: o.signer.token(o.claims(sub="x", tenant="demo", groups=["ci"])), 403,
            "no tenant for this token: none of its issuer's rules in sandman-callers fits"),
        "an account's usual token": (
            lambda o: o.account(HOME, "trainer"), 401,
            "the ServiceAccount token has expired, or is not for the audience sandman"),
        "an account's token for another service": (
            lambda o: o.account(HOME, "trainer", "vault"), 401,
            "the ServiceAccount token has expired, or is not for the audience sandman"),
        "another account of the namespace": (
            lambda o: o.account(HOME, "stranger", "sandman"), 403,
            f"no tenant for the ServiceAccount stranger of {HOME}: see sandman-callers"),
        "an account of that name elsewhere": (
            lambda o: o.account(AWAY, "trainer", "sandman"), 403,
            f"no tenant for the ServiceAccount trainer of {AWAY}: see sandman-callers"),
        "an account's, signed by another": (
            as_account, 401, "the API server does not know this ServiceAccount token"),
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_or_foreign_token_is_nobodys(gates: Gates, others: Others, case: str) -> None:
    make, wanted = FORGED[case]
    token = make(others)
    assert {said(one) for one in gates.each("GET", LIST, token)} == {wanted}

"""`sandman keys`: API keys made, listed, rotated and revoked, by kubectl as whoever runs it, or offline."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandman import apikeys, names
from sandman.cli.group import Group
from sandman.cli.kept import Kept
from sandman.cli.spans import Memory, Span
from sandman.cli.table import show
from sandman.doctor.cluster import Cluster, ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sandman.cli.session import Session

COLUMNS = (
    "id",
    "tenant",
    "state",
    "expires_at",
    "weight",
    "concurrent",
    "eval_reserved",
    "rate",
    "cpu",
    "memory",
    "images",
    "networks",
)

namespace_option = click.option(
    "-n", "--namespace", default=names.SYSTEM_NAMESPACE, show_default=True, help="Sandman's own."
)
context_option = click.option("--context", "cluster", metavar="CONTEXT", help="As of kubectl.")
token_file_option = click.option(
    "--token-file",
    metavar="FILE",
    help="Write the token there, for its owner alone to read, and not to standard output.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
expires_option = click.option(
    "--expires", "expires_s", type=Span(), metavar="SPAN", help="It ends after 90d, 12h …"
)


@click.group(cls=Group)
def keys() -> None:
    """API keys. A key's token is shown once; the cluster keeps its hash."""


@contextmanager
def asked() -> Iterator[None]:
    """What kubectl and entries may fail with becomes a line on stderr."""
    try:
        yield
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    except (ValueError, TypeError, KeyError) as error:
        raise click.ClickException(f"{error}") from None


@keys.command()
@click.argument("key_id", metavar="ID")
@click.option("--tenant", required=True, help="Whose sandboxes it makes.")
@click.option("--weight", type=float, default=1.0, help="Share against other tenants that wait.")
@click.option("--concurrent", type=int, help="Most sandboxes of the tenant at once.")
@click.option("--eval-reserved", type=int, help="So many of these for evaluations alone.")
@click.option("--rate", type=float, help="Most sandboxes made in a second, on average.")
@click.option("--cpu", type=float, help="Most cores at once, as its pods request them.")
@click.option("--memory", type=Memory(), metavar="SIZE", help="Most memory at once, as 512Gi.")
@click.option("--images", multiple=True, metavar="PATTERN", help="Images it may use; default all.")
@click.option(
    "--networks",
    multiple=True,
    metavar="PROFILE",
    help="Egress profiles it may ask for, of those a pool lets be asked for; default all of them.",
)
@click.option("--kubernetes-user", metavar="USER", help="Whom the cluster knows its caller as.")
@click.option("--kubernetes-group", multiple=True, metavar="GROUP", help="A group of that user.")
@expires_option
@click.option(
    "--offline", is_flag=True, help="Ask no cluster: print the Secret for your repository."
)
@token_file_option
@json_option
@namespace_option
@context_option
@click.pass_obj
def new(  # noqa: PLR0913 - options
    session: Session, /, key_id: str, tenant: str, weight: float, expires_s: float | None, *,
    offline: bool, token_file: str | None, as_json: bool, namespace: str, cluster: str | None, **given: Any,  # noqa: ANN401 - options
) -> None:  # fmt: skip
    """Make a key, and print its token.

    With --offline nothing is asked of a cluster: the token goes to --token-file, and what is printed is a Secret with the
    key's hash alone, which may stand in a repository.

    Example: sandman keys new ci --tenant acme --expires 90d
    """
    if offline and token_file is None:
        raise click.UsageError("--offline needs a --token-file: what is printed is the Secret")
    with asked():
        token = apikeys.make(key_id)
        entry = _entry(token, tenant, weight, expires_s, given)
        shown = (
            {"id": key_id, "tenant": tenant, "expires_at": entry.get("expires_at")}
            if as_json
            else None
        )
        if offline:
            _hand_over(session, token, token_file)
            click.echo(json.dumps(_manifest(namespace, key_id, entry), indent=2))
            return
        kept = Kept(Cluster(cluster), namespace, names.API_KEYS_SECRET)

        def add(data: Mapping[str, bytes]) -> dict[str, bytes | None]:
            if key_id in data:
                raise ValueError(f"there is a key {key_id}: rotate or revoke it")
            return {key_id: json.dumps(entry).encode()}

        _hand_over(session, token, token_file, lambda: kept.change(add), shown=shown)
    session.say(f"{key_id}: the gateways take it within seconds")


def _entry(
    token: str, tenant: str, weight: float, expires_s: float | None, given: Mapping[str, Any]
) -> dict[str, object]:
    user, groups = given["kubernetes_user"], given["kubernetes_group"]
    if groups and user is None:
        raise ValueError("--kubernetes-group needs a --kubernetes-user")
    return apikeys.entry(
        token,
        tenant,
        weight=weight,
        limits={name: given[name] for name in apikeys.LIMITS},
        images=given["images"] or None,
        networks=given["networks"] or None,
        kubernetes=None if user is None else {"user": user, "groups": list(groups)},
        expires_at=None if expires_s is None else _now() + expires_s,
    )


def _manifest(namespace: str, key_id: str, entry: Mapping[str, object]) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.API_KEYS_SECRET, "namespace": namespace},
        "stringData": {key_id: json.dumps(entry)},
    }


def _hand_over(
    session: Session, token: str, token_file: str | None, install: Callable[[], None] = lambda: None,
    settle: Callable[[], None] = lambda: None, shown: Mapping[str, object] | None = None,
) -> None:  # fmt: skip
    """Install a key and give its token to whoever asked; one that nobody got is not installed. One that is installed
    is given to him also where he did not want to wait until it has settled: another rotation would end the one that
    he has."""
    if token_file is None:
        install()
        try:
            settle()
        finally:
            click.echo(
                token
                if shown is None
                else json.dumps({**shown, "token": token, "token_file": None})
            )
        return
    path = Path(token_file)
    # Its owner's from the first byte on, and never somebody else's file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{token}\n")
        install()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    settle()
    session.say(f"the token is in {token_file}")
    if shown is not None:
        click.echo(json.dumps({**shown, "token": None, "token_file": token_file}))


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
@namespace_option
@context_option
def list_(*, as_json: bool, namespace: str, cluster: str | None) -> None:
    """List the keys that there are, without anything secret."""
    with asked():
        data = Kept(Cluster(cluster), namespace, names.API_KEYS_SECRET).read()
    found = [_row(key_id, raw, _now()) for key_id, raw in sorted(data.items())]
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(COLUMNS, found)


def _row(key_id: str, raw: bytes, now: float) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(COLUMNS)
    row["id"] = key_id
    try:
        entry = json.loads(raw)
        row |= {name: entry.get(name) for name in COLUMNS[3:]}
        row["tenant"] = apikeys.check_tenant(entry["tenant"])
        row["state"] = _state(entry, now)
    except (ValueError, TypeError, KeyError, AttributeError):
        row["state"] = "unreadable"
    return row


def _state(entry: Mapping[str, Any], now: float) -> str:
    """`good`, `expired`, or until when the token before the last rotation is good, too."""
    expires, previous = entry.get("expires_at"), entry.get("previous")
    if expires is not None and now >= apikeys.read_moment(expires):
        return "expired"
    if previous is not None and now < apikeys.read_moment(previous["until"]):
        return f"rotating until {previous['until']}"
    apikeys.check_digest(entry["sha256"])
    return "good"


@keys.command()
@click.argument("key_id", metavar="ID")
@click.option(
    "--overlap", "overlap_s", type=Span(), default="1d", show_default=True, metavar="SPAN",
    help="So long the old token is good, too; 0s: no longer.",
)  # fmt: skip
@click.option(
    "--settle", "settle_s", type=Span(), default="5s", show_default=True, metavar="SPAN",
    help="Before it ends: so long every gateway has to hear of the new token. Not where the old one ends at once.",
)  # fmt: skip
@expires_option
@token_file_option
@json_option
@namespace_option
@context_option
@click.pass_obj
def rotate(  # noqa: PLR0913 - options
    session: Session, key_id: str, overlap_s: float, settle_s: float, expires_s: float | None, *,
    token_file: str | None, as_json: bool, namespace: str, cluster: str | None,
) -> None:  # fmt: skip
    """Give a key another token. Its tenant, limits and reservations stay, and what was made with it.

    When it is told every gateway takes it: callers may change to it at once.

    Example: sandman keys rotate ci --overlap 2h
    """
    with asked():
        token, now = apikeys.make(key_id), _now()
        kept = Kept(Cluster(cluster), namespace, names.API_KEYS_SECRET)
        ends = None if expires_s is None else now + expires_s

        def change(data: Mapping[str, bytes]) -> dict[str, bytes | None]:
            before = json.loads(_present(data, key_id))
            entry = apikeys.rotated(before, token, now + overlap_s, ends)
            return {key_id: json.dumps(entry).encode()}

        def settle() -> None:
            if overlap_s > 0:
                with session.waiting(f"{key_id} has another token; in {settle_s:g} s all know it"):
                    wait(settle_s)

        until = apikeys.moment(now + overlap_s)
        shown = {"id": key_id, "old_until": until} if as_json else None
        _hand_over(session, token, token_file, lambda: kept.change(change), settle, shown)
    session.say(f"{key_id}: the old token is good until {until}")


@keys.command()
@click.argument("key_ids", nargs=-1, required=True, metavar="ID…")
@json_option
@namespace_option
@context_option
@click.pass_obj
def revoke(
    session: Session,
    key_ids: tuple[str, ...],
    *,
    as_json: bool,
    namespace: str,
    cluster: str | None,
) -> None:
    """Take keys away: what they have open ends within seconds, and the tokens that were made for them.

    Their sandboxes live on until their lease is over; another key of the tenant can release them.
    """
    with asked():
        kept = Kept(Cluster(cluster), namespace, names.API_KEYS_SECRET)

        def take(data: Mapping[str, bytes]) -> dict[str, bytes | None]:
            for key_id in key_ids:
                _present(data, key_id)
            return dict.fromkeys(key_ids)

        kept.change(take)
    session.say(f"revoked: {', '.join(key_ids)}")
    if as_json:
        click.echo(json.dumps({"revoked": list(key_ids)}))


def _present(data: Mapping[str, bytes], key_id: str) -> bytes:
    if key_id not in data:
        raise ValueError(f"no key {key_id}; there are: {', '.join(sorted(data)) or 'none'}")
    return data[key_id]


def _now() -> float:
    """Seconds since the epoch, as this machine has it."""
    return time.time()


def wait(seconds: float) -> None:
    """Let the gateways hear of what was written."""
    time.sleep(seconds)

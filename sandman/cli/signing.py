"""`sandman signing-keys`: the keys behind daemons' and sandboxes' tokens, changed while both live on."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from typing import TYPE_CHECKING

import click

from sandman import apikeys, names, signing
from sandman.cli.group import Group
from sandman.cli.kept import Kept
from sandman.cli.keys import asked, context_option, json_option, namespace_option, wait
from sandman.cli.spans import Span
from sandman.cli.table import show
from sandman.doctor.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandman.cli.session import Session

COLUMNS = ("id", "state", "pods", "retired_at")
_PODS = (
    'jsonpath={range .items[*]}{.metadata.annotations.sandman\\.dev/key-id}{"\\t"}'
    '{.metadata.creationTimestamp}{"\\n"}{end}'
)


@dataclasses.dataclass(frozen=True)
class _Ring:
    cluster: Cluster
    kept: Kept

    @classmethod
    def of(cls, context: str | None, namespace: str) -> _Ring:
        cluster = Cluster(context)
        return cls(cluster, Kept(cluster, namespace, names.KEYS_SECRET))

    def pods(self) -> list[signing.Pod]:
        """Every pod with a daemon, of pools and workloads, in the whole cluster.

        Raises:
            ClusterError: whoever asks may not list pods everywhere: then no key can be known to be unused.
        """
        told = self.cluster.run("get", "pods", "-A", "-l", names.LABEL_INJECT, "-o", _PODS)
        found = []
        for line in told.splitlines():
            key_id, _, created = line.partition("\t")
            if key_id:
                found.append(signing.Pod(key_id, apikeys.read_moment(created)))
        return found

    def read(self) -> list[signing.Key]:
        """The keys of now. Pods are asked for last: who is made meanwhile counts."""
        data = self.kept.read()
        return signing.read(data, self.pods())


@click.group("signing-keys", cls=Group)
def signing_keys() -> None:
    """Keys that sign the tokens of daemons and sandboxes. Two or more are good at a time."""


@signing_keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
@namespace_option
@context_option
def list_(*, as_json: bool, namespace: str, cluster: str | None) -> None:
    """List them, and how many pods each is still needed for."""
    with asked():
        found = [_row(one) for one in _Ring.of(cluster, namespace).read()]
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(COLUMNS, found)


def _row(key: signing.Key) -> dict[str, object]:
    retired = None if key.retired_at is None else apikeys.moment(key.retired_at)
    pods = max(key.pods, key.older)
    return {"id": key.key_id, "state": _state(key), "pods": pods, "retired_at": retired}


def _state(key: signing.Key) -> str:
    if not key.is_whole:
        return "broken"
    if key.is_current:
        return "current"
    if key.retired_at is None:
        return "not in use"
    return "unused" if key.may_go else "needed"


@signing_keys.command()
@click.option("--id", "key_id", metavar="ID", help="Of the new key; made of the time without it.")
@click.option(
    "--settle", "settle_s", type=Span(), default="15s", show_default=True, metavar="SPAN",
    help="Between the two writes: so long every gateway has to read the new key.",
)  # fmt: skip
@json_option
@namespace_option
@context_option
@click.pass_obj
def rotate(
    session: Session,
    key_id: str | None,
    settle_s: float,
    *,
    as_json: bool,
    namespace: str,
    cluster: str | None,
) -> None:
    """Make a new key and then use it. The old ones stay: `prune` takes away what nothing alive can need.

    A call that was cut short is made again with --id and the id that it named.
    """
    made = key_id or f"k{_now():.0f}"
    drawn = secrets.token_bytes(signing.KEY_BYTES), secrets.token_bytes(signing.KEY_BYTES)
    with asked():
        kept = _Ring.of(cluster, namespace).kept

        def add(data: Mapping[str, bytes]) -> dict[str, bytes | None]:
            is_there = all(f"{kind}{made}" in data for kind in signing.KINDS)
            return {} if is_there else signing.added(data, made, drawn)

        kept.change(add)
        with session.waiting(f"{made} is written; in {settle_s:g} s it is used"):
            wait(settle_s)
        kept.change(lambda data: signing.switched(data, made, _now()))
    session.say(
        f"{made} is current; pods of before keep theirs, so leave the old key until `prune` takes it"
    )
    if as_json:
        click.echo(json.dumps({"current": made}))


@signing_keys.command()
@click.option("--dry-run", is_flag=True, help="Say it and do nothing.")
@json_option
@namespace_option
@context_option
@click.pass_obj
def prune(
    session: Session, *, dry_run: bool, as_json: bool, namespace: str, cluster: str | None
) -> None:
    """Take away the keys that no pod needs any more.

    Free placeholders of before a rotation hold a key for as long as nobody claims them: `kubectl rollout restart` of the
    pools replaces them. Workloads hold it until their pods are made anew.
    """
    with asked():
        ring = _Ring.of(cluster, namespace)

        def take(data: Mapping[str, bytes]) -> dict[str, bytes | None]:
            return signing.pruned(signing.read(data, ring.pods()), _now())

        gone = sorted(one.key_id for one in ring.read() if one.may_go)
        if not dry_run:
            ring.kept.change(take)
    would = "would go" if dry_run else "gone"
    session.say(f"{would}: {', '.join(gone) or 'none'}")
    if as_json:
        click.echo(json.dumps({"gone": gone, "dry_run": dry_run}))


def _now() -> float:
    """Seconds since the epoch, as this machine has it."""
    return time.time()

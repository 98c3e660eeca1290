"""`sandman doctor`: is this installation sound, hop by hop, and what to do where it is not."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

import click

from sandman.doctor import admission, installed, kubelets, rights, trial
from sandman.doctor.cluster import Cluster, ClusterError
from sandman.doctor.findings import Finding, Level, failure, skipped
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandman.cli.session import Session

CHECKS: tuple[tuple[str, Callable[[Cluster], Iterator[Finding]]], ...] = (
    ("API server", installed.server),
    ("programs", installed.programs),
    ("webhook", installed.configuration),
    ("certificate", installed.certificate),
    ("injection", admission.injection),
    ("delivery", admission.delivery),
    ("nodes", admission.architectures),
    ("processes", kubelets.processes),
    ("rights", rights.accounts),
    ("workloads", rights.workloads),
    ("quota", rights.quotas),
)


@click.command()
@click.option("--context", "context", metavar="CONTEXT", help="As of kubectl.")
@click.option(
    "--trial",
    "is_trial",
    is_flag=True,
    help="Also make a pod and a sandbox: delivery on a node, gateway to pod, network policies.",
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
@click.pass_obj
def doctor(session: Session, context: str | None, *, is_trial: bool, as_json: bool) -> None:
    """Check an installation with your kubectl, hop by hop, and say what to do; exit code 1 when something fails."""
    cluster = Cluster(context)
    found = []
    for finding in _all(session, cluster, is_trial=is_trial):
        found.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in found]))
    sys.exit(1 if any(one.level is Level.FAILURE for one in found) else 0)


def _all(session: Session, cluster: Cluster, *, is_trial: bool) -> Iterator[Finding]:
    for hop, check in CHECKS:
        is_there = True
        for finding in _asked(hop, lambda check=check: check(cluster)):  # type: ignore[misc]
            yield finding
            is_unreached = hop == "API server" and finding.level is Level.FAILURE
            is_there = is_there and not is_unreached and finding.text != installed.ABSENT
        if not is_there:
            return
    if is_trial:
        yield from _asked("delivery", lambda: trial.delivered(cluster, time.sleep))
        yield from _asked("gateway → pod", lambda: _reached(session, cluster))


def _reached(session: Session, cluster: Cluster) -> Iterator[Finding]:
    with session.client() as client:
        yield from trial.reached(client, cluster)


def _asked(hop: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except ClusterError as error:
        yield failure(hop, f"cannot be asked: {error}", "is it installed, and may you look at it?")
    except (KeyError, TypeError, ValueError) as error:
        yield failure(hop, f"an answer makes no sense: {error!r}", "is that a Kubernetes?")
    except SandmanError as error:
        yield skipped(
            hop, f"the gateway was not asked: {error.detail}", "set SANDMAN_URL and SANDMAN_TOKEN"
        )


def _show(finding: Finding) -> None:
    click.echo(f"{finding.level:<8} {finding.hop}: {finding.text}")
    if finding.advice:
        click.echo(f"{'':<8} → {finding.advice}")

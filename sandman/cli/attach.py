"""`sandman attach` and `sandman workloads`: users' own pods, through the gateway."""

from __future__ import annotations

import dataclasses
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sandman.cli.table import show
from sandman.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.cli.session import Session

COLUMNS = ("namespace", "pod", "container", "image", "node", "attached")


def _selector(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and equals for name, equals, _ in pairs):
        raise click.BadParameter(
            f"{text!r} is not of the form name=value,…", param_hint="--selector"
        )
    return {name: value for name, _, value in pairs}


@click.command()
@click.argument("pod", required=False)
@click.option("-n", "--namespace", required=True, metavar="NAMESPACE", help="Of the pod.")
@click.option("-l", "--selector", metavar="NAME=VALUE,…", help="Any free pod with these labels.")
@click.option("-c", "--container", metavar="CONTAINER", help="The first that is free, without it.")
@click.option("--run", "run_name", metavar="RUN", help="Name of the run that it belongs to.")
@click.option(
    "--max-life",
    "max_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Longest time to stay attached.",
)
@click.option("--json", "as_json", is_flag=True, help="All that is known of it, as a JSON object.")
@click.pass_obj
def attach(  # noqa: PLR0913 - options
    session: Session,
    pod: str | None,
    namespace: str,
    selector: str | None,
    container: str | None,
    run_name: str | None,
    max_s: float | None,
    *,
    as_json: bool,
) -> None:
    """Attach to a labelled workload and print its id, for exec, shell and cp; release leaves it as it is.

    Example: sandman exec $(sandman attach -n shop web-0) -- ps
    """
    if (pod is None) == (selector is None):
        raise click.UsageError("give either a POD or --selector")
    labels = None if selector is None else _selector(selector)
    with session.client() as client, _knowing(session):
        box = client.attach_workload(
            namespace, pod, selector=labels, container=container, run=run_name, max_s=max_s,
            # It outlives this command.
            heartbeat=False,
        )  # fmt: skip
    click.echo(json.dumps(dataclasses.asdict(box.info)) if as_json else box.id)


@contextmanager
def _knowing(session: Session) -> Iterator[None]:
    """What is not found here is no sandbox: other advice."""
    try:
        yield
    except NotFoundError:
        session.advice = "sandman workloads shows what there is to attach to"
        raise


@click.command()
@click.option("-n", "--namespace", metavar="NAMESPACE", help="Only those of this one.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
@click.pass_obj
def workloads(session: Session, namespace: str | None, *, as_json: bool) -> None:
    """List the workloads that you may attach to."""
    with session.client() as client:
        found = client.workloads(namespace)
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(COLUMNS, found)

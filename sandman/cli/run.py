"""`sandman run`: a sandbox for one command."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from sandman.cli.command import (
    VERB_SETTINGS,
    carry_out,
    command_options,
    exec_options,
    uid_or_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.cli.session import Session
    from sandman.sync import Client, Resources, Sandbox, SandboxOptions


@click.command(context_settings=VERB_SETTINGS)
@click.option("--image", metavar="IMAGE", help="Task image; without it the pool's own.")
@click.option("--pool", metavar="POOL", help="Pool to take it from; without it one is chosen.")
@click.option("--cpu", metavar="QUANTITY", help="Most processors it may use: 2, 500m.")
@click.option("--memory", metavar="QUANTITY", help="Most memory it may use: 4Gi, 512Mi.")
@click.option("--node-class", metavar="CLASS", help="Class of the node that it must be on.")
@click.option("--network", metavar="PROFILE", help="Egress profile; without it the pool's own.")
@click.option(
    "--network-wait",
    is_flag=True,
    help="Begin when a probe has shown that the profile is in force.",
)
@click.option(
    "--avoid-node", "avoid_nodes", multiple=True, metavar="NODE", help="Not on this node."
)
@click.option("--run", "run_name", metavar="RUN", help="Name of the run that it belongs to.")
@click.option(
    "--eval",
    "is_eval",
    is_flag=True,
    help="For an evaluation: under its conditions, and before your rollouts.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time to wait for the sandbox.",
)
@click.option(
    "--max-life",
    "max_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Longest time that the sandbox may live.",
)
@click.option(
    "--keep", is_flag=True, help="Do not release the sandbox at the end; its id is printed."
)
@command_options
@click.pass_obj
def run(session: Session, /, command: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - click's values
    """Run COMMAND in a new sandbox; its output and exit code become this program's.

    Example: sandman run --image python:3.12 -- python -c 'print(6 * 7)'
    """
    with session.client() as client, _sandbox(session, client, given) as box:
        options = exec_options(given)
        hint = (
            ""
            if given["image"]
            else f"{box.info.image} is the pool's own image: --image names another"
        )
        code = carry_out(session, box, command, options, as_json=given["as_json"], hint=hint)
    sys.exit(code)


@contextmanager
def _sandbox(session: Session, client: Client, given: dict[str, Any]) -> Iterator[Sandbox]:
    options = _options(given)
    with ExitStack() as stack:
        with session.waiting(f"waiting for a sandbox in {options.get('image') or 'the pool'}"):
            if given["keep"]:
                # It outlives this process.
                options["heartbeat"] = False
                box = client.create(**options)
            else:
                box = stack.enter_context(client.sandbox(**options))
        session.say(f"{box.id} ({box.info.tier}, {box.info.timings.get('ready_ms', 0):.0f} ms)")
        shared = [what for what, how in box.info.isolation.items() if how.startswith("shared")]
        if shared:
            session.say(f"local mode: shares with this machine its {', '.join(shared)}")
        try:
            yield box
        except KeyboardInterrupt:
            if not given["keep"]:
                session.say("releasing the sandbox (interrupt again to leave it to its lease)")
            raise
        finally:
            if given["keep"]:
                click.echo(f"sandman: kept: {box.id} (sandman release {box.id})", err=True)


def _options(given: dict[str, Any]) -> SandboxOptions:
    options: SandboxOptions = {
        "image": given["image"],
        "pool": given["pool"],
        "env": given["env"],
        "workdir": given["workdir"],
        "user": uid_or_name(given["user"]),
        "resources": _resources(given),
        "node_class": given["node_class"],
        "network": given["network"],
        "run": given["run_name"],
        "max_s": given["max_s"],
        "wait_s": given["wait_s"],
    }
    if given["network_wait"]:
        options["network_wait"] = True
    if given["avoid_nodes"]:
        options["avoid_nodes"] = list(given["avoid_nodes"])
    if given["is_eval"]:
        options["purpose"] = "eval"
    return options


def _resources(given: dict[str, Any]) -> Resources | None:
    resources: Resources = {}
    if given["cpu"] is not None:
        resources["cpu"] = given["cpu"]
    if given["memory"] is not None:
        resources["memory"] = given["memory"]
    return resources or None

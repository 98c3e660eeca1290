"""`sandman eval`: a task list in SWE-bench's row format, each task in a fresh sandbox."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from sandman.cli.command import uid_or_name
from sandman.cli.guard import EXIT_SANDMAN
from sandman.evaluation.faults import OWN_RETRIES, RETRIES
from sandman.evaluation.inputs import TaskListError
from sandman.evaluation.options import CONCURRENCY, TIMEOUT_S, WAIT_S, WORKDIR, EvaluationOptions

if TYPE_CHECKING:
    from sandman._async.creation import SandboxOptions
    from sandman.cli.session import Session
    from sandman.client import EvaluationProgress, EvaluationReport

RETRY_S = 60.0
"""A gateway that rolls over costs no evaluation."""

_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command("eval")
@click.option(
    "--rows",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The tasks: JSON, or JSON lines (.jsonl).",
)
@click.option(
    "--predictions",
    required=True,
    metavar="FILE|gold|none",
    help="The patches; gold: the rows' own; none: a control without any.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Journal, logs and report; with one that is there already the run goes on.",
)
@click.option(
    "-n",
    "--concurrency",
    type=click.IntRange(1),
    default=CONCURRENCY,
    show_default=True,
    metavar="N",
    help="Evaluations at once.",
)
@click.option(
    "--times",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="K",
    help="Evaluate each patch so often, and report flips.",
)
@click.option(
    "--timeout",
    type=_POSITIVE,
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Of a task's script.",
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=RETRIES,
    show_default=True,
    metavar="N",
    help="Further attempts after faults of the infrastructure.",
)
@click.option(
    "--own-retries",
    type=click.IntRange(0),
    default=OWN_RETRIES,
    show_default=True,
    metavar="N",
    help="After faults that the sandbox may have brought about itself.",
)
@click.option(
    "--scrub-git", is_flag=True, help="Take what comes after HEAD out of the git history."
)
@click.option(
    "--grader",
    type=click.Choice(["auto", "own", "swebench"]),
    default="auto",
    show_default=True,
    help="Who judges; auto: the package swebench, where it is installed.",
)
@click.option(
    "--swebench-python", metavar="FILE", help="The Python that has it, where it is another."
)
@click.option(
    "-w",
    "--workdir",
    default=WORKDIR,
    show_default=True,
    metavar="DIR",
    help="The repository in the images.",
)
@click.option("-u", "--user", metavar="USER", help="Name or uid to run as.")
@click.option("--pool", metavar="POOL", help="Pool to take sandboxes from.")
@click.option("--cpu", metavar="QUANTITY", help="Most processors that each may use: 2, 500m.")
@click.option("--memory", metavar="QUANTITY", help="Most memory that each may use: 4Gi, 512Mi.")
@click.option("--node-class", metavar="CLASS", help="Class of their nodes.")
@click.option("--network", metavar="PROFILE", help="Egress profile; without it the pool's own.")
@click.option("--run", "run_name", metavar="RUN", help="Name of the run that they belong to.")
@click.option(
    "--wait",
    "wait_s",
    type=_POSITIVE,
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="Longest time to wait for a sandbox.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_obj
def evaluate(session: Session, /, **given: Any) -> None:  # noqa: ANN401 - click's values
    """Evaluate patches on the tasks of a list, by SWE-bench's own flow.

    Example: sandman eval --rows verified.jsonl --predictions gold --out calibration --times 10
    """  # fmt: skip
    try:
        report = anyio.run(partial(_evaluate, session, given))
    except TaskListError as error:
        raise click.UsageError(str(error)) from None
    click.echo(json.dumps(report.to_json()) if given["as_json"] else report.text().rstrip("\n"))
    if not report.is_whole:
        sys.exit(EXIT_SANDMAN)


async def _evaluate(session: Session, given: dict[str, Any]) -> EvaluationReport:
    options = EvaluationOptions(
        concurrency=given["concurrency"],
        times=given["times"],
        timeout_s=given["timeout"],
        retries=given["retries"],
        own_retries=given["own_retries"],
        scrub_git=given["scrub_git"],
        grader=given["grader"],
        swebench_python=given["swebench_python"],
        workdir=given["workdir"],
        sandbox=_sandbox(given),
        on_progress=partial(_tell, session),
    )
    async with session.async_client(RETRY_S) as client:
        return await client.evaluate(given["rows"], given["predictions"], given["out"], **options)


def _sandbox(given: dict[str, Any]) -> SandboxOptions:
    options: SandboxOptions = {"wait_s": given["wait_s"]}
    if given["user"] is not None:
        options["user"] = uid_or_name(given["user"])
    resources = {name: given[name] for name in ("cpu", "memory") if given[name] is not None}
    wanted = {
        "pool": given["pool"],
        "node_class": given["node_class"],
        "network": given["network"],
        "run": given["run_name"],
        "resources": resources or None,
    }
    options.update({name: one for name, one in wanted.items() if one is not None})  # type: ignore[typeddict-item]
    return options


def _tell(session: Session, progress: EvaluationProgress) -> None:
    """A line for each evaluation, with how far all have come."""
    if progress.record is None:
        if progress.resumed:
            session.say(f"{progress.resumed} of {progress.total} are done already")
        return
    one = progress.record
    word = one.outcome if one.reason is None else f"{one.outcome}: {one.reason}"
    retried = f" after {len(one.attempts)} more" if one.attempts else ""
    session.say(f"[{progress.done}/{progress.total}] {one.key.instance_id} {word}{retried}")

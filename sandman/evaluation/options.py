"""How a list is evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from sandman._core import prepare
from sandman.evaluation.faults import OWN_RETRIES, RETRIES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sandman._async.creation import SandboxOptions
    from sandman._async.sandbox import Sandbox
    from sandman.evaluation.parsers import Parser
    from sandman.evaluation.records import EvaluationProgress
    from sandman.evaluation.rows import TaskRow

CONCURRENCY = 8
TIMEOUT_S = 1800.0
"""Of the script: SWE-bench's own."""
WAIT_S = 600.0
"""For a sandbox, where the run's options name no other time: an evaluation is worth waiting for."""
WORKDIR = "/testbed"
LOG_LIMIT = 64 * 1024 * 1024
"""Bytes of log: the largest of SWE-bench's are some ten MB, and grading reads one into memory."""
OVERHEAD_S = 1800.0
"""Seconds that a sandbox lives beyond the script's: for the patch, the history, the verifier."""

GraderName = Literal["auto", "own", "swebench"]


class EvaluationOptions(TypedDict, total=False):
    """How a list is evaluated; every option may be left out.

    `concurrency`: evaluations at once (8). `times`: how often each prediction is evaluated (1); more than once it is a calibration,
    whose report has the flips. `timeout_s`: of a row's script, in seconds (1800). `retries`: further attempts, each in another sandbox,
    after faults of the infrastructure (3); `own_retries`: after those that the sandbox may have brought about itself (1).
    `scrub_git`: take the repository's future out of its history before the patch is applied. `workdir`: the repository ("/testbed").
    `grader`: "swebench", "own", or "auto": the package where it is installed. `swebench_python`: the Python that has it, where it is
    not this one. `parsers`: further log parsers by name, from a text
    to the status (PASSED, FAILED, …) of each test. `log_limit`: bytes of log (64 MiB). `sandbox`: options of the sandboxes.
    `setup`: awaited with each sandbox and its row before anything else is done there, for what an image lacks. `on_progress`: called
    after each evaluation.
    """

    concurrency: int
    times: int
    timeout_s: float
    retries: int
    own_retries: int
    scrub_git: bool
    workdir: str
    grader: Literal["auto", "own", "swebench"]
    swebench_python: str | None
    parsers: Mapping[str, Callable[[str], Mapping[str, str]]]
    log_limit: int
    sandbox: SandboxOptions
    setup: Callable[[Sandbox, TaskRow], Awaitable[None]]
    on_progress: Callable[[EvaluationProgress], None]


AVOID_MAX = 16
"""Nodes that a gateway takes in one request; the last ones are the news."""

INDIFFERENT = frozenset(
    {"wait_s", "run", "labels", "avoid_nodes", "ttl_s", "idle_s", "max_s", "heartbeat", "owner", "image"}
)  # fmt: skip
"""Options of sandboxes that decide when and where there is one, and not what is in it; the image is each row's."""


def _plain(value: object) -> object:
    """What JSON has no form for, as what it has one for."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Iterable) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options, checked, with what they are by default."""

    concurrency: int = CONCURRENCY
    times: int = 1
    timeout_s: float = TIMEOUT_S
    retries: int = RETRIES
    own_retries: int = OWN_RETRIES
    scrub_git: bool = False
    workdir: str = WORKDIR
    grader: GraderName = "auto"
    swebench_python: str | None = None
    parsers: Mapping[str, Parser] | None = None
    log_limit: int = LOG_LIMIT
    sandbox: SandboxOptions | None = None
    setup: Callable[[Sandbox, TaskRow], Awaitable[None]] | None = None
    on_progress: Callable[[EvaluationProgress], None] | None = None

    @classmethod
    def of(cls, options: EvaluationOptions) -> Plan:
        """Check them.

        Raises:
            TypeError: there is no such option.
            ValueError: one is out of its range.
        """
        if unknown := options.keys() - EvaluationOptions.__annotations__.keys():
            raise TypeError(f"unknown option {min(unknown)!r}: see EvaluationOptions")
        plan = cls(**options)
        least = {"concurrency": 1, "times": 1, "retries": 0, "own_retries": 0, "log_limit": 1}
        for name, most in least.items():
            if getattr(plan, name) < most:
                raise ValueError(f"{name} must be at least {most}")
        if plan.timeout_s <= 0:
            raise ValueError("timeout_s must be more than 0")
        if plan.sandbox is not None and plan.sandbox.get("idempotency_key") is not None:
            raise ValueError("sandbox: an idempotency_key would give all evaluations one sandbox")
        return plan

    def identity(self) -> list[object]:
        """What of it decides a verdict: after a change, an evaluation of before does not count."""
        flow = [self.timeout_s, self.scrub_git, self.workdir, self.log_limit]
        judge = [self.grader, self.swebench_python, sorted(self.parsers or {})]
        box: dict[str, object] = {
            name: value
            for name, value in (self.sandbox or {}).items()
            if name not in INDIFFERENT and value is not None
        }
        if self.sandbox is not None and (steps := self.sandbox.get("prepare")) is not None:
            box["prepare"] = prepare.to_json(steps)
        return [*flow, *judge, json.dumps(box, sort_keys=True, default=_plain)]

    def sandbox_options(self, image: str, avoid: Sequence[str] = ()) -> SandboxOptions:
        """Those of one evaluation's sandbox: fresh, of the row's image, for as long as the script may take."""
        wanted: SandboxOptions = {
            "purpose": "eval",
            "wait_s": WAIT_S,
            "max_s": self.timeout_s + OVERHEAD_S,
        }
        given: SandboxOptions = {**wanted, **(self.sandbox or {}), "image": image}
        nodes = list(dict.fromkeys([*given.get("avoid_nodes", ()), *avoid]))
        return {**given, "avoid_nodes": nodes[-AVOID_MAX:]} if nodes else given

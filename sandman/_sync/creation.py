# Written by scripts/unasync.py from sandman/_async/creation.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""What is asked for: the call that makes sandboxes, and the stream that brings several."""

from __future__ import annotations

import json
import random
import uuid
from typing import TYPE_CHECKING, Literal, Self, TypedDict

from sandman import names, problems
from sandman._core import blocking as anyio
from sandman._core import faults, prepare
from sandman._core.config import STREAM_SILENCE_S
from sandman._core.heart import DEFAULT_TTL_S
from sandman._core.retry import Patience, Repeat, Retry
from sandman._core.values import parse_info
from sandman._sync.lanes import CLOSE_LIMIT_S
from sandman._sync.sandbox import Sandbox
from sandman._sync.transport import Call
from sandman.errors import BadRequestError, CapacityError, SandmanError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandman._core.prepare import Step
    from sandman._core.values import Resources
    from sandman._sync.transport import Answer, Transport

DEFAULT_WAIT_S = 60.0
SPANS: tuple[Literal["ttl_s", "idle_s", "max_s"], ...] = ("ttl_s", "idle_s", "max_s")
NOT_SENT = {*SPANS, "heartbeat", "owner", "idempotency_key"}
"""Options that are no fields of the call's body, or not as they are."""


class SandboxOptions(TypedDict, total=False):
    """What sandbox is wanted; every option may be left out.

    `image`: task image; without it the pool's own. `pool`: name of a pool; without it one is chosen.
    `resources`: the most cpu and memory that it may use, as Kubernetes quantities. `node_class`: class of
    its node. `env`, `workdir`, `user`: for every command. `run`: name of the run, which can be listed and
    released as a whole.
    `labels`: yours, returned as given. `purpose`: "train", or "eval", which comes before the tenant's
    "train" requests that wait and runs under fixed conditions (docs/evaluation.md). `prepare`: steps that are done in it before you get it, each one of
    `{"exec": {…}}`, `{"file": {"path", "content", "mode", "user"}}`, `{"archive": {"path", "tar", "user"}}`.

    `ttl_s`: how many seconds it outlives this process (300): the client sends heartbeats while it lives, for all
    sandboxes of a run at once; those without a `run` share one of this client's. `heartbeat` False: it does not,
    and the sandbox lives for `max_s`, or with `ttl_s` as long as calls or `renew` come. `idle_s`: the most seconds
    without a call or a running command. `max_s`: the most seconds it may live (4 hours). All count from ready.
    `owner`: name of a Job in the sandboxes' namespace, with which it goes. `network`: egress profile, of those that
    the pool allows; without it the pool's own. `network_wait`: you get it only when a probe has shown that its
    profile is in force; an evaluation is, unless this is False. `avoid_nodes`: names of nodes that it must not be on
    (16 at most), while there are others that take pods.

    `wait_s`: the most seconds to wait for it, retries included (60). `idempotency_key`: calls with
    one key get one sandbox; one is made for each call that has none.
    """

    image: str | None
    pool: str | None
    resources: Resources | None
    node_class: str | None
    env: Mapping[str, str]
    workdir: str | None
    user: str | int | None
    run: str | None
    labels: Mapping[str, str]
    purpose: Literal["train", "eval"]
    prepare: Sequence[Step]
    ttl_s: float | None
    idle_s: float | None
    max_s: float | None
    heartbeat: bool
    owner: str | None
    network: str | None
    network_wait: bool
    avoid_nodes: Sequence[str]
    wait_s: float
    idempotency_key: str | None


class Creation:
    """What is wanted, under one key.

    Args:
        options: of the caller.
        key: stands for it, however often it is asked for.
        run: theirs, where the caller gave none.
        count: how many are wanted, in a stream; None: one by itself.
        gang: all of them or none.
    """

    def __init__(
        self,
        options: SandboxOptions,
        key: str,
        run: str,
        *,
        count: int | None = None,
        gang: bool = False,
    ) -> None:
        if unknown := options.keys() - SandboxOptions.__annotations__.keys():
            raise TypeError(f"unknown option {min(unknown)!r}: see SandboxOptions")
        self.key = key
        self.is_own_key = options.get("idempotency_key") is not None
        self.wait_s = options.get("wait_s", DEFAULT_WAIT_S)
        self.count = count
        self.heartbeat = options.get("heartbeat", True)
        self.run = options.get("run") or run
        self.ttl_s = options.get("ttl_s") or DEFAULT_TTL_S
        self._body: dict[str, object] = {
            name: value
            for name, value in options.items()
            if value is not None and name not in NOT_SENT
        }
        if (steps := options.get("prepare")) is not None:
            self._body["prepare"] = prepare.to_json(steps)
        lease: dict[str, object] = {
            name: options[name] for name in SPANS if options.get(name) is not None
        }
        if self.heartbeat:
            self._body["run"] = self.run
            lease |= {"ttl_s": self.ttl_s, "run": True}
        if lease:
            self._body["lease"] = lease
        if (owner := options.get("owner")) is not None:
            self._body["owner"] = {"kind": "Job", "name": owner}
        if count is not None:
            self._body |= {"count": count, "gang": gang}
        self._calls: list[Call] = []

    @property
    def sent(self) -> bool:
        """Whether a byte of any call may have left."""
        return any(call.sent for call in self._calls)

    def call(self, wait_s: float, patience_s: float, silence_s: float) -> Call:
        """The call. Its attempts have the same bytes.

        Args:
            wait_s: what the gateway is to wait.
            patience_s: for how long it is repeated.
            silence_s: how long the answer may be silent beyond `wait_s`.
        """
        call = Call.with_json("POST", "/v1/sandboxes", {**self._body, "wait_s": wait_s})
        call.headers = {**call.headers, names.HEADER_IDEMPOTENCY_KEY: self.key}
        call.silence_s = wait_s + silence_s
        call.patience_s = patience_s
        self._calls = [call] if not self.sent else [self._calls[0], call]
        return call


def is_queued(answer: object) -> bool:
    """Whether an answer says where a request stands, and is no sandbox."""
    return isinstance(answer, dict) and "request" in answer and "id" not in answer


def queued(answer: object, wait_s: float) -> SandmanError:
    """The error for a request that was not served in time: why its last try failed, if that is why."""
    told = answer if isinstance(answer, dict) else {}
    place, later = told.get("place"), problems.seconds(told.get("retry_after"))
    if isinstance(trouble := told.get("trouble"), dict):
        error = problems.from_problem(trouble)
        error.detail += f" (tried again, not served within wait_s={wait_s:g})"
        error.facts["request"] = told.get("request")
        error.retry_after = error.retry_after or later
        return error
    doing = "starting"
    if told.get("state") == "waiting":
        doing = f"number {place or 'more than 1000'} in the queue"
    return CapacityError(
        f"no sandbox yet within wait_s={wait_s:g} (it is {doing})",
        retry_after=later,
        facts={"place": place, "state": told.get("state"), "request": told.get("request")},
    )


class Batch:
    """Several sandboxes of one call: iterate, each comes when it is ready.

    A stream that breaks is asked for again with its key, and goes on where it was. When all is told and
    some could not be had, the iteration ends with the error of the first of them; `errors` has them all.
    Made by `Client.sandboxes`.
    """

    def __init__(self, transport: Transport, creation: Creation) -> None:
        self.creation = creation
        self.errors: list[SandmanError] = []
        """Why some could not be had; `facts["index"]` tells which."""
        self.progress: Mapping[str, int] = {}
        """What the gateway last said: how many are `ready`, `failed` and `waiting`."""
        self._transport = transport
        self._answer: Answer | None = None
        self._rest = b""
        self._seen: set[int] = set()
        self._is_over = self._is_raised = False
        self._is_whole = True
        self._until: float | None = None
        self._patience = Patience(Repeat.SAFE, 0.0)

    def __repr__(self) -> str:
        return f"<Batch {len(self._seen)} of {self.creation.count} told, {len(self.errors)} failed>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sandbox:
        while not self._is_over:
            line = self._line()
            box = None if line is None else self._take(line)
            if box is not None:
                return box
        self.close()
        if self.errors and not self._is_raised:
            self._is_raised = True
            raise self.errors[0]
        raise StopIteration

    def close(self) -> None:
        """Close the stream, wherever it is. The sandboxes stay."""
        answer, self._answer = self._answer, None
        self._is_over = True
        if answer is not None:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                self._transport.end(answer, whole=self._is_whole)

    def _line(self) -> dict[str, object] | None:
        """The next line; None when the stream broke and is to be asked for again."""
        try:
            if self._answer is None:
                self._answer = self._transport.begin(self._call())
            return self._read(self._answer)
        except UnreachableError as error:
            if self._answer is None:
                raise
            broken, self._answer, self._rest = self._answer, None, b""
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                self._transport.end(broken)
            self._pause(error)
            return None
        except BaseException as error:
            self._is_whole = isinstance(error, Exception)
            raise

    def _call(self) -> Call:
        now, left_s = anyio.current_time(), self.creation.wait_s
        if self._until is None:
            self._until = now + left_s
            self._patience = Patience(Repeat.SAFE, self._until)
        else:
            left_s = max(0.0, self._until - now)
        call = self.creation.call(left_s, left_s, 0.0)
        call.silence_s = STREAM_SILENCE_S
        return call

    def _pause(self, error: SandmanError) -> None:
        pause = self._patience.pause(
            error,
            sent=True,
            now=anyio.current_time(),
            dice=random.random(),  # noqa: S311 - spreads callers, guards nothing
        )
        if pause is None:
            raise error
        self._transport.tell(Retry("POST /v1/sandboxes", error, self._patience.attempt, pause))
        anyio.sleep(pause)

    def _read(self, answer: Answer) -> dict[str, object]:
        while b"\n" not in self._rest:
            part = next(answer.chunks, None)
            if part is None:
                raise UnreachableError("the stream of sandboxes broke off")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\n")
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise faults.not_understood("a line of a stream", text)
        return line

    def _take(self, line: dict[str, object]) -> Sandbox | None:
        """What a line says; the sandbox that it brings, unless that was told before."""
        if "summary" in line:
            self._is_over = True
        if isinstance(counts := line.get("summary") or line.get("progress"), dict):
            self.progress = counts
        index = line.get("index")
        if not isinstance(index, int) or index in self._seen:
            return None
        self._seen.add(index)
        if "sandbox" in line:
            return Sandbox(self._transport, parse_info(line["sandbox"]))
        error = _problem(line) or queued(line.get("waiting"), self.creation.wait_s)
        error.facts["index"] = index
        self.errors.append(error)
        return None


def _problem(line: Mapping[str, object]) -> SandmanError | None:
    document = line.get("error")
    return problems.from_problem(document, 500) if isinstance(document, dict) else None


def check_key(key: str) -> None:
    """A key travels as a header: what cannot be one is told before anything is sent."""
    if not (0 < len(key) <= 200 and key.isascii() and key.isprintable() and key == key.strip()):
        raise BadRequestError(
            "idempotency_key must be 1 to 200 printable ASCII characters", field="idempotency_key"
        )


def key_of(options: SandboxOptions) -> tuple[str, bool]:
    """The key of a creation, and whether it is the caller's own."""
    key = options.get("idempotency_key")
    if key is not None:
        check_key(key)
    return key or uuid.uuid4().hex, key is not None


def items_of(answer: object, name: str) -> list[Mapping[str, object]]:
    items = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise faults.not_understood(f"a list of {name}", answer)
    return items

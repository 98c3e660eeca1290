"""A caller as the client is one: keys for what must not happen twice, waits where it is told to, tries again.

What a call took is what its caller waited, tries and pauses together.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from loadtest.session import BrokenError
from sandman import names, problems
from sandman._core.retry import Patience, Repeat
from sandman.errors import CapacityError, InternalError, SandmanError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from loadtest.record import Record
    from loadtest.session import Answer, Session

RETRY_S = 30.0
"""How long a call is tried again, as the client's `Limits.retry_s`."""
SPARE_S = 15.0
"""How long an answer may be silent beyond what the gateway was told to wait."""
STREAM_SILENCE_S = 45.0
"""How long a stream of sandboxes may be silent: three of its lines of progress."""
FILE = "/tmp/load"  # noqa: S108 - in a sandbox  # nosec B108
CONTENT = b"0123456789abcdef" * 64
"""1 KiB, the size of most files that agents write."""


class Box(NamedTuple):
    """A sandbox that is held."""

    id: str
    tier: str


class Ask(NamedTuple):
    """What an allocation asks for, without how long it waits."""

    body: Mapping[str, object]
    wait_s: float


class Caller:
    """Calls of one tenant over one connection, each counted in `record`.

    Args:
        tell: what else is to hear of each call: its name, milliseconds, and the error that it ended with.
        sleep: seconds.
    """

    def __init__(
        self,
        session: Session,
        record: Record,
        tell: Callable[[str, float, SandmanError | None], None] = lambda *_: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session, self._record, self._tell, self._sleep = session, record, tell, sleep

    def arrive(self) -> None:
        """Open the connection, by a call that costs nothing. One that fails shows in the first real call."""
        try:
            self._session.call("GET", "/healthz")
        except BrokenError:
            self._session.close()

    def create(self, ask: Ask, call: str = "create") -> Box | None:
        """A sandbox; None: it was not to be had, which is counted."""

        def attempt(left_s: float) -> Answer:
            body = {**ask.body, "wait_s": round(max(0.0, min(left_s, ask.wait_s)), 3)}
            return self._session.call(
                "POST", "/v1/sandboxes", body=body, headers=key, silence_s=left_s + SPARE_S
            )

        key = {names.HEADER_IDEMPOTENCY_KEY: uuid.uuid4().hex}
        answer = self._persist(call, attempt, ask.wait_s)
        return None if answer is None else self._take(answer.json())

    def create_many(self, ask: Ask, count: int, call: str = "create") -> Iterator[Box]:
        """So many by one call, each as it comes; those that were not to be had are counted."""
        began, seen = time.perf_counter(), set[int]()
        key = {names.HEADER_IDEMPOTENCY_KEY: uuid.uuid4().hex}
        until = began + ask.wait_s
        patience = Patience.begin(Repeat.SAFE, began, ask.wait_s)
        while len(seen) < count:
            left_s = max(0.0, until - time.perf_counter())
            body = {**ask.body, "count": count, "wait_s": round(left_s, 3)}
            error: SandmanError = UnreachableError("the stream of sandboxes broke off")
            try:
                for line in self._session.stream("/v1/sandboxes", body, key, STREAM_SILENCE_S):
                    if line.status != 200:
                        error = _error(line)
                    elif (box := self._line(call, began, line.json(), seen)) is not None:
                        yield box
            except BrokenError as broken:
                error = UnreachableError(str(broken))
            if len(seen) < count and not self._again(call, patience, error):
                self._fail(call, began, error, count - len(seen))
                return

    def _line(self, call: str, began: float, told: dict[str, Any], seen: set[int]) -> Box | None:
        """What a line says; the sandbox that it brings, unless that was told before."""
        index = told.get("index")
        if not isinstance(index, int) or index in seen:
            return None
        seen.add(index)
        if "sandbox" in told:
            self._succeed(call, began)
            return self._take(told["sandbox"])
        problem = told.get("error")
        waits = CapacityError("not served within wait_s")
        self._fail(call, began, problems.from_problem(problem) if problem else waits)
        return None

    def exec(self, box: Box, argv: list[str], call: str = "exec") -> bool:
        """A command; whether it ended with 0. Its id lets it be asked again and never run twice."""
        body = {"argv": argv, "exec_id": uuid.uuid4().hex}
        answer = self._simple(call, "POST", f"{_path(box)}/exec", body)
        if answer is not None and answer.json().get("exit_code") != 0:
            self._record.failed(
                call, "exit_code", answer.body.decode(errors="replace"), time.time()
            )
            return False
        return answer is not None

    def put(self, box: Box) -> bool:
        """A file of 1 KiB is written."""
        path = f"{_path(box)}/files?path={quote(FILE, safe='')}"
        return self._simple("file put", "PUT", path, CONTENT) is not None

    def get(self, box: Box) -> bool:
        """It is read, and is what was written."""
        path = f"{_path(box)}/files?path={quote(FILE, safe='')}"
        answer = self._simple("file get", "GET", path)
        if answer is not None and answer.body != CONTENT:
            self._record.failed("file get", "content", repr(answer.body[:80]), time.time())
            return False
        return answer is not None

    def release(self, box: Box) -> None:
        """Let go of it."""
        self._simple("release", "DELETE", _path(box))

    def heartbeat(self, run: str, ttl_s: float) -> bool:
        """Keep all of a run."""
        path = f"/v1/runs/{run}/heartbeat"
        return self._simple("heartbeat", "POST", path, {"ttl_s": ttl_s}) is not None

    def release_run(self, run: str) -> int | None:
        """Release all of a run; how many that were, None: nobody knows."""
        answer = self._simple("release run", "DELETE", f"/v1/runs/{run}")
        return None if answer is None else int(answer.json().get("released", 0))

    def held(self, run: str) -> int | None:
        """How many sandboxes of a run there are; None: nobody knows."""
        answer = self._simple("list", "GET", f"/v1/sandboxes?run={run}")
        return None if answer is None else len(answer.json().get("sandboxes", ()))

    def _simple(self, call: str, method: str, path: str, body: object = None) -> Answer | None:
        return self._persist(
            call, lambda _: self._session.call(method, path, body=body), patience_s=RETRY_S
        )

    def _persist(
        self, call: str, attempt: Callable[[float], Answer], patience_s: float
    ) -> Answer | None:
        """Try until it works, or until it is of no use any more; what became of it is counted."""
        began = time.perf_counter()
        until = began + patience_s
        patience = Patience.begin(Repeat.SAFE, began, patience_s)
        while True:
            try:
                answer = attempt(until - time.perf_counter())
                if 200 <= answer.status < 300 and answer.status != 202:
                    self._succeed(call, began)
                    return answer
                error = _error(answer)
            except BrokenError as broken:
                error = UnreachableError(str(broken))
            if not self._again(call, patience, error):
                self._fail(call, began, error)
                return None

    def _again(self, call: str, patience: Patience, error: SandmanError) -> bool:
        """Whether another try is of use; then it was waited for."""
        pause = patience.pause(
            error,
            sent=True,
            now=time.perf_counter(),
            dice=random.random(),  # noqa: S311 - spreads callers, guards nothing
        )
        if pause is None:
            return False
        self._record.retried(call, error.reason)
        self._sleep(pause)
        return True

    def _take(self, told: Mapping[str, Any]) -> Box:
        now = time.time()
        box = Box(str(told.get("id")), str(told.get("tier")))
        self._record.got(box.id, box.tier, now)
        for name, ms in (told.get("timings") or {}).items():
            self._record.stage(name.removesuffix("_ms"), float(ms), now)
        return box

    def _succeed(self, call: str, began: float) -> None:
        took = (time.perf_counter() - began) * 1e3
        self._record.took(call, took, time.time())
        self._tell(call, took, None)

    def _fail(self, call: str, began: float, error: SandmanError, times: int = 1) -> None:
        for _ in range(times):
            self._record.failed(call, error.reason, str(error), time.time())
            self._tell(call, (time.perf_counter() - began) * 1e3, error)


def _path(box: Box) -> str:
    return f"/v1/sandboxes/{box.id}"


def _error(answer: Answer) -> SandmanError:
    """What an answer that is none says."""
    told = answer.json()
    if answer.status == 202:
        # Without its `retry_after`: asking again waits there for what is left.
        return CapacityError("not served within wait_s", facts=told)
    if not told:
        return InternalError(f"HTTP status {answer.status} without a problem document")
    if "retry_after" not in told and answer.headers.get("retry-after", "").isdecimal():
        told["retry_after"] = int(answer.headers["retry-after"])
    return problems.from_problem(told, answer.status)

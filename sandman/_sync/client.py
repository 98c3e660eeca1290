# Written by scripts/unasync.py from sandman/_async/client.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""The client: sandboxes out of one gateway."""

from __future__ import annotations

import hashlib
import logging
import uuid
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Self, Unpack
from urllib.parse import quote

from sandman import names
from sandman._core import blocking as anyio
from sandman._core import faults, termination
from sandman._core.config import FOLLOW_S, RELEASE_LIMIT_S, REPLY_MARGIN_S, Limits, Settings
from sandman._core.heart import STOP_S, Debt, Heart
from sandman._core.retry import FIRST_PAUSE_S, Retry
from sandman._core.values import OverviewInfo, PoolInfo, SandboxInfo, parse_info
from sandman._sync import reservation
from sandman._sync.certificate import Verifying
from sandman._sync.creation import (
    Batch,
    Creation,
    SandboxOptions,
    check_key,
    is_queued,
    items_of,
    key_of,
    queued,
)
from sandman._sync.evaluating import Evaluating
from sandman._sync.reservation import Reservation, ReservationOptions
from sandman._sync.sandbox import Sandbox
from sandman._sync.transport import Call, Transport
from sandman._sync.workloads import WorkloadOptions, attachment, kept
from sandman.errors import OutcomeUnknownError, SandmanError, UnreachableError

if TYPE_CHECKING:
    import builtins
    import os
    import ssl
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

REQUESTS = "/v1/requests"
UNANSWERED = (UnreachableError, OutcomeUnknownError)
"""After which nobody here knows whether a sandbox was made."""

logger = logging.getLogger("sandman")


class Client(Verifying, Evaluating):
    """A client of one gateway; a block of `with`, or `close()` at the end.

        with Client() as client, client.sandbox(image="python:3.12") as box:
            result = box.exec(["python", "-c", "print(6 * 7)"])
            print(result.stdout_text)

    One client serves any number of sandboxes at once. Settings left out come from the environment:
    SANDMAN_URL, SANDMAN_TOKEN or SANDMAN_TOKEN_FILE (a file that is read for each call), SANDMAN_CA (path of a PEM
    file), SANDMAN_SERVER_NAME; where that names no gateway, from the context that SANDMAN_CONTEXT names or that
    `sandman login` has made the current one; then from the local mode of this user.

    Args:
        url: of the gateway, for example https://gateway:8443.
        token: API key, or the token of one sandbox.
        ca: certificates to trust: path of a PEM file, or an SSLContext.
        server_name: the name in the gateway's certificate, where the URL has another.
        context: of `sandman login`, in place of `url`; wins over the environment.
        limits: how long to wait for what; nothing there ends a command.
        on_retry: called before each pause that precedes another attempt. Retries are also logged,
            by the logger `sandman`: as INFO, the first fault in a while as WARNING.

    Raises:
        ConfigurationError: a setting is missing or wrong.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca: str | os.PathLike[str] | ssl.SSLContext | None = None,
        server_name: str | None = None,
        context: str | None = None,
        limits: Limits | None = None,
        on_retry: Callable[[Retry], None] | None = None,
    ) -> None:
        self.settings = Settings.load(
            url, token, ca=ca, server_name=server_name, context=context, limits=limits
        )
        self._transport = Transport(self.settings, on_retry)
        self._heart = Heart(self.settings)
        self._run = f"client-{uuid.uuid4().hex[:16]}"
        """Of those sandboxes that are given none."""
        self._termination = termination.block(self)

    def __repr__(self) -> str:
        return f"<Client {self.settings.url}>"

    def __enter__(self) -> Self:
        self._termination.__enter__()
        self._heart = self._heart.again()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        finally:
            self._termination.__exit__(kind, error, trace)

    def close(self) -> None:
        """Close all connections, and send no more heartbeats. Sandboxes stay: their leases end them."""
        if self._heart.beats:
            with anyio.move_on_after(STOP_S, shield=True):
                anyio.to_thread.run_sync(self._heart.stop)
        else:
            self._heart.stop()
        self._transport.close()

    @contextmanager
    def sandbox(self, **options: Unpack[SandboxOptions]) -> Iterator[Sandbox]:
        """A sandbox for the length of a block, released at its end whatever ends it.

        The release is shielded from cancellation and takes RELEASE_LIMIT_S at most. When it fails
        that is logged and not raised: the lease ends the sandbox.

        Args:
            **options: see SandboxOptions.

        Raises:
            SandmanError: as `create`.
        """
        with termination.block(self):
            box = self.create(**options)
            try:
                yield box
            finally:
                with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                    self._release_quietly(box.id)

    def create(self, **options: Unpack[SandboxOptions]) -> Sandbox:
        """Allocate a sandbox, to be released by `release()`; ready for commands on return.

        It is kept by this process: when that ends without a release, it goes `ttl_s` later. One that is to
        outlive it is made with `heartbeat=False`.

        Failures that may pass (no capacity, a gateway that restarts) are retried within `wait_s`
        under one idempotency key, so that a lost answer does not cost a second sandbox. A cancelled
        call releases what it may have got, unless the key is the caller's own.

        Args:
            **options: see SandboxOptions.

        Raises:
            ImageNotFoundError, ImageDeniedError, QuotaError, BadRequestError: it cannot be.
            PrepareFailedError: a step failed; `facts` hold `step`, `exit_code` and `output`.
            CapacityError, UnschedulableError, ImagePullError: not within `wait_s`.
            UnreachableError: the gateway did not answer within `wait_s`.
        """
        key, is_own = key_of(options)
        creation = Creation(options, key, self._run_of(options, key))
        try:
            with self._kept(creation):
                info = parse_info(self._until_ready(creation))
        except SandmanError as error:
            if creation.sent and not is_own and isinstance(error, UNANSWERED):
                self._heart.owe(Debt(REQUESTS, key))
            raise
        except BaseException:
            if creation.sent and not is_own:
                with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                    self._give_up(key)
            raise
        return Sandbox(self._transport, info)

    def _run_of(self, options: SandboxOptions, key: str) -> str:
        """The run of a sandbox that is given none: this client's, or, where the key is the caller's own, one that
        is the same in the next process, as the key is."""
        if options.get("idempotency_key") is None:
            return self._run
        return f"key-{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def _kept(self, creation: Creation) -> AbstractContextManager[None]:
        """While this runs sandboxes are made that heartbeats keep, unless they are to do without."""
        if creation.heartbeat:
            return self._heart.expecting(creation.run, creation.ttl_s)
        return nullcontext()

    @contextmanager
    def sandboxes(
        self, count: int, *, gang: bool = False, **options: Unpack[SandboxOptions]
    ) -> Iterator[Batch]:
        """So many sandboxes for the length of a block, by one call; all are released at its end, those
        too that are not ready by then.

            with client.sandboxes(64, image="python:3.12") as batch:
                for box in batch:  # as each becomes ready
                    tasks.start_soon(work, box)

        Args:
            count: how many, 1 to 1000.
            gang: all of them or none: the first comes when all are ready.
            **options: see SandboxOptions.

        Raises:
            SandmanError: as `create`, of the call as a whole: at the first step of the iteration, or of
                single ones, when all the others have come. See Batch.
        """
        key, is_own = key_of(options)
        creation = Creation(options, key, self._run_of(options, key), count=count, gang=gang)
        batch = Batch(self._transport, creation)
        try:
            with termination.block(self), self._kept(creation):
                yield batch
        finally:
            with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                batch.close()
                if batch.creation.sent:
                    self._give_up(key, is_own=is_own)

    def _until_ready(self, creation: Creation) -> object:
        """The sandbox, however often the gateway says where its request stands."""
        until, left_s = anyio.current_time() + creation.wait_s, creation.wait_s
        attempt = 0
        while True:
            call = creation.call(min(left_s, FOLLOW_S), left_s, REPLY_MARGIN_S)
            answer = self._transport.json(call)
            if not is_queued(answer):
                return answer
            attempt += 1
            error = queued(answer, creation.wait_s)
            if left_s <= FOLLOW_S:
                if not creation.is_own_key:
                    with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                        self._give_up(creation.key)
                raise error
            self._transport.tell(Retry(str(call), error, attempt, FIRST_PAUSE_S))
            anyio.sleep(FIRST_PAUSE_S)
            left_s = max(0.0, until - anyio.current_time())

    def attach_workload(
        self,
        namespace: str,
        pod: str | None = None,
        *,
        selector: Mapping[str, str] | None = None,
        container: str | None = None,
        **options: Unpack[WorkloadOptions],
    ) -> Sandbox:
        """Attach to a container of a workload that is labelled for Sandman's daemon; `release()` leaves it
        as it is. Needs a key whose Kubernetes user may `create pods/exec` there. Kept by this process as by `create`.

        Args:
            namespace: the pod's.
            pod: its name; or give `selector`.
            selector: labels that the pod has: a free one of those is taken.
            container: the first that is free, if None.
            **options: see WorkloadOptions.

        Raises:
            ForbiddenError: no such pod, or not for this caller.
            ConflictError: somebody is attached to all that is meant.
            UnreachableError: its daemon, or the gateway, does not answer.
        """
        meant = {"pod": pod, "selector": selector, "container": container}
        call = attachment(namespace, meant, options, self._run)
        try:
            with kept(self._heart, options, self._run):
                return Sandbox(self._transport, parse_info(self._transport.json(call)))
        except SandmanError:
            raise
        except BaseException:
            if call.sent:
                with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                    self._detach(call)
            raise

    def workloads(self, namespace: str | None = None) -> builtins.list[Mapping[str, object]]:
        """What can be attached to: `namespace`, `pod`, `container`, `image`, `node`, `labels`, and `attached`
        where somebody is just now."""
        query = "" if namespace is None else f"&namespace={quote(namespace, safe='')}"
        answer = self._transport.json(Call("GET", f"/v1/sandboxes?attachable=1{query}"))
        return items_of(answer, "attachable")

    def _detach(self, call: Call) -> None:
        """Find what a cancelled call was attached to, by its key, and release it."""
        call.silence_s = call.patience_s = RELEASE_LIMIT_S
        try:
            info = parse_info(self._transport.json(call))
        except SandmanError:
            return  # nothing was attached
        self._release_quietly(info.id)

    def attach(self, sandbox_id: str) -> Sandbox:
        """The sandbox of that id, without asking for it: its first command will tell whether it is."""
        return Sandbox(self._transport, SandboxInfo(id=sandbox_id))

    def get(self, sandbox_id: str) -> Sandbox:
        """The sandbox of that id.

        Raises:
            NotFoundError: no such sandbox, or not yours.
        """
        box = self.attach(sandbox_id)
        box.refresh()
        return box

    def list(self, run: str | None = None, *, ended: bool = False) -> builtins.list[Sandbox]:
        """The caller's sandboxes, of one run or all.

        Args:
            run: the run.
            ended: those that are over, as far as the gateway remembers them; `info.ended` says why.
        """
        wanted = {"run": run, "state": "ended" if ended else None}
        pairs = [f"{name}={quote(text, safe='')}" for name, text in wanted.items() if text]
        query = f"?{'&'.join(pairs)}" if pairs else ""
        answer = self._transport.json(Call("GET", f"/v1/sandboxes{query}"))
        return [
            Sandbox(self._transport, parse_info(item)) for item in items_of(answer, "sandboxes")
        ]

    def release(self, sandbox_id: str, *, quietly: bool = False) -> None:
        """Let it go; an unknown id is gone. `quietly`: a failure is logged, and mended later by the heartbeats."""
        if quietly:
            self._release_quietly(sandbox_id)
        else:
            self.attach(sandbox_id).release()

    def release_run(self, run: str) -> int:
        """Let every sandbox of the run go; how many there were."""
        answer = self._transport.json(Call("DELETE", f"/v1/runs/{quote(run, safe='')}"))
        if not isinstance(answer, dict) or not isinstance(answer.get("released"), int):
            raise faults.not_understood("a count", answer)
        return int(answer["released"])

    def pools(self) -> builtins.list[PoolInfo]:
        """The pools with their counts."""
        answer = self._transport.json(Call("GET", "/v1/pools"))
        return [PoolInfo.from_json(item) for item in items_of(answer, "pools")]

    def overview(self) -> OverviewInfo:
        """How the caller's tenant stands: sandboxes, requests that wait, limits."""
        answer = self._transport.json(Call("GET", "/v1/overview"))
        if not isinstance(answer, dict) or not isinstance(answer.get("tenant"), dict):
            raise faults.not_understood("an overview", answer)
        return OverviewInfo.from_json(answer)

    def reserve(self, **options: Unpack[ReservationOptions]) -> Reservation:
        """Have sandboxes prepared before they are asked for; returns at once.

        A later `sandbox` or `create` with the same `image`, `pool` and `prepare` gets one that is ready. With
        `run` it is kept by this client's heartbeats, and ends ten minutes after the last one.

        Args:
            **options: see ReservationOptions.

        Raises:
            BadRequestError, QuotaError: it cannot be.
        """
        if (key := options.get("idempotency_key")) is not None:
            check_key(key)
        answer = self._transport.json(reservation.creation(options))
        info = reservation.parse(answer)
        if info.run is not None:
            self._heart.reserved(info.run, reservation.seconds_left(info))
        return Reservation(self._transport, info)

    def reservations(self) -> builtins.list[Reservation]:
        """The caller's reservations, oldest first."""
        answer = self._transport.json(Call("GET", "/v1/reservations"))
        found = items_of(answer, "reservations")
        return [Reservation(self._transport, reservation.parse(item)) for item in found]

    def _release_quietly(self, sandbox_id: str) -> None:
        try:
            self.attach(sandbox_id).release()
        except SandmanError as error:
            self._heart.owe(Debt(f"/v1/sandboxes/{quote(sandbox_id, safe='')}"))
            logger.warning("sandbox %s is left to its lease, or a later try: %s", sandbox_id, error)

    def _give_up(self, key: str, *, is_own: bool = False) -> None:
        """Release what was made under this key, and ask for no more of it; later where it cannot be now, but for
        the caller's own key, under which there may be others by then."""
        call = Call("DELETE", REQUESTS, {names.HEADER_IDEMPOTENCY_KEY: key})
        call.silence_s = call.patience_s = RELEASE_LIMIT_S
        try:
            self._transport.json(call)
        except SandmanError as error:
            if not is_own:
                self._heart.owe(Debt(REQUESTS, key))
            logger.warning("what was asked for is left to its lease, or a later try: %s", error)

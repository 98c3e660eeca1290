"""A caller: carries out its script, and keeps the ledger of what it was given and told."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import trio

import sandman as sdk
from sandman import names
from sandman._async.transport import Call, Transport
from sandman.errors import PathNotFoundError, SandmanError, UnreachableError
from tests.mixed import plan
from tests.mixed.ledger import Failure, Held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from tests.mixed.ledger import Ledger

WAIT_S = 60.0
"""Seconds that a caller waits for a sandbox: a gateway that is killed, and an API server after it, are back by then."""
OWN_TTL_S = 90.0
"""Lease of what is made byte for byte; its caller renews it."""
RENEW_EACH_S = 20.0
CUT_TTL_S = 20.0
"""Lease of what is made for a connection that was cut: it may have been handed over to nobody."""
GONE = {"died", "deleted", "not_found"}
"""What ends a sandbox for its caller, where it is allowed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """Where the load goes.

    Attributes:
        tokens: by tenant.
        asks: what is asked for to have a sandbox in this way.
        reserved: what a reservation is made of.
        folder: of the sandboxes, for what is left there.
    """

    url: str
    ca: Any
    server_name: str
    tokens: Mapping[str, str]
    asks: Mapping[plan.Way, Mapping[str, str]]
    reserved: Mapping[str, str]
    folder: str = "/tmp"

    @property
    def marks(self) -> str:
        """Where commands leave their marks."""
        return f"{self.folder}/marks"

    @property
    def prepared(self) -> str:
        """The file of a preparation."""
        return f"{self.folder}/prepared"


class Caller:
    """One of the callers.

    Args:
        number: tells it from the others, and draws its script.
        site: where the load goes.
        ledger: what it is given and told goes there.
        now: seconds on the ledger's clock.
    """

    def __init__(
        self, number: int, seed: int, site: Site, ledger: Ledger, now: Callable[[], float]
    ) -> None:
        self.number = number
        self.tenant = list(site.tokens)[number % len(site.tokens)]
        self.run_name = f"mixed-{seed}-{number}"
        self._site = site
        self._ledger = ledger
        self._now = now
        self._script = plan.Script(seed, number)
        self._count = 0
        self._own: set[str] = set()
        """Ids of sandboxes that no heartbeat keeps."""
        self._owed: set[tuple[str, str]] = set()
        """What is to be given back still: `id` or `key`, and which."""

    def __repr__(self) -> str:
        return f"<Caller {self.number} of {self.tenant}>"

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """With its connections."""
        site, token = self._site, self._site.tokens[self.tenant]
        async with (
            sdk.Client(site.url, token, ca=site.ca, server_name=site.server_name) as client,
            trio.open_nursery() as nursery,
        ):
            self.client = client
            self._plain = Transport(client.settings)
            nursery.start_soon(self._keep)
            try:
                yield
            finally:
                await self._plain.aclose()
            nursery.cancel_scope.cancel()

    async def load(self, seconds: float) -> None:
        """Act until so many seconds have passed."""
        until = self._now() + seconds
        while self._now() < until:
            pause, action = self._script.next(len(self.held))
            await trio.sleep(pause)
            await self._do(action)

    @property
    def held(self) -> list[Held]:
        """What it has."""
        return self._ledger.of(self.number)

    async def _keep(self) -> None:
        """Renew what no heartbeat keeps."""
        while True:
            await trio.sleep(RENEW_EACH_S)
            for one in [one for one in self.held if one.id in self._own]:
                async with self._told("renew", one):
                    await self.client.attach(one.id).renew()

    # --- what it is told ---

    @contextlib.asynccontextmanager
    async def _told(self, action: str, one: Held | None = None) -> AsyncIterator[None]:
        """Failures go to the ledger; a sandbox that is no more is let go where that is allowed."""
        begun = self._now()
        try:
            yield
        except SandmanError as error:
            pod = one.pod if one is not None else (error.sandbox or "").rpartition("-")[0] or None
            failure = Failure(action, error.reason, error.detail, begun, self._now(), pod)
            self._ledger.failed(failure)
            if one is not None and error.reason in GONE and self._ledger.explains(failure):
                self._ledger.let_go(one)
        else:
            self._ledger.counts[action] += 1

    async def _do(self, action: plan.Action) -> None:
        match action:
            case plan.Create(way):
                async with self._told(f"create {way.value}"):
                    self._take(await self.client.create(**self._ask(way)))
            case plan.Twice(way):
                await self._twice(way)
            case plan.Abandon():
                await self._abandon(action)
            case plan.Batch(way, count, gang):
                async with self._told("gang" if gang else "batch"):
                    await self._batch(way, count, gang=gang)
            case plan.Reserve(count):
                async with self._told("reserve"):
                    await self._reserve(count)
            case _:
                await self._use(action)

    async def _use(self, action: plan.Action) -> None:
        held = self.held
        one = held[action.box % len(held)]  # type: ignore[union-attr]
        box = self.client.attach(one.id)
        match action:
            case plan.Execute(_, code):
                async with self._told("execute", one):
                    await self._execute(one, box, code)
            case plan.Put(_, name, size, fill):
                async with self._told("put", one):
                    await self._put(
                        one, box, f"{self._site.folder}/{name}", plan.content(size, fill)
                    )
            case plan.Get(_, name):
                async with self._told("get", one):
                    path = f"{self._site.folder}/{name}"
                    self._ledger.blame(await self._look_at(one, box, path))
            case plan.Renew():
                async with self._told("renew", one):
                    await box.renew()
            case plan.Release():
                await self._release(one)

    # --- allocations ---

    def _ask(self, way: plan.Way) -> dict[str, Any]:
        return {**self._site.asks[way], "run": self.run_name, "ttl_s": 60.0, "wait_s": WAIT_S}

    def _take(self, box: sdk.Sandbox) -> Held:
        boot = str(box.info.boot_id)
        self._ledger.counts[f"tier {box.info.tier}"] += 1
        return self._ledger.had(Held(box.id, boot, self.tenant, self.number))

    def _key(self) -> str:
        self._count += 1
        return f"{self.run_name}-{self._count}"

    async def _twice(self, way: plan.Way) -> None:
        key, made = self._key(), []

        async def once() -> None:
            async with self._told(f"twice {way.value}"):
                made.append(await self._post(way, key, OWN_TTL_S))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(once)
            nursery.start_soon(once)
        if len({one["id"] for one in made}) > 1:
            self._ledger.blame([f"one key, two sandboxes: {[one['id'] for one in made]}"])
        self._keep_made(key, made)

    def _keep_made(self, key: str, made: list[dict[str, Any]]) -> None:
        """What was made under a key of its own is held, or is to be given back by that."""
        if not made:
            self._owed.add(("key", key))
            return
        self._own.add(made[0]["id"])
        for one in made:
            self._ledger.counts[f"tier {one['tier']}"] += 1
            self._ledger.had(Held(one["id"], one["boot_id"], self.tenant, self.number))

    async def _abandon(self, action: plan.Abandon) -> None:
        if action.by_client:
            with trio.move_on_after(action.after_s):
                async with self._told("abandon"):
                    self._take(await self.client.create(**self._ask(action.way)))
            return
        key, made = self._key(), []
        ttl_s = OWN_TTL_S if action.returns else CUT_TTL_S
        with trio.move_on_after(action.after_s):
            async with self._told("cut"):
                made.append(await self._post(action.way, key, ttl_s))
        if not action.returns and not made:
            return
        if not made:
            async with self._told("return"):
                made.append(await self._post(action.way, key, ttl_s))
        self._keep_made(key, made)

    async def _batch(self, way: plan.Way, count: int, *, gang: bool) -> None:
        async with self.client.sandboxes(count, gang=gang, **self._ask(way)) as batch:
            async for box in batch:
                one = Held(box.id, str(box.info.boot_id), self.tenant, self.number)
                async with self._told("execute in a batch", one):
                    await self._execute(one, box, 0)

    async def _reserve(self, count: int) -> None:
        word = self._key()
        wanted: dict[str, Any] = {
            **self._site.reserved,
            "prepare": [{"file": {"path": self._site.prepared, "content": word}}],
        }
        reservation = await self.client.reserve(**wanted, count=count, for_s=60)
        try:
            await reservation.wait(40)
            asked: dict[str, Any] = {"run": self.run_name, "ttl_s": 60.0, "wait_s": WAIT_S}
            async with self.client.sandbox(**wanted, **asked) as box:
                self._ledger.counts[f"reserved, tier {box.info.tier}"] += 1
                one = Held(box.id, str(box.info.boot_id), self.tenant, self.number)
                digest = _digest(word.encode())
                one.written(self._site.prepared, digest)
                async with self._told("get what was prepared", one):
                    self._ledger.blame(await self._look_at(one, box, self._site.prepared))
        finally:
            with trio.move_on_after(20, shield=True):
                await reservation.cancel()

    async def _post(self, way: plan.Way, key: str, ttl_s: float) -> dict[str, Any]:
        """Allocate as the API has it, on a connection of its own: cut when this is cancelled.

        Raises:
            SandmanError: as a caller of the API would read it.
        """
        body = {**self._site.asks[way], "lease": {"ttl_s": ttl_s}, "wait_s": WAIT_S}
        until = self._now() + WAIT_S
        while True:
            try:
                return await self._post_once(body, key)
            except SandmanError as error:
                if not error.retryable or self._now() > until:
                    raise
            await trio.sleep(0.5)

    async def _post_once(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        made = await self._plainly("POST", "/v1/sandboxes", key, body)
        if "id" not in made:
            raise UnreachableError("it waits still")
        return made

    async def _plainly(
        self, method: str, path: str, key: str | None = None, body: object = None
    ) -> dict[str, Any]:
        """One attempt at a call; its connection is cut when this is cancelled.

        Raises:
            SandmanError: there is no answer, or it is one.
        """
        call = Call(method, path) if body is None else Call.with_json(method, path, body)
        if key is not None:
            call.headers = {**call.headers, names.HEADER_IDEMPOTENCY_KEY: key}
        call.silence_s, call.patience_s = 1.5 * WAIT_S, 0.0
        answer: dict[str, Any] | None = await self._plain.json(call)  # type: ignore[assignment]
        return answer or {}

    # --- use ---

    async def _execute(self, one: Held, box: sdk.Sandbox, code: int) -> None:
        word = self._key()
        one.marks[word] = False
        result = await box.run(f"echo {word} >> {self._site.marks}; echo {word}; exit {code}")
        one.marks[word] = True
        told = (result.exit_code, result.stdout_text.strip(), result.boot_id)
        if told != (code, word, one.boot):
            self._ledger.blame([f"{one.id}: wanted {(code, word, one.boot)}, got {told}"])

    async def _put(self, one: Held, box: sdk.Sandbox, path: str, data: bytes) -> None:
        digest = _digest(data)
        one.writing(path, digest)
        await box.files.write(path, data)
        one.written(path, digest)

    async def _look_at(self, one: Held, box: sdk.Sandbox, path: str) -> list[str]:
        try:
            digest = _digest(await box.files.read(path))
        except PathNotFoundError:
            digest = None
        return self._ledger.compare_file(one, path, digest)

    async def _release(self, one: Held) -> None:
        """From now on it is not held, whatever is answered: what is not answered is said again."""
        self._ledger.let_go(one)
        self._owed.add(("id", one.id))
        async with self._told("release", one):
            await self.client.release(one.id)
            self._owed.discard(("id", one.id))

    # --- the end ---

    async def settle(self) -> None:
        """Give back what could not be given back before.

        Raises:
            SandmanError: it cannot be now either.
        """
        for kind, name in sorted(self._owed):
            if kind == "key":
                await self._plainly("DELETE", "/v1/requests", name)
            else:
                await self._plainly("DELETE", f"/v1/sandboxes/{quote(name, safe='')}")
            self._owed.discard((kind, name))

    async def look(self, one: Held) -> list[str]:
        """What is wrong with a sandbox that it holds."""
        box = self.client.attach(one.id)
        marks = self._site.marks
        result = await box.run(f"touch {marks}; cat {marks}")
        wrong = self._ledger.compare_marks(one, result.stdout_text.split())
        if result.boot_id != one.boot:
            wrong.append(f"{one.id}: it is boot {result.boot_id}, not {one.boot}")
        for path in one.files:
            wrong += await self._look_at(one, box, path)
        return wrong


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

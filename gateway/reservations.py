"""Reservations: placeholders in their image and prepared before anybody asks for them.

What is asked for stands in Leases (`provider.reservations`), what is prepared on the pods; here is only
what is under way. The allocator alone acts, in rounds, and begins anew where the one before it ended.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from gateway import leases, reserving
from gateway.model import DEFAULT_SHARE, Purpose, SandboxRequest
from gateway.reserving import Progress, Reservation, Trouble
from gateway.wants import key_label
from sandman import names
from sandman.errors import (
    ConflictError,
    NotFoundError,
    QuotaError,
    SandmanError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.model import Instance, Share
    from gateway.pool import Pool
    from gateway.release import Releaser
    from gateway.roster import Roster

log = structlog.get_logger()

NO_TROUBLE = Trouble()
LOOK_EVERY_S = 1.0
"""Seconds between two rounds at most; what is begun, done or asked for comes at once."""
WAIT_S = 600.0
"""Seconds for one placeholder: an image pull of many GiB. After that it counts as a failure, and is tried again."""
READ_EVERY_S = 30.0
"""Seconds between two readings of the Leases: somebody may have deleted one by hand."""
ID_CHARS = 16
"""Hex digits of a reservation's id."""


class Store(Protocol):
    """Where reservations are kept."""

    async def create(self, reservation: Reservation) -> Reservation:
        """Keep it; when there is one of its id already, that one."""

    async def list(self) -> list[Reservation]:
        """All that are kept."""

    async def set_used(self, reservation: Reservation) -> None:
        """Keep how many were handed out."""

    async def delete(self, reservation: Reservation) -> None:
        """Forget it."""


@dataclasses.dataclass(slots=True, eq=False)
class _Held:
    """A reservation and what is under way for it."""

    reservation: Reservation
    trouble: Trouble = NO_TROUBLE
    working: set[trio.CancelScope] = dataclasses.field(default_factory=set)
    is_counted: bool = True
    """Whether the store knows how many were handed out."""


class Reservations:
    """All reservations.

    Args:
        store: where they are kept.
        pool: takes placeholders.
        roster: what is there.
        releaser: gives back what nobody used.
        is_leader: whether this replica is the allocator.
        shares: by id of an API key, what its tenant may have; None when the key is gone.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        pool: Pool,
        roster: Roster,
        releaser: Releaser,
        *,
        is_leader: Callable[[], bool],
        shares: Callable[[str], Share | None],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._pool = pool
        self._roster = roster
        self._releaser = releaser
        self._is_leader = is_leader
        self._shares = shares
        self._wall = wall
        self._held: dict[str, _Held] = {}
        self._arriving: Counter[str] = Counter()
        """By tenant, how many are being written: they count as if they were."""
        self._ended: set[str] = set()
        """Ids that ended since the reading that is under way began: it may tell of them still."""
        self._read_at: float | None = None
        self._wake = trio.Event()

    def __repr__(self) -> str:
        return f"<Reservations {len(self._held)}>"

    # --- calls ---

    async def create(self, reservation: Reservation, key: str | None) -> Reservation:
        """Keep a reservation and begin with it; its id is given here.

        Args:
            reservation: what is asked for.
            key: the caller's idempotency key: the same one gives the same reservation.

        Raises:
            ConflictError: this key was used for another one.
            QuotaError: the tenant has as many as it may.
            SandmanError: it is not known whether it is kept.
        """
        self._must_know()
        given = secrets.token_hex(ID_CHARS // 2)
        if key is not None:
            given = key_label(reservation.tenant, key)[:ID_CHARS]
        wanted = dataclasses.replace(reservation, id=given)
        kept = await self._write(wanted)
        if not kept.is_same(wanted):
            raise ConflictError("this Idempotency-Key was used with another reservation")
        held = self._held.setdefault(given, _Held(kept))
        self._wake.set()
        return held.reservation

    async def _write(self, wanted: Reservation) -> Reservation:
        there = len(self._of(wanted.tenant)) + self._arriving[wanted.tenant]
        if wanted.id not in self._held and there >= reserving.TENANT_MAX:
            raise QuotaError(
                f"a tenant may have {reserving.TENANT_MAX} reservations", retry_after=5.0
            )
        self._arriving[wanted.tenant] += 1
        try:
            return await self._store.create(wanted)
        finally:
            self._arriving -= Counter([wanted.tenant])

    def get(self, tenant: str, reservation: str) -> tuple[Reservation, Progress]:
        """One of the tenant's, and how far it is.

        Raises:
            NotFoundError: none, or somebody else's.
        """
        self._must_know()
        held = self._held.get(reservation)
        if held is None or held.reservation.tenant != tenant:
            raise NotFoundError(f"no reservation {reservation[:64]}")
        ready = self._ready()
        return held.reservation, self._progress(held, ready)

    def of_tenant(self, tenant: str) -> list[tuple[Reservation, Progress]]:
        """All of the tenant's, oldest first."""
        self._must_know()
        ready = self._ready()
        found = sorted(self._of(tenant), key=lambda held: held.reservation.created_at)
        return [(held.reservation, self._progress(held, ready)) for held in found]

    def forecast(self) -> dict[str, int]:
        """By pool, how many placeholders will be asked for yet."""
        ready, found = self._ready(), Counter[str]()
        for held in self._held.values():
            progress = self._progress(held, ready)
            if not progress.trouble.is_final:
                found[held.reservation.pool] += reserving.missing(held.reservation, progress)
        return found

    async def delete(self, tenant: str, reservation: str) -> None:
        """End one of the tenant's; what was not handed out is released.

        Raises:
            SandmanError: it may be there still.
        """
        self._must_know()
        held = self._held.get(reservation)
        if held is not None and held.reservation.tenant == tenant:
            await self._end(held)

    def _must_know(self) -> None:
        if self._read_at is None or not self._is_leader():
            raise UnreachableError("reservations are being read: repeat the call", retry_after=1.0)

    def _of(self, tenant: str) -> list[_Held]:
        return [held for held in self._held.values() if held.reservation.tenant == tenant]

    # --- rounds ---

    async def run(self) -> None:
        """Look again and again until cancelled."""
        # What a reservation has is told by its pods.
        await self._roster.synced.wait()
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                if not self._is_leader():
                    self._stand_down()
                else:
                    try:
                        await self._round(nursery)
                    except SandmanError as error:
                        log.warning("reservations could not be looked after", error=str(error))
                with trio.move_on_after(LOOK_EVERY_S):
                    await self._wake.wait()

    def _stand_down(self) -> None:
        """Another replica acts now, or nobody. What is under way here is given up."""
        for held in self._held.values():
            _cancel(held)
        self._held.clear()
        self._read_at = None
        self._roster.handed_over.clear()

    async def _round(self, nursery: trio.Nursery) -> None:
        await self._read()
        now, ready = self._wall(), self._ready()
        for held in list(self._held.values()):
            reservation = held.reservation
            if self._held.get(reservation.id) is not held:
                continue  # it ended while another one did
            is_over = now >= reservation.until or self._is_abandoned(reservation)
            if is_over or self._shares(reservation.key_id) is None:
                await self._end(held)
                continue
            for _ in range(reserving.to_begin(reservation, self._progress(held, ready), now)):
                scope = trio.CancelScope()
                held.working.add(scope)
                nursery.start_soon(self._prepare, held, scope)
        await self._keep_used()
        await self._release(self._strays())

    async def _read(self) -> None:
        """Take in what is kept, the first time and then now and again."""
        now = trio.current_time()
        if self._read_at is not None and now - self._read_at < READ_EVERY_S:
            return
        known = set(self._held)
        self._ended.clear()
        kept = {one.id: one for one in await self._store.list()}
        for gone in known - set(kept) - self._ended:
            _cancel(self._held.pop(gone))
        living = Counter(one.reservation for one in self._leased())
        for name, reservation in kept.items():
            if name not in self._held and name not in self._ended:
                # The last words of the allocator before may be missing.
                used = min(reservation.count, max(reservation.used, living[name]))
                self._held[name] = _Held(dataclasses.replace(reservation, used=used))
        if self._read_at is None:
            self._roster.handed_over.clear()
        self._read_at = now

    def _count_used(self) -> None:
        """Take in what was handed out meanwhile."""
        taken = Counter(one.reservation for one in self._roster.handed_over)
        self._roster.handed_over.clear()
        for name, count in taken.items():
            if name is not None and (held := self._held.get(name)) is not None:
                used = min(held.reservation.count, held.reservation.used + count)
                held.reservation = dataclasses.replace(held.reservation, used=used)
                held.is_counted = False

    async def _keep_used(self) -> None:
        for held in list(self._held.values()):
            if not held.is_counted:
                held.is_counted = True
                try:
                    await self._store.set_used(held.reservation)
                except BaseException:
                    held.is_counted = False
                    raise

    async def _prepare(self, held: _Held, scope: trio.CancelScope) -> None:
        """One placeholder, from free to prepared."""
        try:
            with scope:
                await self._try(held)
        finally:
            held.working.discard(scope)
            self._wake.set()

    async def _try(self, held: _Held) -> None:
        reservation = held.reservation
        left = max(1.0, reservation.until - self._wall())
        request = SandboxRequest(
            image=reservation.image,
            pool=reservation.pool,
            run=reservation.run,
            max_s=left,
            wait_s=min(left, WAIT_S),
            purpose=Purpose.AHEAD,
            prepare=reservation.steps,
        )
        try:
            # A key that is gone since the round ends the reservation in the next one.
            share = self._shares(reservation.key_id) or DEFAULT_SHARE
            await self._pool.reserve(reservation.tenant, request, reservation.id, share=share)
        except SandmanError as error:
            held.trouble = held.trouble.after(error, self._wall())
            log.info("a placeholder was not prepared", reservation=reservation.id, error=str(error))
        else:
            held.trouble = held.trouble.after_success()

    async def _end(self, held: _Held) -> None:
        await self._store.delete(held.reservation)
        _cancel(held)
        name = held.reservation.id
        self._held.pop(name, None)
        self._ended.add(name)
        await self._release(
            one for one in self._reserved() if one.reservation == name and one.prepared
        )

    def _is_abandoned(self, one: Reservation) -> bool:
        """Whether its run sent heartbeats, has sent none for long, and has no sandbox. Of one that never sent
        any nothing is known: the forecast may be older than the run."""
        beat = self._roster.ledger.runs().get((one.tenant, one.run or ""))
        if beat is None or trio.current_time() - beat < leases.RUN_KEEP_S:
            return False
        return not self._roster.registry.of_tenant(one.tenant, one.run)

    async def _release(self, instances: Iterable[Instance]) -> None:
        """Give pods back. One whose claim is on its way is a sandbox, or a stray in the next round."""
        ours = [one for one in instances if not one.prepared or self._roster.take_back(one.uid)]
        try:
            await self._releaser.release_all(ours)
        except SandmanError as error:
            log.warning("what was reserved could not be released", error=str(error))

    # --- what there is ---

    def _reserved(self) -> list[Instance]:
        """Reserved pods that live."""
        return [
            one
            for one in self._roster.registry.all()
            if one.state == names.STATE_RESERVED and one.ending is None and not one.deleting
        ]

    def _leased(self) -> list[Instance]:
        return [
            one
            for one in self._roster.registry.all()
            if one.state == names.STATE_LEASED and one.reservation is not None
        ]

    def _ready(self) -> dict[str, int]:
        """How many are prepared, by reservation. What was handed out meanwhile is counted before, or it would
        look as if it was lost."""
        self._count_used()
        ready: defaultdict[str, int] = defaultdict(int)
        for one in self._reserved():
            if one.prepared is not None:
                ready[one.reservation or ""] += 1
        return ready

    def _progress(self, held: _Held, ready: dict[str, int]) -> Progress:
        return Progress(ready.get(held.reservation.id, 0), len(held.working), held.trouble)

    def _strays(self) -> list[Instance]:
        """Reserved pods that nobody will use: their reservation is gone, or who prepared them, or they were
        released and are there still."""
        return [
            one
            for one in self._roster.registry.all()
            if one.state == names.STATE_RESERVED and not one.deleting and self._is_stray(one)
        ]

    def _is_stray(self, one: Instance) -> bool:
        if one.ending is not None:
            # Of one that has ended by itself the janitor takes care, once its reason was heard.
            return one.ending.reason == "released"
        if one.prepared is None:
            return not self._pool.has_in_hand(one.claim_id)
        return one.reservation not in self._held


def _cancel(held: _Held) -> None:
    for scope in held.working:
        scope.cancel()

"""Certificates under any order of looks and faults, and those that somebody else keeps."""

from __future__ import annotations

import pytest
import trio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from sandman import names
from sandman.service import pki
from tests.unit.webhook.fakekube import FakeKube
from tests.unit.webhook.test_certificates import NAMES, Replica, _ageing, is_trusted, now
from webhook import rotation


class TestAnyOrder:
    """Replicas come, stop, and are cut off while a rotation runs: a ready one is always trusted."""

    EVENTS = st.lists(
        st.tuples(
            st.sampled_from(["start", "stop", "cut", "heal", "wait", "wipe"]),
            st.floats(0.0, 400.0),
        ),
        min_size=1,
        max_size=8,
    )

    @pytest.mark.timeout(180)
    # Without the phase "explain", which traces every line: an example is minutes of virtual time.
    @settings(deadline=None, max_examples=8, phases=[Phase.reuse, Phase.generate, Phase.shrink])
    @given(events=EVENTS)
    def test_no_ready_replica_is_ever_untrusted(self, events):
        clock = MockClock(autojump_threshold=0)
        trio.run(self._live, events, clock=clock)

    async def _live(self, events):
        main = FakeKube()
        main.put_secret(names.WEBHOOK_TLS_SECRET, rotation.render(_ageing()))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                replicas: list[Replica] = []
                living: list[tuple[Replica, FakeKube, trio.CancelScope]] = []
                nursery.start_soon(self._watch, main, replicas)
                for event, pause in [("start", 1.0), *events, ("wait", 1100.0)]:
                    await self._happen(event, main, nursery, replicas, living)
                    await trio.sleep(pause)
                scope.cancel()

    async def _happen(self, event, main, nursery, replicas, living):
        if event == "start" and len(living) < 4:
            view = FakeKube()
            view.objects, view.history = main.objects, main.history
            view.store = main.store
            replica, life = Replica(view), trio.CancelScope()
            nursery.start_soon(self._run, replica, life)
            living.append((replica, view, life))
            replicas.append(replica)
        elif event == "stop" and living:
            replica, _, life = living.pop(0)
            life.cancel()
            replicas.remove(replica)
        elif event in {"cut", "heal"} and living:
            living[0][1].is_down = event == "cut"
        elif event == "wipe":
            # The Secret is lost; what is published stays, as it does when somebody deletes entries.
            main.put_secret(names.WEBHOOK_TLS_SECRET, {})

    async def _run(self, replica, life):
        with life:
            await replica.keeper.run()

    async def _watch(self, main, replicas):
        while True:
            for replica in list(replicas):
                if replica.is_ready:
                    assert is_trusted(main, replica), repr(replica.keeper)
            await trio.sleep(2)


class TestExternal:
    """cert-manager issues, publishes and rotates; the webhook serves, and says whether that fits."""

    def issue(self, kube: FakeKube, *, publish: bool = True) -> rotation.Identity:
        identity = rotation.make(NAMES, now())
        kube.put_secret(names.WEBHOOK_TLS_SECRET, rotation.render(rotation.State(current=identity)))
        if publish:
            kube.put_bundle(identity.authority)
        return identity

    async def test_it_serves_what_it_is_given_and_writes_nothing(self, autojump_clock):
        kube = FakeKube(hooks=2)
        replica = Replica(kube, is_owner=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replica.keeper.run)
            await trio.sleep(30)
            assert replica.keeper.why_not_ready() == "there is no certificate yet"
            first = self.issue(kube, publish=False)
            await trio.sleep(30)
            assert replica.leaf == first.leaf
            assert "does not verify" in replica.keeper.why_not_ready()
            kube.put_bundle(first.authority)
            await trio.sleep(15)
            assert replica.is_ready
            second = self.issue(kube)
            await trio.sleep(15)
            assert replica.leaf == second.leaf
            assert replica.is_ready
            assert not [verb for verb, _ in kube.calls if verb != "get"]
            nursery.cancel_scope.cancel()

    async def test_a_leaf_of_the_same_authority_is_taken_when_it_has_settled(self, autojump_clock):
        kube = FakeKube()
        authority = pki.make_ca("ca", now(), 90)
        leaves = [pki.issue(authority, NAMES.dns, NAMES.addresses, now(), 90) for _ in range(2)]
        replica = Replica(kube, is_owner=False)
        kube.put_bundle(authority.certificate)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replica.keeper.run)
            for leaf in leaves:
                identity = rotation.Identity(leaf, authority.certificate)
                kube.put_secret(
                    names.WEBHOOK_TLS_SECRET, rotation.render(rotation.State(current=identity))
                )
                await trio.sleep(rotation.SETTLE.total_seconds() + 15)
                assert replica.leaf == leaf
                assert replica.is_ready
            nursery.cancel_scope.cancel()

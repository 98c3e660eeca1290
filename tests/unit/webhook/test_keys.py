"""The signing keys' keeper: filled once, followed, and given back when spoilt."""

from __future__ import annotations

import itertools

import trio

from sandman import names
from sandman.service import keyring
from tests.unit.webhook.fakekube import NAMESPACE, FakeKube
from webhook import keys
from webhook.cluster import Cluster


def keeper(kube: FakeKube, seed: int = 0) -> keys.Keys:
    counter = itertools.count(seed * 1000)
    objects = Cluster(kube, NAMESPACE, names.WEBHOOK_CONFIGURATION)
    return keys.Keys(objects, lambda size: next(counter).to_bytes(size, "big"))


async def test_an_empty_secret_is_filled_once(autojump_clock):
    kube = FakeKube()
    one = keeper(kube)
    assert "sandman-keys has not been read" in one.why_not_ready()
    await one.look()
    assert one.why_not_ready() == ""
    assert one.keyring == keyring.parse(kube.secret(names.KEYS_SECRET))
    before = kube.objects["secrets", names.KEYS_SECRET]
    await one.look()
    assert kube.objects["secrets", names.KEYS_SECRET] == before
    assert repr(one) == "<Keys Keyring(current='k00000000')>"


async def test_replicas_that_race_end_with_one_keyring(autojump_clock):
    kube = FakeKube()
    racers = [keeper(kube, seed) for seed in range(4)]
    async with trio.open_nursery() as nursery:
        for racer in racers:
            nursery.start_soon(racer.look)
    assert len({racer.keyring.current for racer in racers}) == 1
    assert [verb for verb, _ in kube.calls].count("replace") == 4, "they did race"
    assert sorted(kube.secret(names.KEYS_SECRET)) == sorted(racers[0].keyring.to_data())


async def test_keys_of_a_spoilt_secret_are_given_back(autojump_clock):
    kube = FakeKube()
    one = keeper(kube)
    await one.look()
    held = one.keyring
    kube.put_secret(names.KEYS_SECRET, {})
    await one.look()
    assert one.keyring == held == keyring.parse(kube.secret(names.KEYS_SECRET))


async def test_keys_of_a_deleted_secret_are_given_back(autojump_clock):
    kube = FakeKube()
    one = keeper(kube)
    await one.look()
    before = one.keyring
    del kube.objects["secrets", names.KEYS_SECRET]
    await one.look()
    assert one.keyring == before
    assert kube.secret(names.KEYS_SECRET)


async def test_a_half_filled_secret_gets_a_key_and_keeps_what_it_has(autojump_clock):
    kube = FakeKube()
    kube.put_secret(names.KEYS_SECRET, {"daemon-old": b"o" * 32})
    one = keeper(kube)
    await one.look()
    assert set(one.keyring.daemon) == {"old", one.keyring.current}


async def test_a_new_current_is_followed_and_faults_are_outlived(autojump_clock):
    kube = FakeKube()
    kube.is_down = True
    one = keeper(kube)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        await trio.sleep(10)
        assert one.keyring is None
        kube.is_down = False
        await trio.sleep(2)
        assert one.keyring
        new = keyring.fresh("k2", b"1" * 32, b"2" * 32)
        kube.put_secret(names.KEYS_SECRET, keyring.completed(kube.secret(names.KEYS_SECRET), new))
        await trio.sleep(keys.INTERVAL_S + 1)
        assert one.keyring.current == "k2"
        assert len(one.keyring.daemon) == 2
        nursery.cancel_scope.cancel()

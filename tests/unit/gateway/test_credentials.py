"""Keys as the watch of two Secrets keeps them."""

from __future__ import annotations

import base64
import contextlib

import trio

from gateway import cluster, tokens
from gateway.config import Settings
from gateway.credentials import WatchedCredentials
from gateway.election import Election
from gateway.serve import Gateway, wall
from sandman import names
from sandman.service import keyring
from tests.fakes.api_server import ApiServer
from tests.fakes.objects import secret
from tests.unit.service.fake_api import status


def encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


def api_keys(*tenants: str) -> dict:
    entries = {t: tokens.api_key_entry(tokens.make_api_key(t), t) for t in tenants}
    return secret(names.API_KEYS_SECRET, **encoded(entries))


def keys(key_id: str = "k1") -> dict:
    ring = keyring.fresh(key_id, b"d" * 32, b"s" * 32)
    return secret(names.KEYS_SECRET, **encoded(ring.to_data()))


@contextlib.asynccontextmanager
async def watching(server: ApiServer):
    async with server.client() as api, trio.open_nursery() as nursery:
        credentials = WatchedCredentials(api, names.SYSTEM_NAMESPACE)
        nursery.start_soon(credentials.run)
        yield credentials
        nursery.cancel_scope.cancel()


async def until(condition) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)


async def test_secrets_and_callers_are_read_and_each_is_asked_for_by_its_name():
    server = ApiServer()
    server.put("secrets", api_keys("acme", "zeta"))
    server.put("secrets", keys())
    server.put("secrets", secret("somebody-elses"))
    async with watching(server) as credentials:
        await until(lambda: credentials.api_keys and credentials.ready.is_set())
        assert {key.tenant for key in credentials.api_keys.values()} == {"acme", "zeta"}
        assert (credentials.current_key, credentials.sandbox_keys, credentials.daemon_keys) == (
            "k1", {"k1": b"s" * 32}, {"k1": b"d" * 32},
        )  # fmt: skip
        assert "s" * 32 not in repr(credentials)
    asked = {seen.params["fieldSelector"] for seen in server.seen}
    objects = (names.API_KEYS_SECRET, names.KEYS_SECRET, names.CALLERS_CONFIG)
    assert asked == {f"metadata.name={name}" for name in objects}


async def test_a_revoked_key_ends_and_a_deleted_secret_revokes_all():
    server = ApiServer()
    server.put("secrets", api_keys("acme", "zeta"))
    async with watching(server) as credentials:
        await until(lambda: len(credentials.api_keys) == 2)
        server.put("secrets", api_keys("zeta"))
        await until(lambda: set(credentials.api_keys) == {"zeta"})
        server.remove("secrets", names.API_KEYS_SECRET)
        await until(lambda: not credentials.api_keys)


async def test_before_the_webhook_has_made_the_keys_there_are_none():
    server = ApiServer()
    server.put("secrets", secret(names.KEYS_SECRET))
    async with watching(server) as credentials:
        await until(lambda: any("watch" in seen.params for seen in server.seen))
        assert not credentials.ready.is_set()
        assert (credentials.current_key, credentials.daemon_keys, credentials.sandbox_keys) == (
            "", {}, {},
        )  # fmt: skip
        server.put("secrets", keys())
        await until(credentials.ready.is_set)


async def test_signing_keys_that_somebody_broke_stay_as_they_were():
    server = ApiServer()
    server.put("secrets", keys())
    async with watching(server) as credentials:
        await until(credentials.ready.is_set)
        server.put("secrets", secret(names.KEYS_SECRET, current="eA=="))
        server.put("secrets", api_keys("acme"))
        await until(lambda: credentials.api_keys)
        assert credentials.current_key == "k1"
        server.put("secrets", keys("k2"))
        await until(lambda: credentials.current_key == "k2")


async def test_one_bad_entry_of_whatever_form_locks_nobody_else_out():
    server = ApiServer()
    document = api_keys("acme")
    bad = [b"{", b"[]", b"5", b'{"sha256": 5, "tenant": "x"}', b"[" * 100_000, b"\xff"]
    document["data"] |= encoded({f"bad-{n}": value for n, value in enumerate(bad)})
    server.put("secrets", document)
    async with watching(server) as credentials:
        await until(lambda: credentials.api_keys)
        assert set(credentials.api_keys) == {"acme"}


async def test_until_the_api_keys_were_read_nobody_knows_who_has_none(monkeypatch):
    """A reservation whose key is gone ends, and a caller without one is turned away for good."""
    server = ApiServer()
    server.put("secrets", api_keys("acme"))
    server.put("secrets", keys())
    is_away = True

    def away(seen):
        asked = seen.params.get("fieldSelector", "")
        if is_away and asked == f"metadata.name={names.API_KEYS_SECRET}":
            server.faults.append(away)
            return status(503, "ServiceUnavailable")
        return None

    server.faults = [away]
    monkeypatch.setattr(Election, "is_leader", True)
    async with server.client() as api, trio.open_nursery() as nursery:
        gateway = Gateway(Settings(), cluster.ground(Settings(), api, wall), trio.Event())
        gateway.roster.synced.set()
        nursery.start_soon(gateway.credentials.run)
        await until(gateway.credentials.ready.is_set)
        assert gateway.missing() == ["the API keys"]
        assert not gateway.reservations._is_leader()
        is_away = False
        await until(lambda: not gateway.missing())
        assert gateway.credentials.api_keys
        assert gateway.reservations._is_leader()
        nursery.cancel_scope.cancel()


async def test_where_there_are_no_api_keys_that_is_known():
    server = ApiServer()
    async with watching(server) as credentials:
        await until(credentials.told.is_set)
        assert credentials.api_keys == {}

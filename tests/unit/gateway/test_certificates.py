"""The gateway's own certificate: made, renewed, taken from an operator, raced for."""

from __future__ import annotations

import base64
import contextlib
from datetime import UTC, datetime, timedelta

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from gateway import certificates
from gateway.certificates import CA, CA_KEY, CERTIFICATE, KEY, LEAF_DAYS, Certificates
from sandman import names
from sandman.service import pki
from tests.fakes import clocks
from tests.fakes.api_server import ApiServer
from tests.fakes.objects import secret
from tests.unit.service.fake_api import status

NOW = datetime(2026, 11, 29, tzinfo=UTC)
NAME = "sandman-gateway.sandman-system.svc"


def operators(password: bytes | None = None) -> dict[str, bytes]:
    """An RSA certificate, as cert-manager makes by default."""
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    sealing = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealing
    )
    return {CERTIFICATE: certificate.public_bytes(serialization.Encoding.PEM), KEY: private}


def made(now: datetime = NOW) -> dict[str, bytes]:
    data = certificates.wanted({}, NAME, now)
    assert data is not None
    return data


def test_an_empty_secret_wants_a_certificate_that_clients_accept():
    data = made()
    for name in (NAME, f"{NAME}.cluster.local", "localhost", "127.0.0.1"):
        assert pki.verifies(data[CA], data[CERTIFICATE], name, NOW), name
    assert certificates.wanted(data, NAME, NOW) is None
    found = certificates.read(data)
    assert found is not None
    assert found.authority == data[CA]


def test_a_leaf_is_renewed_a_month_before_its_end_by_the_same_authority():
    data = made()
    end = NOW + timedelta(days=LEAF_DAYS)
    assert certificates.wanted(data, NAME, end - timedelta(days=31)) is None
    later = certificates.wanted(data, NAME, end - timedelta(days=29))
    assert later is not None
    assert later[CA] == data[CA]
    assert later[CERTIFICATE] != data[CERTIFICATE]
    assert pki.verifies(data[CA], later[CERTIFICATE], NAME, end)


def test_a_leaf_for_another_name_is_made_anew():
    data = made()
    other = certificates.wanted(data, "gateway.example", NOW)
    assert other is not None
    assert pki.verifies(data[CA], other[CERTIFICATE], "gateway.example", NOW)


def test_an_authority_that_was_broken_is_replaced():
    data = {**made(), CA_KEY: b"nonsense", KEY: b"nonsense"}
    mended = certificates.wanted(data, NAME, NOW)
    assert mended is not None
    assert mended[CA] != data[CA]
    assert pki.verifies(mended[CA], mended[CERTIFICATE], NAME, NOW)


def test_another_authority_is_published_beside_the_old_one_before_a_leaf_of_it_is_served():
    """The three steps of docs/operations.md: at none of them is a caller or a replica left that trusts nothing."""
    old = made()
    first = certificates.wanted({**old, CA_KEY: b""}, NAME, NOW)
    assert first is not None
    assert (first[CERTIFICATE], first[KEY]) == (old[CERTIFICATE], old[KEY])
    assert first[CA].endswith(old[CA])
    assert first[CA].count(b"BEGIN") == 2
    assert certificates.wanted(first, NAME, NOW) is None
    assert certificates.read(first).authority == first[CA]
    second = certificates.wanted({**first, CERTIFICATE: b"", KEY: b""}, NAME, NOW)
    assert second is not None
    assert second[CA] == first[CA]
    assert not pki.verifies(old[CA], second[CERTIFICATE], NAME, NOW)
    [new, _] = pki.authorities(second[CA], NOW)
    third = {**second, CA: new}
    assert pki.verifies(new, second[CERTIFICATE], NAME, NOW)
    assert certificates.wanted(third, NAME, NOW) is None


def test_authorities_of_before_are_kept_within_a_bound_and_until_their_end():
    data = made()
    for _ in range(certificates.OLD_MAX + 2):
        data = certificates.wanted({**data, CA_KEY: b""}, NAME, NOW)
    assert len(pki.authorities(data[CA], NOW)) == 1 + certificates.OLD_MAX
    later = NOW + timedelta(days=certificates.CA_DAYS + 1)
    data = certificates.wanted({**data, CA_KEY: b""}, NAME, later)
    assert data[CA].count(b"BEGIN") == 1
    assert pki.verifies(data[CA], data[CERTIFICATE], NAME, later)


def test_an_operators_certificate_of_any_algorithm_is_served_and_never_replaced():
    data = operators()
    found = certificates.read(data)
    assert found is not None
    assert found.authority == data[CERTIFICATE]
    assert certificates.wanted(data, NAME, NOW + timedelta(days=1000)) is None


def test_words_between_certificates_do_no_harm_and_an_unreadable_authority_is_none():
    data = operators()
    issuer = pki.make_ca("issuer", NOW, 1).certificate
    found = certificates.read({**data, CA: "# Für die Kunden\n".encode() + issuer})
    assert found is not None
    assert found.authority.decode("ascii") == issuer.decode()
    found = certificates.read({**data, CA: b"nonsense"})
    assert found is not None
    assert found.authority == data[CERTIFICATE]


def test_what_cannot_be_served_is_none_and_nobody_is_asked_for_a_password():
    data = operators()
    assert certificates.read({}) is None
    assert certificates.read({**data, KEY: operators()[KEY]}) is None
    assert certificates.read(operators(b"secret")) is None
    assert certificates.read({CERTIFICATE: b"\xff", KEY: b"\xff"}) is None


# --- against an API server ---


def encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


@contextlib.asynccontextmanager
async def keeping(server: ApiServer, count: int = 1):
    async with contextlib.AsyncExitStack() as stack:
        apis = [await stack.enter_async_context(server.client()) for _ in range(count)]
        yield [Certificates(api, names.SYSTEM_NAMESPACE, NAME, lambda: NOW) for api in apis]


async def test_replicas_that_race_serve_the_same_certificate():
    server = ApiServer()
    server.put("secrets", secret(names.GATEWAY_TLS_SECRET))
    async with keeping(server, 3) as all_of_them:
        async with trio.open_nursery() as nursery:
            for one in all_of_them:
                nursery.start_soon(one.look)
        assert len({one.authority for one in all_of_them}) == 1
        assert [write for write in server.writes if write[0] == "PUT"] == [
            ("PUT", "secrets", names.GATEWAY_TLS_SECRET)
        ]


async def test_who_loses_the_race_takes_what_the_other_wrote():
    server = ApiServer()
    server.put("secrets", secret(names.GATEWAY_TLS_SECRET))
    theirs = made()

    def other_first(seen):
        if seen.method != "PUT":
            return None
        server.put("secrets", secret(names.GATEWAY_TLS_SECRET, **encoded(theirs)))
        return status(409, "Conflict")

    server.faults = [other_first]
    async with keeping(server) as [one]:
        await one.look()
        assert one.authority == theirs[CA]


async def test_a_changed_certificate_is_served_to_new_connections():
    server = ApiServer()
    server.put("secrets", secret(names.GATEWAY_TLS_SECRET, **encoded(operators())))
    async with keeping(server) as [one]:
        assert "served=False" in repr(one)
        with pytest.raises(RuntimeError, match="no certificate"):
            one.current()
        await one.look()
        first, authority = one.current(), one.authority
        await one.look()
        assert one.current() is first
        server.put("secrets", secret(names.GATEWAY_TLS_SECRET, **encoded(operators())))
        await one.look()
        assert one.current() is not first
        assert one.authority != authority
        # One that cannot be served leaves the old one in place.
        server.put("secrets", secret(names.GATEWAY_TLS_SECRET, **{CERTIFICATE: "eA=="}))
        served = one.current()
        await one.look()
        assert one.current() is served


@pytest.fixture
def jumping_clock():
    return clocks.jumping()


async def test_it_starts_once_there_is_a_certificate_and_survives_an_api_server_that_is_away(
    jumping_clock,
):
    server = ApiServer()
    async with keeping(server) as [one], trio.open_nursery() as nursery:
        assert one.authority == b""
        with trio.move_on_after(2.5 * certificates.RETRY_S) as waiting:
            await nursery.start(one.run)
        assert waiting.cancelled_caught
        assert len(server.seen) == 3
        server.put("secrets", secret(names.GATEWAY_TLS_SECRET))
        with trio.fail_after(5):
            await nursery.start(one.run)
        assert one.authority
        nursery.cancel_scope.cancel()


async def test_the_secret_is_looked_at_again_and_again(jumping_clock):
    server = ApiServer()
    async with keeping(server) as [one], trio.open_nursery() as nursery:

        async def deliver() -> None:
            # The first look finds no Secret at all.
            while not server.seen:
                await trio.sleep(0.1)
            server.put("secrets", secret(names.GATEWAY_TLS_SECRET))

        nursery.start_soon(deliver)
        await nursery.start(one.run)
        first = one.authority
        server.put("secrets", secret(names.GATEWAY_TLS_SECRET, **encoded(operators())))
        with trio.fail_after(3 * certificates.LOOK_S):
            while one.authority == first:
                await trio.sleep(certificates.LOOK_S / 2)
        nursery.cancel_scope.cancel()


def test_a_certificate_of_ours_that_names_nobody_is_made_anew():
    data = {**operators(), CA_KEY: b"beside it: so it counts as made here"}
    mended = certificates.wanted(data, NAME, NOW)
    assert mended is not None
    assert pki.verifies(mended[CA], mended[CERTIFICATE], NAME, NOW)

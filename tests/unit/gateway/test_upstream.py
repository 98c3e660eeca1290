"""The way to the daemons, over real sockets to whatever may answer there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from types import SimpleNamespace

import pytest
import trio

from gateway import dialling, upstream
from gateway.config import Settings
from gateway.daemons import LostError, NotListeningError
from gateway.model import Instance, Place
from gateway.upstream import Upstream
from sandman import wire
from sandman.errors import BadRequestError, ConflictError, DiedError, UnreachableError
from tests.fakes import clocks
from tests.fakes.daemons import INFO, answer, says, scripted

# httpx leaves the generators of a body that is not read to its end to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
CLAIM = wire.Claim("c1", previous_boot_id="b0")


@pytest.fixture
def jumping_clock():
    return clocks.jumping()


@contextlib.asynccontextmanager
async def reaching():
    async with scripted() as daemon:
        keys = SimpleNamespace(daemon_keys={"k1": b"k" * 32})
        way = Upstream(keys, Settings(daemon_port=daemon.port))
        instance = Instance(
            namespace="ns", name="p", uid="12345678-u", version="1", pool="root", state="leased",
            address="127.0.0.1", nonce="n", key_id="k1",
        )  # fmt: skip
        try:
            yield daemon, way, instance
            assert all(entry.users == 0 for entry in way._open.values())
        finally:
            with trio.move_on_after(1, shield=True):
                await way.aclose()
        assert repr(way) == "<Upstream transports=0>"


async def call(way: Upstream, instance: Instance, path: str = "/v1/files?path=/a", content=None):
    headers = [(b"content-type", "töxt".encode("latin-1"))]
    async with way.open(instance, "POST", path, headers, content) as response:
        return response.status_code, b"".join([chunk async for chunk in response.aiter_raw()])


# --- handshakes ---


async def test_a_claim_is_sent_with_the_pods_own_token_and_answered():
    async with reaching() as (daemon, way, instance):
        assert (await way.claim(instance, CLAIM)).boot_id == "b1"
        [seen] = daemon.calls
        assert seen.line == b"POST /v1/claim HTTP/1.1"
        assert len(seen.headers[b"authorization"]) == len("Bearer ") + 43
        assert b'"previous_boot_id": "b0"' in seen.body


@pytest.mark.parametrize(
    "said",
    [
        answer(b'{"boot_id":"b0"}'),
        answer(b'{"reason":"conflict","facts":{"boot_id":"b0"}}', status=b"409 Conflict"),
        answer(b'{"reason":"unauthenticated"}', status=b"401 Unauthorized"),
        b"SSH-2.0-nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",
        b"",
    ],
    ids=["old boot", "old boot refuses", "another pod", "not HTTP", "cut", "closed"],
)
async def test_what_may_be_well_in_a_moment_is_not_listening(said):
    async with reaching() as (daemon, way, instance):
        daemon.script = says(said, stay=False)
        with pytest.raises(NotListeningError):
            await way.claim(instance, CLAIM)


async def test_a_daemon_that_did_not_listen_is_met_once_it_does():
    async with reaching() as (daemon, way, instance):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and listens to nobody
            there, way._port = way._port, taken.getsockname()[1]
            for _ in range(3):
                with pytest.raises(NotListeningError):
                    await way.claim(instance, CLAIM)
        way._port = there
        assert (await way.claim(instance, CLAIM)).boot_id == "b1"
        assert (await way.claim(instance, CLAIM)).boot_id == "b1"
        assert len(daemon.calls) == 2


async def test_what_was_refused_is_knocked_at_where_it_listens():
    """Users' workloads have ports of their own."""
    async with reaching() as (daemon, way, instance):
        own = dataclasses.replace(instance, place=Place("web", "app", daemon.port, "b1"))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and listens to nobody
            way._port = taken.getsockname()[1]
            way._entry(own).was_refused = True
            assert (await way.claim(own, CLAIM)).boot_id == "b1"


async def test_knocking_where_packets_vanish_ends_in_time(jumping_clock, monkeypatch):
    async with reaching() as (daemon, way, instance):
        way._entry(instance).was_refused = True
        monkeypatch.setattr(trio.socket, "socket", _Deaf)
        with pytest.raises(NotListeningError, match="no answer in time"):
            await way.claim(instance, CLAIM)
        assert daemon.calls == []


class _Deaf:
    """A socket whose packets go nowhere."""

    def __init__(self, *_: object) -> None:
        self.closed = False

    def __enter__(self) -> _Deaf:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    async def connect(self, _: object) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"\xff", b'{"boot_id":5}', b'{"boot_id":"a\\r\\nX: y"}', b"[" * 50_000,
     b'{"boot_id":"' + b"x" * 65 + b'"}', b"x" * (upstream.ANSWER_MAX_BYTES + 1)],
)  # fmt: skip
async def test_a_stranger_on_the_port_is_no_fault_of_the_caller(body):
    async with reaching() as (daemon, way, instance):
        daemon.script = says(answer(body))
        with pytest.raises(DiedError, match="not the daemon"):
            await way.info(instance)


@pytest.mark.parametrize("value", [b"1e400", b"9" * 400, b"NaN", b"-Infinity"])
async def test_a_wait_that_makes_no_sense_is_passed_over(value):
    async with reaching() as (daemon, way, instance):
        daemon.script = says(answer(b'{"reason":"conflict","retry_after":%s}' % value,
                                    status=b"409 Conflict"))  # fmt: skip
        with pytest.raises(ConflictError) as caught:
            await way.info(instance)
        assert caught.value.retry_after is None


async def test_an_answer_without_an_end_is_cut():
    async def endless(call):
        await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await call.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    async with reaching() as (daemon, way, instance):
        daemon.script = endless
        with trio.fail_after(5), pytest.raises(DiedError, match="no end"):
            await way.info(instance)


async def test_one_that_never_answers_is_given_up_soon(jumping_clock):
    async with reaching() as (daemon, way, instance):
        daemon.script = lambda _call: trio.sleep_forever()
        with pytest.raises(NotListeningError, match="no answer in time"):
            await way.info(instance)


async def test_a_refusal_is_the_callers_to_hear():
    async with reaching() as (daemon, way, instance):
        daemon.script = says(answer(b'{"reason":"bad_request","detail":"no such user"}',
                                    status=b"400 Bad Request"))  # fmt: skip
        with pytest.raises(BadRequestError, match="no such user"):
            await way.claim(instance, CLAIM)
        daemon.script = says(answer(b'{"reason":"conflict"}', status=b"409 Conflict"))
        with pytest.raises(ConflictError):
            await way.claim(instance, CLAIM)


async def test_a_key_that_is_not_here_yet_is_worth_another_try():
    async with reaching() as (daemon, way, instance):
        other = dataclasses.replace(instance, key_id="k9")
        with pytest.raises(NotListeningError, match="k9"):
            await way.info(other)
        with pytest.raises(UnreachableError, match="k9"):
            await call(way, other)
        assert daemon.connections == 0


@pytest.mark.parametrize("address", [None, "", "localhost", "10.0.0.300", "1.2.3.4/x@y", "fe80::%"])
async def test_only_addresses_are_dialled(address, jumping_clock):
    async with reaching() as (daemon, way, instance):
        odd = dataclasses.replace(instance, address=address)
        if address != "fe80::%":
            with pytest.raises(NotListeningError, match="no address"):
                await way.info(odd)
        with pytest.raises(LostError) as caught:
            await call(way, odd)
        assert caught.value.sent is False
        assert daemon.connections == 0


# --- calls ---


async def test_path_and_headers_arrive_byte_for_byte():
    async with reaching() as (daemon, way, instance):
        target = '/v1/files?path=/a%2f%41+b|"<>^`{}#frag&x=%zz'
        assert await call(way, instance, target) == (200, INFO)
        [seen] = daemon.calls
        assert seen.line == f"POST {target} HTTP/1.1".encode()
        assert seen.headers[b"content-type"] == "töxt".encode("latin-1")
        assert b"accept-encoding" not in seen.headers


async def test_a_connection_is_kept_unless_the_daemon_says_close():
    async with reaching() as (daemon, way, instance):
        for _ in range(3):
            await call(way, instance)
        assert daemon.connections == 1
        daemon.script = says(answer(INFO, b"Connection: close"), stay=False)
        for _ in range(3):
            assert (await call(way, instance))[0] == 200
        assert daemon.connections == 3


async def test_a_lost_node_ends_a_silent_call():
    async with reaching() as (_, way, instance), way.open(instance, "GET", "/", [], None) as got:
        sock = got.extensions["network_stream"].get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, every, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        # With the search for the reason it is told within half a minute, and ten seconds are outlived.
        limit = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1e3
        assert 10 < idle + every * count <= limit
        assert 10 < limit <= 30 - Settings().loss_s - 2


async def test_no_transport_reads_the_worlds_authorities():
    async with reaching() as (_, way, instance):
        await call(way, instance)
        [entry] = way._open.values()
        assert entry.transport._pool._ssl_context is way._tls
        assert way._tls.cert_store_stats()["x509"] == 0


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        (answer(status=b"401 Unauthorized"), False),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", True),
        (answer(status=b"999 Odd"), True),
        (b"nonsense\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", True),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", True),
        (b"", True),
    ],
    ids=["401", "101", "999", "nonsense", "two lengths", "endless head", "cut", "bad chunk", "eof"],
)  # fmt: skip
async def test_what_is_no_answer_is_a_loss_and_says_whether_the_call_went_out(said, sent):
    async with reaching() as (daemon, way, instance):
        daemon.script = says(said, stay=False)
        with pytest.raises(LostError) as caught:
            await call(way, instance)
        assert caught.value.sent is sent


async def test_interim_answers_are_passed_over_and_redirects_are_not_followed():
    async with reaching() as (daemon, way, instance):
        interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3
        daemon.script = says(interim + answer())
        assert await call(way, instance) == (200, INFO)
        daemon.script = says(answer(b"", b"Location: http://127.0.0.1:1/", status=b"302 Found"))
        assert await call(way, instance) == (302, b"")
        assert len(daemon.calls) == 2


async def test_nobody_there_is_a_loss_of_a_call_that_never_went_out(jumping_clock):
    async with reaching() as (_, way, instance):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            way._port = probe.getsockname()[1]
        begun = trio.current_time()
        with pytest.raises(LostError, match="no connection") as caught:
            await call(way, instance)
        assert caught.value.sent is False
        assert trio.current_time() - begun >= sum(dialling.DIAL_PAUSES_S)


async def test_one_that_drops_packets_is_given_up_in_time(autojump_clock, monkeypatch):
    """Each try takes all of its time."""

    async def silent(*_args, **_options):
        await trio.sleep_forever()

    monkeypatch.setattr(upstream.trio, "open_tcp_stream", silent)
    settings = Settings()
    way = Upstream(SimpleNamespace(daemon_keys={"k1": b"k" * 32}), settings)
    instance = Instance(
        namespace="ns", name="p", uid="12345678-u", version="1", pool="root", state="leased",
        address="127.0.0.1", nonce="n", key_id="k1",
    )  # fmt: skip
    begun = trio.current_time()
    with pytest.raises(LostError):
        await way._connect(instance)
    assert trio.current_time() - begun + settings.loss_s < 30.0


@pytest.mark.parametrize("asked", [True, False])
async def test_a_renewal_says_whether_a_caller_asked_for_it(asked):
    async with reaching() as (daemon, way, instance):
        daemon.script = says(answer(b'{"ttl_s":5.0,"grace_s":0.0}'))
        await way.renew(instance, 5.0, asked=asked)
        [seen] = daemon.calls
        assert seen.line == b"POST /v1/renew HTTP/1.1"
        told = json.loads(seen.body)
        assert told == ({"ttl_s": 5.0, "asked": True} if asked else {"ttl_s": 5.0})


async def test_an_older_daemon_refuses_what_it_does_not_know():
    async with reaching() as (daemon, way, instance):
        refusal = b'{"reason":"bad_request","detail":"unknown field asked","field":"asked"}'
        daemon.script = says(answer(refusal, status=b"400 Bad Request"))
        with pytest.raises(BadRequestError):
            await way.renew(instance, 5.0, asked=True)
        daemon.script = says(answer(b"{", status=b"400 Bad Request"))
        with pytest.raises(DiedError):
            await way.renew(instance, 5.0, asked=True)


async def test_a_daemon_that_begins_to_listen_meanwhile_is_reached(jumping_clock):
    async with reaching() as (daemon, way, instance):
        use, tries = way._use, []

        def counting(one):
            tries.append(one)
            way._port = daemon.port
            return use(one)

        way._use = counting
        way._port = 1
        assert (await call(way, instance))[0] == 200
        assert len(tries) == 2

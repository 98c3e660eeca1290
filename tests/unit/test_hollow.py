"""The hollow daemon of the scale bed, as the gateway's own way to daemons finds it: one process, many addresses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from types import SimpleNamespace

import pytest
import trio

from gateway.config import Settings
from gateway.daemons import LostError, NotListeningError
from gateway.model import Instance
from gateway.upstream import Upstream
from sandman import grants, names, wire
from sandman.errors import ConflictError
from sandman.probes import Probe, Target
from sandman.service import kube
from tests.scale.hollow import pods
from tests.scale.hollow.leases import Leases
from tests.scale.hollow.server import HollowServer

pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
KEY = b"k" * 32
LEASES = Leases()
FRAMES = [(b"accept", names.MEDIA_FRAMES.encode()), (b"content-type", b"application/json")]


def pod_of(instance: Instance, image: str = "placeholder") -> pods.InjectedPod:
    token = grants.daemon_token(KEY, instance.namespace, instance.nonce)
    digest = hashlib.sha256(token.encode()).hexdigest()
    variable = pods.Variable(name=names.ENV_TOKEN_SHA256, value=digest)
    container = pods.Container(image=image, env=[variable])
    return pods.InjectedPod(
        metadata=kube.ObjectMeta(uid=instance.uid),
        spec=pods.Spec(containers=[container]),
        status=pods.Status(phase="Running", pod_ip=instance.address or ""),
    )


def sandbox(number: int) -> Instance:
    return Instance(
        namespace="ns", name=f"p{number}", uid=f"1234567{number}-u", version="1", pool="root", state="leased",
        address=f"127.64.0.{number}", nonce=f"n{number}", key_id="k1",
    )  # fmt: skip


@pytest.fixture
async def way():
    book = pods.Book(LEASES)

    def handler(address):
        found = book.at(address)
        return found.routes.handle if found else None

    server = HollowServer(0, handler)
    thread = threading.Thread(target=server.run)
    thread.start()
    keys = SimpleNamespace(daemon_keys={"k1": KEY})
    made = Upstream(keys, Settings(daemon_port=server.port))
    try:
        yield SimpleNamespace(
            book=book,
            **{name: getattr(made, name) for name in ("info", "claim", "open", "probe", "renew")},
        )
    finally:
        with trio.move_on_after(1, shield=True):
            await made.aclose()
        server.stop()
        thread.join()


async def call(way, instance, path, content=None, *, method="POST", headers=()):
    async with way.open(instance, method, path, [*headers], content) as response:
        return response.status_code, b"".join([part async for part in response.aiter_raw()])


async def run(way, instance, spec: wire.ExecSpec):
    """Its frames, the last one as a result."""
    content = wire_json(spec)
    status, data = await call(way, instance, "/v1/exec", content, headers=FRAMES)
    assert status == 200, data
    frames = list(wire.FrameDecoder().feed(data))
    assert frames[0].type == wire.STARTED
    assert frames[-1].type == wire.EXIT
    return frames[1:-1], wire.ExecResult.from_json(wire.load_object(frames[-1].payload))


def wire_json(spec: wire.ExecSpec) -> bytes:
    return json.dumps(spec.to_json()).encode()


async def test_each_address_has_a_daemon_of_its_own_with_its_own_token(way):
    first, second = sandbox(1), sandbox(2)
    for one in (first, second):
        way.book.see(pod_of(one), gone=False)
    assert (await way.info(first)).boot_id != (await way.info(second)).boot_id
    with pytest.raises(NotListeningError, match="token"):
        await way.info(dataclasses.replace(first, address=second.address, uid="other"))


async def test_one_claim_is_taken_and_a_swap_is_another_start(way):
    one = sandbox(1)
    way.book.see(pod_of(one), gone=False)
    before = (await way.info(one)).boot_id
    terms = wire.LeaseTerms(60.0, 600.0)
    assert (await way.claim(one, wire.Claim("c1", lease=terms))).claim_id == "c1"
    await way.renew(one, 30.0, asked=True)
    with pytest.raises(ConflictError):
        await way.claim(one, wire.Claim("c2"))
    swap = wire.Claim("c3", previous_boot_id=before)
    with pytest.raises(NotListeningError):
        await way.claim(one, swap)
    way.book.see(pod_of(one, "task"), gone=False)
    assert (await way.claim(one, swap)).boot_id != before


async def test_commands_answer_in_the_daemons_own_frames(way):
    one = sandbox(1)
    way.book.see(pod_of(one), gone=False)
    frames, result = await run(way, one, wire.ExecSpec(shell="echo a && false; echo b"))
    assert b"".join(frame.payload for frame in frames) == b"a\nb\n"
    assert (result.exit_code, result.stdout_bytes) == (0, 4)
    _, result = await run(way, one, wire.ExecSpec(argv=("head", "-c", "300000", "/dev/zero")))
    assert result.stdout_bytes == 300_000
    _, result = await run(way, one, wire.ExecSpec(argv=("sleep", "5"), timeout_s=0.05))
    assert result.timed_out
    assert result.exit_code == 143
    _, result = await run(way, one, wire.ExecSpec(shell="exit 7"))
    assert result.exit_code == 7


async def test_a_command_that_is_repeated_is_not_run_again(way):
    one = sandbox(1)
    way.book.see(pod_of(one), gone=False)
    spec = wire.ExecSpec(argv=("echo", "once"), exec_id="e1")
    _, first = await run(way, one, spec)
    assert (await run(way, one, spec))[1] == first


async def test_an_unknown_program_is_a_result(way):
    one = sandbox(1)
    way.book.see(pod_of(one), gone=False)
    content = wire_json(wire.ExecSpec(argv=("gcc",)))
    headers = [(b"content-type", b"application/json")]
    status, data = await call(way, one, "/v1/exec", content, headers=headers)
    result = wire.ExecResult.from_json(wire.load_object(data))
    assert (status, result.exit_code, result.start_error) == (200, 127, wire.NOT_FOUND)


async def test_files_are_kept_for_each_pod(way):
    first, second = sandbox(1), sandbox(2)
    for one in (first, second):
        way.book.see(pod_of(one), gone=False)
    path = "/v1/files?path=/tmp/a"
    status, _ = await call(way, first, path, b"content", method="PUT")
    assert status == 200
    assert await call(way, first, path, method="GET") == (200, b"content")
    assert (await call(way, second, path, method="GET"))[0] == 404
    frames, _ = await run(way, first, wire.ExecSpec(argv=("cat", "/tmp/a")))
    assert frames[0].payload == b"content"
    assert (await call(way, first, path, method="DELETE"))[0] == 204
    assert (await call(way, first, path, method="GET"))[0] == 404


async def test_probes_find_a_network_that_is_closed(way):
    one = sandbox(1)
    way.book.see(pod_of(one), gone=False)
    target = Target("127.0.0.1", 1)
    assert await way.probe(one, Probe((target,), 1.0)) == {target: "timeout"}


async def test_a_pod_that_is_gone_answers_nobody(way):
    one = sandbox(1)
    way.book.see(pod_of(one), gone=False)
    await way.info(one)
    way.book.see(pod_of(one), gone=True)
    with pytest.raises(NotListeningError):
        await way.info(one)
    with pytest.raises(LostError):
        await call(way, one, "/v1/files?path=/a", method="GET")


async def test_a_call_for_another_start_is_told_so(way):
    one = sandbox(1)
    way.book.see(pod_of(one), gone=False)
    headers = [(names.HEADER_BOOT_ID.encode(), b"another")]
    status, data = await call(way, one, "/v1/files?path=/a", method="GET", headers=headers)
    assert (status, wire.load_object(data)["reason"]) == (410, "died")


async def test_a_lease_that_is_over_ends_the_daemon(way):
    one = sandbox(1)
    way.book.see(pod_of(one), gone=False)
    await way.claim(one, wire.Claim("c1", lease=wire.LeaseTerms(0.1, 0.0)))
    with trio.fail_after(10):
        while way.book.at("127.64.0.1") is not None:
            await trio.sleep(0.05)
    with pytest.raises(NotListeningError):
        await way.info(one)

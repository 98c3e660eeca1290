"""The gateway as `python -m gateway` puts it together, against an API server over real sockets and the
real daemon: certificate, keys, watches, election, HTTPS, stop."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import ssl
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import pytest
import trio
from trio.testing import MockClock

from gateway import cluster, janitor, serve, tokens
from gateway.config import Settings
from gateway.serve import Gateway
from sandman import grants, names, wire
from sandman.service import keyring, kube, pki
from tests.fakes.api_server import ApiServer, Link
from tests.fakes.objects import TASK, deployment, injected, node, placeholder, running, secret
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = b"k" * 32


@pytest.fixture
def fast_clock():
    """A Lease's seconds pass four times as fast; sockets and the daemon are real."""
    return MockClock(rate=4.0)


def encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


class Bed(SimpleNamespace):
    """A cluster with one placeholder, in which the real daemon runs, and a caller's token."""

    server: ApiServer
    token: str

    def settings(self, name: str, **changes) -> Settings:
        return Settings(
            bind="127.0.0.1", port=free_port(), pod_name=name, lame_duck_s=0.0, grace_s=2.0,
            daemon_port=self.daemon.port, loss_s=0.5, **changes,
        )  # fmt: skip

    def cluster_of(self, daemon) -> ApiServer:
        """Its kubelet starts the daemon anew when an image is swapped."""
        server = ApiServer()
        images: dict[str, str] = {}

        def kubelet(event, pod) -> None:
            uid, image = pod["metadata"]["uid"], pod["spec"]["containers"][0]["image"]
            if event == "MODIFIED" and images.get(uid, image) != image:
                daemon.restart()
                images[uid] = image
                server.change("pods", pod["metadata"]["name"], lambda one: running(one, restarts=1))
            images[uid] = image

        server.kubelet = kubelet
        server.admit = injected
        server.put("nodes", node())
        server.put("deployments", deployment())
        server.put("secrets", secret(names.GATEWAY_TLS_SECRET))
        server.put("secrets", secret(names.KEYS_SECRET))
        self.token = tokens.make_api_key("acme")
        entry = {"acme": tokens.api_key_entry(self.token, "acme")}
        server.put("secrets", secret(names.API_KEYS_SECRET, **encoded(entry)))
        return server

    def give_keys(self) -> None:
        """What the webhook does at its first start."""
        ring = keyring.fresh("k1", KEY, b"s" * 32)
        self.server.put("secrets", secret(names.KEYS_SECRET, **encoded(ring.to_data())))

    @contextlib.asynccontextmanager
    async def replica(
        self, link: Link, name: str = "gw-1", **changes
    ) -> AsyncIterator[SimpleNamespace]:
        """One replica, running; `stop` and `ended` tell of its end."""
        stop, ended = trio.Event(), trio.Event()
        settings = self.settings(name, **changes)
        async with kube.Kube(link.target) as api, trio.open_nursery() as nursery:
            gateway = Gateway(settings, cluster.ground(settings, api, serve.wall), stop)

            async def run(*, task_status) -> None:
                await gateway.run(task_status=task_status)
                ended.set()

            bound, *_ = await nursery.start(run)
            async with httpx.AsyncClient(
                base_url=f"https://127.0.0.1:{bound.port}",
                verify=ssl.create_default_context(cadata=gateway.certificates.authority.decode()),
                headers={"authorization": f"Bearer {self.token}"}, timeout=60,
            ) as client:  # fmt: skip
                yield SimpleNamespace(
                    gateway=gateway, client=client, stop=stop, ended=ended, settings=settings
                )
            nursery.cancel_scope.cancel()


@pytest.fixture
async def bed(daemon) -> AsyncIterator[Bed]:
    one = Bed(daemon=daemon)
    token = grants.daemon_token(KEY, names.SANDBOX_NAMESPACE, "nonce-1")
    daemon.stop()
    daemon._env[names.ENV_TOKEN_SHA256] = grants.token_digest(token)
    daemon.process = daemon._start()
    one.server = one.cluster_of(daemon)
    one.server.put("pods", placeholder("p1"))
    return one


async def until(condition, within: float = 60.0) -> None:
    with trio.fail_after(within):
        while not (found := condition()) or (hasattr(found, "__await__") and not await found):
            await trio.sleep(0.05)


async def has_free(one) -> None:
    """It serves, and has met the placeholder's daemon."""
    await until(lambda: not one.gateway.not_ready())
    await until(lambda: one.gateway.pool._allocation.statistics().free == 1)


async def answers(client: httpx.AsyncClient, headers=None, **body):
    """The answer to an allocation, as a patient caller gets it: what is retryable is repeated."""
    with trio.fail_after(60):
        while True:
            answer = await client.post("/v1/sandboxes", json=body, headers=headers)
            if answer.status_code == 201 or not answer.json()["retryable"]:
                return answer
            await trio.sleep(0.2)


async def test_from_an_empty_cluster_to_a_command_and_to_the_stop(bed, fast_clock):
    async with bed.server.links(1) as [link], bed.replica(link) as one:
        early = await one.client.get("/readyz")
        assert early.status_code == 503
        assert "the signing keys" in early.text
        assert (await one.client.post("/v1/sandboxes", json={})).status_code == 503
        bed.give_keys()
        await has_free(one)
        made = await answers(one.client, image=TASK, run="r1")
        assert made.status_code == 201, made.text
        assert (made.json()["tier"], made.json()["image"]) == ("swap", TASK)
        ran = await one.client.post(
            f"/v1/sandboxes/{made.json()['id']}/exec",
            json={"shell": "echo out; exit 3"},
            headers={"authorization": f"Bearer {made.json()['token']}"},
        )
        result = wire.ExecResult.from_json(ran.json())
        assert (result.exit_code, result.stdout) == (3, b"out\n")
        # One write took the pod; the Secret's certificate verifies the name of the Service.
        assert [w for w in bed.server.writes if w[1] == "pods"] == [("PATCH", "pods", "p1")]
        data = bed.server.named("secrets", names.GATEWAY_TLS_SECRET)["data"]
        leaf, ca = (base64.b64decode(data[name]) for name in ("tls.crt", "ca.crt"))
        assert pki.verifies(ca, leaf, one.settings.server_name, serve.datetime.now(serve.UTC))

        one.stop.set()
        assert one.gateway.not_ready() == ["the end"]
        with trio.fail_after(10):
            await one.ended.wait()
        # The next allocator need not wait for the Lease to run out.
        lease = bed.server.named("leases", names.ALLOCATOR_LEASE)
        assert lease["spec"].get("holderIdentity") is None


async def test_a_sandbox_gets_the_resources_that_it_was_asked_for(bed, fast_clock):
    bed.give_keys()
    sized = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": 1, "memory": "1Gi"}}

    def give(document) -> None:
        document["spec"]["containers"][0]["resources"] = sized

    pool = deployment(**{names.ANNOTATION_POOL_RESIZE: "true"})
    give(pool["spec"]["template"])
    bed.server.put("deployments", pool)
    bed.server.remove("pods", "p1")
    free = placeholder("p1")
    give(free)
    bed.server.put("pods", free)
    restart = bed.server.kubelet

    def kubelet(event, pod) -> None:
        restart(event, pod)
        wanted = pod["spec"]["containers"][0]["resources"]
        [status] = bed.server.named("pods", "p1")["status"]["containerStatuses"]
        if status.get("resources") != wanted:
            bed.server.change("pods", "p1", lambda one: actuated(one, wanted))

    bed.server.kubelet = kubelet
    async with bed.server.links(1) as [link], bed.replica(link) as one:
        await has_free(one)
        body = {"image": TASK, "resources": {"cpu": "500m", "memory": "2Gi"}}
        made = await answers(one.client, **body)
        assert made.status_code == 201, made.text
        assert (made.json()["tier"], made.json()["resources"]) == ("swap", body["resources"])
        written = [write for write in bed.server.writes if write[1].startswith("pods")]
        assert written == [("PATCH", "pods", "p1"), ("PATCH", "pods/resize", "p1")]
        [container] = bed.server.named("pods", "p1")["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "125m", "memory": "1Gi"}
        too_much = await answers(one.client, resources={"cpu": "5000"})
        assert (too_much.status_code, too_much.json()["field"]) == (400, "resources.cpu")
        [shown] = (await one.client.get("/v1/pools")).json()["pools"]
        assert (shown["resources"], shown["resize"]) == ({"cpu": "1", "memory": "1Gi"}, True)


def actuated(pod, resources) -> None:
    """The kubelet's report that the container has them."""
    pod["status"]["containerStatuses"][0]["resources"] = resources


async def test_metrics_that_tell_of_tenants_have_a_port_of_their_own(bed, fast_clock):
    bed.give_keys()
    bed.server.remove("pods", "p1")
    port = free_port()
    async with (
        bed.server.links(1) as [link],
        bed.replica(link, metrics_port=port, cold_max=0) as one,
        trio.open_nursery() as nursery,
    ):
        await until(lambda: not one.gateway.not_ready() and one.gateway.election.is_leader)
        nursery.start_soon(answers, one.client)
        await until(one.gateway.pool.waiting)
        url = f"https://127.0.0.1:{port}"
        told = (await one.client.get(f"{url}/metrics")).text
        assert 'sandman_queue_length{tenant="acme"} 1.0' in told
        # The Lease and the certificate were written by now.
        assert 'sandman_api_writes_total{resource="leases"' in told
        assert "acme" not in (await one.client.get("/metrics")).text
        assert (await one.client.get(f"{url}/readyz")).text == "ok"
        assert (await one.client.get(f"{url}/v1/sandboxes")).status_code == 404
        nursery.cancel_scope.cancel()


async def test_after_a_restart_everything_is_known_again(bed, fast_clock):
    bed.give_keys()
    async with bed.server.links(1) as [link]:
        async with bed.replica(link) as one:
            await has_free(one)
            made = (await answers(one.client, labels={"a": "b"})).json()
        async with bed.replica(link, "gw-2") as two:
            await until(lambda: not two.gateway.not_ready())
            [shown] = (await two.client.get("/v1/sandboxes")).json()["sandboxes"]
            assert (shown["id"], shown["labels"]) == (made["id"], {"a": "b"})
            path = f"/v1/sandboxes/{made['id']}"
            ran = await two.client.post(f"{path}/exec", json={"argv": ["true"]})
            assert (ran.status_code, ran.json()["boot_id"]) == (200, made["boot_id"])
            assert (await two.client.delete(path)).status_code == 204
            assert bed.server.all("pods") == []


async def test_a_sandbox_that_died_makes_room_and_its_callers_still_hear_why(
    bed, fast_clock, monkeypatch
):
    monkeypatch.setattr(janitor, "EVERY_S", 0.5)
    bed.give_keys()
    async with bed.server.links(1) as [link], bed.replica(link, retain_s=2.0) as one:
        await has_free(one)
        made = (await answers(one.client)).json()
        bed.server.change("pods", "p1", failed)
        await until(lambda: bed.server.all("pods") == [])
        answer = await one.client.get(f"/v1/sandboxes/{made['id']}")
        assert (answer.status_code, answer.json()["reason"]) == (410, "evicted")


def failed(pod) -> None:
    pod["status"] |= {"phase": "Failed", "reason": "Evicted", "containerStatuses": []}


async def test_one_leads_and_the_other_hands_on_and_takes_over_when_it_is_cut_off(bed, fast_clock):
    bed.give_keys()
    async with bed.server.links(2) as links, contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(bed.replica(links[0], "gw-1"))
        await until(lambda: one.gateway.election.is_leader)
        two = await stack.enter_async_context(bed.replica(links[1], "gw-2"))
        await until(lambda: two.gateway.election.address and not two.gateway.not_ready())
        await has_free(one)
        headers = {"idempotency-key": "k"}
        made = await answers(two.client, headers)
        assert made.status_code == 201, made.text
        assert one.gateway.pool._roster.registry.find(made.json()["id"])
        bad = await two.client.post("/v1/sandboxes", json={"nope": 1})
        assert (bad.status_code, bad.json()["field"]) == (400, "nope")

        links[0].cut()
        # It stands down by its own clock, before another may take over.
        await until(lambda: not one.gateway.election.is_leader)
        await until(lambda: two.gateway.election.is_leader)
        # The new one knows from the pod alone what was made under the key.
        again = await answers(two.client, headers)
        assert (again.json()["id"], again.json()["boot_id"]) == (
            made.json()["id"], made.json()["boot_id"],
        )  # fmt: skip
        # Whoever comes to the one that is cut off is sent away, not served by a deposed allocator.
        late = await one.client.post("/v1/sandboxes", json={})
        assert (late.status_code, late.json()["retryable"]) == (503, True)
        assert [write[:2] for write in bed.server.writes if write[1] == "pods"] == [
            ("PATCH", "pods")
        ]


async def test_a_stop_while_it_waits_for_its_certificate_is_a_stop(bed):
    bed.server.remove("secrets", names.GATEWAY_TLS_SECRET)
    stop = trio.Event()
    async with bed.server.links(1) as [link], kube.Kube(link.target) as api:
        settings = bed.settings("gw-1")
        gateway = Gateway(settings, cluster.ground(settings, api, serve.wall), stop)
        with trio.fail_after(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(gateway.run)
                while not any("secrets/" in seen.path for seen in bed.server.seen):
                    await trio.sleep(0.01)
                stop.set()
    assert bed.server.objects.get(("leases", names.SYSTEM_NAMESPACE, names.ALLOCATOR_LEASE)) is None


async def test_main_serves_the_cluster_of_the_environment_until_a_signal(
    bed, monkeypatch, tmp_path
):
    bed.give_keys()
    settings = bed.settings("gw-1")
    async with bed.server.links(1) as [link]:
        monkeypatch.setattr(serve.kube, "load", lambda: link.target)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve.main, settings)
            async with httpx.AsyncClient(verify=False, timeout=20) as client:
                url = f"https://127.0.0.1:{settings.port}/readyz"
                with trio.fail_after(10):
                    while True:
                        with contextlib.suppress(httpx.ConnectError):
                            if (await client.get(url)).status_code == 200:
                                break
                        await trio.sleep(0.05)
                os.kill(os.getpid(), signal.SIGTERM)
                with trio.fail_after(10):
                    while nursery.child_tasks:
                        await trio.sleep(0.05)


@pytest.mark.parametrize(
    ("address", "shown"), [("10.0.0.1", "10.0.0.1:8443"), ("fd00::1", "[fd00::1]:8443")]
)
async def test_other_replicas_are_told_an_address_that_they_can_dial(address, shown):
    api = kube.Kube(kube.Target("http://x"))
    ground = cluster.ground(Settings(pod_ip=address), api, serve.wall)
    assert ground.election.identity.endswith(f"@{shown}")

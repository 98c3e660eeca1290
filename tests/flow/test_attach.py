"""Attaching to a user's workload: the gateway as it is put together, an API server over real sockets, and the
real daemon beside a command that is not Sandman's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import structlog.testing
import trio

from gateway import access, attach, detaching, runs, tokens
from gateway.model import Identity
from gateway.routes import parse
from sandman import grants, names
from tests.fakes.api_server import refuse
from tests.fakes.objects import secret
from tests.flow.test_whole import KEY, Bed, encoded, until

SHOP = "shop"
ALICE = Identity("alice", ("dev",))


class Web:
    """A pod of the user's: a command with the daemon before it, as the kubelet runs it."""

    def __init__(self, nonce: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        token = grants.daemon_token(KEY, SHOP, grants.container_nonce(nonce, "app"))
        self._env = {
            **os.environ,
            names.ENV_PORT: str(self.port),
            names.ENV_TOKEN_SHA256: grants.token_digest(token),
        }
        self.process = self._start()

    def _start(self) -> subprocess.Popen:
        command = [sys.executable, "-m", "daemon", "serve", "--", "sleep", "600"]
        process = subprocess.Popen(command, env=self._env, stderr=subprocess.DEVNULL)
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return process
            time.sleep(0.025)
        raise AssertionError("the daemon does not listen")

    def restart(self) -> None:
        self.stop()
        self.process = self._start()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


@pytest.fixture
def web():
    one = Web("n-web")
    yield one
    one.stop()


def pod(name: str, port: int, *, nonce: str = "n-web", restarts: int = 0, **labels) -> dict:
    """As the webhook and the kubelet leave it."""
    annotations = {
        names.ANNOTATION_NONCE: nonce, names.ANNOTATION_KEY_ID: "k1", names.ANNOTATION_INJECTED: "1",
        names.ANNOTATION_CONTAINERS: json.dumps({"app": port}),
    }  # fmt: skip
    status = {
        "phase": "Running", "podIP": "127.0.0.1",
        "containerStatuses": [
            {"name": "app", "imageID": "web@sha256:1", "restartCount": restarts, "state": {"running": {}}}
        ],
    }  # fmt: skip
    return {
        "metadata": {
            "name": name, "namespace": SHOP, "annotations": annotations,
            "labels": {names.LABEL_INJECT: names.INJECT_WORKLOAD, **labels},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "web:1"}]}, "status": status,
    }  # fmt: skip


class Shop:
    """A cluster with one workload, a gateway, and callers whom the cluster knows or not."""

    def __init__(self, one, bed: Bed, web: Web, others: dict[str, str]) -> None:
        self.client, self.gateway, self.stop = one.client, one.gateway, one.stop
        self.server, self.web, self.others = bed.server, web, others

    def as_(self, who: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.others[who]}"}

    async def attach(self, *, who: str | None = None, key: str | None = None, **body):
        headers = self.as_(who) if who else {}
        headers |= {names.HEADER_IDEMPOTENCY_KEY: key} if key else {}
        given = {"namespace": SHOP, **({} if "selector" in body else {"pod": "web-1"}), **body}
        return await self.client.post("/v1/sandboxes/attach", json=given, headers=headers)

    async def attached(self, **body) -> dict:
        answer = await self.attach(**body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def sh(self, box: dict, script: str) -> dict:
        answer = await self.client.post(f"/v1/sandboxes/{box['id']}/exec", json={"shell": script})
        return answer.json()

    def leases(self) -> list[str]:
        found = [one["metadata"]["name"] for one in self.server.all("leases")]
        return [name for name in found if name.startswith(names.ATTACHMENT_PREFIX)]

    def writes_to_pods(self) -> list:
        return [one for one in self.server.writes if one[1] == "pods"]


@pytest.fixture
async def shop(web, monkeypatch):
    monkeypatch.setattr(detaching, "EVERY_S", 0.1)
    monkeypatch.setattr(parse, "SPAN_LEAST_S", 0.5)
    monkeypatch.setattr(access, "VERDICT_S", 0.1)
    bed = Bed(daemon=web)
    bed.server = bed.cluster_of(web)
    bed.give_keys()
    others = {}
    entries = {"acme": tokens.api_key_entry(bed.token, "acme", identity=ALICE)}
    for tenant, identity in (("zeta", Identity("zoe")), ("plain", None), ("rival", ALICE)):
        others[tenant] = tokens.make_api_key(tenant)
        entries[tenant] = tokens.api_key_entry(others[tenant], tenant, identity=identity)
    bed.server.put("secrets", secret(names.API_KEYS_SECRET, **encoded(entries)))
    bed.server.put("pods", pod("web-1", web.port, app="web"))
    bed.server.may = lambda spec: (
        spec["user"] == "alice" and "system:authenticated" in spec["groups"]
    )
    async with bed.server.links(1) as [link], bed.replica(link, workload_namespaces=(SHOP,)) as one:
        await until(lambda: not one.gateway.not_ready())
        await until(one.gateway.attached.attachable)
        yield Shop(one, bed, web, others)


class TestUse:
    async def test_commands_files_and_the_way_out(self, shop):
        box = await shop.attached(run="r1", labels={"a": "b"}, env={"X": "1"}, workdir="/tmp")
        assert box["tier"] == "attached"
        assert box["attached"] == {"namespace": SHOP, "pod": "web-1", "container": "app"}
        assert (box["image"], box["node"], box["state"]) == ("web:1", "n1", "ready")
        assert (await shop.sh(box, "echo $X; pwd"))["stdout"] == "1\n/tmp\n"
        path = f"/v1/sandboxes/{box['id']}/files?path=/tmp/attach-{os.getpid()}"
        assert (await shop.client.put(path, content=b"bytes")).status_code in {200, 201, 204}
        assert (await shop.client.get(path)).content == b"bytes"
        await shop.client.delete(path)
        listed = (await shop.client.get("/v1/sandboxes?run=r1")).json()["sandboxes"]
        assert [(one["id"], one["labels"]) for one in listed] == [(box["id"], {"a": "b"})]
        started = await shop.client.post(
            f"/v1/sandboxes/{box['id']}/processes",
            json={"argv": ["sleep", "300"], "detached": True},
        )
        assert started.status_code == 200
        released = await shop.client.delete(f"/v1/sandboxes/{box['id']}")
        assert released.status_code == 204
        assert shop.leases() == []
        assert shop.writes_to_pods() == []
        assert shop.web.process.poll() is None
        gone = await shop.client.get(f"/v1/sandboxes/{box['id']}")
        assert (gone.status_code, gone.json()["reason"]) == (410, "released")
        again = await shop.attached()
        processes = await shop.client.get(f"/v1/sandboxes/{again['id']}/processes")
        assert processes.json() == {"processes": []}
        assert (await shop.client.delete(f"/v1/sandboxes/{box['id']}")).status_code == 204
        assert (await shop.sh(again, "echo on"))["stdout"] == "on\n"

    @pytest.mark.parametrize("network", ["open", "none"])
    async def test_a_workloads_network_is_not_sandmans_to_change(self, shop, network):
        box = await shop.attached()
        assert box["network"] is None
        refused = await shop.client.put(
            f"/v1/sandboxes/{box['id']}/network", json={"network": network}
        )
        problem = refused.json()
        assert (refused.status_code, problem["reason"]) == (422, "network_unsupported")
        assert (problem["sandbox"], problem["cause"]) == (box["id"], "caller")
        assert shop.writes_to_pods() == []
        assert (await shop.sh(box, "echo on"))["stdout"] == "on\n"

    async def test_its_token_is_good_for_it_alone(self, shop):
        box = await shop.attached()
        headers = {"authorization": f"Bearer {box['token']}"}
        path = f"/v1/sandboxes/{box['id']}/exec"
        done = await shop.client.post(path, json={"shell": "echo hi"}, headers=headers)
        assert done.json()["stdout"] == "hi\n"
        refused = await shop.client.delete(f"/v1/sandboxes/{box['id']}", headers=headers)
        assert refused.status_code == 403

    async def test_by_labels_and_a_whole_run_at_once(self, shop):
        box = await shop.attached(selector={"app": "web"}, run="r2")
        nobody = await shop.attach(selector={"app": "db"})
        assert nobody.status_code == 403
        released = await shop.client.delete("/v1/runs/r2")
        assert released.json() == {"released": 1}
        assert shop.leases() == []
        late = await shop.client.get(f"/v1/sandboxes/{box['id']}")
        assert late.json()["reason"] == "released"

    async def test_what_keeps_sandboxes_leaves_it_alone(self, shop):
        box = await shop.attached(run="r3", lease={"max_s": 60})
        assert box["lease"] == {"ttl_s": None, "idle_s": None, "max_s": 60, "run": False}
        assert box["expires_at"] is not None
        there = shop.server.named("leases", shop.leases()[0])
        path = f"/v1/sandboxes/{box['id']}"
        for token in (box["token"], None):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            renewed = await shop.client.post(f"{path}/renew", headers=headers)
            assert renewed.json() == {"id": box["id"], "expires_at": box["expires_at"]}
        beaten = await shop.client.post("/v1/runs/r3/heartbeat")
        assert beaten.json() == {"run": "r3", "sandboxes": 1}
        await shop.sh(box, "true")
        gateway, now = shop.gateway, trio.current_time()
        assert "touched=0" in repr(gateway.keeper)
        for _ in range(2):
            await gateway.sweeper.sweep(now - 1e6)
        await gateway.runs.tidy((), now + runs.KEEP_S + 1)
        assert shop.server.named("leases", there["metadata"]["name"]) == there
        assert shop.writes_to_pods() == []
        shown = (await shop.client.get(path)).json()
        assert (shown["state"], shown["expires_at"]) == ("ready", box["expires_at"])
        assert (await shop.sh(box, "echo on"))["stdout"] == "on\n"

    async def test_each_is_told_in_the_audit_and_counted(self, shop):
        with structlog.testing.capture_logs() as lines:
            box = await shop.attached(run="r5")
            shown = (await shop.client.get("/metrics")).text
            assert "\nsandman_attachable 1.0" in shown
            assert "\nsandman_attachments 1.0" in shown
            await shop.client.delete(f"/v1/sandboxes/{box['id']}")
        told = [one for one in lines if one["event"] == "audit"]
        where = {
            "event": "audit", "log_level": "info", "sandbox": box["id"], "tenant": "acme", "run": "r5",
            "node": "n1", "namespace": SHOP, "pod": "web-1", "container": "app",
        }  # fmt: skip
        assert told == [
            {**where, "action": "attach", "user": "alice"},
            {
                **where,
                "action": "detach",
                "reason": "released",
                "cause": "caller",
                "detail": "it was released",
            },
        ]
        shown = (await shop.client.get("/metrics")).text
        assert 'sandman_attachments_ended_total{cause="caller",reason="released"} 1.0' in shown
        assert "\nsandman_attachments 0.0" in shown

    async def test_what_has_ended_is_listed_beside_sandboxes(self, shop):
        box = await shop.attached(run="r4")
        listing = "/v1/sandboxes?run=r4&state=ended"
        assert (await shop.client.get(listing)).json() == {"sandboxes": []}
        await shop.client.delete(f"/v1/sandboxes/{box['id']}")
        [gone] = (await shop.client.get(listing)).json()["sandboxes"]
        assert (gone["id"], gone["ended"]["reason"]) == (box["id"], "released")
        assert (await shop.client.get("/v1/sandboxes?run=r4")).json() == {"sandboxes": []}

    async def test_what_can_be_attached_to(self, shop):
        shown = (await shop.client.get("/v1/sandboxes?attachable=1")).json()["attachable"]
        assert [(one["pod"], one["container"], one["attached"]) for one in shown] == [
            ("web-1", "app", False)
        ]
        await shop.attached()
        shown = (await shop.client.get(f"/v1/sandboxes?attachable&namespace={SHOP}")).json()
        assert shown["attachable"][0]["attached"] is True
        for query in ("attachable&run=x", "attachable=1&attachable=1"):
            assert (await shop.client.get(f"/v1/sandboxes?{query}")).status_code == 400
        elsewhere = await shop.client.get("/v1/sandboxes?attachable&namespace=other")
        assert elsewhere.status_code == 404


class TestWhoMay:
    async def test_only_who_may_exec_there(self, shop):
        refused = await shop.attach(who="zeta")
        assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")
        absent = await shop.attach(who="zeta", pod="none-there")
        assert absent.json()["detail"].replace("none-there", "web-1") == refused.json()["detail"]
        shown = await shop.client.get("/v1/sandboxes?attachable", headers=shop.as_("zeta"))
        assert shown.json() == {"attachable": []}
        assert shop.leases() == []

    async def test_a_right_for_one_pod_is_enough(self, shop):
        shop.server.may = lambda spec: (
            spec["user"] == "zoe" and spec["resourceAttributes"]["name"] == "web-1"
        )
        assert (await shop.attach(who="zeta")).status_code == 201

    async def test_a_caller_whom_the_cluster_does_not_know(self, shop):
        refused = await shop.attach(who="plain")
        assert refused.status_code == 403
        assert "--kubernetes-user" in refused.json()["detail"]
        shown = await shop.client.get("/v1/sandboxes?attachable", headers=shop.as_("plain"))
        assert shown.status_code == 403

    async def test_another_tenants_attachment_does_not_exist(self, shop):
        box = await shop.attached()
        path = f"/v1/sandboxes/{box['id']}"
        assert (await shop.client.get(path, headers=shop.as_("rival"))).status_code == 404
        assert (await shop.client.delete(path, headers=shop.as_("rival"))).status_code == 204
        assert (await shop.client.get(path)).status_code == 200
        unknown = await shop.client.get(f"/v1/sandboxes/{names.ATTACHMENT_PREFIX}x-00000000")
        assert unknown.status_code == 404

    async def test_who_loses_the_right_loses_the_attachment(self, shop):
        box = await shop.attached()
        shop.server.may = lambda _spec: False

        await until(lambda: not shop.leases(), within=120)
        told = (await shop.client.get(f"/v1/sandboxes/{box['id']}")).json()
        assert told["reason"] == "released"
        assert "alice" in told["detail"]
        assert shop.web.process.poll() is None

    async def test_no_verdict_is_no_yes(self, shop):
        def broken(_spec):
            raise refuse(500, "InternalError")

        shop.server.may = broken
        answer = await shop.attach(who="zeta")
        assert answer.status_code in {500, 503}
        assert shop.leases() == []


class TestOneAtATime:
    async def test_a_second_one_is_told_so_and_the_same_key_gives_the_same(self, shop):
        box = await shop.attached(key="k")
        again = await shop.attached(key="k")
        assert (again["id"], again["boot_id"]) == (box["id"], box["boot_id"])
        for taken in (
            await shop.attach(),
            await shop.attach(key="other"),
            await shop.attach(who="rival", key="k"),
        ):
            assert (taken.status_code, taken.json()["reason"]) == (409, "conflict")

    async def test_one_that_was_left_over_makes_room(self, shop):
        """A gateway that died after it had taken the container, or before its daemon was told of the end."""
        box = await shop.attached()
        [name] = shop.leases()
        shop.server.remove("leases", name)
        await until(lambda: not shop.gateway.attached.attachments())
        other = await shop.attached(who="rival")
        assert other["boot_id"] != box["boot_id"]
        [name] = shop.leases()

        def unfinished(lease) -> None:
            annotations = lease["metadata"]["annotations"]
            place = json.loads(annotations[names.ANNOTATION_WORKLOAD])
            del place["boot_id"]
            annotations[names.ANNOTATION_WORKLOAD] = json.dumps(place)
            terms = json.loads(annotations[names.ANNOTATION_LEASE])
            terms["taken_at"] -= attach.UNFINISHED_S
            annotations[names.ANNOTATION_LEASE] = json.dumps(terms)

        shop.server.change("leases", name, unfinished)
        assert (await shop.attach()).status_code == 201


class TestEnds:
    async def test_a_container_that_was_started_anew(self, shop):
        box = await shop.attached()
        shop.web.restart()
        late = await shop.client.get(f"/v1/sandboxes/{box['id']}/info")
        assert (late.status_code, late.json()["reason"]) == (410, "died")
        shop.server.change(
            "pods", "web-1",
            lambda one: one["status"]["containerStatuses"][0].update(restartCount=1),
        )  # fmt: skip
        await until(lambda: not shop.leases())
        told = await shop.client.get(f"/v1/sandboxes/{box['id']}")
        assert (told.status_code, told.json()["reason"]) == (410, "died")
        again = await shop.attached()
        assert again["id"] != box["id"]
        assert (await shop.sh(again, "echo 1"))["stdout"] == "1\n"

    async def test_a_pod_that_is_gone_ends_its_calls_with_the_reason(self, shop):
        box = await shop.attached()
        answers = []

        async def wait() -> None:
            path = f"/v1/sandboxes/{box['id']}/exec"
            answers.append(await shop.client.post(path, json={"shell": "sleep 100"}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until(lambda: shop.gateway.attached.registry._calls)
            shop.server.remove("pods", "web-1")
        assert (answers[0].status_code, answers[0].json()["reason"]) == (410, "deleted")
        await until(lambda: not shop.leases(), within=120)

    async def test_a_daemon_that_is_lost_in_the_middle_is_no_result(self, shop):
        box = await shop.attached()
        answers = []

        async def wait() -> None:
            path = f"/v1/sandboxes/{box['id']}/exec"
            answers.append(await shop.client.post(path, json={"shell": "sleep 100"}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until(lambda: shop.gateway.attached.registry._calls)
            await trio.sleep(0.3)
            shop.web.process.kill()
        assert (answers[0].status_code, answers[0].json()["reason"]) == (502, "outcome_unknown")
        shop.web.process.wait(10)
        shop.web.process = shop.web._start()

    @pytest.mark.parametrize("method", ["POST", "PATCH"])
    async def test_an_api_server_that_does_not_do_it_leaves_nothing(self, shop, method):
        def fault(seen):
            is_meant = (
                seen.method == method
                and "/leases" in seen.path
                and "attached" in f"{seen.path}{seen.json}"
            )
            return refuse(422, "Invalid").answer if is_meant else None

        shop.server.faults.append(fault)
        assert (await shop.attach()).status_code in {409, 500}
        assert shop.leases() == []
        assert (await shop.attach()).status_code == 201

    async def test_its_lease_runs_out(self, shop):
        box = await shop.attached(lease={"max_s": 1})
        await until(lambda: not shop.leases(), within=120)
        late = await shop.client.get(f"/v1/sandboxes/{box['id']}")
        assert (late.status_code, late.json()["reason"]) == (410, "expired")
        assert shop.web.process.poll() is None

    async def test_nobody_renews_it(self, shop):
        """The daemon knows of calls through whichever replica: an open one keeps it."""
        box = await shop.attached(lease={"ttl_s": 2})
        path = f"/v1/sandboxes/{box['id']}"
        assert (await shop.client.post(f"{path}/renew")).status_code == 200
        assert (await shop.sh(box, "sleep 3; echo on"))["stdout"] == "on\n"
        await until(lambda: not shop.leases(), within=120)
        late = (await shop.client.get(path)).json()
        assert (late["reason"], late["detail"]) == ("expired", "nobody renewed its lease for 2 s")
        assert shop.web.process.poll() is None
        assert shop.writes_to_pods() == []

    async def test_it_has_nothing_to_do(self, shop):
        box = await shop.attached(lease={"idle_s": 1}, run="r6")
        await until(lambda: not shop.leases(), within=120)
        assert (await shop.client.get(f"/v1/sandboxes/{box['id']}")).json()["reason"] == "idle"

    async def test_a_daemon_that_does_not_answer_takes_nothing(self, shop):
        shop.web.stop()
        refused = await shop.attach()
        assert (refused.status_code, refused.json()["reason"]) == (503, "unreachable")
        assert "network policies" in refused.json()["detail"]
        assert shop.leases() == []
        shop.web.process = shop.web._start()
        assert (await shop.attach()).status_code == 201

    async def test_another_replica_knows_an_attachment_that_its_watch_has_not_shown(self, shop):
        box = await shop.attached()
        shop.gateway.attached.registry = type(shop.gateway.attached.registry)(keep_ended=10)
        assert (await shop.client.get(f"/v1/sandboxes/{box['id']}")).status_code == 200


class TestNews:
    """Pods and Leases come by two watches, in any order."""

    async def test_a_pod_that_is_not_seen_yet_is_looked_for(self, shop):
        shop.gateway.attached.pod_gone(next(iter(shop.gateway.attached._pods)))
        answers = []

        async def ask() -> None:
            answers.append(await shop.attach())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.2)
            assert answers == []
            shop.server.change("pods", "web-1", lambda one: one["metadata"]["labels"].update(a="b"))
        assert answers[0].status_code == 201

    async def test_a_pod_that_no_watch_shows_can_be_tried_again(self, shop, monkeypatch):
        monkeypatch.setattr(attach, "NEWS_S", 0.1)
        shop.gateway.attached.pod_gone(next(iter(shop.gateway.attached._pods)))
        answer = await shop.attach()
        assert (answer.status_code, answer.json()["reason"]) == (503, "unreachable")
        assert answer.json()["retryable"] is True
        shop.server.remove("pods", "web-1")
        assert (await shop.attach()).status_code == 403
        assert shop.leases() == []

    async def test_a_lease_whose_pod_was_not_seen_yet_is_no_end(self, shop):
        """As after a start of a gateway: of a pod that is not known nobody knows that it is gone."""
        box = await shop.attached()
        attached = shop.gateway.attached
        [one] = attached.attachments()
        attached._pods.clear()
        attached.seen(one)
        shown = await shop.client.get(f"/v1/sandboxes/{box['id']}")
        assert (shown.status_code, shown.json()["state"]) == (200, "starting")
        await shop.gateway.detaching.sweep(trio.current_time())
        assert len(shop.leases()) == 1
        # It went while no gateway looked.
        shop.server.remove("pods", "web-1")
        await until(lambda: not shop.leases(), within=120)
        assert (await shop.client.get(f"/v1/sandboxes/{box['id']}")).json()["reason"] == "deleted"


class TestForged:
    async def test_of_two_pods_with_one_nonce_neither_is_spoken_to(self, shop):
        shop.server.put("pods", pod("copy", shop.web.port, app="web"))
        await until(lambda: not shop.gateway.attached.attachable())
        assert (await shop.attach()).status_code == 403

    async def test_what_is_not_the_webhooks_or_does_not_run_is_not_attachable(self, shop):
        def annotate(**changes):
            return lambda one: one["metadata"]["annotations"].update(
                {f"{names.DOMAIN}/{name}": value for name, value in changes.items()}
            )

        for change in (
            annotate(injected=""),
            annotate(nonce=""),
            annotate(containers='{"app":22}'),
            annotate(containers='{"app":true}'),
            annotate(containers="["),
            lambda one: one["spec"].update(hostNetwork=True),
            lambda one: one["status"].update(podIP=""),
            lambda one: one["metadata"].update(deletionTimestamp="2026-11-29T12:00:00Z"),
            lambda one: one["status"]["containerStatuses"].clear(),
            lambda one: one["status"].update(phase="Failed"),
        ):
            shop.server.change("pods", "web-1", change)
            await until(lambda: not shop.gateway.attached.attachable())
            shop.server.put("pods", pod("web-1", shop.web.port, app="web"))
            await until(shop.gateway.attached.attachable)

    async def test_a_lease_that_somebody_broke_is_passed_over(self, shop):
        await shop.attached()
        [name] = shop.leases()
        text = '{"namespace":"x"}'
        shop.server.change(
            "leases", name,
            lambda one: one["metadata"]["annotations"].update({names.ANNOTATION_WORKLOAD: text}),
        )  # fmt: skip
        assert (await shop.client.get("/v1/sandboxes?attachable")).status_code == 200
        assert (await shop.attach()).status_code == 409

"""Attaching to a user's workload: the gateway as it is put together, an API server over real sockets, and the
real daemon beside a command that is not Sandman's."""

from __future__ import annotations

import json
import os

import pytest
import structlog.testing
import trio

from gateway import attach, runs
from sandman import names
from tests.fakes.api_server import refuse
from tests.flow.attaching import SHOP
from tests.flow.test_whole import until


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

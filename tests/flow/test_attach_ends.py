"""Attachments to workloads: how they end, what is told of them, and what a workload may pretend."""

from __future__ import annotations

import pytest
import trio

from gateway import attach
from sandman import names
from tests.fakes.api_server import refuse
from tests.flow.attaching import pod
from tests.flow.test_whole import until


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

"""What upgrades do on the real cluster: nothing to commands that run meanwhile."""

from __future__ import annotations

import pytest
import trio

from tests.cluster import faults


@pytest.fixture(autouse=True)
def nothing_is_left(sandman):
    yield
    sandman.wait_nothing_leased(60)


@pytest.mark.slow
async def test_a_rolling_restart_breaks_no_command(sandman):
    """Twenty commands of a minute, their output complete and in order, over new gateways and webhooks."""
    script = "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"
    results = []
    async with sandman.client() as client:
        image = sandman.image("busybox")
        boxes = [await client.create(image=image, run="rolling", wait_s=240) for _ in range(20)]

        async def one(box):
            results.append(await box.run(script))

        async with trio.open_nursery() as nursery:
            for box in boxes:
                nursery.start_soon(one, box)
            await trio.sleep(5)
            for name in ("gateway", "webhook"):
                await trio.to_thread.run_sync(
                    faults.system, sandman, "rollout", "restart", f"deployment/sandman-{name}"
                )
            for name in ("gateway", "webhook"):
                await trio.to_thread.run_sync(
                    faults.system, sandman, "rollout", "status", f"deployment/sandman-{name}",
                    "--timeout=180s",
                )  # fmt: skip
        whole = "".join(f"{i}\n" for i in range(1, 601))
        assert [one.exit_code for one in results] == [7] * 20
        assert {one.stdout_text for one in results} == {whole}
        assert await client.release_run("rolling") == 20

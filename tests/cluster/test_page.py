"""The page on a real cluster: two replicas behind one address, and a sandbox in a pod of a foreign image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

from gateway.routes.page import HEADERS
from sandman import names
from tests.browser.chrome import Seen, chromium
from tests.cluster import calling, faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed

PORT = 8443
HANDSHAKE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "c2FuZG1hbiBvZiB0ZXN0cw==",
    "sec-websocket-protocol": "sandman.v1.terminal",
}

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def box(sandman: Deployed) -> Iterator:
    with sandman.sync_client() as client:
        made = client.create(image=sandman.image("debian"), run="page", labels={"note": "<b>x"})
        yield made
        made.release()


def test_the_image_has_the_page_and_its_terminal_with_the_pages_own_headers(sandman):
    with calling.replicas(sandman) as doors:
        assert len(doors) == 2
        for door in doors:
            for file in ("", "main.js", "vendor/xterm.mjs", "vendor/addon-fit.mjs"):
                answer = door.get(f"/ui/{file}")
                assert answer.status_code == 200, file
                told = {name: answer.headers.get(name) for name in HEADERS}
                assert told == HEADERS


def test_a_ticket_is_good_once_whichever_replica_is_asked(sandman, box):
    token = {"authorization": f"Bearer {sandman.installation.token}"}
    path = f"/v1/sandboxes/{box.id}"
    with calling.replicas(sandman) as doors:
        for number, (maker, taker) in enumerate([(a, b) for a in doors for b in doors]):
            exec_id = f"page-{number}"
            body = {"shell": "sleep 5", "exec_id": exec_id, "terminal": {}}
            made = maker.post(f"{path}/processes", json=body, headers=token)
            assert made.status_code == 200, made.text
            made = maker.post(f"{path}/tickets", json={"exec_id": exec_id}, headers=token)
            assert made.status_code == 201, made.text
            statuses = []
            for door in (taker, taker, maker):
                url = str(door.base_url).rstrip("/")
                headers = {**HANDSHAKE, "origin": url}
                query = {"ticket": made.json()["ticket"]}
                target = f"{path}/processes/{exec_id}/terminal"
                with door.stream("GET", target, params=query, headers=headers) as answer:
                    statuses.append(answer.status_code)
            assert statuses == [101, 401, 401]


def test_a_browser_sees_the_sandbox_and_types_in_it(sandman, box, tmp_path):
    replicas = [f"{one}:{names.GATEWAY_PORT}" for one in faults.gateway_addresses(sandman)]
    with sync_playwright() as driver, chromium(driver, PORT, replicas, tmp_path) as browser:
        context = browser.new_context(ignore_https_errors=True)
        context.set_default_timeout(30_000)
        seen = Seen(context, f"https://127.0.0.1:{PORT}")
        seen.log_in(sandman.installation.token)
        row = seen.page.locator(f'tr[data-id="{box.id}"]')
        expect(row).to_contain_text("ready")
        expect(row).to_contain_text("note=<b>x")
        row.get_by_role("button").click()
        expect(seen.page.locator("#terminal-state")).to_have_text("connected", timeout=30_000)
        seen.page.locator("#screen").click()
        seen.page.keyboard.type("echo $((6 * 7))-well\n")
        expect(seen.page.locator(".xterm-rows")).to_contain_text("42-well", timeout=30_000)
        seen.check_clean()

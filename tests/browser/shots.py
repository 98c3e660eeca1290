"""Pictures of the page for docs/page.md: `python -m tests.browser.shots docs/images`."""

from __future__ import annotations

import ssl
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import expect, sync_playwright

from tests.browser.chrome import Seen, chromium
from tests.browser.conftest import MARKUP
from tests.flow.local_mode import Gateway, running

VIEW = {"width": 1360, "height": 1000}


def populate(gateway: Gateway) -> str:
    """Some work of a tenant; the id of a sandbox that lives."""
    trust = ssl.create_default_context(cadata=gateway.connection.ca)
    token = {"authorization": f"Bearer {gateway.tokens['acme']}"}
    with httpx.Client(
        base_url=gateway.connection.url, verify=trust, timeout=60, headers=token
    ) as api:
        for number in range(14):
            time.sleep(0.7)
            image = "host" if number % 3 else "registry.example/task:1"
            body = {
                "image": image,
                "run": f"step-{41 + number // 7}",
                "labels": {"task": f"fix-{number:03}"},
            }
            if number == 12:
                body["labels"]["note"] = MARKUP
            if number == 4:
                body["lease"] = {"idle_s": 5.0}
            made = api.post("/v1/sandboxes", json=body).json()
            if number == 1:
                gateway.daemon.kill()  # as a lack of memory would
                time.sleep(2)
            if number in {2, 6, 8}:
                api.delete(f"/v1/sandboxes/{made['id']}")
        return made["id"]


def shoot(page, to: Path, name: str) -> None:
    page.mouse.move(0, 0)
    page.screenshot(path=to / f"{name}.png")


def show(seen: Seen, gateway: Gateway, sandbox: str, to: Path, scheme: str) -> None:
    page = seen.page
    seen.log_in(gateway.tokens["acme"])
    row = page.locator(f'tr[data-id="{sandbox}"]')
    expect(row).to_contain_text("ready")
    shoot(page, to, f"page-{scheme}")
    if scheme == "light":
        page.get_by_role("button", name="Ended").click()
        expect(page.locator("#boxes")).to_contain_text("idle", timeout=30_000)
        shoot(page, to, f"page-ended-{scheme}")
        return
    row.get_by_role("button").click()
    expect(page.locator("#terminal-state")).to_have_text("connected")
    page.locator("#screen").click()
    page.keyboard.type("id; python3 -c 'print(6 * 7)'; ls --color /usr\n")
    page.wait_for_timeout(1000)
    shoot(page, to, f"page-terminal-{scheme}")


def main() -> None:
    """Take them."""
    to = Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as state,
        running(
            Path(state),
            images={"registry.example/task:1": "/"},
            image="registry.example/task:1",
            free=3,
            most=16,
        ) as gateway,
    ):
        sandbox = populate(gateway)
        port = urlsplit(gateway.connection.url).port
        replicas = [f"127.0.0.1:{port}"]
        with (
            sync_playwright() as driver,
            chromium(driver, port, replicas, Path(state)) as browser,
        ):
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    ignore_https_errors=True, color_scheme=scheme, viewport=VIEW
                )
                show(Seen(context, gateway.connection.url), gateway, sandbox, to, scheme)
                context.close()


if __name__ == "__main__":
    main()

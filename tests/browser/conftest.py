"""The page as people see it: Debian's Chromium, driven by playwright, before a whole gateway of local mode."""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import sync_playwright

from tests.browser import alone
from tests.flow.local_mode import Gateway, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page, Playwright

MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
"""What a caller may write, and what no page may take for markup."""
VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


@pytest.fixture(scope="session")
def gateway(tmp_path_factory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("state"), images={"task:1": "/"}, most=6, free=2) as one:
        yield one


@pytest.fixture(scope="session")
def api(gateway: Gateway) -> Iterator[httpx.Client]:
    trust = ssl.create_default_context(cadata=gateway.connection.ca)
    with httpx.Client(base_url=gateway.connection.url, verify=trust, timeout=30) as client:
        client.headers["authorization"] = f"Bearer {gateway.tokens['acme']}"
        yield client


@pytest.fixture(scope="session")
def browser(gateway: Gateway, tmp_path_factory) -> Iterator[Browser]:
    with (
        sync_playwright() as driver,
        chromium(driver, gateway, tmp_path_factory.mktemp("browser")) as browser,
    ):
        yield browser


@contextlib.contextmanager
def chromium(driver: Playwright, gateway: Gateway, place: Path) -> Iterator[Browser]:
    """The machine's, in a network where this gateway is all that there is."""
    program = shutil.which("chromium")
    assert program is not None, "apt-get install chromium: the page is tested in a real browser"
    port = urlsplit(gateway.connection.url).port
    starter = place / "chromium"
    starter.write_text(f'#!/bin/sh\nexec {sys.executable} {alone.__file__} {port} {program} "$@"\n')
    starter.chmod(0o755)
    # Tests run as root, whom Chromium gives no sandbox of its own.
    browser = driver.chromium.launch(executable_path=starter, args=["--no-sandbox"])
    try:
        yield browser
    finally:
        browser.close()


class Seen:
    """A page, and all that it complained of."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))
        self.page.on(
            "request",
            lambda one: None if one.url.startswith(url) else self.elsewhere.append(one.url),
        )
        self.page.add_init_script(VIOLATIONS)
        self.page.goto(f"{url}/")

    def _said(self, message) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def log_in(self, token: str) -> None:
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Look").click()

    def clean(self) -> bool:
        """Nothing broke its policy, nothing failed, nothing was asked of anybody else."""
        violations = json.dumps(self.page.evaluate("window.violations"))
        assert (violations, self.errors, self.elsewhere) == ("[]", [], [])
        return True


@pytest.fixture(params=["light"])
def seen(browser: Browser, gateway: Gateway, request) -> Iterator[Seen]:
    context = browser.new_context(
        ignore_https_errors=True,
        color_scheme=request.param,
        viewport={"width": 1360, "height": 900},
    )
    context.set_default_timeout(20_000)
    yield Seen(context, gateway.connection.url)
    context.close()


@pytest.fixture
def box(api: httpx.Client) -> Iterator[dict]:
    body = {"image": "task:1", "run": "step-7", "labels": {"note": MARKUP}}
    answer = api.post("/v1/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    yield answer.json()
    api.delete(f"/v1/sandboxes/{answer.json()['id']}")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pictures")

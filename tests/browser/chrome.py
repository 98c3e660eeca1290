"""Debian's Chromium, driven by playwright, and what a page in it complained of."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from typing import TYPE_CHECKING

from tests.browser import alone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page, Playwright

VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


@contextlib.contextmanager
def chromium(
    driver: Playwright, port: int, replicas: Sequence[str], place: Path
) -> Iterator[Browser]:
    """Debian's, in a network where these gateways are all that there is, behind one port of its loopback.

    Args:
        driver: playwright's.
        port: whatever the browser knows the gateway by.
        replicas: `host:port` of each; connections go to them in turns, as a balancer has it.
        place: for a file.
    """
    program = shutil.which("chromium")
    assert program is not None, "apt-get install chromium: the page is tested in a real browser"
    starter = place / "chromium"
    command = [sys.executable, alone.__file__, str(port), ",".join(replicas), program]
    starter.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
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

    def check_clean(self) -> None:
        """Nothing broke the page's policy, nothing failed, nothing was asked of anybody else."""
        violations = json.dumps(self.page.evaluate("window.violations"))
        assert (violations, self.errors, self.elsewhere) == ("[]", [], [])

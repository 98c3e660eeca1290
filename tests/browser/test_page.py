"""The page in a real browser, before real sandboxes of this machine."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Error, expect

from tests.browser.conftest import MARKUP

pytestmark = pytest.mark.timeout(120)

SOCKETS = """
window.sockets = [];
const Original = window.WebSocket;
window.WebSocket = class extends Original {
  constructor(...given) { super(...given); window.sockets.push(this); }
};
"""


def hasty(route) -> None:
    """A page that can wait for little of what is not drawn yet."""
    answer = route.fetch()
    text = answer.text()
    assert "UNDRAWN_MAX = 4 * 1024 * 1024;" in text
    text = text.replace("UNDRAWN_MAX = 4 * 1024 * 1024;", "UNDRAWN_MAX = 16 * 1024;")
    route.fulfill(response=answer, body=text)


def opened(seen, box) -> None:
    """A terminal in that sandbox, with the keyboard in it."""
    row = seen.page.locator(f'tr[data-id="{box["id"]}"]')
    row.get_by_role("button", name=f"Terminal in {box['id']}").click()
    expect(seen.page.locator("#terminal-state")).to_have_text("connected")
    seen.page.locator("#screen").click()


def test_log_in_see_a_sandbox_open_its_terminal_and_type(seen, gateway, box):
    page = seen.page
    assert page.url == f"{gateway.connection.url}/ui/"
    seen.log_in(gateway.tokens["acme"])
    row = page.locator(f'tr[data-id="{box["id"]}"]')
    expect(row).to_contain_text("ready")
    expect(row).to_contain_text("step-7")
    # What looks like markup stays text.
    expect(row).to_contain_text(f"note={MARKUP}")
    assert page.locator("#boxes img, #boxes b").count() == 0
    expect(page.locator("#chart circle, #chart rect, #chart path")).not_to_have_count(0)
    expect(page.locator("#pools tbody tr")).to_have_count(1)
    opened(seen, box)
    page.keyboard.type("echo $((6 * 7))-well; printf '\\033[38;2;1;2;3mtrue colour\\033[0m\\n'")
    page.keyboard.press("Enter")
    expect(page.locator(".xterm-rows")).to_contain_text("42-well")
    expect(page.locator(".xterm-rows")).to_contain_text("true colour")
    page.keyboard.press("Shift+F6")
    expect(page.locator("#terminal-close")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#terminal")).to_be_hidden()
    expect(row.get_by_role("button")).to_be_focused()
    seen.check_clean()


def test_a_connection_that_breaks_is_made_again_where_it_was(seen, gateway, box):
    seen.page.add_init_script(SOCKETS)
    seen.page.route("**/terminal.js", hasty)
    seen.page.reload()
    seen.log_in(gateway.tokens["acme"])
    opened(seen, box)
    rows = seen.page.locator(".xterm-rows")
    seen.page.keyboard.type("stty -echo; echo one-$((1 + 1))\n")
    expect(rows).to_contain_text("one-2")
    seen.page.evaluate("window.sockets.at(-1).close()")
    # Typed while there is no connection.
    seen.page.keyboard.type("echo two-$((2 + 2))\n")
    expect(rows).to_contain_text("two-4")
    assert seen.page.evaluate("window.sockets.length") == 2
    assert [rows.inner_text().count(text) for text in ("one-2", "two-4")] == [1, 1]
    # More than is drawn at once: the command waits, and all of it arrives.
    seen.page.keyboard.type("seq 100000 150000; echo three-$((3 + 3))\n")
    expect(rows).to_contain_text("three-6", timeout=60_000)
    assert seen.page.evaluate("window.sockets.length") > 2
    numbers = [int(one) for one in re.findall(r"\b1\d{5}\b", rows.inner_text())]
    assert numbers == list(range(150_001 - len(numbers), 150_001))
    seen.page.keyboard.type("exit 3\n")
    expect(seen.page.locator("#terminal-state")).to_have_text("ended with exit code 3")
    seen.check_clean()


def test_what_is_over_is_listed_with_its_reason_and_the_filter_finds_it(seen, gateway, api):
    made = [api.post("/v1/sandboxes", json={"image": "task:1", "run": run}).json() for run in "ab"]
    seen.log_in(gateway.tokens["acme"])
    page = seen.page
    for one in made:
        expect(page.locator(f'tr[data-id="{one["id"]}"]')).to_be_visible()
    page.get_by_label("Filter").fill(made[0]["id"])
    expect(page.locator("#boxes tbody tr")).to_have_count(1)
    page.get_by_label("Filter").fill("nothing is like this")
    expect(page.locator("#boxes-empty")).to_have_text("None of them matches the filter.")
    page.get_by_label("Filter").fill("")
    for one in made:
        api.delete(f"/v1/sandboxes/{one['id']}")
    expect(page.locator("#boxes-empty")).to_contain_text("You have no sandbox")
    page.get_by_role("button", name="Ended").click()
    row = page.locator(f'tr[data-id="{made[0]["id"]}"]')
    expect(row).to_contain_text("released")
    seen.check_clean()


def test_a_token_that_is_not_known_says_what_to_do(seen, gateway):
    page = seen.page
    seen.log_in("smk_acme_x")
    expect(page.locator("#login-error")).to_contain_text("Ask who runs this gateway for another")
    expect(page.get_by_label("Token")).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0
    seen.log_in("no\u00a0token at all")
    expect(page.locator("#login-error")).to_contain_text("without spaces")
    # One that is over in the middle of it.
    seen.log_in(gateway.tokens["acme"])
    expect(page.locator("#live-text")).to_contain_text("as of")
    assert page.evaluate("[document.cookie, localStorage.length]") == ["", 0]
    page.evaluate("sessionStorage.setItem('sandman.token', 'smk_acme_x')")
    expect(page.locator("#login-error")).to_contain_text("revoked, or has expired")
    expect(page.locator("#board")).to_be_hidden()
    # A browser tells each refused call in its console; there is nothing else.
    assert seen.errors
    assert all("401" in error for error in seen.errors)


def test_the_policy_holds_in_the_browser(seen):
    """What a fault of the page's own could try."""
    page = seen.page
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    page.evaluate("document.head.append(document.createElement('style'))")
    for attempt in ("fetch('https://example.invalid/')", "new WebSocket('wss://example.invalid/')"):
        page.evaluate(f"try {{ Promise.resolve({attempt}).catch(() => {{}}) }} catch {{}}")
    page.wait_for_function("window.violations.length >= 3")
    found = {one.split()[0] for one in page.evaluate("window.violations")}
    assert {"require-trusted-types-for", "style-src-elem", "connect-src"} <= found
    with pytest.raises(AssertionError):
        seen.check_clean()

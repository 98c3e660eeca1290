"""The page in a real browser, before real sandboxes of this machine."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import MARKUP

pytestmark = pytest.mark.timeout(120)


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
    expect(page.locator("#chart circle, #chart rect")).not_to_have_count(0)
    expect(page.locator("#pools tbody tr")).to_have_count(1)

    row.get_by_role("button", name=f"Terminal in {box['id']}").click()
    expect(page.locator("#terminal-state")).to_have_text("connected")
    page.locator("#screen").click()
    page.keyboard.type("echo $((6 * 7))-well; printf '\\033[38;2;1;2;3mtrue colour\\033[0m\\n'")
    page.keyboard.press("Enter")
    expect(page.locator(".xterm-rows")).to_contain_text("42-well")
    expect(page.locator(".xterm-rows")).to_contain_text("true colour")
    page.keyboard.press("Shift+F6")
    expect(page.locator("#terminal-close")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#terminal")).to_be_hidden()
    expect(row.get_by_role("button")).to_be_focused()
    assert seen.clean()

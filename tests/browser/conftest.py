"""The page as people see it: Debian's Chromium, driven by playwright, before a whole gateway of local mode."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import sync_playwright

from tests.browser.chrome import Seen, chromium
from tests.flow.local_mode import Gateway, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
"""What a caller may write, and what no page may take for markup."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("state"), images={"task:1": "/"}, most=6, free=2) as one:
        yield one


@pytest.fixture(scope="module")
def api(gateway: Gateway) -> Iterator[httpx.Client]:
    trust = ssl.create_default_context(cadata=gateway.connection.ca)
    with httpx.Client(base_url=gateway.connection.url, verify=trust, timeout=30) as client:
        client.headers["authorization"] = f"Bearer {gateway.tokens['acme']}"
        yield client


# Not longer: as long as playwright's own loop is this thread's, nobody else's runs in it.
@pytest.fixture(scope="module")
def browser(gateway: Gateway, tmp_path_factory) -> Iterator[Browser]:
    port = urlsplit(gateway.connection.url).port
    with (
        sync_playwright() as driver,
        chromium(
            driver, port, [f"127.0.0.1:{port}"], tmp_path_factory.mktemp("browser")
        ) as browser,
    ):
        yield browser


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

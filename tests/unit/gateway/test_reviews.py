"""TokenReviews over real sockets: what is asked, and what becomes of it when nobody answers."""

from __future__ import annotations

import pytest
import trio

from gateway import reviews
from gateway.reviews import Reviews
from sandman.errors import SandmanError, UnreachableError
from tests.fakes.api_server import ApiServer
from tests.unit.service.fake_api import Answer, status


async def test_a_token_is_asked_about_with_the_audience():
    server = ApiServer()
    seen = []
    server.reviewed = lambda spec: seen.append(spec) or {"authenticated": True}
    async with server.client() as api:
        assert await Reviews(api, "sandman").ask("t") == {"authenticated": True}
    assert seen == [{"token": "t", "audiences": ["sandman"]}]


@pytest.mark.parametrize("answer", [Answer(201, {}), Answer(201, {"status": []})])
async def test_an_answer_without_a_verdict_is_none(answer):
    server = ApiServer()
    server.faults.append(lambda _seen: answer)
    async with server.client() as api:
        assert await Reviews(api, "sandman").ask("t") == {}


async def test_a_gateway_that_may_not_ask_blames_no_caller():
    server = ApiServer()
    server.faults.append(lambda _seen: status(403, "Forbidden", "tokenreviews is forbidden"))
    async with server.client() as api:
        with pytest.raises(UnreachableError, match="may not look"):
            await Reviews(api, "sandman").ask("t")


@pytest.mark.parametrize("code", [500, 503, 422, 429])
async def test_whatever_goes_wrong_is_no_verdict_on_the_token(code):
    server = ApiServer()
    server.faults += [lambda _seen: status(code, "InternalError", "no")] * 10
    async with server.client() as api:
        with pytest.raises(SandmanError) as caught:
            await Reviews(api, "sandman").ask("t")
    assert caught.value.status not in {401, 403}


async def test_few_are_asked_at_once_and_not_for_ever(monkeypatch, autojump_clock):
    monkeypatch.setattr(reviews, "WAITING_MAX", 3)

    class Slow:
        """An API server that takes longer than anybody waits."""

        now = most = 0

        async def create(self, _resource, _body):
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await trio.sleep(60)
            finally:
                self.now -= 1

    slow, errors = Slow(), []
    one = Reviews(slow, "sandman")

    async def ask() -> None:
        with pytest.raises(UnreachableError) as caught:
            await one.ask("t")
        errors.append((str(caught.value), trio.current_time()))

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
    assert slow.most == reviews.AT_ONCE
    at_once = [text for text, at in errors if at == begun]
    assert len(at_once) == 20 - reviews.AT_ONCE - 3
    assert all("many tokens" in text for text in at_once)
    assert trio.current_time() - begun == pytest.approx(reviews.REVIEW_S)

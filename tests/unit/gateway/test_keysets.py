"""The keys of issuers, over real sockets and TLS; how often they are asked for, on a clock of the test's."""

from __future__ import annotations

import contextlib
import json

import pytest
import trio

from gateway import callers, jose, keysets
from gateway.keysets import FetchError, KeySets, fetch
from sandman.errors import UnreachableError
from tests.fakes import jwks_site
from tests.fakes.issuers import ISSUER, Signer, entry, keyset

OLD = Signer("ES256", "old")
NEW = Signer("ES256", "new")


def issuer(**changes) -> callers.Issuer:
    rules, bad = callers.parse({"issuer.ci": json.dumps(entry(**changes))})
    assert bad == []
    return rules.issuers[ISSUER]


def token(signer: Signer) -> jose.Token:
    return jose.parse(signer.token())


class Documents:
    """Where key sets come from; each takes a second."""

    def __init__(self, *signers: Signer) -> None:
        self.signers = signers
        self.asked = 0
        self.fails = False

    async def __call__(self, url, ca):
        assert (url, ca) == ("https://issuer.test/keys", None)
        self.asked += 1
        await trio.sleep(1)
        if self.fails:
            raise FetchError("away")
        return json.dumps(keyset(*self.signers)).encode()


@pytest.fixture
def one() -> callers.Issuer:
    return issuer(jwks_url="https://issuer.test/keys")


def kept(documents: Documents, one: callers.Issuer) -> KeySets:
    sets = KeySets(documents)
    sets.take([one])
    return sets


async def test_keys_in_the_entry_itself_need_no_fetch():
    sets = KeySets(Documents())
    own = issuer(jwks=keyset(OLD))
    sets.take([own])
    assert await sets.verify(token(OLD), own)
    assert not await sets.verify(token(NEW), own)


async def test_keys_are_fetched_once_for_all_who_wait(autojump_clock, one):
    documents = Documents(OLD)
    sets = kept(documents, one)
    found = []

    async def ask() -> None:
        found.append(await sets.verify(token(OLD), one))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
    assert (found, documents.asked) == ([True] * 50, 1)


async def test_a_key_that_is_not_there_is_one_fetch_and_then_none_for_a_while(autojump_clock, one):
    documents = Documents(OLD)
    sets = kept(documents, one)
    assert await sets.verify(token(OLD), one)
    await trio.sleep(keysets.LEAST_S)
    documents.signers = (OLD, NEW)
    assert await sets.verify(token(NEW), one)
    assert documents.asked == 2
    await trio.sleep(1)
    # Made up: asked for when that may be, and not more often whatever comes.
    for number in range(100):
        with pytest.raises(UnreachableError, match="not known yet") as caught:
            await sets.verify(token(Signer("ES256", f"x{number}")), one)
        assert 1 <= caught.value.retry_after <= keysets.LEAST_S
    assert documents.asked == 2
    await trio.sleep(keysets.LEAST_S)
    assert not await sets.verify(token(Signer("ES256", "x")), one)
    assert documents.asked == 3


async def test_a_key_that_was_taken_away_is_not_taken_for_long(autojump_clock, one):
    documents = Documents(OLD, NEW)
    sets = kept(documents, one)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sets.run)
        assert await sets.verify(token(OLD), one)
        documents.signers = (NEW,)
        await trio.sleep(keysets.FRESH_S + keysets.LOOK_S + keysets.LEAST_S + 2)
        assert not await sets.verify(token(OLD), one)
        assert await sets.verify(token(NEW), one)
        nursery.cancel_scope.cancel()


async def test_an_issuer_that_does_not_answer_is_used_for_a_while_as_it_was(autojump_clock, one):
    documents = Documents(OLD)
    sets = kept(documents, one)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sets.run)
        assert await sets.verify(token(OLD), one)
        documents.fails = True
        await trio.sleep(keysets.STALE_S - 60)
        assert await sets.verify(token(OLD), one)
        asked = documents.asked
        assert asked < keysets.STALE_S / keysets.LEAST_S
        await trio.sleep(120)
        with pytest.raises(UnreachableError, match="cannot be had"):
            await sets.verify(token(OLD), one)
        documents.fails = False
        await trio.sleep(2 * keysets.LEAST_S)
        assert await sets.verify(token(OLD), one)
        nursery.cancel_scope.cancel()


async def test_a_set_that_makes_no_sense_leaves_the_one_before(autojump_clock, one):
    documents = Documents(OLD)
    sets = kept(documents, one)
    assert await sets.verify(token(OLD), one)
    documents.signers = ()
    await trio.sleep(keysets.LEAST_S)
    with pytest.raises(UnreachableError):
        await sets.verify(token(NEW), one)
    assert await sets.verify(token(OLD), one)


async def test_keys_stay_while_an_issuers_address_does(autojump_clock, one):
    documents = Documents(OLD)
    sets = kept(documents, one)
    assert await sets.verify(token(OLD), one)
    same = issuer(jwks_url="https://issuer.test/keys", audience="other")
    sets.take([same])
    assert await sets.verify(token(OLD), same)
    assert documents.asked == 1
    sets.take([])
    with contextlib.suppress(UnreachableError):
        assert not await sets.verify(token(OLD), same)
    sets.take([one])
    assert await sets.verify(token(OLD), one)
    assert documents.asked == 2


# --- over the network ---


async def test_a_set_comes_over_tls_of_who_is_trusted():
    async with jwks_site.serving() as site:
        site.document = keyset(OLD)
        [key] = jose.parse_keys(await fetch(site.url, site.ca))
        assert key.key_id == "old"
        with pytest.raises(FetchError, match="CERTIFICATE_VERIFY_FAILED"):
            await fetch(site.url, None)


async def test_a_redirect_and_an_error_are_no_key_set():
    async with jwks_site.serving() as site:
        site.document = keyset(OLD)
        for status in (302, 404, 500, 204):
            site.status = status
            site.headers = [(b"location", site.url.encode())]
            with pytest.raises(FetchError, match=str(status)):
                await fetch(site.url, site.ca)
        assert len(site.asked) == 4


async def test_a_set_has_its_limits_in_bytes_and_seconds(monkeypatch):
    async with jwks_site.serving() as site:
        site.document = b" " * (keysets.DOCUMENT_MAX + 1)
        with pytest.raises(FetchError, match="bytes"):
            await fetch(site.url, site.ca)
        monkeypatch.setattr(keysets, "FETCH_S", 0.2)
        site.delay_s = 5.0
        with pytest.raises(FetchError, match=r"0\.2 s"):
            await fetch(site.url, site.ca)


@pytest.mark.parametrize(
    "ca", ["no PEM", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----"]
)
async def test_what_cannot_be_asked_is_an_error_of_the_fetch(ca):
    with pytest.raises(FetchError):
        await fetch("https://localhost:1/keys", ca)


async def test_nobody_there_is_an_error_of_the_fetch():
    with pytest.raises(FetchError):
        await fetch("https://localhost:1/keys", None)

"""Tickets for a page's WebSockets: whose, for what, how long, and once. And what the page shows of allocations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway import tickets, tokens
from gateway.recent import KEPT_MAX, TENANTS_MAX, Recent
from gateway.tickets import LIFE_S, OPEN_MAX, OPEN_PER_TENANT_MAX, Ledger, Ticket
from sandman.errors import ForbiddenError, QuotaError, UnauthenticatedError

KEYS = {"k1": b"1" * 32, "k2": b"2" * 32}
ONE = Ticket("id", "acme", "box-1", "e1", "b1", "key-1", 130.0, 4000.0)


def made(ticket: Ticket = ONE, keys=KEYS, current: str = "k1") -> str:
    return tickets.make(ticket, keys, current)


def test_a_ticket_says_what_it_was_made_for_and_who_comes_with_it():
    found, signer = tickets.check(made(current="k2"), KEYS, 129.9)
    assert (found, signer) == (ONE, "k2")
    who = found.principal(signer)
    assert (who.tenant, who.sandbox, who.boot_id, who.may) == ("acme", "box-1", "b1", ("exec",))
    # It ends with the key that it was made by, with the one that signed it, and when its maker's own token does.
    proof = who.proof
    assert (proof.kind, proof.key_id, proof.signer, proof.expires_at) == (
        "sandbox", "key-1", "k2", 4000.0,
    )  # fmt: skip


def test_it_is_over_after_half_a_minute():
    with pytest.raises(UnauthenticatedError, match="has expired: ask for another"):
        tickets.check(made(), KEYS, 130.0)


@pytest.mark.parametrize(
    "text",
    [
        "", "wst", "wst_k1_", "wst_k1_.", "wst_k1_e30.x", "smk_acme_x", "w\u00e4t_k1_x.y", "wst_k1_\u00e9.x",
        made(keys={"k1": b"o" * 32}),
        made().replace("_k1_", "_k2_"),
        made().replace("_k1_", "_k3_"),
        made()[:-1],
        made() + "A",
        made().replace("wst_", "sbt_"),
        tokens.seal(tickets.SEAL, ["too", "few"], KEYS, "k1"),
        made(ONE._replace(tenant="x" * tokens.OWN_MAX)),
    ],
)  # fmt: skip
def test_what_is_forged_or_makes_no_sense_is_refused_alike(text):
    with pytest.raises(UnauthenticatedError, match="the ticket is not valid"):
        tickets.check(text, KEYS, 0.0)


def test_a_ticket_is_no_token_and_a_token_no_ticket():
    claims = tokens.SandboxClaims("box-1", "b1", "acme", 4000.0, "key-1")
    token = tokens.make_sandbox_token(claims, KEYS, "k1")
    with pytest.raises(UnauthenticatedError):
        tickets.check(token.replace("sbt_", "wst_"), KEYS, 0.0)
    for text in (made(), made().replace("wst_", "sbt_")):
        with pytest.raises(UnauthenticatedError):
            tokens.check_sandbox_token(text, KEYS, 0.0)


def test_it_leads_to_one_terminal():
    assert tickets.leads_to(ONE, "box-1", "e1")
    for sandbox, exec_id in (("box-1", "e2"), ("box-2", "e1"), ("box-1e1", ""), ("b\u00f6x", "e1")):
        assert not tickets.leads_to(ONE, sandbox, exec_id)


@pytest.mark.parametrize(
    ("origin", "host"),
    [("https://gate.example", "gate.example"), ("https://gate.example", "GATE.example:443"),
     ("https://gate.example:8443", "gate.example:8443"), ("https://[::1]:8443", "[::1]:8443")],
)  # fmt: skip
def test_the_gateways_own_page_may(origin, host):
    tickets.check_origin(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "gate.example"), ("", ""), ("null", "gate.example"), ("null", "null"), ("https://", ""),
        ("https://evil.example", "gate.example"), ("https://gate.example.evil.example", "gate.example"),
        ("https://gate.example:8444", "gate.example:8443"), ("http://gate.example", "gate.example"),
        ("https://x@gate.example", "gate.example"), ("https://gate.example", None), ("https://[::1", "[::1"),
    ],
)  # fmt: skip
def test_no_other_page_may(origin, host):
    with pytest.raises(ForbiddenError, match="Origin"):
        tickets.check_origin(origin, host)


def test_the_ledger_gives_each_ticket_once_and_none_that_is_over():
    ledger = Ledger()
    ledger.add("a", "acme", 0.0)
    ledger.add("b", "acme", 1.0)
    assert [ledger.take("a", 2.0), ledger.take("a", 2.0), ledger.take("x", 2.0)] == [
        True,
        False,
        False,
    ]
    assert not ledger.take("b", 1.0 + LIFE_S)
    assert len(ledger) == 0


def test_the_ledger_is_bounded_for_each_tenant_and_for_all():
    ledger = Ledger()
    for number in range(OPEN_PER_TENANT_MAX):
        ledger.add(f"a{number}", "acme", 0.0)
    with pytest.raises(QuotaError) as caught:
        ledger.add("one more", "acme", 10.0)
    assert caught.value.retry_after == 5.0
    ledger.add("other", "zeta", 10.0)
    assert ledger.take("a0", 10.0)
    ledger.add("one more", "acme", 10.0)
    for number in range(OPEN_MAX - len(ledger)):
        ledger.add(f"t{number}", f"t{number}", 11.0)
    with pytest.raises(QuotaError):
        ledger.add("x", "new", 11.0)
    ledger.add("x", "new", LIFE_S)


def test_of_allocations_the_last_are_kept_of_each_tenant_and_of_the_last_tenants():
    recent = Recent()

    def note(tenant: str | None, at: float, tier: str | None = "warm") -> None:
        instance = SimpleNamespace(tenant=tenant, tier=tier)
        timings = SimpleNamespace(queued_ms=1.0, claim_ms=2.0, ready_ms=at)
        recent.note(SimpleNamespace(instance=instance, timings=timings), at)

    for at in range(KEPT_MAX + 1):
        note("acme", float(at))
    found = recent.of("acme")
    assert (len(found), found[0], found[-1].total_ms) == (
        KEPT_MAX, (1.0, "warm", 1.0, 4.0), KEPT_MAX + 3.0,
    )  # fmt: skip
    for number in range(TENANTS_MAX - 1):
        note(f"t{number}", 0.0)
    note("acme", 999.0, None)
    note("new", 0.0)
    assert recent.of("t0") == []
    assert recent.of("acme")[-1].tier == "unknown"
    assert recent.of("nobody") == []

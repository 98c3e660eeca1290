"""What was found out about tokens of others."""

from __future__ import annotations

import pytest

from gateway import verdicts
from gateway.verdicts import Verdicts, digest
from sandman.errors import UnauthenticatedError, UnreachableError


def test_a_verdict_holds_until_it_is_over():
    kept: Verdicts[str] = Verdicts()
    kept.allow(digest("t"), "acme", 10.0)
    assert kept.get(digest("t"), 9.9) == "acme"
    assert kept.get(digest("t"), 10.0) is None
    assert kept.get(digest("u"), 0.0) is None


def test_a_refusal_is_raised_anew_each_time():
    kept: Verdicts[str] = Verdicts()
    kept.refuse(digest("t"), UnreachableError("why", retry_after=3.0), 10.0)
    raised = []
    for _ in range(2):
        with pytest.raises(UnreachableError, match="why") as caught:
            kept.get(digest("t"), 0.0)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert raised[0].retry_after == 3.0
    assert kept.get(digest("t"), 10.0) is None


def test_a_flood_of_bad_ones_leaves_the_good_ones(monkeypatch):
    monkeypatch.setattr(verdicts, "VERDICTS_MAX", 3)
    kept: Verdicts[str] = Verdicts()
    kept.allow(digest("good"), "acme", 10.0)
    for number in range(100):
        kept.refuse(digest(str(number)), UnauthenticatedError("no"), 10.0)
    assert len(kept) == 4
    assert kept.get(digest("good"), 0.0) == "acme"
    assert kept.get(digest("0"), 0.0) is None


def test_all_can_be_forgotten_and_no_token_is_held():
    kept: Verdicts[str] = Verdicts()
    kept.allow(digest("secret"), "acme", 10.0)
    assert b"secret" not in repr(kept._good._kept).encode()
    kept.clear()
    assert len(kept) == 0

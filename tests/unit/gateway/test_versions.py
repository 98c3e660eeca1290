"""Which versions work together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import versions
from sandman.errors import VersionSkewError

MINORS = st.integers(0, 40)


@given(MINORS, MINORS, st.integers(0, 99))
def test_one_minor_version_either_way(ours, theirs, patch):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(versions, "OWN", f"1.{ours}.0")
        assert versions.fits(f"1.{theirs}.{patch}") is (abs(ours - theirs) <= 1)
        assert not versions.fits(f"2.{theirs}.0")
        assert not versions.fits(f"0.{theirs}.0")


@pytest.mark.parametrize("text", ["x", "1", "1.", "1.x", "-1.2", "1.²", "1.1234567", "é.1"])
def test_what_is_no_version_does_not_fit(text):
    assert not versions.fits(text)
    with pytest.raises(VersionSkewError) as caught:
        versions.check(text, "box-1")
    assert caught.value.sandbox == "box-1"
    assert caught.value.facts["daemon"] == text


def test_who_tells_none_is_taken_as_it_is():
    versions.check("")
    versions.check(versions.OWN)


@pytest.mark.parametrize(
    ("daemon", "behind"),
    [("1.1.0", "the pool's pods"), ("1.9.0", "the gateway"), ("2.0.0", "the gateway")],
)
def test_the_text_says_which_of_both_is_behind(monkeypatch, daemon, behind):
    monkeypatch.setattr(versions, "OWN", "1.5.2")
    with pytest.raises(VersionSkewError, match=f"Upgrade {behind}"):
        versions.check(daemon)


def test_a_gateway_without_a_version_works_with_nobody_that_has_one(monkeypatch):
    monkeypatch.setattr(versions, "OWN", "main")
    assert not versions.fits("0.1.0")
    assert versions.fits("main")

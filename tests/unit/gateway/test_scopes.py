"""What a token of one sandbox may be narrowed to."""

from __future__ import annotations

import pytest

from gateway import policy, scopes
from gateway.model import Principal
from gateway.routes.forward import FORWARDED
from sandman.errors import ForbiddenError, NotFoundError


def needs() -> set[str]:
    """What any call may need of a token."""
    forwarded = {
        scopes.of_call(path, method) for path, methods in FORWARDED.items() for method in methods
    }
    return forwarded | {scopes.of_port(80), scopes.LOOK, scopes.RENEW, scopes.MANAGE}


@pytest.mark.parametrize(
    ("may", "good_for"),
    [
        (("exec",), {"exec"}),
        (("files",), {"files", "files:read"}),
        (("files:read",), {"files:read"}),
        (("ports",), {"ports:80"}),
        (("ports:80",), {"ports:80"}),
        (("ports:8080",), set()),
        (("look", "renew"), {"look", "renew"}),
    ],
)
def test_a_token_is_good_for_what_it_says_and_nothing_else(may, good_for):
    assert {need for need in needs() if scopes.covers(may, need)} == good_for


def test_no_scope_lets_a_token_manage():
    assert not scopes.covers(scopes.PLAIN, scopes.MANAGE)


def test_every_call_needs_something():
    assert needs() - {scopes.of_port(80)} <= {*scopes.PLAIN, scopes.MANAGE}
    assert scopes.of_call("files/stat", "GET") == "files:read"
    assert scopes.of_call("files/move", "POST") == "files"
    assert scopes.of_call("archive", "PUT") == "files"
    assert scopes.of_call("processes", "GET") == "exec"


@pytest.mark.parametrize(
    "wanted",
    [[], "exec", None, {"exec": 1}, ["nope"], ["manage"], ["ports:0"], ["ports:"], ["ports:080"],
     ["ports:65536"], ["ports:80:1"], [1], ["exec"] * 17, ["files:write"], ["EXEC"], [""]],
)  # fmt: skip
def test_what_is_no_scope_is_refused(wanted):
    with pytest.raises(ValueError, match=r"scopes|exec"):
        scopes.check(wanted)


def test_scopes_have_one_form():
    assert scopes.check(["ports:80", "exec", "exec"]) == ("exec", "ports:80")


def test_a_narrow_token_hears_what_it_is_good_for_and_of_no_other_sandbox():
    narrow = Principal("acme", "sandbox", "a-1", "b", may=("files:read",))
    policy.may_ask(narrow, "a-1", "files:read")
    with pytest.raises(ForbiddenError, match=r"good for files:read .* not for exec"):
        policy.may_ask(narrow, "a-1", "exec")
    with pytest.raises(NotFoundError):
        policy.may_ask(narrow, "a-2", "exec")
    policy.may_ask(Principal("acme", "sandbox", "a-1", "b"), "a-1", "exec")

"""`sandman login` and `logout`, and what errors say of where a token came from."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from sandman import contexts, errors
from sandman.cli import main
from sandman.cli.guard import explain
from tests.unit.client.fake_gateway import TOKEN, answer, problem

OVERVIEW = "GET /v1/overview"


@pytest.fixture
def environ(tmp_path, monkeypatch) -> dict[str, str]:
    given = {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "SANDMAN_LOCAL_STATE": str(tmp_path / "state"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


@pytest.fixture
def call(environ):
    def run(*arguments: str, given: str = ""):
        return CliRunner().invoke(main, arguments, input=given)

    return run


def test_a_login_is_tried_and_kept_and_then_found_by_itself(call, gateway, environ):
    done = call("login", gateway.url + "/", "--context", "prod", given=f"{TOKEN}\n")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "logged in to http://127.0.0.1" in done.stderr
    assert "as tenant acme" in done.stderr
    assert TOKEN not in done.output
    assert gateway.calls() == [OVERVIEW]
    assert contexts.read(environ).known["prod"] == contexts.Context(
        gateway.url, TOKEN, tenant="acme"
    )
    assert call("pools").exit_code == 0
    [shown] = json.loads(call("login", "--list", "--json").stdout)
    assert shown == {"name": "prod", "url": gateway.url, "tenant": "acme", "current": True}
    assert "*\tprod\t" in call("login", "--list").stdout
    assert json.loads(call("logout", "--json").stdout) == {"forgotten": ["prod"]}
    assert contexts.read(environ) == contexts.Contexts()
    assert call("pools").exit_code == 2


def test_a_token_that_is_refused_is_not_kept(call, gateway, environ):
    gateway.plan(OVERVIEW, problem(errors.UnauthenticatedError("the token is not known")))
    done = call("login", gateway.url, given="smk_wrong\n")
    assert done.exit_code == 125
    assert done.stderr.splitlines()[-1] == (
        "sandman: what to do: the token came from standard input: check it"
    )
    assert not contexts.file(environ).exists()


def test_a_gateway_of_an_earlier_version_is_asked_for_its_pools(call, gateway, environ):
    gateway.plan(OVERVIEW, problem(errors.NotFoundError("no such path")))
    done = call("login", gateway.url, "--json", given=TOKEN)
    assert json.loads(done.stdout)["tenant"] is None
    assert gateway.calls() == [OVERVIEW, "GET /v1/pools"]
    assert contexts.read(environ).current == gateway.url.removeprefix("http://")


@pytest.mark.parametrize(
    ("arguments", "given", "says"),
    [
        (["login"], TOKEN, "which gateway?"),
        (["--token", TOKEN, "login", "http://x"], "", "does not belong on the command line"),
        (["login", "http://x"], "\n", "no token on standard input"),
        (["login", "http://x", "--context", "local"], TOKEN, "no name for a context"),
        (
            ["login", "http://x", "--ca", "/nonexistent"],
            TOKEN,
            "cannot read certificates from /nonexistent",
        ),
        (
            ["login", "http://x", "--ca", os.devnull],
            TOKEN,
            f"from {os.devnull}: no certificate in it",
        ),
        (["login", "--use", "nope"], "", "no context 'nope'"),
        (["logout"], "", "no context is in use"),
        (["logout", "local"], "", "end its gateway"),
        (["logout", "x", "--all"], "", "either a context or --all"),
    ],
)
def test_wrong_uses_say_what_to_do(call, environ, arguments, given, says):
    done = call(*arguments, given=given)
    assert (done.exit_code, says in done.stderr) == (2, True), done.output
    assert not contexts.file(environ).exists() or contexts.read(environ) == contexts.Contexts()


def test_several_contexts_and_the_one_in_use(call, gateway, environ):
    for name in ("one", "two"):
        assert call("--context", name, "login", gateway.url, given=TOKEN).exit_code == 0
    assert contexts.read(environ).current == "two"
    assert json.loads(call("login", "--use", "one", "--json").stdout)["current"] is True
    assert contexts.read(environ).current == "one"
    assert call("login", "--use", "local").exit_code == 0
    assert call("pools").exit_code == 2
    assert call("--context", "two", "pools").exit_code == 0
    assert json.loads(call("logout", "--all", "--json").stdout) == {"forgotten": ["one", "two"]}


def test_what_goes_before_a_new_context_is_told(call, gateway, monkeypatch):
    monkeypatch.setenv("SANDMAN_TOKEN", "other")
    done = call("login", gateway.url, given=TOKEN)
    assert "SANDMAN_TOKEN is set, and goes before it" in done.stderr


def test_a_refusal_later_says_whose_token_it_was(call, gateway):
    assert call("login", gateway.url, "--context", "prod", given=TOKEN).exit_code == 0
    refusal = problem(errors.UnauthenticatedError("the token is not known"))
    gateway.plan("GET /v1/pools", refusal)
    assert "the token came from context prod: check it, or log in anew" in call("pools").stderr
    assert "check SANDMAN_TOKEN" in list(explain(errors.UnauthenticatedError("x")))[1]
    gateway.plan("GET /v1/pools", answer(404, b"not ours"))
    assert call("pools").exit_code == 125


@pytest.mark.parametrize(
    ("options", "environment", "origin"),
    [
        (["--token", "wrong"], {}, "--token"),
        (["--token", "wrong"], {"SANDMAN_TOKEN": "other"}, "--token"),
        ([], {"SANDMAN_TOKEN": "wrong"}, "SANDMAN_TOKEN"),
    ],
)
def test_a_refusal_says_who_named_the_token(
    call, gateway, monkeypatch, options, environment, origin
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = call("--url", gateway.url, *options, "ls")
    assert (done.exit_code, done.stderr.splitlines()) == (
        125,
        [
            "sandman: error: unauthenticated: unknown token",
            f"sandman: what to do: the token came from {origin}: check it",
        ],
    )


def test_a_token_that_cannot_be_one_says_whose_it_is(call, gateway, monkeypatch):
    done = call("--url", gateway.url, "--token", "no token", "ls")
    assert (done.exit_code, "SANDMAN_TOKEN" in done.stderr) == (2, False)
    assert "the token given holds characters that no token has" in done.stderr
    done = call("login", gateway.url, given="no token")
    assert (done.exit_code, "SANDMAN_TOKEN" in done.stderr) == (2, False)
    assert "the token given holds" in done.stderr
    monkeypatch.setenv("SANDMAN_TOKEN", "no token")
    assert "the token of SANDMAN_TOKEN holds" in call("--url", gateway.url, "ls").stderr


def test_at_a_terminal_the_token_is_asked_for_and_not_shown(gateway, environ):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sandman.cli", "login", gateway.url]
    one = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **environ}
    )
    os.close(theirs)
    seen = until(ours, b"Token: ")
    os.write(ours, f"{TOKEN}\n".encode())
    seen += until(ours, b"is the current one")
    assert one.wait(25) == 0
    os.close(ours)
    assert TOKEN.encode() not in seen
    assert contexts.read(environ).known


def until(fd: int, text: bytes) -> bytes:
    """What is written until this text has come."""
    seen = b""
    end = time.monotonic() + 25
    while text not in seen and time.monotonic() < end:
        if select.select([fd], [], [], 1)[0]:
            seen += os.read(fd, 4096)
    assert text in seen
    return seen

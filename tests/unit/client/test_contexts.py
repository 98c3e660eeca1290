"""Contexts of `sandman login`: how they are kept, and which gateway is meant."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime

import pytest

from sandman import contexts, local
from sandman._core.config import Settings
from sandman._core.faults import ConfigurationError
from sandman.contexts import Context, Contexts, ContextsError
from sandman.service import pki

PROD = Context("https://prod:8443", "token-of-prod", tenant="acme")
TEST = Context("https://test:8443", "token-of-test", server_name="gateway")


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), local.ENV_STATE: str(tmp_path / "state")}


@pytest.fixture
def both(environ) -> dict[str, str]:
    contexts.change(environ, lambda before: before.with_one("test", TEST).with_one("prod", PROD))
    return environ


# --- how they are kept ---


def test_what_is_written_is_read_again_and_nobody_elses(environ):
    assert contexts.read(environ) == Contexts()
    old = os.umask(0)
    try:
        path = contexts.change(environ, lambda before: before.with_one("prod", PROD))
    finally:
        os.umask(old)
    assert path == contexts.file(environ)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert contexts.read(environ) == Contexts({"prod": PROD}, "prod")
    assert "token-of" not in repr(contexts.read(environ))
    contexts.change(environ, lambda before: before.without("prod"))
    assert contexts.read(environ) == Contexts()


def test_without_a_directory_of_its_own_it_is_below_the_home(tmp_path):
    assert contexts.file({"HOME": str(tmp_path)}) == tmp_path / ".config/sandman/contexts.json"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_that_others_can_read_or_write_is_refused(both, mode):
    contexts.file(both).chmod(mode)
    with pytest.raises(ContextsError, match="chmod 600"):
        contexts.read(both)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Settings.load(environ=both)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"contexts": []}', '{"contexts": {"a": {"url": 1, "token": "t"}}}',
     '{"contexts": {"a": {"url": "u"}}}', '{"contexts": {"a": {"url": "u", "token": "t", "ca": 1}}}',
     '{"contexts": {}, "current": []}', '{"contexts": {}, "current": 1}'],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_told_and_stays(both, text):
    contexts.file(both).write_text(text)
    with pytest.raises(ContextsError, match="makes no sense"):
        contexts.change(both, lambda before: before.with_one("x", PROD))
    assert contexts.file(both).read_text() == text


def test_where_it_cannot_be_written_that_is_told(environ, tmp_path):
    (tmp_path / "config").write_text("a file")
    with pytest.raises(ContextsError, match="cannot write"):
        contexts.change(environ, lambda before: before)


def test_a_change_that_is_refused_leaves_the_file_whole(both):
    with pytest.raises(ContextsError, match="no context 'nope'; there are: local, prod, test"):
        contexts.change(both, lambda before: before.using("nope"))
    assert contexts.read(both).current == "prod"


def test_changes_at_once_lose_nothing(environ):
    def add(number: int) -> None:
        contexts.change(environ, lambda before: before.with_one(f"c{number}", PROD))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert set(contexts.read(environ).known) == {f"c{number}" for number in range(8)}


@pytest.mark.parametrize("name", ["local", "", "-x", "a b", "../x", "a" * 101])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="no name for a context"):
        contexts.check_name(name)


def test_a_ca_is_trusted_and_what_is_none_is_told():
    authority = pki.make_ca("test", datetime.now(UTC), 1).certificate.decode()
    trust = Context("u", "t", ca=authority).trust()
    assert trust is not None
    assert len(trust.get_ca_certs()) == 1


@pytest.mark.parametrize("ca", ["", "\n", "nonsense", "\u00e4"])
def test_what_is_no_certificate_is_not_the_usual_cas(ca):
    with pytest.raises(ContextsError, match="log in anew"):
        Context("u", "t", ca=ca).trust()


# --- which is meant ---


def found(environ, *given, **options) -> tuple[str, str, str]:
    settings = Settings.load(*given, environ=environ, **options)
    return settings.url, settings.bearer, settings.origin


def test_arguments_go_before_the_environment_and_that_before_the_context(both):
    assert found(both) == ("https://prod:8443", "token-of-prod", "context prod")
    said = {**both, "SANDMAN_URL": "https://env", "SANDMAN_TOKEN": "token-of-env"}
    assert found(said) == ("https://env", "token-of-env", "SANDMAN_TOKEN")
    assert found(said, "https://arg", "t") == ("https://arg", "t", "the token given")
    assert found(said, "https://arg") == ("https://arg", "token-of-env", "SANDMAN_TOKEN")
    # An argument that names a context stands for all of it.
    assert found(said, context="test") == ("https://test:8443", "token-of-test", "context test")
    assert Settings.load(context="test", environ=said).server_name == "gateway"
    chosen = {**both, "SANDMAN_CONTEXT": "test"}
    assert found(chosen) == ("https://test:8443", "token-of-test", "context test")
    assert found({**chosen, "SANDMAN_TOKEN": "x"}) == ("https://test:8443", "x", "SANDMAN_TOKEN")
    assert found(both, None, "mine") == ("https://prod:8443", "mine", "the token given")


def test_a_token_of_a_context_goes_to_no_other_gateway(both):
    for environ, given in (
        (both, "https://other"),
        ({**both, "SANDMAN_URL": "https://other"}, None),
    ):
        with pytest.raises(ConfigurationError, match="no token given"):
            Settings.load(given, environ=environ)
        assert Settings.load(given, "t", environ=environ).server_name is None


def test_contradictions_and_names_that_are_not_there(both):
    with pytest.raises(ConfigurationError, match="either which gateway"):
        Settings.load("https://x", context="prod", environ=both)
    with pytest.raises(ConfigurationError, match="no context 'nope'"):
        Settings.load(context="nope", environ=both)
    with pytest.raises(ConfigurationError, match="sandman serve --local"):
        Settings.load(context="local", environ=both)


def test_local_mode_is_found_where_no_context_is_in_use_or_it_is_chosen(both):
    authority = pki.make_ca("test", datetime.now(UTC), 1).certificate.decode()
    local.write(
        local.Connection("https://127.0.0.1:1", "token-of-local", authority, os.getpid()), both
    )
    here = ("https://127.0.0.1:1", "token-of-local", "local mode")
    assert found(both)[2] == "context prod"
    assert found(both, context="local") == here
    # As a whole: its token is no other gateway's, and its certificate has its own name.
    said = {
        **both, "SANDMAN_TOKEN": "token-of-env", "SANDMAN_CA": "/nonexistent", "SANDMAN_SERVER_NAME": "other",
    }  # fmt: skip
    assert found(said, context="local") == here
    assert found({**said, "SANDMAN_CONTEXT": "local"}) == here
    for change in (
        lambda before: before.using("local"),
        lambda before: before.without("prod").without("test"),
    ):
        contexts.change(both, change)
        assert found(both) == found(said) == here
        assert Settings.load(environ=said).server_name is None
        assert found(said, None, "mine") == (here[0], "mine", "the token given")
        elsewhere = {**said, "SANDMAN_URL": "https://env", "SANDMAN_CA": ""}
        assert found(elsewhere) == ("https://env", "token-of-env", "SANDMAN_TOKEN")

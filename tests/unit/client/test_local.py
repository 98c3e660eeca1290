"""How clients find local mode, and how the command line starts it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sandman import local
from sandman._core.config import Settings
from sandman._core.faults import ConfigurationError
from sandman.cli import main
from sandman.local import Connection
from sandman.service import pki

serve = importlib.import_module("sandman.cli.serve")
"""The module: its command has the same name."""


@pytest.fixture(scope="module")
def ca() -> str:
    return pki.make_ca("test", datetime.now(UTC), 1).certificate.decode()


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    return {local.ENV_STATE: str(tmp_path / "state")}


def connection(ca: str, pid: int | None = None) -> Connection:
    return Connection("https://127.0.0.1:1234", "sbk_local_x", ca, pid or os.getpid())


def test_a_client_finds_the_gateway_of_its_user(environ, ca):
    path = local.write(connection(ca), environ)
    assert path.stat().st_mode & 0o777 == 0o600
    found = Settings.load(environ=environ)
    assert (found.url, found.token) == ("https://127.0.0.1:1234", "sbk_local_x")
    assert found.trust is not None
    # Whoever says where the gateway is means that one.
    other = {**environ, "SANDMAN_URL": "https://other:8443", "SANDMAN_TOKEN": "t"}
    assert Settings.load(environ=other).url == "https://other:8443"
    assert Settings.load("https://third", "t", environ=environ).trust is None
    local.forget(connection(ca, 1), environ)
    assert local.read(environ) is not None
    local.forget(connection(ca), environ)
    assert local.read(environ) is None
    with pytest.raises(ConfigurationError, match="sandman serve --local"):
        Settings.load(environ=environ)


@pytest.mark.parametrize(
    "told", [[], {}, {"url": "x"}, {"url": "u", "token": "t", "ca": "c", "pid": 2**80}]
)
def test_a_file_that_makes_no_sense_is_none(environ, told):
    path = local.connection_file(environ)
    path.parent.mkdir()
    path.write_text(json.dumps(told))
    assert local.read(environ) is None


def test_of_a_gateway_that_is_gone_nothing_is_found(environ, ca):
    ended = subprocess.Popen(["true"])
    ended.wait()
    local.write(connection(ca, ended.pid), environ)
    assert local.read(environ) is None


def test_of_another_user_nothing_is_taken(environ, ca, monkeypatch):
    local.write(connection(ca), environ)
    monkeypatch.setattr(local.os, "geteuid", lambda: 4242)
    assert local.read(environ) is None


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"HOME": "/h"}, "/h/.cache/sandman/local"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/sandman/local"),
        ({"HOME": "/h", local.ENV_STATE: "/s"}, "/s"),
    ],
)
def test_where_its_files_are(environ, place):
    assert local.state_directory(environ) == Path(place)


# --- sandman serve ---


def run(*arguments: str):
    return CliRunner().invoke(main, ["serve", *arguments])


def test_the_command_becomes_the_gateway(monkeypatch):
    became = []
    monkeypatch.setattr(serve.os, "execv", lambda path, argv: became.append((path, argv)))
    assert (
        run("--local", "--image", "a=/x", "--image", "b=/y", "--most", "3", "--offline").exit_code
        == 0
    )
    [(path, argv)] = became
    assert (path, argv[:4]) == (sys.executable, [sys.executable, "-m", "gateway", "local"])
    assert argv[4:] == ["--most=3", "--image=a=/x", "--image=b=/y", "--offline"]


def test_on_a_cluster_it_is_not_for_a_person_to_start():
    done = run()
    assert done.exit_code == 2
    assert "--local" in done.output


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(serve, "NEEDED", ("no_such_module",))
    done = run("--local")
    assert done.exit_code == 1
    assert "no_such_module: pip install 'sandman-sandbox[local]'" in done.output


def test_of_a_wheel_it_is_the_archive_in_it(monkeypatch, tmp_path):
    archive = tmp_path / "_local.pyz"
    archive.touch()
    monkeypatch.setattr(serve, "ARCHIVE", archive)
    assert serve.program() == [sys.executable, str(archive)]


def test_from_elsewhere_the_checkout_is_found(monkeypatch):
    monkeypatch.setattr(serve, "NEEDED", ())
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setenv("PYTHONPATH", "/other")
    assert serve.program() == [sys.executable, "-m", "gateway"]
    first, other = os.environ["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "gateway/__main__.py").is_file()
    assert other == "/other"
    monkeypatch.setattr(serve, "__file__", "/nowhere/sandman/cli/serve.py")
    with pytest.raises(click.ClickException, match="not here"):
        serve.program()

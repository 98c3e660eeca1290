"""Whom the client trusts: the CA given, and the name in the certificate."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest
import trustme

from sandman import client, errors, sync
from sandman._core.config import Settings
from tests.unit.client.fake_gateway import TOKEN, FakeGateway
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon import harness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "sandman-gateway.sandman-system.svc"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[FakeGateway]:
    """Its URL has an address, its certificate the service's DNS name."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(NAME).configure_cert(context)
    with FakeGateway(tls=context) as gateway:
        yield gateway


def pools(*, backend: str, **options) -> int:
    if backend == "sync":
        with sync.Client(token=TOKEN, **options) as blocking:
            return len(blocking.pools())

    async def main() -> int:
        async with client.Client(token=TOKEN, **options) as waiting:
            return len(await waiting.pools())

    return anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio", "sync"])
def test_names_are_checked_against_server_name(secure: FakeGateway, ca: str, backend: str) -> None:
    assert pools(backend=backend, url=secure.url, ca=ca, server_name=NAME) == 1
    context = ssl.create_default_context(cafile=ca)
    assert pools(backend=backend, url=secure.url, ca=context, server_name=NAME) == 1
    for wrong in (None, "other.svc"):
        with pytest.raises(errors.UnreachableError, match="SANDMAN_SERVER_NAME") as caught:
            pools(backend=backend, url=secure.url, ca=ca, server_name=wrong)
        assert not caught.value.retryable
        assert caught.value.facts["attempts"] == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio", "sync"])
def test_an_unknown_ca_is_not_trusted(secure: FakeGateway, backend: str) -> None:
    with pytest.raises(errors.UnreachableError, match="SANDMAN_CA"):
        pools(backend=backend, url=secure.url, server_name=NAME)


@pytest.mark.parametrize("backend", ["asyncio", "trio", "sync"])
def test_tls_with_a_port_that_has_none(gateway: FakeGateway, backend: str) -> None:
    with pytest.raises(errors.UnreachableError, match="http://") as caught:
        pools(backend=backend, url=gateway.url.replace("http:", "https:"))
    assert not caught.value.retryable


@pytest.mark.parametrize("backend", ["asyncio", "trio", "sync"])
def test_commands_over_tls(secure: FakeGateway, ca: str, backend: str) -> None:
    options = {"url": secure.url, "token": TOKEN, "ca": ca, "server_name": NAME}
    large = bytes(range(256)) * 8000
    if backend == "sync":
        with sync.Client(**options) as blocking, blocking.sandbox() as box:
            assert box.exec(["cat"], stdin=large).stdout == large
        return

    async def main() -> None:
        async with client.Client(**options) as waiting, waiting.sandbox() as box:
            assert (await box.exec(["cat"], stdin=large)).stdout == large
            with anyio.move_on_after(0.2):
                await box.exec(["sleep", "30"])

    anyio.run(main, backend=backend)
    assert secure.settled()


def test_a_host_that_is_not_found_is_not_asked_again() -> None:
    with pytest.raises(
        errors.UnreachableError, match=r"cannot find the host.*SANDMAN_URL"
    ) as caught:
        pools(backend="sync", url="https://no-such-host.invalid")
    # Resolvers without a network say "try again" where others say "no such name".
    assert isinstance(caught.value.retryable, bool)


# --- settings ------------------------------------------------------------------------------------


def test_settings_come_from_the_environment(ca: str) -> None:
    environ = {
        "SANDMAN_URL": "https://g:8443/", "SANDMAN_TOKEN": " t\n", "SANDMAN_CA": ca,
        "SANDMAN_SERVER_NAME": NAME,
    }  # fmt: skip
    settings = Settings.load(environ=environ)
    assert (settings.url, settings.token, settings.server_name) == ("https://g:8443", "t", NAME)
    assert isinstance(settings.trust, ssl.SSLContext)
    assert "token" not in repr(settings)
    assert Settings.load("http://h", "u", environ=environ).url == "http://h"


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "SANDMAN_URL"),
        ({"SANDMAN_URL": "gateway:8443", "SANDMAN_TOKEN": "t"}, "SANDMAN_URL looks like https://"),
        ({"SANDMAN_URL": "https://", "SANDMAN_TOKEN": "t"}, "SANDMAN_URL"),
        ({"SANDMAN_URL": "https://h:port", "SANDMAN_TOKEN": "t"}, "SANDMAN_URL"),
        ({"SANDMAN_URL": "https://h"}, "SANDMAN_TOKEN"),
        ({"SANDMAN_URL": "https://h", "SANDMAN_TOKEN": "a\nb"}, "SANDMAN_TOKEN"),
        ({"SANDMAN_URL": "https://h", "SANDMAN_TOKEN": "ä"}, "SANDMAN_TOKEN"),
        ({"SANDMAN_URL": "https://h", "SANDMAN_TOKEN": "t", "SANDMAN_CA": "/nope"}, "SANDMAN_CA"),
        ({"SANDMAN_URL": "https://h", "SANDMAN_TOKEN": "t", "SANDMAN_CA": __file__}, "SANDMAN_CA"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environ: dict[str, str], says: str) -> None:
    with pytest.raises(client.ConfigurationError, match=says) as caught:
        Settings.load(environ=environ)
    assert isinstance(caught.value, errors.CallerError)


def test_names_are_checked_on_the_way_to_a_port_too(secure: FakeGateway, ca: str) -> None:
    for name, expected in ((NAME, errors.NotFoundError), ("other", httpx.ConnectError)):
        options = {"url": secure.url, "ca": ca, "server_name": name}
        with (
            sync.Client(token=TOKEN, **options) as blocking,
            blocking.attach("b-1").http(80) as server,
            pytest.raises(expected),
        ):
            server.get("/")


def talk(*, backend: str, **options) -> bytes:
    """What a terminal shows."""
    options |= {"token": harness.TOKEN, "server_name": NAME}
    command = "stty raw -echo; echo ready; read x; echo got $x"
    if backend == "sync":
        with sync.Client(**options) as blocking:
            shown = blocking.attach(SANDBOX).open_terminal(shell=command)
            assert shown.read(10) == b"ready\n"
            shown.write("it\n")
            return b"".join(shown)

    async def main() -> bytes:
        async with client.Client(**options) as waiting:
            shown = await waiting.attach(SANDBOX).open_terminal(shell=command)
            assert await shown.read(10) == b"ready\n"
            await shown.write("it\n")
            return b"".join([data async for data in shown])

    return anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio", "sync"])
def test_terminals_trust_no_other_either(
    real_daemon: harness.Daemon, authority: trustme.CA, ca: str, backend: str
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(NAME).configure_cert(context)
    with Way(real_daemon, context) as way:
        assert talk(backend=backend, url=way.url, ca=ca) == b"got it\n"
        other = ssl.create_default_context()
        with pytest.raises(errors.UnreachableError, match="not trusted"):
            talk(backend=backend, url=way.url, ca=other)


def test_a_certificate_that_nobody_knows_says_how_to_trust_it(secure: FakeGateway, cli) -> None:
    done = cli("login", secure.url, input=TOKEN)
    assert done.exit_code == 125
    for way in ("ca= (--ca) or SANDMAN_CA", "server_name= (--server-name) or SANDMAN_SERVER_NAME"):
        assert way in done.stderr


def test_a_token_in_a_file_is_read_for_each_call(tmp_path, monkeypatch):
    """A projected token is renewed hourly, by a new file in the place of the old one."""
    file = tmp_path / "token"
    file.write_text("first\n")
    monkeypatch.delenv("SANDMAN_TOKEN", raising=False)
    monkeypatch.setenv("SANDMAN_TOKEN_FILE", str(file))
    with FakeGateway() as gateway, sync.Client(gateway.url) as blocking:
        for token in ("first", TOKEN):
            file.write_text(f"{token}\n")
            if token == TOKEN:
                assert blocking.pools() is not None
            else:
                with pytest.raises(errors.UnauthenticatedError):
                    blocking.pools()
        told = [dict(one.headers)["authorization"] for one in gateway.requests]
        assert told == ["Bearer first", f"Bearer {TOKEN}"]
        file.unlink()
        with pytest.raises(errors.SandmanError, match="SANDMAN_TOKEN_FILE"):
            blocking.pools()


@pytest.mark.parametrize("given", [{"SANDMAN_TOKEN": "t"}, {}])
def test_a_token_that_is_given_counts_more_than_a_file(tmp_path, given):
    environ = {"SANDMAN_URL": "https://g", "SANDMAN_TOKEN_FILE": str(tmp_path / "none"), **given}
    if given:
        assert Settings.load(environ=environ).bearer == "t"
    else:
        with pytest.raises(errors.SandmanError, match="cannot read the token"):
            Settings.load(environ=environ)
        assert Settings.load(token="u", environ=environ).bearer == "u"

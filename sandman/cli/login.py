"""`sandman login` and `sandman logout`: gateways that this user has a token for, kept under a name."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from sandman import contexts, local, names
from sandman._core.whereabouts import ENV_SERVER_NAME
from sandman.cli import complete
from sandman.cli.session import Session
from sandman.cli.table import show
from sandman.errors import NotFoundError
from sandman.sync import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.sync import Client

TOKEN_MAX_BYTES = 64 * 1024
COLUMNS = ("current", "name", "url", "tenant")


@contextmanager
def _kept() -> Iterator[None]:
    try:
        yield
    except contexts.UnwritableError as error:
        raise click.ClickException(str(error)) from None
    except contexts.ContextsError as error:
        raise ConfigurationError(str(error), field="context") from None


@click.command()
@click.argument("url", required=False)
@click.option(
    "--context", "name", metavar="NAME", help="Name to keep it under; else the gateway's host."
)
@click.option("--ca", metavar="FILE", help="PEM file with the CA to trust; its content is kept.")
@click.option(
    "--server-name",
    metavar="NAME",
    help="Name in the gateway's certificate, where the URL has another.",
)
@click.option("--list", "is_list", is_flag=True, help="List what there is instead.")
@click.option(
    "--use",
    "use",
    metavar="NAME",
    shell_complete=complete.contexts,
    help="Make this one, or local, the current one instead.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_obj
def login(session: Session, /, url: str | None, **given: Any) -> None:  # noqa: ANN401 - click's values
    """Try a token against the gateway at URL, and keep both as a context, which is the current one from then on.

    The token is asked for, or read from standard input where that is no terminal.

    Example: sandman login https://gateway:8443 --ca ca.pem < token.txt
    """
    if given["is_list"]:
        _list(as_json=given["as_json"])
    elif given["use"] is not None:
        _use(session, given["use"], as_json=given["as_json"])
    else:
        _login(session, url, given)


def _login(session: Session, url: str | None, given: dict[str, Any]) -> None:
    url = url or session.url or os.environ.get(names.ENV_URL, "")
    if not url:
        raise click.UsageError("which gateway? sandman login https://gateway:8443")
    if session.token is not None:
        raise click.UsageError(
            "a token does not belong on the command line, where every process of the machine reads it: "
            "type it when asked, or give it on standard input"
        )
    name = _name(given["name"] or session.context, url)
    ca = given["ca"] or session.ca or os.environ.get(names.ENV_CA)
    server_name = given["server_name"] or session.server_name or os.environ.get(ENV_SERVER_NAME)
    context = contexts.Context(url.rstrip("/"), _token(), _pem(ca), server_name or None)
    tenant = _tried(session, context)
    context = dataclasses.replace(context, tenant=tenant)
    with _kept():
        path = contexts.change(os.environ, lambda before: before.with_one(name, context))
    if given["as_json"]:
        click.echo(json.dumps(_row(name, context, name)))
    else:
        session.say(f"logged in to {context.url}" + (f" as tenant {tenant}" if tenant else ""))
        session.say(f"context {name} is the current one ({path})")
    for variable in (names.ENV_URL, contexts.ENV_CONTEXT, names.ENV_TOKEN, names.ENV_TOKEN_FILE):
        if os.environ.get(variable):
            session.say(f"{variable} is set, and goes before it: unset {variable}")


def _name(given: str | None, url: str) -> str:
    try:
        return contexts.check_name(given or urlsplit(url).netloc.rpartition("@")[2] or "gateway")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--context") from None


def _token() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True, err=True)).strip()
    token = sys.stdin.read(TOKEN_MAX_BYTES).strip()
    if not token:
        raise click.UsageError("no token on standard input: sandman login URL < FILE")
    return token


def _pem(path: str | None) -> str | None:
    if not path:
        return None
    try:
        text = Path(path).read_text("ascii")
        contexts.authority(text)
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(
            f"cannot read certificates from {path}: {error}", param_hint="--ca"
        ) from None
    return text


def _tried(session: Session, context: contexts.Context) -> str | None:
    """The tenant whose token it is, as the gateway says."""
    trial = Session(context.url, context.token, None, context.server_name, quiet=session.quiet)
    session.origin = "what was typed" if sys.stdin.isatty() else "standard input"
    with trial.client(trust=context.trust()) as client:
        return _tenant(client)


def _tenant(client: Client) -> str | None:
    try:
        return client.overview().tenant
    except NotFoundError:
        # A gateway of an earlier version: it knows the token, or says that it does not.
        client.pools()
        return None


def _use(session: Session, name: str, *, as_json: bool) -> None:
    with _kept():
        contexts.change(os.environ, lambda before: before.using(name))
        found = contexts.read(os.environ).get(name)
    if as_json:
        click.echo(json.dumps(_row(name, found, name)))
    else:
        session.say(f"context {name} is the current one")


def _list(*, as_json: bool) -> None:
    with _kept():
        known = contexts.read(os.environ)
    rows = [_row(name, one, known.current) for name, one in sorted(known.known.items())]
    if local.read(os.environ) is not None:
        rows.append(_row(contexts.LOCAL, None, known.current or contexts.LOCAL))
    if as_json:
        click.echo(json.dumps(rows))
    else:
        show(COLUMNS, ({**row, "current": "*" if row["current"] else " "} for row in rows))


def _row(name: str, context: contexts.Context | None, current: str | None) -> dict[str, object]:
    """A context without anything secret; None: local mode."""
    here = local.read(os.environ)
    url = context.url if context is not None else here.url if here is not None else None
    tenant = None if context is None else context.tenant
    return {"name": name, "url": url, "tenant": tenant, "current": name == current}


@click.command()
@click.argument("name", required=False, metavar="[CONTEXT]", shell_complete=complete.contexts)
@click.option("--all", "is_all", is_flag=True, help="Every context.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
@click.pass_obj
def logout(session: Session, name: str | None, *, is_all: bool, as_json: bool) -> None:
    """Forget CONTEXT, or the current one, with its token. The token stays good: `sandman keys revoke` ends it."""
    if is_all and name is not None:
        raise click.UsageError("give either a context or --all")
    name = name or session.context
    forgotten: list[str] = []

    def forget(before: contexts.Contexts) -> contexts.Contexts:
        meant = list(before.known) if is_all else [name or before.current or ""]
        if "" in meant:
            raise contexts.ContextsError(
                "no context is in use: sandman logout NAME (sandman login --list)"
            )
        for one in meant:
            if before.get(one) is None:
                raise contexts.ContextsError("local mode has nothing to forget: end its gateway")
            before = before.without(one)
        forgotten[:] = meant
        return before

    with _kept():
        contexts.change(os.environ, forget)
    if as_json:
        click.echo(json.dumps({"forgotten": forgotten}))
    else:
        session.say(f"forgotten: {', '.join(forgotten) or 'none'}")

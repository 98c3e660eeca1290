"""`sandman port-forward`: servers inside a sandbox, at ports of this machine."""

from __future__ import annotations

import ipaddress
import json
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.abc
import click

from sandman import names
from sandman.cli import complete

if TYPE_CHECKING:
    from anyio.streams.stapled import MultiListener

    from sandman.cli.forwarder import Forwarder
    from sandman.cli.session import Session

LOOPBACK = "127.0.0.1"
HERE = frozenset({"localhost", LOOPBACK, "::1"})
"""What a loopback is called by whoever means it."""
MOST_PORTS = 32


class Pair(NamedTuple):
    """A port here, 0 for any, and one in the sandbox."""

    local: int
    remote: int


class Ports(click.ParamType):  # type: ignore[type-arg]
    """`8000`, `8080:8000`, `:8000`."""

    name = "ports"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Pair:
        """The pair."""
        if isinstance(value, Pair):
            return value
        local, colon, remote = str(value).rpartition(":")
        to = names.port_number(remote)
        at = 0 if colon and local in {"", "0"} else names.port_number(local) if colon else to
        if to is None or at is None:
            self.fail(f"{value!r} is none of 8000, 8080:8000 and :8000 (any port here)", param, ctx)
        return Pair(at, to)


@click.command("port-forward")
@click.argument("sandbox", shell_complete=complete.sandboxes)
@click.argument("ports", nargs=-1, required=True, type=Ports(), metavar="[LOCAL:]REMOTE…")
@click.option(
    "--address",
    default=LOOPBACK,
    show_default=True,
    metavar="ADDRESS",
    help="Of this machine, to listen on; any but a loopback lets others in, with your token.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line for each port.")
@click.pass_obj
def port_forward(
    session: Session, sandbox: str, ports: tuple[Pair, ...], address: str, *, as_json: bool
) -> None:
    """Let programs of this machine reach servers in SANDBOX, over HTTP and WebSockets, until interrupted.

    Your token is added, and they need none. Other protocols, cookies and CORS do not pass (docs/cli.md).

    Examples: sandman port-forward ID 8000; sandman port-forward ID 8080:80 :3000
    """
    if len(ports) > MOST_PORTS:
        raise click.UsageError(f"{MOST_PORTS} ports at most")
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        raise click.BadParameter(f"{address!r} is no IP address", param_hint="--address") from None
    if not ip.is_loopback:
        session.say(f"whoever reaches {address} reaches the sandbox, as you")
    hosts = HERE | {address} if ip.is_loopback else frozenset[str]()
    try:
        anyio.run(_forward, session, sandbox, ports, address, hosts, as_json)
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


async def _forward(
    session: Session, sandbox: str, ports: tuple[Pair, ...], address: str, hosts: frozenset[str],
    as_json: bool,
) -> None:  # fmt: skip
    from sandman.cli.forwarder import Forwarder  # noqa: PLC0415 - no other verb needs it

    async with session.async_client() as client, AsyncExitStack() as stack:
        box = await client.get(sandbox)
        found = []
        for pair in ports:
            listener = await stack.enter_async_context(await _listen(address, pair))
            forwarder = Forwarder(box, pair.remote, hosts, session.say)
            stack.push_async_callback(forwarder.aclose)
            found.append((listener, forwarder))
        for listener, forwarder in found:
            _show(listener, forwarder, address, as_json=as_json)
        async with anyio.create_task_group() as tasks:
            for listener, forwarder in found:
                tasks.start_soon(listener.serve, forwarder.serve)


async def _listen(address: str, pair: Pair) -> MultiListener[anyio.abc.SocketStream]:
    try:
        return await anyio.create_tcp_listener(local_host=address, local_port=pair.local)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {address} port {pair.local}: {error.strerror or error}; "
            f"another: {pair.local + 1}:{pair.remote}, any: :{pair.remote}"
        ) from None


def _show(
    listener: MultiListener[anyio.abc.SocketStream], to: Forwarder, address: str, *, as_json: bool
) -> None:
    port = listener.extra_attributes[anyio.abc.SocketAttribute.local_port]()
    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{port}"
    if as_json:
        told = {"address": address, "local_port": port, "remote_port": to.port, "url": url}
        click.echo(json.dumps(told))
    else:
        click.echo(f"{url} -> {to.port}")
    sys.stdout.flush()

"""`/v1/sessions`: shells that stay. Loaded at the first call: few sandboxes have any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon import config, queries
from daemon.documents import dump
from daemon.exchange import Response
from daemon.shells import Shells
from sandman import names, wire
from sandman.errors import BadRequestError
from sandman.handles import MAX_WAIT_S
from sandman.sessions import INPUT, INTERRUPT, RUN, SessionSpec, TurnSpec

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.processes import Processes
    from sandman.sessions import SessionInfo


class Sessions:
    """The handlers of `sessions`."""

    def __init__(self, processes: Processes) -> None:
        self._shells = Shells(processes)

    def start(self, exchange: Exchange) -> None:
        """Start one, or find the one that this very call started before."""
        spec = SessionSpec.from_json(_body(exchange))
        shell = self._shells.open(spec)
        _tell(exchange, self._shells.ready(shell, exchange))

    def list(self, exchange: Exchange) -> None:
        """All, also those that ended by themselves."""
        found = [shell.info.to_json() for shell in self._shells.all()]
        exchange.respond(Response(200, dump({"sessions": found}), names.MEDIA_JSON))

    def get(self, exchange: Exchange) -> None:
        """One of them."""
        _tell(exchange, self._shells.find(_name(exchange)).info)

    def close(self, exchange: Exchange) -> None:
        """Have it ended with all that it started. What is not known does not run either."""
        key = exchange.query.get("key")
        if key is not None and not names.is_exec_id(key.decode("latin-1")):
            raise BadRequestError("key must be as it is in the call that starts one", field="key")
        self._shells.close(_name(exchange), None if key is None else key.decode("latin-1"))
        exchange.respond(Response(204))

    def run(self, exchange: Exchange) -> None:
        """Run a command in it."""
        self._ask(exchange, RUN)

    def input(self, exchange: Exchange) -> None:
        """Type into the command that runs in it."""
        self._ask(exchange, INPUT)

    def interrupt(self, exchange: Exchange) -> None:
        """End the command that runs in it."""
        self._ask(exchange, INTERRUPT)

    def _ask(self, exchange: Exchange, kind: str) -> None:
        wait_s = queries.seconds(exchange.query, "wait_s", MAX_WAIT_S)
        spec = TurnSpec.from_json(kind, _body(exchange))
        turn = self._shells.find(_name(exchange)).session.ask(spec, self._shells.boot_id)
        result = turn.wait(exchange, wait_s)
        exchange.respond(Response(200, dump(result.to_json()), names.MEDIA_JSON))


def _body(exchange: Exchange) -> dict[str, object]:
    return wire.load_object(exchange.read_body(config.MAX_JSON_BYTES) or b"{}")


def _name(exchange: Exchange) -> str:
    return exchange.head.path.split("/")[3]


def _tell(exchange: Exchange, info: SessionInfo) -> None:
    exchange.respond(Response(200, dump(info.to_json()), names.MEDIA_JSON))

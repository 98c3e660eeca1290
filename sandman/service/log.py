"""Logging of a service: JSON lines on stderr, or text for a person at a terminal."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

HIDDEN = "[hidden]"
_SECRET_PARTS = ("token", "secret", "password", "authorization", "cookie", "api_key", "private")
_QUIET = ("httpx", "httpcore", "anyio.streams.tls", "hpack")
"""Loggers that tell of each request, or of each port scanner's failed handshake."""


def hide_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor: values of fields whose name speaks of a secret are not written.

    A guard against slips, not a licence: secrets are not to be logged in the first place.
    """
    for name in event:
        if any(part in name.lower() for part in _SECRET_PARTS):
            event[name] = HIDDEN
    return event


def configure(level: str = "info", *, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging alike; call it once, first.

    Args:
        level: debug, info, warning or error.
        stream: where to; stderr if None.

    Raises:
        ValueError: there is no such level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"{level!r} is no level: debug, info, warning, error")
    target = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(_formatter(shared, for_person=target.isatty()))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(number, logging.CRITICAL))


def _formatter(
    shared: list[structlog.typing.Processor], *, for_person: bool
) -> structlog.stdlib.ProcessorFormatter:
    # Neither tells of local variables, as both would by default: tokens are among them.
    plain = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    render: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if for_person
        else [structlog.processors.ExceptionRenderer(plain), structlog.processors.JSONRenderer()]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )

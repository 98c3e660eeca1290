"""`sandman top`: how a gateway stands, again and again."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import httpx

from sandman.cli import standing
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman._core.config import Settings
    from sandman.cli.session import Session
    from sandman.sync import Client

SHORTEST_S = 0.2
"""Between two looks: each is four calls, and a list of all the caller's sandboxes."""
ANSWER_S = 10.0
METRICS_MAX_BYTES = 4 * 1024 * 1024
PIPE_COLUMNS = 160
"""Where nobody says how wide it is."""

HOME, REST, LINE_END = "\x1b[H", "\x1b[J", "\x1b[K"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@click.command()
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=SHORTEST_S),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option("--run", metavar="RUN", help="Sandboxes of this run alone.")
@click.option(
    "--metrics",
    metavar="URL",
    help="Of the gateway's metrics for the platform, to see every tenant's queue: https://host:9464/metrics.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line for each look.")
@click.pass_obj
def top(session: Session, /, **given: Any) -> None:  # noqa: ANN401 - click's values
    """Show pools, your queue and your sandboxes, and go on showing them until interrupted.

    Of other tenants nothing is shown: a gateway tells each caller of his own alone. Who runs the platform may give
    --metrics, which tells of all queues.
    """
    is_screen = sys.stdout.isatty() and not given["as_json"] and not given["once"]
    seen: standing.Standing | None = None
    with session.client(retry_s=0, answer_s=ANSWER_S) as client, _screen(on=is_screen):
        while True:
            try:
                seen = _look(client, given["run"], given["metrics"])
            except SandmanError as error:
                if given["once"] or not error.retryable:
                    raise
                at = datetime.now(UTC)
                seen = dataclasses.replace(
                    seen or standing.nothing(client.settings.url), at=at, error=str(error)
                )
            _show(seen, on_screen=is_screen, as_json=given["as_json"])
            if given["once"]:
                return
            time.sleep(given["interval_s"])


def _look(client: Client, run: str | None, metrics: str | None) -> standing.Standing:
    return standing.Standing(
        at=datetime.now(UTC),
        gateway=client.settings.url,
        overview=client.overview(),
        pools=client.pools(),
        sandboxes=[box.info for box in client.list(run)],
        ended=[box.info for box in client.list(run, ended=True)],
        tenants=None if metrics is None else standing.tenants(_metrics(client.settings, metrics)),
    )


def _metrics(settings: Settings, url: str) -> str:
    """Their text. They are asked for as the gateway is, but without the token: they need none."""
    names = {} if settings.server_name is None else {"sni_hostname": settings.server_name}
    trust = True if settings.trust is None else settings.trust
    try:
        with httpx.Client(verify=trust, timeout=ANSWER_S, trust_env=False) as http:
            answer = http.get(url, extensions=names)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise click.ClickException(f"--metrics {url}: {error}") from None
    return answer.text[:METRICS_MAX_BYTES]


@contextmanager
def _screen(*, on: bool) -> Iterator[None]:
    """A screen of its own, and the old one back at the end."""
    if not on:
        yield
        return
    try:
        sys.stdout.write(ENTER)
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def _show(seen: standing.Standing, *, on_screen: bool, as_json: bool) -> None:
    if as_json:
        text = f"{json.dumps(standing.told(seen))}\n"
    elif on_screen:
        size = shutil.get_terminal_size()
        lines = standing.lines(seen, size.columns, size.lines)
        text = HOME + f"{LINE_END}\n".join(lines) + LINE_END + REST
    else:
        size = shutil.get_terminal_size((PIPE_COLUMNS, 0))
        in_colour = sys.stdout.isatty()
        lines = standing.lines(seen, size.columns, None)
        text = "\n".join([*(lines if in_colour else map(standing.plain, lines)), "", ""])
    sys.stdout.write(text)
    sys.stdout.flush()

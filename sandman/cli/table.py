"""Rows for people on a terminal, tab-separated for programs elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def show(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Print the rows' values of these columns, with a heading; `-` where there is none."""
    lines = [["-" if row[name] is None else str(row[name]) for name in columns] for row in rows]
    if not sys.stdout.isatty():
        for line in [list(columns), *lines]:
            click.echo("\t".join(line))
        return
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name.upper(), overflow="fold")
    for line in lines:
        table.add_row(*line)
    Console(markup=False).print(table)

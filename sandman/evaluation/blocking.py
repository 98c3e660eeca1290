"""The runner for code without an event loop: one runs for as long as the evaluation does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import anyio

from sandman._async.client import Client
from sandman._async.transport import Transport
from sandman._core.heart import Heart
from sandman.evaluation import runner

if TYPE_CHECKING:
    import os

    from sandman._core.config import Settings
    from sandman.evaluation.inputs import Source
    from sandman.evaluation.options import EvaluationOptions
    from sandman.evaluation.report import EvaluationReport
    from sandman.sync import Client as SyncClient


class _Twin(Client):
    """A client of the same gateway as another one, with its settings as they are: a token's file is read anew here, too."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.url, settings.bearer, ca=settings.trust)
        self.settings = settings
        self._transport = Transport(settings, None)
        self._heart = Heart(settings)


def evaluate(
    client: SyncClient,
    rows: Source,
    predictions: Source,
    out: str | os.PathLike[str],
    **options: Unpack[EvaluationOptions],
) -> EvaluationReport:
    """Evaluate predictions on tasks; see `Client.evaluate`."""

    async def whole() -> EvaluationReport:
        async with _Twin(client.settings) as twin:
            return await runner.evaluate(twin, rows, predictions, out, **options)

    return anyio.run(whole)

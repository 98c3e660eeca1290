"""The certificate of an evaluation: under which conditions it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandman.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandman.certificates import Certificate
    from sandman.client import Sandbox


async def certify(box: Sandbox, exec_ids: Sequence[str]) -> Certificate | None:
    """The certificate for these commands of a sandbox; None: this gateway is of a version that gives none.

    Raises:
        SandmanError: the sandbox or the way to it failed.
    """
    try:
        return await box.certificate(exec_ids)
    except NotFoundError:
        return None

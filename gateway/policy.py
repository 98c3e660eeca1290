"""What a principal may do. Pure.

What is another tenant's does not exist: the answer is the same 404 as for an id that never was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway import scopes
from gateway.references import is_allowed
from sandman.errors import ForbiddenError, ImageDeniedError, NotFoundError

if TYPE_CHECKING:
    from gateway.model import Principal


def may_manage(principal: Principal) -> None:
    """May allocate, list and release sandboxes.

    Raises:
        ForbiddenError: the token is that of one sandbox.
    """
    if principal.sandbox is not None:
        raise ForbiddenError("a sandbox's token is good for its commands and files only")


def may_run(principal: Principal, image: str | None) -> None:
    """May have sandboxes in this image. A pool's own image, which is had by naming none, is its operator's choice.

    Raises:
        ImageDeniedError: the tenant's allowlist has no pattern for it.
    """
    allowed = principal.share.images
    if image is None or is_allowed(image, allowed):
        return
    patterns = ", ".join(allowed or ()) or "none"
    raise ImageDeniedError(
        f"image {image} is not among those that this API key may use: {patterns}",
        field="image",
        facts={"allowlist": True},
    )


def may_ask(principal: Principal, sandbox: str, need: str) -> None:
    """May hear anything of this id. Asked before it is looked for: neither the work that a look-up makes
    nor the time that it takes is for the token of another sandbox.

    Args:
        principal: who calls.
        sandbox: the id that the caller gave.
        need: what the call needs of a sandbox's token, of `scopes`.

    Raises:
        NotFoundError: the token is that of another sandbox.
        ForbiddenError: it is not good for this.
    """
    if principal.sandbox not in (None, sandbox):
        raise NotFoundError(f"no sandbox {sandbox}", sandbox=sandbox)
    if principal.may and not scopes.covers(principal.may, need):
        raise ForbiddenError(
            f"this token is good for {', '.join(principal.may)} of its sandbox, not for {need}",
            sandbox=sandbox,
        )


def owns(principal: Principal, tenant: str | None) -> bool:
    """Whether what is this tenant's is the principal's; nobody's is not."""
    return tenant is not None and tenant == principal.tenant

"""Reasons and problem documents, as one of `sandman.errors`: what whoever made the call has of them."""

from __future__ import annotations

from collections.abc import Mapping

from sandman.errors import InternalError, SandmanError


def by_reason(root: type[SandmanError] = SandmanError) -> dict[str, type[SandmanError]]:
    """Every class of the tree by its reason."""
    found: dict[str, type[SandmanError]] = {}
    for child in root.__subclasses__():
        found |= {child.reason: child, **by_reason(child)}
    return found


def from_problem(document: Mapping[str, object], status: int = 500) -> SandmanError:
    """The error that a problem document tells of; an unknown reason keeps the facts it has.

    Args:
        document: the members of a problem+json body, from our own programs or from a proxy between.
        status: the HTTP status that came with it, for documents that say nothing themselves.
    """
    cls = by_reason().get(str(document.get("reason", "")))
    facts = document.get("facts")
    given = {name: document.get(name) for name in ("field", "sandbox", "cause")}
    texts = {name: value for name, value in given.items() if isinstance(value, str)}
    error = (cls or InternalError)(
        str(document.get("detail") or document.get("title") or f"HTTP status {status}"),
        retry_after=seconds(document.get("retry_after")),
        facts=facts if isinstance(facts, Mapping) else None,
        **texts,
    )
    if document.get("retryable") is False:
        error.retryable = False
    if cls is None:
        error.status = status
    return error


def seconds(value: object) -> float | None:
    """A wait of at most a day; anything else comes from somebody who is not us."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= 86400 else None  # type: ignore[operator, arg-type]

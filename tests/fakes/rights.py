"""Being nobody special, in tests that root runs too."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from daemon.local import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def without_rights(call: Callable[[], T]) -> T:
    """Its result, called by a thread that has no capability: modes hold for it as for any owner of files."""
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            syscalls.keep_capabilities(frozenset())
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]

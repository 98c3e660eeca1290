"""The daemon's command line: `serve` (the default), or `copy TARGET` in the init container."""

from __future__ import annotations

import sys

from daemon import log
from daemon.config import ConfigError

_USAGE = "usage: serve | copy TARGET"


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; the exit code. `argv` None: the process's own arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    match arguments:
        case [] | ["serve"]:
            return _serve()
        case ["copy", target]:
            return _copy(target)
        case _:
            log.line(_USAGE)
            return 2


def _serve() -> int:
    # Imported here: `copy` needs none of it.
    from daemon.serve import serve  # noqa: PLC0415

    try:
        return serve()
    except (ConfigError, OSError) as error:
        log.line(f"cannot serve: {error}")
        return 1


def _copy(target: str) -> int:
    from daemon import delivery  # noqa: PLC0415

    try:
        files, size = delivery.copy(delivery.own_tree(), target)
    except OSError as error:
        log.line(f"cannot copy to {target}: {error}")
        return 1
    log.line(f"copied {files} files, {size} bytes, to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

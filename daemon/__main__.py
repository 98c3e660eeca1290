"""The daemon's command line: `serve` (the default), `serve -- COMMAND…` before a pod's own command,
`copy TARGET` in the init container, or `confine`, by which local mode starts it."""

from __future__ import annotations

import os
import sys

from daemon import config, kernel, log

_USAGE = "usage: serve | serve -- COMMAND... | copy TARGET | confine [--probe DIRECTORY]"


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command; the exit code. `argv` None: the process's own arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    match arguments:
        case [] | ["serve"]:
            return _serve([])
        case ["--", _, *_] | ["serve", "--", _, *_]:
            return _serve(arguments[arguments.index("--") + 1 :])
        case ["copy", target]:
            return _copy(target)
        case ["confine", *options] if options[:1] in ([], ["--probe"]) and len(options) in (0, 2):
            return _confine(options[1:])
        case _:
            log.line(_USAGE)
            return 2


def _serve(command: list[str]) -> int:
    """Listen, and only then load the greater part. `command`: the pod's own, to be wrapped."""
    from daemon import signals  # noqa: PLC0415 - `copy` needs none of it
    from daemon.listener import listen  # noqa: PLC0415

    kernel.fill_standard_descriptors()
    asked = signals.block_signals()
    if command:
        from daemon import wrap  # noqa: PLC0415 - sandboxes need none of it

        wrap.block_signals(asked)
    try:
        settings = config.Config.from_env(os.environ)
        sock = listen(settings.port)
    except (config.ConfigError, OSError) as error:
        log.line(f"cannot serve: {error}")
        return _cannot_serve(command)
    if not command or settings.port == 0:
        # The log of a workload is the command's own; which port it is its caller has said.
        log.line(f"listens on port {sock.getsockname()[1]}")

    from daemon.serve import serve  # noqa: PLC0415

    return serve(settings, sock, asked, command)


def _cannot_serve(command: list[str]) -> int:
    if not command:
        return 1
    from daemon import wrap  # noqa: PLC0415 - somebody's production does not need us

    return wrap.instead(command)


def _confine(places: list[str]) -> int:
    import importlib  # noqa: PLC0415 - local mode alone needs it

    try:
        # Not by a statement: those name what the build of the pods' Python must hold.
        confine = importlib.import_module("daemon.local.confine")
    except ImportError as error:
        log.line(f"this build has no local mode: {error}")
        return 2
    code: int = confine.probe(places[0]) if places else confine.main()
    return code


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

"""`python -m webhook`: reads the environment, runs one replica until SIGTERM."""

from __future__ import annotations

import sys

import trio

from sandman.service import https, log
from sandman.service.kube import Kube, config
from webhook.config import Config, ConfigError
from webhook.serve import Webhook


async def _run(settings: Config, target: config.Target) -> None:
    stop = trio.Event()
    async with Kube(target) as kube, trio.open_nursery() as nursery:
        await nursery.start(https.stop_on_signals, stop)
        await Webhook(settings, kube, stop).run()
        nursery.cancel_scope.cancel()


def main() -> None:
    """Run until told to stop; a setting that cannot be ends it with the variable's name."""
    try:
        settings = Config.from_env()
    except ConfigError as error:
        sys.exit(str(error))
    log.configure(settings.log_level)
    trio.run(_run, settings, config.load())


if __name__ == "__main__":
    main()

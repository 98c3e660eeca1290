"""`sandman serve --local`: a gateway on this machine, without a cluster."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

ARCHIVE = Path(__file__).parents[1] / "_local.pyz"
"""In a wheel: the programs of local mode, which a trainer's environment has no other use for."""
NEEDED = (
    "trio",
    "starlette",
    "anycorn",
    "cryptography",
    "msgspec",
    "structlog",
    "prometheus_client",
)


@click.command(context_settings={"ignore_unknown_options": False})
@click.option("--local", "is_local", is_flag=True, help="On this machine alone, without a cluster.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="To listen on; else any.")
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="NAME=PATH",
    help="A directory or archive (OCI layout, docker save), and the name that callers use; may be repeated.",
)
@click.option(
    "--default-image", metavar="NAME", help="Of sandboxes whose caller names none; else host."
)
@click.option("--free", type=click.IntRange(0), help="Sandboxes that are kept ready; else 2.")
@click.option("--most", type=click.IntRange(1), help="Sandboxes at once; else 32.")
@click.option("--cpu", metavar="AMOUNT", help="Of each sandbox, as 2 or 500m; else all there is.")
@click.option("--memory", metavar="AMOUNT", help="Of each sandbox, as 4Gi; else half of it.")
@click.option(
    "--offline", is_flag=True, help="No images of registries; those alone that are named."
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning (default) or error.")
def serve(*, is_local: bool, **given: Any) -> None:  # noqa: ANN401 - click's values
    """Serve sandboxes on this machine until interrupted; `sandman run` finds it by itself.

    The image `host` is this machine's own root, read-only. How far sandboxes are kept apart is told at the start.
    """
    if not is_local:
        raise click.UsageError("say --local: on a cluster the gateway is run by its Deployment")
    command = [*program(), "local", *_arguments(given)]
    signal.setitimer(
        signal.ITIMER_REAL, 0
    )  # ours (`guard`): it would go on, and end what knows nothing of it
    os.execv(command[0], command)  # noqa: S606 - it becomes the gateway


def _arguments(given: dict[str, Any]) -> list[str]:
    """As the gateway's own command line has them."""
    told = {
        "--port": given["port"] or None,
        "--default-image": given["default_image"],
        "--free": given["free"],
        "--most": given["most"],
        "--cpu": given["cpu"],
        "--memory": given["memory"],
        "--log-level": given["log_level"],
    }
    found = [f"{name}={value}" for name, value in told.items() if value is not None]
    found += [f"--image={image}" for image in given["images"]]
    return [*found, *(["--offline"] if given["offline"] else [])]


def program() -> list[str]:
    """The gateway's program: of the checkout, or of the archive in the wheel.

    Raises:
        ClickException: there is none, or it lacks what it needs.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"local mode needs {', '.join(missing)}: pip install 'sandman-sandbox[local]'"
        )
    if ARCHIVE.is_file():
        return [sys.executable, str(ARCHIVE)]
    if importlib.util.find_spec("gateway") is not None:
        return [sys.executable, "-m", "gateway"]
    checkout = Path(__file__).parents[2]
    if (checkout / "gateway" / "__main__.py").is_file():
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(checkout), os.environ.get("PYTHONPATH")))
        )
        return [sys.executable, "-m", "gateway"]
    raise click.ClickException(
        "local mode's programs are not here: use the checkout, or a wheel of a release"
    )

"""`python -m gateway`: run the gateway, or make an API key."""

from __future__ import annotations

import argparse
import base64
import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from gateway import local, quantities, serve, tokens
from gateway.config import SettingError, Settings
from gateway.model import Amounts
from gateway.provider.local.images import HOST
from sandman import names
from sandman.service import log
from sandman.version import __version__

if TYPE_CHECKING:
    from gateway.model import Identity, Share


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and do it; answers the exit status."""
    parser = argparse.ArgumentParser(prog="gateway", description="Sandman's gateway.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("serve", help="serve (the default); settings come from the environment")
    key = commands.add_parser("make-key", help="make an API key and the patch that installs it")
    key.add_argument("key_id", help="name of the key: a-z, 0-9 and dashes")
    key.add_argument("--tenant", required=True, help="whose sandboxes it makes")
    key.add_argument(
        "--weight",
        type=float,
        default=1.0,
        help="share against other tenants that wait (default 1)",
    )
    key.add_argument("--concurrent", type=int, help="most sandboxes of the tenant at once")
    key.add_argument("--eval-reserved", type=int, help="so many of these for evaluations alone")
    key.add_argument(
        "--images",
        action="append",
        metavar="PATTERN",
        help="images it may use, as r.example/team/** (may be repeated; default all)",
    )
    key.add_argument(
        "--networks",
        action="append",
        metavar="PROFILE",
        help="egress profiles it may ask for, of those a pool lets be asked for (default all of them)",
    )
    key.add_argument("--rate", type=float, help="most sandboxes made in a second, on average")
    key.add_argument("--cpu", type=float, help="most cores at once, as its pods request them")
    key.add_argument("--memory", type=_bytes, help="most memory at once, for example 512Gi")
    key.add_argument(
        "--kubernetes-user",
        metavar="USER",
        help="whom the cluster knows its caller as: decides which workloads it may attach to",
    )
    key.add_argument(
        "--kubernetes-group",
        action="append",
        default=[],
        metavar="GROUP",
        help="a group of that user; may be repeated",
    )
    _add_local(commands)
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "local":
            return _serve_local(arguments)
        if arguments.command == "make-key":
            return make_key(
                arguments.key_id,
                arguments.tenant,
                tokens.check_share(
                    arguments.weight,
                    concurrent=arguments.concurrent,
                    eval_reserved=arguments.eval_reserved,
                    rate=arguments.rate,
                    cpu=arguments.cpu,
                    memory=arguments.memory,
                    images=arguments.images,
                    networks=arguments.networks,
                ),
                _identity(arguments.kubernetes_user, arguments.kubernetes_group),
            )
        settings = Settings.from_env(os.environ)
        log.configure(settings.log_level)
    except ValueError as error:
        kind = "setting" if isinstance(error, SettingError) else "argument"
        print(f"gateway: {kind}: {error}", file=sys.stderr)
        return 2
    trio.run(serve.main, settings)
    return 0


def _add_local(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    # As who starts it knows it.
    prog, about = "sandman serve --local", "serve on this machine alone, without a cluster"
    one = commands.add_parser("local", prog=prog, help=about)
    one.add_argument("--port", type=int, default=0, help="to listen on (default any)")
    one.add_argument(
        "--image",
        action="append",
        default=[],
        type=_named_image,
        metavar="NAME=PATH",
        help="a directory or archive, and the name that callers use (may be repeated)",
    )
    one.add_argument(
        "--default-image", default=HOST, metavar="NAME", help="of the pool (default host)"
    )
    one.add_argument("--free", type=int, default=local.FREE, help="placeholders kept (default 2)")
    one.add_argument("--offline", action="store_true", help="no images of registries")
    one.add_argument("--most", type=int, default=local.MOST, help="sandboxes at once (default 32)")
    one.add_argument(
        "--cpu", type=_millicores, help="of each sandbox, as 2 or 500m (default all of the machine)"
    )
    one.add_argument(
        "--memory", type=_bytes, help="of each sandbox, as 4Gi (default half of the machine's)"
    )
    one.add_argument(
        "--log-level", default="warning", help="debug, info, warning (default) or error"
    )


def _named_image(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path}: there is no such file or directory")
    return name, Path(path)


def _serve_local(arguments: argparse.Namespace) -> int:
    log.configure(arguments.log_level)
    options = local.Options(
        port=arguments.port,
        image=arguments.default_image,
        free=arguments.free,
        most=arguments.most,
        images=dict(arguments.image),
        pull=not arguments.offline,
        limits=Amounts(arguments.cpu, arguments.memory),
    )
    code = 0
    try:
        trio.run(local.main, options, os.environ)
    except* OSError as group:
        print(f"sandman: {_plain(group, arguments.port)}", file=sys.stderr)
        code = 1
    except* KeyboardInterrupt:
        # Before it served: afterwards that is how it is ended.
        code = 130
    return code


def _plain(group: BaseExceptionGroup[OSError], port: int) -> str:
    """What could not be had, in a line."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"port {port} is in use: another --port, or none for any that is free"
    return str(error)


def _millicores(text: str) -> int:
    """A quantity of cpu."""
    found = quantities.millicores(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of cpu; 2 and 500m are")
    return found


def _bytes(text: str) -> int:
    """A quantity of memory."""
    found = quantities.bytes_of(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory; 512Mi and 64Gi are")
    return found


def _identity(user: str | None, groups: list[str]) -> Identity | None:
    if user is None and groups:
        raise ValueError("--kubernetes-group needs a --kubernetes-user")
    return None if user is None else tokens.check_identity(user, groups)


def make_key(key_id: str, tenant: str, share: Share, identity: Identity | None = None) -> int:
    """Print the token, once, and the command that makes the gateways accept it.

    Raises:
        ValueError: id or tenant cannot be used.
    """
    token = tokens.make_api_key(key_id)
    entry = base64.b64encode(tokens.api_key_entry(token, tenant, share, identity)).decode()
    patch = json.dumps({"data": {key_id: entry}})
    print(f"token (shown once): {token}")
    print("install it with:")
    print(
        f"  kubectl -n {names.SYSTEM_NAMESPACE} patch secret {names.API_KEYS_SECRET} -p '{patch}'"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command line: one verb a file, over the sync client.

Exit codes of `run`, `exec` and `shell` are the command's own; besides: 1 it could not be done on this machine,
124 timed out, 125 Sandman failed (the reason is on stderr), 2 wrong usage, 130 and 143 interrupted,
141 nobody reads the output any more (docs/cli.md).
"""

from __future__ import annotations

import click

from sandman import names
from sandman._core.whereabouts import ENV_SERVER_NAME
from sandman.cli import complete
from sandman.cli.attach import attach, workloads
from sandman.cli.completion import completion
from sandman.cli.copy import cp
from sandman.cli.doctor import doctor
from sandman.cli.evaluate import evaluate
from sandman.cli.execute import execute
from sandman.cli.forward import port_forward
from sandman.cli.guard import GuardedGroup
from sandman.cli.inject import inject
from sandman.cli.keys import keys
from sandman.cli.listing import ls
from sandman.cli.login import login, logout
from sandman.cli.network import network
from sandman.cli.pools import pools
from sandman.cli.processes import logs, ps
from sandman.cli.release import release
from sandman.cli.reserve import reserve
from sandman.cli.run import run
from sandman.cli.serve import serve
from sandman.cli.session import Session
from sandman.cli.shell import shell
from sandman.cli.signing import signing_keys
from sandman.cli.top import top
from sandman.cli.verify import verify
from sandman.contexts import ENV_CONTEXT
from sandman.version import __version__


@click.group("sandman", cls=GuardedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url", metavar="URL", help=f"The gateway, https://host:8443. [env: {names.ENV_URL}]"
)
@click.option(
    "--token", help=f"API key; better in {names.ENV_TOKEN}, {names.ENV_TOKEN_FILE} or a context."
)
@click.option("--ca", metavar="FILE", help=f"PEM file with the CA to trust. [env: {names.ENV_CA}]")
@click.option(
    "--server-name",
    metavar="NAME",
    help=f"Name in the gateway's certificate, where the URL has another. [env: {ENV_SERVER_NAME}]",
)
@click.option(
    "--context",
    "name",
    metavar="CONTEXT",
    shell_complete=complete.contexts,
    help=f"One of `sandman login`, or local. [env: {ENV_CONTEXT}]",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr; errors still.")
@click.version_option(__version__, prog_name="sandman")
@click.pass_context
def main(
    context: click.Context,
    url: str | None,
    token: str | None,
    ca: str | None,
    server_name: str | None,
    name: str | None,
    *,
    quiet: bool,
) -> None:
    """Sandboxes on Kubernetes: allocate one, run commands in it, move files, let it go.

    Which gateway: these options, then the environment, then the context in use, then local mode.
    """
    context.obj = Session(url, token, ca, server_name, name, quiet=quiet)


for verb in (
    run,
    execute,
    shell,
    ps,
    logs,
    ls,
    release,
    cp,
    port_forward,
    top,
    pools,
    reserve,
    evaluate,
    network,
    inject,
    doctor,
    attach,
    workloads,
    keys,
    signing_keys,
    verify,
    serve,
    login,
    logout,
    completion,
):
    main.add_command(verb)

__all__ = ["main"]

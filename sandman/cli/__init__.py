"""The command line: one verb a file, over the sync client.

Exit codes of `run`, `exec` and `shell` are the command's own; besides: 124 timed out, 125 Sandman failed (the
reason is on stderr), 2 wrong usage, 130 and 143 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import click

from sandman import names
from sandman.cli.attach import attach, workloads
from sandman.cli.copy import cp
from sandman.cli.doctor import doctor
from sandman.cli.execute import execute
from sandman.cli.guard import GuardedGroup
from sandman.cli.inject import inject
from sandman.cli.keys import keys
from sandman.cli.listing import ls
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
from sandman.version import __version__


@click.group(cls=GuardedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url", envvar=names.ENV_URL, show_envvar=True, help="The gateway, https://host:8443."
)
@click.option("--token", envvar=names.ENV_TOKEN, show_envvar=True, help="API key.")
@click.option("--ca", envvar=names.ENV_CA, show_envvar=True, help="PEM file with the CA to trust.")
@click.option(
    "--server-name",
    envvar=f"{names.ENV_PREFIX}SERVER_NAME",
    show_envvar=True,
    help="Name in the gateway's certificate, where the URL has another.",
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
    *,
    quiet: bool,
) -> None:
    """Sandboxes on Kubernetes: allocate one, run commands in it, move files, let it go."""
    context.obj = Session(url, token, ca, server_name, quiet=quiet)


for verb in (
    run,
    execute,
    shell,
    ps,
    logs,
    ls,
    release,
    cp,
    pools,
    reserve,
    network,
    inject,
    doctor,
    attach,
    workloads,
    keys,
    signing_keys,
    serve,
):
    main.add_command(verb)

__all__ = ["main"]

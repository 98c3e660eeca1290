"""`sandman completion`: what a shell needs to complete commands, options and ids."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "sandman"
VARIABLE = "_SANDMAN_COMPLETE"
"""By which click's script asks the program."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    bash: put `eval "$(sandman completion bash)"` into ~/.bashrc. zsh: the same with zsh, in ~/.zshrc, after compinit.
    fish: sandman completion fish > ~/.config/fish/completions/sandman.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source())

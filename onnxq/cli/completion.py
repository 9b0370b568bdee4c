"""`onnxq completion`: what lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from onnxq.errors import BadRecipe

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print what lets a shell complete commands and options.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script by which SHELL completes commands, options, words and files.

    \b
    bash: eval "$(onnxq completion bash)" in ~/.bashrc
    zsh:  eval "$(onnxq completion zsh)" in ~/.zshrc, behind compinit
    fish: onnxq completion fish > ~/.config/fish/completions/onnxq.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    group = click.get_current_context().find_root().command
    try:
        click.echo(found(group, {}, "onnxq", "_ONNXQ_COMPLETE").source())
    except RuntimeError as error:  # of a bash that is too old, or not there
        raise BadRecipe(f"this machine's {shell} cannot complete: {error}") from None

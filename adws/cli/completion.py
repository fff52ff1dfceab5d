"""`adw completion`: the script by which a shell completes commands, options, ids and names."""

from __future__ import annotations

import click

from adws.cli import main, output

#: shell -> what to do with its script
SHELLS = {
    "bash": 'eval "$(adw completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(adw completion zsh)" in ~/.zshrc, after compinit',
    "fish": "adw completion fish > ~/.config/fish/completions/adw.fish",
}
#: The variable by which the shell asks the program.
VARIABLE = "_ADW_COMPLETE"


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(tuple(SHELLS)))
def completion(*, shell: str) -> None:
    """
    Print the script by which SHELL (bash, zsh or fish) completes commands, options, workflows and their ids.

    bash: eval "$(adw completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit. fish: save it as
    ~/.config/fish/completions/adw.fish.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - few commands need it

    made_by = get_completion_class(shell)
    if made_by is None:
        raise click.BadParameter(f"{shell} is not supported: use {', '.join(SHELLS)}")
    output.emit_script(made_by(main.cli, {}, "adw", VARIABLE).source())

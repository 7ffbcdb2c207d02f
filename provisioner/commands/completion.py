"""The command ``provisioner completion``: print shell code that completes commands, options and file names."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from provisioner.commands import cli
from provisioner.commands.shared_options import FINE
from provisioner.optional_packages import MissingExtra

SHELLS = ("bash", "zsh", "tcsh")


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("shell", choices=SHELLS, help='e.g. eval "$(provisioner completion bash)"')


def run(options: argparse.Namespace) -> int:
    """Print the code for the shell. Raises MissingExtra."""
    import shtab

    top = cli.parser()
    for command in cli.commands_of(top):
        with suppress(MissingExtra):
            for action in command.actions():
                if action.type is Path:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(top, options.shell))
    return FINE

"""``provisioner render-hf``: HostFactory's files, from one settings file."""

from __future__ import annotations

import argparse
from pathlib import Path

from provisioner.commands.options import FINE, UsageError
from provisioner.interrupts import orderly


def add_options(command: argparse.ArgumentParser) -> None:
    """From what, and to where."""
    command.add_argument("settings", type=Path, metavar="SETTINGS", help="YAML; see HostFactorySettings in render.py")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory, laid out as HF_TOP")


def run(options: argparse.Namespace) -> int:
    """Print the files that were written. Raises ConfigError, UsageError."""
    from provisioner.tools.render import render

    try:
        with orderly():
            written = render(options.settings, options.out)
    except OSError as error:
        raise UsageError(str(error)) from error
    print("\n".join(map(str, written)))
    return FINE

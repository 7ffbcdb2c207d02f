"""``provisioner dump``: what a state directory must not lose, in one file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from provisioner.commands.options import FINE, UsageError, add_shared, state_directory
from provisioner.state.archive import MODE
from provisioner.state.atomic import replace
from provisioner.state.directory import StateDir
from provisioner.state.dump import take

STDOUT = Path("-")


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("file", type=Path, metavar="FILE", help=".tar.gz to write, or to replace; - for stdout")
    add_shared(command, "state-dir")


def run(options: argparse.Namespace) -> int:
    """Write the dump. Raises UsageError, StateError."""
    state = state_directory(options.state_dir)
    if options.file == STDOUT and sys.stdout.isatty():
        raise UsageError("-: stdout is a terminal; name a FILE, or let stdout lead to one")
    if options.file != STDOUT:
        _check(options.file, state)
    manifest, packed = take(state)
    if options.file == STDOUT:
        sys.stdout.buffer.write(packed)
        sys.stdout.buffer.flush()
        return FINE
    replace(os.path.abspath(options.file), packed, mode=MODE)
    size = f"{len(packed) / 1000:.0f} kB"
    print(f"Saved the state of provider instance {manifest.instance} at {manifest.time}: {options.file}, {size}.")
    return FINE


def _check(file: Path, state: StateDir) -> None:
    """Raises UsageError where a dump would be lost, or would take the place of what is no dump."""
    if file.is_dir():
        raise UsageError(f"{file}: is a directory; name a file in it, such as {file}/state.tar.gz")
    if file.exists() and not file.is_file():
        raise UsageError(f"{file}: is no regular file; name another, or - for stdout")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: its directory does not exist; create it, or name another")
    if file.absolute().parent.resolve().is_relative_to(Path(state.path).resolve()):
        raise UsageError(f"{file}: is in the state directory, and would be lost with it; name a file elsewhere")

"""``provisioner dump`` and ``provisioner restore``: what a state directory must not lose, in one file, and put back.

What is there is moved aside by a restore only with ``--yes``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from provisioner.commands.shared_options import FINE, UsageError, add_shared, settings, state_directory
from provisioner.state.archive import MODE, Dump, unpack
from provisioner.state.atomic import replace
from provisioner.state.directory import StateDir
from provisioner.state.dump import take
from provisioner.state.restore import Restored, restore

STANDARD = Path("-")
"""Stands for stdin and stdout."""

NEXT = """\
  1. Start the loop: it looks at every pool, makes memory.json again, and latches the brake. Nothing is deleted as an
     orphan, no request is cancelled as forgotten.
  2. provisioner recover   names the machines that this state does not know: those made after the dump.
  3. Once you have looked: provisioner recover --release-brake"""


def add_dump_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("file", type=Path, metavar="FILE", help=".tar.gz to write, or to replace; - for stdout")
    add_shared(command, "state-dir")


def run_dump(options: argparse.Namespace) -> int:
    """Write the dump. Raises UsageError, StateError."""
    state = state_directory(options.state_dir)
    if options.file == STANDARD and sys.stdout.isatty():
        raise UsageError("-: stdout is a terminal; name a FILE, or let stdout lead to one")
    if options.file != STANDARD:
        _check(options.file, state)
    manifest, packed = take(state)
    if options.file == STANDARD:
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


def add_restore_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("file", type=Path, metavar="FILE", help="what `provisioner dump` wrote; - for stdin")
    command.add_argument("--yes", action="store_true", help="move aside what the state directory holds")
    add_shared(command, "config", "state-dir")


def run_restore(options: argparse.Namespace) -> int:
    """Put the dump back, and say what comes next. Raises UsageError, StateError."""
    instance = settings(options.config).instance
    state = state_directory(options.state_dir)
    dump = unpack(*_source(options.file))
    print(_text(dump, restore(state, dump, instance, replaces=options.yes)))
    return FINE


def _source(file: Path) -> tuple[str, bytes]:
    """The name and the bytes of the dump."""
    if file == STANDARD:
        return "stdin", sys.stdin.buffer.read()
    try:
        return str(file), file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; name a file that `provisioner dump` wrote") from error


def _text(dump: Dump, done: Restored) -> str:
    lines = [
        f"Restored the state of provider instance {dump.manifest.instance} as it was at {dump.manifest.time}: "
        f"{done.requests} requests, {done.returns} returns, {done.reported} answers that HostFactory was told."
    ]
    if done.kept:
        lines.append(f"What was there before: {done.kept}")
    if done.left_out:
        lines.append(f"Left out, as it was damaged when it was saved: {', '.join(done.left_out)}")
    return "\n".join([*lines, "What comes next:", NEXT])


COMMANDS = {"dump": (add_dump_options, run_dump), "restore": (add_restore_options, run_restore)}

"""``provisioner restore``: a dump put back; what is there is moved aside only with ``--yes``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from provisioner.commands.options import FINE, UsageError, add_shared, settings, state_directory
from provisioner.state.archive import Dump, unpack
from provisioner.state.restore import Restored, restore

STDIN = Path("-")

NEXT = """\
  1. Start the loop: it looks at every pool, makes memory.json again, and latches the brake. Nothing is deleted as an
     orphan, no request is cancelled as forgotten.
  2. provisioner recover   names the machines that this state does not know: those made after the dump.
  3. Once you have looked: provisioner recover --release-brake"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("file", type=Path, metavar="FILE", help="what `provisioner dump` wrote; - for stdin")
    command.add_argument("--yes", action="store_true", help="move aside what the state directory holds")
    add_shared(command, "config", "state-dir")


def run(options: argparse.Namespace) -> int:
    """Put the dump back, and say what comes next. Raises UsageError, StateError."""
    instance = settings(options.config).instance
    state = state_directory(options.state_dir)
    dump = unpack(*_source(options.file))
    print(_text(dump, restore(state, dump, instance, replaces=options.yes)))
    return FINE


def _source(file: Path) -> tuple[str, bytes]:
    """The name and the bytes of the dump."""
    if file == STDIN:
        return "stdin", sys.stdin.buffer.read()
    try:
        return str(file), file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; name a file that `provisioner dump` wrote") from error


def _text(dump: Dump, done: Restored) -> str:
    lines = [
        f"Restored the state of provider instance {dump.manifest.instance} as it was at {dump.manifest.time}: "
        f"{done.requests} requests, {done.returns} returns, {done.told} answers that HostFactory was told."
    ]
    if done.kept:
        lines.append(f"What was there before: {done.kept}")
    if done.left_out:
        lines.append(f"Left out, as it was damaged when it was saved: {', '.join(done.left_out)}")
    return "\n".join([*lines, "What comes next:", NEXT])

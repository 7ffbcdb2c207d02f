"""The commands ``provisioner dump`` and ``provisioner restore``: save a state in a file, and restore this state.

With ``--yes``, a restore replaces an existing state, and keeps copies of the existing files.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioner.commands.shared_options import FINE, UsageError, add_shared, open_state, settings
from provisioner.state.atomic import replace
from provisioner.state.directory import StateDir
from provisioner.state.dump import take_dump
from provisioner.state.dump_format import MODE, Dump, unpack
from provisioner.state.kube.state import KubeState
from provisioner.state.kube.transfer import copy_state
from provisioner.state.restore import Restored, restore_dump

STANDARD = Path("-")
"""The file argument that means stdin or stdout."""

NEXT = """\
  1. Start the loop: it observes every pool, makes memory.json again, and latches the brake. No machine is deleted as an
     orphan, and no request is cancelled as forgotten.
  2. provisioner recover   names the machines that are not in this state, because they were made after the dump.
  3. Once you have checked them: provisioner recover --release-brake"""


def add_dump_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("file", type=Path, metavar="FILE", help=".tar.gz to write, or to replace; - for stdout")
    add_shared(command, "state-dir")


def run_dump(options: argparse.Namespace) -> int:
    """Write the dump to a file or to stdout. Raises UsageError, StateError."""
    if options.file == STANDARD and sys.stdout.isatty():
        raise UsageError("-: stdout is a terminal; name a FILE, or redirect stdout to a file")
    with _opened(options.state_dir) as (files, kube):
        if options.file != STANDARD:
            _check(options.file, files)
        if kube:
            copy_state(kube, files, for_dump=True)
        manifest, packed = take_dump(files)
    if options.file == STANDARD:
        sys.stdout.buffer.write(packed)
        sys.stdout.buffer.flush()
        return FINE
    replace(os.path.abspath(options.file), packed, mode=MODE)
    size = f"{len(packed) / 1000:.0f} kB"
    print(f"Saved the state of provider instance {manifest.instance} at {manifest.time}: {options.file}, {size}.")
    return FINE


def _check(file: Path, state: StateDir) -> None:
    """Raise UsageError if the dump cannot be written to ``file``. Also raise it if ``file`` is in the state directory,
    because the dump could then be lost together with the state."""
    if file.is_dir():
        raise UsageError(f"{file}: is a directory; name a file in it, such as {file}/state.tar.gz")
    if file.exists() and not file.is_file():
        raise UsageError(f"{file}: is not a regular file; name another file, or - for stdout")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: its directory does not exist; create the directory, or name another file")
    if file.absolute().parent.resolve().is_relative_to(Path(state.path).resolve()):
        raise UsageError(f"{file}: is in the state directory, and would be lost with it; name a file elsewhere")


def add_restore_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("file", type=Path, metavar="FILE", help="file that `provisioner dump` wrote; - for stdin")
    command.add_argument("--yes", action="store_true", help="replace the files of the state directory, and keep copies")
    add_shared(command, "config", "state-dir")


def run_restore(options: argparse.Namespace) -> int:
    """Restore the state from the dump, and print the next steps. Raises ConfigError, UsageError, StateError."""
    instance = settings(options.config).instance
    dump = unpack(*_source(options.file))
    with _opened(options.state_dir) as (files, kube):
        restored = restore_dump(files, dump, instance, replaces=options.yes)
        if kube:
            copy_state(files, kube)
        print(_restored_message(dump, restored))
    return FINE


@contextmanager
def _opened(given: Path | None) -> Iterator[tuple[StateDir, KubeState | None]]:
    """Open the state, and yield a directory for its files, and the state in a Kubernetes API (None if there is none).

    If the state is in files, this is the directory of these files. If the state is in a Kubernetes API, the directory
    is temporary and empty. A dump copies the state from the API into this directory; a restore copies it into the API.
    """
    state = open_state(given)
    if isinstance(state, StateDir):
        yield state, None
        return
    with tempfile.TemporaryDirectory() as directory:
        yield StateDir(directory), state


def _source(file: Path) -> tuple[str, bytes]:
    """Return the name of the dump for messages, and its bytes. Raises UsageError."""
    if file == STANDARD:
        return "stdin", sys.stdin.buffer.read()
    try:
        return str(file), file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; name a file that `provisioner dump` wrote") from error


def _restored_message(dump: Dump, done: Restored) -> str:
    lines = [
        f"Restored the state of provider instance {dump.manifest.instance} as it was at {dump.manifest.time}: "
        f"requests {done.requests}, returns {done.returns}, final answers to HostFactory {done.reported}."
    ]
    if done.kept:
        lines.append(f"The files that were there before: {done.kept}")
    if done.left_out:
        lines.append(f"Left out, because the file was damaged when it was saved: {', '.join(done.left_out)}")
    return "\n".join([*lines, "Next steps:", NEXT])


COMMANDS = {"dump": (add_dump_options, run_dump), "restore": (add_restore_options, run_restore)}

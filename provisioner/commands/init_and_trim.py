"""The commands ``provisioner init`` (also ``initializeDB``) and ``provisioner trim``: create intent.json, and remove
ended requests from the state files.

A running loop trims the state files by itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from provisioner.commands.plan import make_reconciler
from provisioner.commands.shared_options import FINE, Document, add_shared, open_state, settings, show, state_directory
from provisioner.loop.clock import LoopClock
from provisioner.names import RETURN_ID_PREFIX
from provisioner.settings.definitions import Settings
from provisioner.state.protocols import State


def add_init_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir")


def run_init(options: argparse.Namespace) -> int:
    """Create intent.json for a new state. Raises StateError if intent.json exists, or if it existed and was lost."""
    instance = settings(options.config).instance
    state = state_directory(options.state_dir)
    state.intent.create(instance)
    print(f"Created {state.intent.path} for provider instance {instance}.")
    return FINE


def add_trim_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir")
    command.add_argument("--dry-run", action="store_true", help="only show the requests that would be removed")
    add_shared(command, "output")


def run_trim(options: argparse.Namespace) -> int:
    """Remove ended requests from the state files, and print the ids of these requests. With ``--dry-run``, only print
    the ids. Raises ConfigError, StateError."""
    left = trim(settings(options.config), open_state(options.state_dir), dry_run=options.dry_run)
    document = {
        "requests": [id_ for id_ in left or () if not id_.startswith(RETURN_ID_PREFIX)],
        "returns": [id_ for id_ in left or () if id_.startswith(RETURN_ID_PREFIX)],
        "dry_run": options.dry_run,
        "loop_runs": left is None,
    }
    return show(options, document, trim_lines)


def trim(settings: Settings, state: State, *, dry_run: bool) -> tuple[str, ...] | None:
    """Remove ended requests, and return their ids. Raises StateError.

    Return None if a loop runs, because the loop trims the files itself. ``dry_run``: True to change no file and only
    return the ids, even while a loop runs.
    """
    lock = state.loop_lock
    if not dry_run and not lock.acquire(0):
        return None
    try:
        memory = state.memory.read()
        epoch = memory.epoch if dry_run else lock.raise_epoch(memory.epoch + 1)
        left = make_reconciler(settings, state, LoopClock(memory), epoch).trim(dry_run=dry_run)
        if not dry_run:
            lock.sign_off()
        return left
    finally:
        lock.release()


def trim_lines(document: Document) -> Iterator[str]:
    """Yield the lines for a terminal."""
    if document["loop_runs"]:
        yield "A loop runs and trims the files by itself. To see the due requests: provisioner trim --dry-run"
        return
    verb = "would leave" if document["dry_run"] else "left"
    yield from (f"  request {id_} {verb} the files" for id_ in document["requests"])
    yield from (f"  return  {id_} {verb} the files" for id_ in document["returns"])
    if not (document["requests"] or document["returns"]):
        yield "  no request is due"


COMMANDS = {"init": (add_init_options, run_init), "trim": (add_trim_options, run_trim)}

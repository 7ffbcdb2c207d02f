"""The command ``provisioner status``: show the state of requests, machines, pools and loop.

The command also shows the problems that need an operator. With ``--watch``, the command reads the state again and
again. On a terminal, each reading updates a picture. If the output is not a terminal, or is JSON or YAML, each reading
is printed below the previous reading.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from provisioner.commands.shared_options import FINE, PROBLEM, UsageError, add_shared, allow_drawing, open_state
from provisioner.commands.status_text import format_status
from provisioner.process_end import interruptible
from provisioner.state.errors import StateError
from provisioner.state.protocols import State
from provisioner.telemetry.status_filter import narrow_status
from provisioner.telemetry.status_inputs import read_status_inputs
from provisioner.telemetry.status_model import StatusModel, status_model

WATCH_SECONDS = 2.0
"""Seconds between two readings of ``--watch``, unless the option names another number."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "state-dir")
    command.add_argument("--pool", default="", metavar="NAME", help="show only this pool")
    command.add_argument("--template", default="", metavar="ID", help="show only this template")
    command.add_argument("--request", default="", metavar="ID", help="show only this request")
    add_shared(command, "output", outputs=("text", "wide", "json", "yaml"))
    text = f"repeat every SECONDS seconds until Ctrl-C; default {WATCH_SECONDS:.0f}"
    command.add_argument("--watch", nargs="?", type=_seconds, const=WATCH_SECONDS, metavar="SECONDS", help=text)


def _seconds(text: str) -> float:
    if not (text.replace(".", "", 1).isdecimal() and float(text) > 0):
        raise argparse.ArgumentTypeError(f"expected seconds above 0 such as 5, got {text!r}")
    return float(text)


def run(options: argparse.Namespace) -> int:
    """Print the status. Return PROBLEM if a problem needs an operator. Raises StateError, UsageError, MissingExtra."""
    state = open_state(options.state_dir)
    if options.watch is not None:
        return watch(lambda: read_status(options, state), options)
    status = read_status(options, state)
    print(format_status(status, options.output))
    return FINE if status.is_fine else PROBLEM


def read_status(options: argparse.Namespace, state: State) -> StatusModel:
    """Read the state. Return the status, or only the part of the status that the options request. Raises StateError,
    and UsageError for an unknown name."""
    whole = status_model(read_status_inputs(state))
    known = {
        "pool": [row.pool for row in whole.pools],
        "template": [row.template for row in whole.templates],
        "request": [*(one["id"] for one in (*whole.requests, *whole.returns)), *whole.unread],
    }
    for kind, names in known.items():
        if (name := getattr(options, kind)) and name not in names:
            known_names = f"there are {', '.join(names)}" if names else "there is none"
            raise UsageError(f"--{kind} {name}: the state files contain no such {kind}; {known_names}")
    if not (options.pool or options.template or options.request):
        return whole
    return narrow_status(whole, pool=options.pool, template=options.template, request=options.request)


# --- repeated readings ------------------------------------------------------------------------------------------------

Read = Callable[[], StatusModel]


def watch(read: Read, options: argparse.Namespace) -> int:
    """Show the status repeatedly until Ctrl-C, then return FINE. Raises the errors of the first reading, and
    MissingExtra."""
    first = read()
    is_live = sys.stdout.isatty() and options.output in ("text", "wide")
    with suppress(KeyboardInterrupt), interruptible():
        if is_live:
            from provisioner.commands.status_picture import draw

            allow_drawing()
            draw(_readings(first, read, options.watch), wide=options.output == "wide")
        for reading in _readings(first, read, options.watch):
            print(reading if isinstance(reading, str) else format_status(reading, options.output), flush=True)
    return FINE


def _readings(first: StatusModel, read: Read, seconds: float) -> Iterator[StatusModel | str]:
    """Yield the first reading, then a further reading every ``seconds`` without end. If a reading fails, yield its
    error message."""
    yield first
    while True:
        time.sleep(seconds)
        try:
            yield read()
        except (StateError, UsageError) as error:
            yield str(error)

"""``provisioner status``: what the files hold, whether the loop runs, and what waits for a person.

``--watch``: one look after the other; live on a terminal, a block per look elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

from provisioner.commands.shared_options import FINE, PROBLEM, UsageError, add_shared, allow_drawing, state_directory
from provisioner.commands.status_text import printed
from provisioner.interrupts import orderly
from provisioner.state.errors import StateError
from provisioner.state.protocols import State
from provisioner.telemetry.status_inputs import read_status_inputs
from provisioner.telemetry.status_model import StatusModel, status_model
from provisioner.telemetry.status_model_part import narrowed

WATCH_SECONDS = 2.0
"""Seconds between two observations of ``--watch``, unless it says otherwise."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "state-dir")
    command.add_argument("--pool", default="", metavar="NAME", help="only what concerns this pool")
    command.add_argument("--template", default="", metavar="ID", help="only what concerns this template")
    command.add_argument("--request", default="", metavar="ID", help="only what concerns this request")
    add_shared(command, "output", outputs=("text", "wide", "json", "yaml"))
    command.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"look again every so often, until Ctrl-C; default every {WATCH_SECONDS:.0f} s",
    )


def _seconds(text: str) -> float:
    if not (text.replace(".", "", 1).isdecimal() and float(text) > 0):
        raise argparse.ArgumentTypeError(f"expected seconds above 0 such as 5, got {text!r}")
    return float(text)


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM when something waits for a person. Raises StateError, UsageError, MissingExtra."""
    state = state_directory(options.state_dir)
    if options.watch is not None:
        return watch(lambda: look(options, state), options)
    seen = look(options, state)
    print(printed(seen, options.output))
    return FINE if seen.fine else PROBLEM


def look(options: argparse.Namespace, state: State) -> StatusModel:
    """Read the files, or the part of them that was asked for. Raises StateError, UsageError for an unknown name."""
    whole = status_model(read_status_inputs(state))
    known = {
        "pool": [row.pool for row in whole.pools],
        "template": [row.template for row in whole.templates],
        "request": [*(one["id"] for one in (*whole.requests, *whole.returns)), *whole.unread],
    }
    for kind, names in known.items():
        if (name := getattr(options, kind)) and name not in names:
            there = f"there are {', '.join(names)}" if names else "there is none"
            raise UsageError(f"--{kind} {name}: the state files know no such {kind}; {there}")
    if not (options.pool or options.template or options.request):
        return whole
    return narrowed(whole, pool=options.pool, template=options.template, request=options.request)


# --- one look after the other -----------------------------------------------------------------------------------------

Looking = Callable[[], StatusModel]


def watch(look: Looking, options: argparse.Namespace) -> int:
    """Show what is looked at until Ctrl-C, which is no mistake. Raises what the first observation raises,
    MissingExtra."""
    first = look()
    lively = sys.stdout.isatty() and options.output in ("text", "wide")
    try:
        with orderly():
            if lively:
                from provisioner.commands.status_picture import draw

                allow_drawing()
                draw(_looks(first, look, options.watch), wide=options.output == "wide")
            for seen in _looks(first, look, options.watch):
                print(seen if isinstance(seen, str) else printed(seen, options.output), flush=True)
    except KeyboardInterrupt:
        return FINE
    return FINE


def _looks(first: StatusModel, look: Looking, seconds: float) -> Iterator[StatusModel | str]:
    """The first observation, then others for ever. A later observation that fails gives its sentence, and the next may
    succeed."""
    yield first
    while True:
        time.sleep(seconds)
        try:
            yield look()
        except (StateError, UsageError) as error:
            yield str(error)

"""``provisioner status``: what the files hold, whether the loop runs, and what waits for a person.

``--watch``: one look after the other; live on a terminal, a block per look elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from provisioner.commands.options import FINE, PROBLEM, UsageError, add_shared, allow_drawing, state_directory
from provisioner.commands.status_text import LAST_ERROR, NUMBERS, error_text, numbers_of, printed, title_of
from provisioner.interrupts import orderly
from provisioner.names import printable_lines
from provisioner.state.errors import StateError
from provisioner.state.interfaces import State
from provisioner.telemetry.facts import read_facts
from provisioner.telemetry.overview import Overview, overview
from provisioner.telemetry.overview_part import narrowed
from provisioner.telemetry.spending import spending_lines
from provisioner.telemetry.unmet import unmet_lines

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WATCH_SECONDS = 2.0
"""Seconds between two looks of ``--watch``, unless it says otherwise."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Which files, which part of them, and how to print it."""
    add_shared(command, "state-dir")
    command.add_argument("--pool", default="", metavar="NAME", help="only what concerns this pool")
    command.add_argument("--template", default="", metavar="ID", help="only what concerns this template")
    command.add_argument("--request", default="", metavar="ID", help="only what concerns this request")
    command.add_argument(
        "-o", "--output", choices=("text", "wide", "json", "yaml"), default="text", help="default text"
    )
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


def look(options: argparse.Namespace, state: State) -> Overview:
    """What the files hold, as far as it was asked for. Raises StateError, UsageError for a name that nothing has."""
    whole = overview(read_facts(state))
    _check_name("pool", options.pool, [row.pool for row in whole.pools])
    _check_name("template", options.template, [row.template for row in whole.templates])
    _check_name("request", options.request, [*(one["id"] for one in (*whole.requests, *whole.returns)), *whole.unread])
    if not (options.pool or options.template or options.request):
        return whole
    return narrowed(whole, pool=options.pool, template=options.template, request=options.request)


def _check_name(kind: str, name: str, names: Sequence[str]) -> None:
    if name and name not in names:
        there = f"there are {', '.join(names)}" if names else "there is none"
        raise UsageError(f"--{kind} {name}: the state files know no such {kind}; {there}")


# --- one look after the other -----------------------------------------------------------------------------------------

Looking = Callable[[], Overview]


def watch(look: Looking, options: argparse.Namespace) -> int:
    """Show what is looked at until Ctrl-C, which is no mistake. Raises what the first look raises, MissingExtra."""
    first = look()
    lively = sys.stdout.isatty() and options.output in ("text", "wide")
    try:
        with orderly():
            if lively:
                _live(first, look, options)
            for seen in _looks(first, look, options.watch):
                print(seen if isinstance(seen, str) else printed(seen, options.output), flush=True)
    except KeyboardInterrupt:
        return FINE
    return FINE


def _looks(first: Overview, look: Looking, seconds: float) -> Iterator[Overview | str]:
    """The first look, then others for ever. A later look that fails gives its sentence, and the next may succeed."""
    yield first
    while True:
        time.sleep(seconds)
        try:
            yield look()
        except (StateError, UsageError) as error:
            yield str(error)


def _live(first: Overview, look: Looking, options: argparse.Namespace) -> None:
    from rich.live import Live
    from rich.text import Text

    allow_drawing()
    with Live(screen=True, auto_refresh=False) as screen:
        for seen in _looks(first, look, options.watch):
            shown = (
                Text(printable_lines(seen), "bold red")
                if isinstance(seen, str)
                else picture(seen, wide=options.output == "wide")
            )
            screen.update(shown, refresh=True)


def picture(seen: Overview, *, wide: bool = False) -> RenderableType:
    """The overview for a live terminal: what asks for a person, machines, and open requests as bars."""
    from rich.console import Group
    from rich.text import Text

    silent = seen.loop["silent_seconds"]
    ago = "never ran" if silent is None else f"ran {silent:.0f} s ago"
    head = Text(
        printable_lines(f"Provisioner {seen.provisioner}, {seen.time}: the loop {ago}. Ctrl-C ends this."), "bold"
    )
    brake = [f"BRAKE {seen.brake['reason']} since {seen.brake['since']}: {seen.brake['detail']}"] if seen.brake else []
    alarms = [Text(printable_lines(alarm), "bold red") for alarm in (*seen.alarms, *brake)]
    costs = [Text(printable_lines(line)) for line in spending_lines(seen.budget)]
    return Group(head, *alarms, _machines(seen, wide=wide), *costs, _requests(seen))


def _machines(seen: Overview, *, wide: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("template or pool")
    for name in NUMBERS:
        table.add_column(name, justify="right")
    table.add_column("last error")
    for rows in (seen.templates, seen.pools, seen.machines if wide else ()):
        for row in rows:
            table.add_row(Text(title_of(row)), *numbers_of(row), Text(error_text(row, LAST_ERROR)))
        table.add_section()
    return table


def _requests(seen: Overview) -> Table:
    """A bar for each open request, and why it is short."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("request", "template", "", "running", "short of"):
        table.add_column(heading)
    for request in seen.requests:
        if request["status"] == "running":
            why = "\n".join(line.strip() for line in unmet_lines(request, loop_acts=seen.loop_acts))
            bar = ProgressBar(total=request["count"], completed=request["running"], width=30)
            share = f"{request['running']} of {request['count']}"
            table.add_row(
                Text(request["id"]), Text(printable_lines(request["template"])), bar, share, Text(printable_lines(why))
            )
    return table

"""The picture of ``provisioner status --watch`` on a terminal, drawn by the package rich."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from provisioner.commands.status_text import LAST_ERROR, NUMBERS, brake_lines, error_text, numbers_of, title_of
from provisioner.names import format_printable_lines
from provisioner.telemetry.cost import spending_lines
from provisioner.telemetry.pool_windows import format_local_time
from provisioner.telemetry.repeated_texts import number_repeated_texts
from provisioner.telemetry.status_model import StatusModel
from provisioner.telemetry.unmet import unmet_lines


def draw(readings: Iterable[StatusModel | str], *, wide: bool) -> None:
    """Draw the readings one after the other, each over the previous one. A reading is a status, or the error message of
    a failed reading."""
    with Live(screen=True, auto_refresh=False) as screen:
        for reading in readings:
            shown = _words(reading, "bold red") if isinstance(reading, str) else picture(reading, wide=wide)
            screen.update(shown, refresh=True)


def _words(text: str, style: str = "") -> Text:
    return Text(format_printable_lines(text), style)


def picture(seen: StatusModel, *, wide: bool = False) -> RenderableType:
    """Return the status as a picture for a terminal: problems for an operator, machines, and a bar for each open
    request."""
    silent = seen.loop["silent_seconds"]
    ago = "never ran" if silent is None else f"ran {silent:.0f} s ago"
    time = format_local_time(seen.time)
    head = f"Provisioner {seen.provisioner}, {time}: the loop {ago}. Ctrl-C ends this."
    brake = [line.strip() for line in brake_lines(seen.document())[:1]] if seen.brake else []
    seen = number_repeated_texts(seen)
    alarms = [_words(alarm, "bold red") for alarm in (*seen.alarms, *brake)]
    return Group(
        _words(head, "bold"), *alarms, _machines(seen, wide), *map(_words, spending_lines(seen.budget)), _requests(seen)
    )


def _machines(seen: StatusModel, wide: bool) -> Table:
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


def _requests(seen: StatusModel) -> Table:
    """Return a table of the open requests.

    Each row has a bar for the number of running machines, and the reasons for the missing machines.
    """
    table = Table("request", "template", "", "running", "missing", box=None, pad_edge=False)
    for request in seen.requests:
        if request["status"] == "running":
            missing = "\n".join(line.strip() for line in unmet_lines(request, loop_acts=seen.is_loop_acting))
            bar = ProgressBar(total=request["count"], completed=request["running"], width=30)
            share = f"{request['running']} of {request['count']}"
            table.add_row(Text(request["id"]), _words(request["template"]), bar, share, _words(missing))
    return table

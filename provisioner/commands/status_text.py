"""The text of ``provisioner status``, and the text about the brake, which ``recover`` also prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from provisioner.commands import shared_options
from provisioner.commands.shared_options import Document
from provisioner.model import CONFLICTS, BrakeReason
from provisioner.names import format_printable, format_printable_lines
from provisioner.telemetry.cost import spending_lines
from provisioner.telemetry.demand_status import demand_lines
from provisioner.telemetry.holds import cancel_lines
from provisioner.telemetry.losses import loss_lines
from provisioner.telemetry.machine_rows import Row
from provisioner.telemetry.pool_windows import format_count, format_duration, format_local_time, format_pool_line
from provisioner.telemetry.repeated_texts import number_repeated_texts
from provisioner.telemetry.status_inputs import hf_message
from provisioner.telemetry.status_model import StatusModel
from provisioner.telemetry.unmet import unmet_lines

LAST_ERROR = 60
"""Maximum number of characters of a last error in the table. ``-o wide`` shows the whole error."""

SHOWN_TIMES = 3
"""Maximum number of times that are shown in a conflict. At each of these times a machine without a request appeared."""

SHOWN = 20
"""Maximum number of machines waiting to be deleted that ``recover`` names. ``-o json`` names all of them."""

WIDTH = 160
"""Maximum number of characters of a line. ``-o wide`` does not wrap lines."""


def format_status(seen: StatusModel, output: str) -> str:
    """Return the status as text, wide text, JSON or YAML, as ``output`` says. Raises MissingExtra."""
    is_wide = output == "wide"
    texts = status_lines(seen if is_wide else number_repeated_texts(seen, "pressure"), wide=is_wide)
    lines = [line for text in texts for line in format_printable_lines(text).splitlines()]
    return shared_options.format_output(output, seen.document(), lambda _: lines if is_wide else map(wrap, lines))


def wrap(line: str) -> str:
    """Return a line wrapped to ``WIDTH`` characters. A line with a gcloud command is not wrapped, because operators
    copy the command."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    is_whole = "gcloud " in line
    return line if is_whole else textwrap.fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def status_lines(seen: StatusModel, *, wide: bool = False) -> Iterator[str]:
    """Yield the lines of the status for a terminal."""
    yield from _head(seen)
    yield from _tables(seen, wide=wide)
    yield from (f"  {line}" for line in (*spending_lines(seen.budget), *loss_lines(seen.losses)))
    unseen = {one["pool"] for one in seen.unseen}
    for request in seen.requests:
        yield _request_line(request)
        yield from unmet_lines(request, loop_acts=seen.is_loop_acting, dated=unseen)
    for one in seen.returns:
        yield f"  return  {one['id']}: {one['status']}, {one['settled']} of {one['machines']} settled"
    yield from (f"  {line}" for line in demand_lines(seen.demand))
    yield from cancel_lines(seen.holds)
    yield from map(format_pool_line, seen.pressure)
    yield from (f"  pool {pool}: {note}" for pool, note in seen.notes)
    if seen.unlisted:
        machines = f"{format_count(len(seen.unlisted), 'machine')}, e.g. {seen.unlisted[0]}"
        yield f"  {machines}: in no list of HostFactory for a day"
    if seen.unread:
        yield f"  requests that no loop has read yet: {', '.join(seen.unread)}"


def _head(seen: StatusModel) -> Iterator[str]:
    """Yield the provisioner id, the state of the loop, and the problems that need an operator."""
    loop, silent = seen.loop, seen.loop["silent_seconds"]
    last, host = loop["last_beat"], loop.get("host", "?")
    ran = "has never run" if last is None else f"last ran at {format_local_time(last)} on {host}"
    ago = "" if silent is None else f", {silent:.0f} s ago"
    yield f"{f'Provisioner {seen.provisioner}'.strip()} in {seen.state_directory}"
    yield f"  loop {ran}{ago}, epoch {loop.get('epoch', 0)}; intent generation {seen.generation}"
    yield f"  {hf_message(seen.hostfactory)}"
    if loop["waits"]:
        yield f"  LOOP STARTS {loop['waits']}"
    yield from ("  " + alarm.replace("\n", "\n    ") for alarm in seen.alarms)
    yield from brake_lines(seen.document(), shown=1)
    if seen.brake:
        step = "look at `provisioner recover` first, then add --release-brake"
        if seen.brake["reason"] in CONFLICTS:
            step = "if another provisioner made them, let it return them and change its id (`provisioner recover`)"
        yield f"  No orphan is deleted, and no request is cancelled as forgotten, until the brake is released: {step}"


def _tables(seen: StatusModel, *, wide: bool) -> Iterator[str]:
    """Yield the tables of machines by template and by pool.

    ``wide``: True to add a table by template and pool, and to show each last error in full.
    """
    tables = [("template", seen.templates), ("pool", seen.pools)]
    if wide:
        tables.append(("template in pool", seen.machines))
    width = max([len(title_of(row)) for _, rows in tables for row in rows] + [len(title) for title, _ in tables])
    for title, rows in tables:
        if rows:
            heads = "".join(f"{name:>9}" for name in NUMBERS)
            yield f"  {title:<{width}}{heads}  last error"
        for row in rows:
            numbers = "".join(f"{number:>9}" for number in numbers_of(row))
            yield f"  {title_of(row):<{width}}{numbers}  {error_text(row, None if wide else LAST_ERROR)}"
    yield "  window: machines that may start at once, a sum over templates or pools; cap: the highest number allowed"


NUMBERS = ("wanted", "running", "pending", "failed", "lost", "window", "cap")
"""Columns of a table of machines."""


def title_of(row: Row) -> str:
    """Return the title of a row: its template and its pool.

    If the row counts all pools, the title has only the template. If the row counts all templates, the title has only
    the pool.
    """
    return format_printable(f"{row.template} in {row.pool}" if row.pool and row.template else row.name)


def numbers_of(row: Row) -> list[str]:
    """Return the numbers of a row as texts. An unknown number is a dash."""
    return ["-" if (number := getattr(row, name)) is None else str(number) for name in NUMBERS]


def error_text(row: Row, longest: int | None = None) -> str:
    """Return the last error of a row with its age, cut to ``longest`` characters (None: not cut); a dash if there is no
    error."""
    error = row.last_error
    if error is None:
        return "-"
    text = f"{error['error']} {format_duration(error['at_seconds'])} ago: {format_printable(error['text'])}"
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


def _request_line(request: Document) -> str:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(request["slots"].items()))
    count = sum(one["machines"] for one in request["missing"])
    ends = f"; {count} missing; the request ends at {format_local_time(request['deadline'])} at the latest"
    return (
        f"  request {request['id']} ({request['template']}): {request['status']}; "
        f"{request['running']} of {request['count']} machines run{ends if count else ''}; slots: {verdicts or 'none'}"
        f"{': ' + format_printable(request['text']) if request['text'] else ''}"
    )


def brake_lines(document: Document, *, shown: int = SHOWN) -> list[str]:
    """Return lines about the brake, and about the effects of its release on machines and requests.

    ``shown``: the maximum number of machines that the lines name.
    """
    lines, brake = [], document["brake"]
    if brake:
        where = f" in pool {brake['pool']}" if brake["pool"] else ""
        lines.append(f"  BRAKE {brake['reason']}{where} since {format_local_time(brake['since'])}: {brake['detail']}")
        lines += _conflict_lines(brake)
    if document["release_asked"]:
        lines.append("  A release of the brake was requested; the loop releases it with its next cycle.")
    machines = document["waiting"]
    lines += [_machine_line(one, is_braked=brake is not None) for one in machines[:shown]]
    if len(machines) > shown:
        last = machines[-1]["deleted_at"]
        when = f", the last of them at {format_local_time(last)}" if last else ""
        lines.append(f"  and {len(machines) - shown} more{when}; `-o json` names all")
    lines += [
        f"  request {one['id']}: cancelled, and its {format_count(one['machines'], 'machine')} deleted, unless "
        "HostFactory polls the request first"
        for one in document["forgotten"]
    ]
    return lines


AUDIT = "gcloud logging read 'protoPayload.methodName:(createInstances OR pods.create)' --freshness=1d"
"""A command that shows account and host of each create in a Google project."""


def _conflict_lines(brake: Document) -> list[str]:
    """Return lines about an identity conflict; no lines if the brake has another reason.

    The lines show the times at which machines without a request appeared. They also show how an operator finds another
    provisioner that makes such machines.
    """
    if brake["reason"] not in CONFLICTS or not brake["orphans"]:
        return []
    times = [f"{one['machines']} at {format_local_time(one['seen_at'])}" for one in brake["orphans"]]
    shown = ", ".join(times if len(times) <= SHOWN_TIMES + 1 else [*times[:SHOWN_TIMES], "…", times[-1]])
    unless = "" if brake["reason"] == BrakeReason.IDENTITY_CONFLICT else ", unless a file was lost or restored then"
    return [
        f"  Machines without a request were first seen: {shown}.",
        f"  Another provisioner with the same id and name prefix makes them{unless}: a release DELETES its machines.",
        f"  Look for its account and host before a release: {AUDIT}",
    ]


def _machine_line(one: Document, *, is_braked: bool) -> str:
    place = f" in pool {one['pool']}" if one["pool"] else ""
    reason = "is in no list of HostFactory" if one["unlisted"] else "has no request"
    at, condition = one["deleted_at"], " if released now" if is_braked else ""
    when = f"at {format_local_time(at)}" if at else "later, unless orphan_cap_per_hour is 0"
    return f"  machine {one['machine']}{place} {reason}: deleted as an orphan {when}{condition}"

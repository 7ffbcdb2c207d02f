"""The status page: what ``status`` shows, as HTML. The server renders a page at each request. The page reloads itself
and needs no JavaScript."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote

from jinja2 import Environment, PackageLoader, StrictUndefined

from provisioner.model import DESIRED, Memory, Slot, format_utc
from provisioner.names import RETURN_ID_PREFIX, format_printable, format_printable_lines
from provisioner.state.errors import StateError
from provisioner.state.protocols import State
from provisioner.telemetry.brake_release_forecast import get_loop_time
from provisioner.telemetry.demand_status import demand_lines
from provisioner.telemetry.http_connections import Response
from provisioner.telemetry.losses import loss_lines
from provisioner.telemetry.machine_plots import ALL, HEIGHT, WIDTH, Moment, Plot, PlottedSubject, Point, Samples, plot
from provisioner.telemetry.pool_windows import format_duration, format_local_time, format_pool_line
from provisioner.telemetry.repeated_texts import make_numbering, number_repeated_texts
from provisioner.telemetry.server import JSON
from provisioner.telemetry.status_filter import narrow_status
from provisioner.telemetry.status_inputs import StatusInputs, hf_message, read_status_inputs
from provisioner.telemetry.status_model import StatusModel, status_model
from provisioner.telemetry.timeline import Kind, Subject, search_texts, timeline
from provisioner.telemetry.unmet import unmet_lines

HTML = "text/html; charset=utf-8"

REFRESH = 10
"""Seconds after which a browser reloads the page, unless the reader has stopped the reload."""

SHOWN = 100
"""Maximum number of entries that a list shows. The page says how many further entries there are, and its filter finds
them."""

LONGEST = 120
"""Maximum number of characters of a name or sentence that are shown. The limit keeps a text of four kilobytes from
filling the page."""

MOST_SENTENCES = 100
"""Maximum number of sentences of a timeline that are shown. The newest sentences are shown."""

MOST_LINES = 5_000
"""Maximum number of journal lines from which a pool's timeline is made. The newest lines are used, and they give more
sentences than the page shows. Without this limit the page would be slow, because a pool that has refused creates all
day has fifty thousand lines."""

FRESH = 1.0
"""Seconds for which a reading of the state files is used again. With this reuse, many open pages cost little more than
one page."""

TimelineRow = tuple[str, str]
"""The time of an event as text, and the event as a sentence."""


class Visit(NamedTuple):
    """A request for a page, and the status that the page shows."""

    inputs: StatusInputs
    status: StatusModel
    subject: PlottedSubject
    """The kind of the subject and its name, from the path. Both are empty for the first page."""
    query: str

    @property
    def name(self) -> str:
        """Return the name of the subject."""
        return self.subject[1]

    @property
    def find(self) -> str:
        """Return the text that the user of the page has entered as a filter."""
        return parse_qs(self.query).get("find", [""])[0].strip()

    def format_time(self, at: float | None) -> str:
        """Return a moment of loop time as text: the clock time, and the time since or until then."""
        memory = self.inputs.memory
        if at is None or memory is None:
            return ""
        seconds_left = at - get_loop_time(memory, self.inputs.wall)
        words = f"in {format_duration(seconds_left)}" if seconds_left > 0 else f"{format_duration(-seconds_left)} ago"
        return f"{format_local_time(format_utc(memory.wall_of(at)))} ({words})"


class StatusPage:
    """The pages of the status. The server's threads render them. ``memory``: function that returns the memory of this
    process's loop."""

    def __init__(self, state: State, memory: Callable[[], Memory | None], samples: Samples) -> None:
        self._state, self._memory, self._samples = state, memory, samples
        self._lock = threading.Lock()
        self._seen: tuple[float, StatusInputs, StatusModel] | None = None
        """The newest reading: its time by the monotonic clock, the inputs and the status; None before the first
        reading."""

    def respond(self, path: str, query: str) -> Response | None:
        """Return the page at a path; None if there is no page at this path."""
        kind, _, name = path.removeprefix("/").partition("/")
        pages: Mapping[str, Callable[[Visit], Response]] = {
            "pool": self._pool,
            "template": self._template,
            "request": self._request,
            "machine": self._machine,
        }
        if path not in ("/", "/status.json") and not (kind in pages and name):
            return None
        try:
            inputs, status = self.observe()
        except StateError as error:
            return _sentence(HTTPStatus.SERVICE_UNAVAILABLE, "Nothing to show", str(error))
        if path == "/status.json":
            return Response(HTTPStatus.OK, JSON, f"{json.dumps(status.document(), indent=2)}\n".encode())
        if path == "/":
            return self._index(Visit(inputs, status, ALL, query))
        return pages[kind](Visit(inputs, status, (kind, unquote(name)), query))

    def observe(self) -> tuple[StatusInputs, StatusModel]:
        """Return the inputs and the status, which are at most ``FRESH`` seconds old. Raise StateError if the files
        cannot be read."""
        with self._lock:
            now = time.monotonic()
            if self._seen is None or now - self._seen[0] >= FRESH:
                inputs = read_status_inputs(self._state, self._memory())
                self._seen = (now, inputs, status_model(inputs))
            return self._seen[1:]

    # --- pages --------------------------------------------------------------------------------------------------------

    def _index(self, visit: Visit) -> Response:
        find = visit.find
        matching = [one for one in visit.status.requests if find in one["id"] or find in one["template"]]
        matching.sort(key=lambda one: (one["status"] != "running", one["id"]))
        return self._show("index.html", visit, requests=matching, root="")

    def _pool(self, visit: Visit) -> Response:
        inputs, name, find = visit.inputs, visit.name, visit.find
        row = next((row for row in visit.status.pools if row.pool == name), None)
        if row is None:
            return _unknown(visit, [row.pool for row in visit.status.pools])
        here = (slot for slot in _slots(inputs.memory) if slot.pool == name and not slot.deletion.is_gone)
        slots = (slot for slot in here if find in slot.name)
        limits = inputs.pool_status.pool_limits.get(name)
        return self._show(
            "pool.html",
            visit,
            status=narrow_status(visit.status, pool=name),
            row=row,
            where=limits.where if limits else "",
            orphans=inputs.pool_status.orphans.get(name, ()),
            machines=_machine_list(slots),
        )

    def _template(self, visit: Visit) -> Response:
        row = next((row for row in visit.status.templates if row.template == visit.name), None)
        if row is None:
            return _unknown(visit, [row.template for row in visit.status.templates])
        part = narrow_status(visit.status, template=visit.name)
        matching = [one for one in part.requests if visit.find in one["id"]]
        return self._show("template.html", visit, status=part, row=row, requests=matching)

    def _request(self, visit: Visit) -> Response:
        memory, id_, find = visit.inputs.memory or Memory(""), visit.name, visit.find
        if id_ in memory.returns:
            return self._show("return.html", visit, record=memory.returns[id_])
        if id_ not in memory.requests:
            return _unknown(visit, list(memory.requests))
        record = memory.requests[id_]
        request = next(one for one in visit.status.requests if one["id"] == id_)
        machines = _machine_list(slot for slot in record.slots.values() if find in slot.name or find in slot.pool)
        return self._show("request.html", visit, request=request, record=record, machines=machines)

    def _machine(self, visit: Visit) -> Response:
        slot = next((slot for slot in _slots(visit.inputs.memory) if slot.name == visit.name), None)
        waiting = next((one for one in visit.status.waiting if one["machine"] == visit.name), None)
        if slot is None and waiting is None:
            return _unknown(visit, [])
        return self._show("machine.html", visit, slot=slot, waiting=waiting)

    # --- rendering ----------------------------------------------------------------------------------------------------

    def _show(self, template: str, visit: Visit, **values: Any) -> Response:
        status = values.pop("status", visit.status)
        requests = values.pop("requests", status.requests)
        numbered = number_repeated_texts(replace(status, requests=requests))
        shown = {
            "status": numbered,
            "requests": numbered.requests,
            "find": visit.find,
            "still": "still" in parse_qs(visit.query, keep_blank_values=True),
            "refresh": REFRESH,
            "subject": visit.subject,
            "limit": SHOWN,
            "plot": self._plot(visit.subject, visit.status),
            "width": WIDTH,
            "height": HEIGHT,
            "timeline": self._timeline(visit),
            "format_time": visit.format_time,
            "root": "../",
        }
        return _render(template, HTTPStatus.OK, **(shown | values))

    def _timeline(self, visit: Visit) -> Sequence[TimelineRow]:
        """Return the events of a subject, the oldest first. Only the newest file of the journal is read. The command
        ``explain`` reads all files."""
        kind, name = visit.subject
        if kind not in ("pool", "request", "machine"):
            return ()
        is_return = kind == "request" and name.startswith(RETURN_ID_PREFIX)
        subject, memory = Subject(Kind.RETURN if is_return else Kind(kind), name), visit.inputs.memory
        most = MOST_LINES if subject.kind is Kind.POOL else None  # a request's timeline counts every line
        lines = self._state.find_history(*search_texts(subject, memory), newest=True, most=most).lines
        sentences = timeline(subject, lines, memory)[-MOST_SENTENCES:]
        return [(format_local_time(format_utc(one.at)), one.text) for one in sentences]

    def _plot(self, subject: PlottedSubject, status: StatusModel) -> Plot | None:
        """Return a plot of the samples of a pool, a template or all machines. The plot ends with the numbers of
        ``status``."""
        kind, name = subject
        rows = {"pool": status.pools, "template": status.templates}.get(kind, [status.total])
        row = next((row for row in rows if row.name == name), None)
        kept = self._samples.get_moments(subject)
        if row is None or not kept:
            return None
        now = Moment(max(time.time(), kept[-1].wall), Point(row.wanted, row.running, row.pending))
        return plot([*kept, now], f"{kind} {clip(name)}" if kind else "all pools")


def _unknown(visit: Visit, names: Sequence[str]) -> Response:
    """Return the page for a name that does not exist. The page lists the names that exist."""
    kind, name = visit.subject
    there = f" There are: {', '.join(names[:SHOWN])}." if names else ""
    text = f"The loop knows no {kind} {clip(name)!r}. Ended requests are forgotten after retention_hours.{there}"
    return _sentence(HTTPStatus.NOT_FOUND, f"No such {kind}", text, root="../")


def _sentence(code: HTTPStatus, title: str, text: str, root: str = "") -> Response:
    return _render("sentence.html", code, title=title, text=text, root=root)


def _render(template: str, code: HTTPStatus, **values: Any) -> Response:
    text = format_printable_lines(templates().get_template(template).render(values))
    # The Content-Security-Policy allows only our own style, by its digest, so the browser loads no other file.
    digest = base64.b64encode(hashlib.sha256(str(templates().globals["style"]).encode()).digest()).decode()
    own = f"style-src 'sha256-{digest}'; img-src data:; form-action 'self'"
    policy = f"default-src 'none'; {own}; base-uri 'none'; frame-ancestors 'none'"
    return Response(code, HTML, text.encode("utf-8", "backslashreplace"), {"Content-Security-Policy": policy})


@cache
def templates() -> Environment:
    """Return the HTML templates of the pages. Each template is compiled once. A template escapes every value, and
    raises an error if a name is missing."""
    environment = Environment(
        loader=PackageLoader("provisioner.telemetry"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "clip": clip,
        "lasting": format_duration,
        "local": format_local_time,
        "name": lambda text: quote(str(text), safe="", errors="replace"),
    }
    style = resources.files(__package__).joinpath("templates", "style.css").read_text("utf-8")
    functions = (unmet_lines, loss_lines, demand_lines, format_pool_line, hf_message)
    environment.globals |= {function.__name__: function for function in functions}
    environment.globals |= {"state_of": _state, "style": style}
    return environment


def clip(text: object, longest: int = LONGEST) -> str:
    """Return a text as one line of at most ``longest`` characters."""
    line = format_local_time(format_printable(str(text)))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _slots(memory: Memory | None) -> Iterator[Slot]:
    return (slot for _, slot in (memory.slots if memory else ()))


def _machine_list(slots: Iterator[Slot]) -> dict[str, Any]:
    """Return the first machines of a list, and the length of the list. Machines that do not run come first."""
    waiting_first = sorted(slots, key=lambda slot: slot.verdict not in DESIRED or slot.ran_at is not None)
    shown = waiting_first[:SHOWN]
    texts = [slot.trouble.text if slot.trouble else "" for slot in shown]
    numbered = zip(shown, map(make_numbering(texts), texts), strict=True)
    return {"shown": list(numbered), "count": len(waiting_first)}


def _state(slot: Slot) -> str:
    """Return the state of a slot's machine in one to four words."""
    if slot.is_set_aside:
        return "set aside"
    if slot.deletion.is_stuck and not slot.deletion.is_gone:
        return "stuck"
    if slot.is_with_hf:
        return "running"
    if slot.verdict in DESIRED:
        return "pending" if slot.submitted_at is not None else "not requested yet"
    return f"{slot.verdict}, gone" if slot.deletion.is_gone else f"{slot.verdict}, ending"

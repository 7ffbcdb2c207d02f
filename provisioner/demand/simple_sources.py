"""Sources that know only numbers: constant, timetable, program, web page, and query to Prometheus."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, StringConstraints

from provisioner.backends.http import Request, connect, exchange
from provisioner.backends.login_refusals import read_secret
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.processes import run_program
from provisioner.backends.responses import json_object, words
from provisioner.demand.sources import Fleet, Reading, SourceError, SourceSettings, source_errors
from provisioner.schema.setting_types import Argv, Duration, OptionalFile, OptionalSecretFile, OptionalText, Text
from provisioner.schema.validation import Expects, Section, format_expected, quote
from provisioner.settings.definitions import CountOrZero

MOST_BYTES = 1 << 20
"""Maximum number of bytes that a program may print as its wish."""
MOST_MACHINES = 10**9
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
NO_SERIES = "the query found no series {}. If that means 0, append '{}' to it"
LABELLED_ZERO = 'or label_replace(vector(0), "template", "{}", "", "")'


def _weekdays(written: object) -> frozenset[int]:
    """Return the numbers of the days in a text such as ``mon-fri`` or ``sat,mon``. Raise ValueError for any other
    value."""
    found = set[int]()
    for part in str(written).split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = DAYS.index(first), DAYS.index(last if dash else first)
        found |= {day % len(DAYS) for day in range(begin, end + 1 + len(DAYS) * (end < begin))}
    return frozenset(found)


def _check_zone(name: str) -> str:
    """Return the name of a time zone unchanged. Raise ValueError if this host does not know the time zone."""
    if name not in available_timezones():
        raise ValueError(f"{name} is unknown")
    return name


Days = Annotated[frozenset[int], BeforeValidator(_weekdays), Expects("days such as mon-fri or sat,sun")]
WallTime = Annotated[
    str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$"), Expects('a time such as "18:00" (in quotes)')
]
Zone = Annotated[str, AfterValidator(_check_zone), Expects("a time zone such as Europe/Zurich")]
WebAddress = Annotated[
    str,
    StringConstraints(pattern=r"^https?://([^\s/@:?#\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/\S*)?$"),
    Expects("an address such as https://host:8443/page, without a login"),
]
Windows = Annotated[tuple["Window", ...], Field(min_length=1, strict=False), Expects("a list of windows")]


class SimpleSource(SourceSettings):
    """The settings of a source that knows only numbers."""

    template: OptionalText = None
    """Template of a number that comes without a template; default none."""

    def templates(self) -> set[str]:
        """Return the setting ``template`` as a set; empty if the setting is not set."""
        return {self.template} if self.template else set()

    def reading(self, document: object, fleet: Fleet) -> Reading:
        """Return a document as a reading. The document is a number, or an object with numbers by template. Raise
        SourceError for any other document.

        A number for an unknown template is reported as unfit.
        """
        if isinstance(document, Mapping):
            counts = {str(name): _count(value, name) for name, value in document.items()}
        elif self.template is None:
            raise SourceError(format_expected("an object {template: number}, because no template is set", document))
        else:
            counts = {self.template: _count(document, self.template)}
        wanted = {name: counts.pop(name) for name in fleet.shapes if name in counts}
        unknown = {f"machines of the unknown template {name}": number for name, number in counts.items() if number}
        return Reading(wanted, None, unknown)


def _count(value: object, template: str) -> int:
    """Return ``value``, a number of machines of a template, rounded up. Raise SourceError if ``value`` is no such
    number, for example NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_MACHINES:
        raise SourceError(format_expected(f"a number of machines of {template}", value))
    return math.ceil(round(value, 6))


def _parse(content: str, what: str) -> object:
    """Return a JSON document. Raise SourceError if the text is not JSON.

    If an object has a name twice, return a list instead of the object, so that the caller refuses the document.
    """
    with source_errors(f"{what}: expected a number or a JSON object, got {quote(content.strip())}"):
        return json.loads(content, object_pairs_hook=lambda pair: dict(pair) if len(dict(pair)) == len(pair) else pair)


class Fixed(SimpleSource):
    """A constant number of machines."""

    template: Text
    """Template of the machines. No default."""
    machines: CountOrZero
    """Number of machines. No default."""

    def read(self, fleet: Fleet) -> Reading:
        """Return the constant number."""
        return Reading({self.template: self.machines})


class Window(Section):
    """A part of the week."""

    days: Days = frozenset(range(7))
    """Days on which the window begins, for example mon-fri or sat,sun; default each day."""
    begin: WallTime = "00:00"
    """Local time of the begin; default "00:00"."""
    end: WallTime = "00:00"
    """Local time of the end; default "00:00". If it is not later than ``begin``, the window ends on the next day."""
    machines: CountOrZero
    """Number of machines in the window. No default."""

    def covers(self, now: float, zone: ZoneInfo) -> bool:
        """Return True if the window contains the time ``now`` (epoch seconds).

        If the local time of the window's begin or end does not exist or occurs twice, because clocks are changed, the
        window is as long as possible.
        """
        today = datetime.fromtimestamp(now, zone).date()
        for day in (today - timedelta(days=1), today):
            last = day + timedelta(days=self.end <= self.begin)
            begin, end = min(_moments(day, self.begin, zone)), max(_moments(last, self.end, zone))
            if day.weekday() in self.days and begin <= now < end:
                return True
        return False


def _moments(day: date, wall_time: str, zone: ZoneInfo) -> list[float]:
    """Return the two moments, in epoch seconds, that a wall time may mean while clocks are changed. At any other time,
    the two moments are equal."""
    moment = datetime.combine(day, time.fromisoformat(wall_time), zone)
    return [moment.replace(fold=fold).timestamp() for fold in (0, 1)]


class Schedule(SimpleSource):
    """Numbers of machines by the time of the week."""

    template: Text
    """Template of the machines. No default."""
    zone: Zone
    """Time zone of the windows, for example Europe/Zurich. No default."""
    windows: Windows
    """Windows. Of windows that overlap, the largest number counts. Outside of all windows no machine is wanted."""

    def read(self, fleet: Fleet) -> Reading:
        """Return the largest number among the windows that contain the present time."""
        found = [window.machines for window in self.windows if window.covers(fleet.now, ZoneInfo(self.zone))]
        return Reading({self.template: max(found, default=0)})


def run_program_of_source(argv: Sequence[str], seconds: float, most_bytes: int = MOST_BYTES) -> str:
    """Return the output of a program.

    Raise SourceError if the program cannot be run, fails, does not end in time, or prints too much.
    """
    with source_errors(argv[0]):
        code, output, errors = run_program(argv, os.environ, seconds=seconds, most_bytes=most_bytes)
        if code:
            raise OSError(f"ended with code {code}: {(errors or output).decode(errors='replace')}")
        return output.decode(errors="replace")  # any user may write any bytes, for example into the reason of a node


class Command(SimpleSource):
    """The output of a program: a number, or a JSON object of numbers by template."""

    argv: Argv
    """Program and arguments, never run by a shell. No default."""
    timeout_seconds: Duration = 30.0
    """Seconds within which the program must end; default 30."""

    def read(self, fleet: Fleet) -> Reading:
        """Run the program, and return the reading that it prints. Raise SourceError if the program fails, or prints any
        other document."""
        return self.reading(_parse(run_program_of_source(self.argv, self.timeout_seconds), self.argv[0]), fleet)


class Url(SimpleSource):
    """A web page with a number, or with a JSON object of numbers by template."""

    url: WebAddress
    """Address. No default."""
    token_file: OptionalSecretFile = None
    """File with a bearer token, which is read before each call; default none."""
    ca_file: OptionalFile = None
    """Certificate authority of the server (PEM); default the system's."""
    timeout_seconds: Duration = 15.0
    """Seconds within which the whole response must arrive; default 15."""

    def fetch(self, url: str) -> bytes:
        """Return the body of a response with status 200. Raise SourceError if there is no such response."""
        parts = urlsplit(url)
        place = parts._replace(scheme="", netloc="").geturl() or "/"
        with source_errors(url.partition("?")[0]):
            token = self.token_file and read_secret(self.token_file, "token_file")
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            request = Request("GET", place, self.timeout_seconds, headers=headers)
            reply, body = exchange(connect(f"{parts.scheme}://{parts.netloc}", self.ca_file), request, PlaceClock())
            if reply.status != 200:
                raise OSError(f"HTTP {reply.status} {body.decode(errors='replace')}")
            return body

    def read(self, fleet: Fleet) -> Reading:
        """Return the reading of the page. Raise SourceError if the call fails, or if the page has any other
        document."""
        return self.reading(_parse(self.fetch(self.url).decode(errors="replace"), self.url.partition("?")[0]), fleet)


class Prometheus(Url):
    """The result of a query to Prometheus, or to a server with the same API."""

    query: Text
    """Expression in PromQL. A scalar, or one series without the label ``template``, is the number of machines of the
    setting ``template``. Else each series has its template in that label. If a template had a series before and has
    none now, the read fails. No default."""
    _named: set[str] = PrivateAttr(default_factory=set)
    """Templates of HostFactory's file that have had a series since the start."""

    def read(self, fleet: Fleet) -> Reading:
        """Return the result of the query at the present time. Raise SourceError if the result is empty or may be
        incomplete."""
        body = self.fetch(f"{self.url.rstrip('/')}/api/v1/query?{urlencode({'query': self.query})}")
        with source_errors(self.url):
            result = read_query_result(json_object(body))
            if isinstance(result, dict):
                self._named |= result.keys() & fleet.shapes.keys()
                if gone := sorted(self._named - result.keys()):
                    raise SourceError(NO_SERIES.format(f"for template {gone[0]}", LABELLED_ZERO.format(gone[0])))
            return self.reading(result, fleet)


def read_query_result(answer: Mapping[str, Any]) -> object:
    """Return the number of an instant query, or the numbers by the label ``template``.

    Raise SourceError if the result is empty or may be incomplete. Raise an error of ``ODD_RESPONSES`` if the response
    has an unexpected form.

    An empty result is not 0, because Prometheus also returns no series if it cannot scrape a target. Prometheus and
    Thanos document that a result with warnings may lack data. VictoriaMetrics has ``isPartial`` instead.
    """
    if answer["status"] != "success":
        raise SourceError(words(f"the query failed: {answer.get('error')}"))
    if answer.get("warnings") or answer.get("isPartial"):
        raise SourceError(words(f"the result may be incomplete: {answer.get('warnings') or 'isPartial'}"))
    kind, result = answer["data"]["resultType"], answer["data"]["result"]
    if kind == "scalar":
        return float(result[1])
    if kind != "vector":
        raise SourceError(format_expected("a query whose result is a scalar or an instant vector", kind))
    if not result:
        raise SourceError(NO_SERIES.format("at all", "or vector(0)"))
    values = [(series["metric"].get("template"), float(series["value"][1])) for series in result]
    if len(values) == 1 and values[0][0] is None:
        return values[0][1]
    by_template = {template: value for template, value in values if template}
    if len(by_template) < len(values):
        raise SourceError("expected one series, or one for each value of the label 'template': use sum by (template)")
    return by_template

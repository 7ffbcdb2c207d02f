"""The service that requests and returns machines as HostFactory does, so that there are as many as the sources want.

The service keeps no record of its requests. Each step finds them in intent, by their account, so a crash at any point
neither repeats a request nor loses one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from provisioner.demand.last_values import LastValue, Wish, combine
from provisioner.demand.machines import ACCOUNT, ENDED, Entry, Ours, recover
from provisioner.demand.plan import Levels, plan_step
from provisioner.demand.settings import Demand
from provisioner.demand.sources import Fleet, Reading, Shape, Source, SourceError
from provisioner.hostfactory.script_calls import ScriptFailed
from provisioner.hostfactory.templates import UNLIMITED, Template
from provisioner.model import Intent, Request
from provisioner.state.errors import StateError, StateMissing, StateStale
from provisioner.state.protocols import State

log = logging.getLogger(__name__)


class Calls(Protocol):
    """The calls of HostFactory that the service makes. Each call raises ScriptFailed."""

    def statuses(self, ids: Sequence[str]) -> Sequence[Entry]:
        """Call getRequestStatus, and return the entries."""

    def reclaimed(self, names: Sequence[str]) -> Mapping[str, int]:
        """Call getReturnRequests, and return the seconds left of each host that has to be returned."""

    def request(self, template: str, count: int, rc_account: str) -> str:
        """Call requestMachines, and return the id of the request."""

    def return_machines(self, names: Sequence[str]) -> str:
        """Call requestReturnMachines, and return the id of the return request."""


@dataclass
class Report:
    """The result of a step, for operators."""

    at: float
    """Epoch seconds."""
    problem: str = ""
    """Reason for which the step was not carried out completely; empty if it was."""
    templates: dict[str, dict[str, int]] = field(default_factory=dict)
    """Numbers of machines (``wanted``, ``asked``, ``running``, ``idle``) by template."""
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """``wanted``, ``read_at``, ``problem``, ``failures`` and ``unfit`` by source."""
    reasons: Sequence[str] = ()
    """Sentences about the step's calls and about machines that are kept."""


class DemandService:
    """The steps of one provider instance."""

    def __init__(
        self,
        settings: Demand,
        templates: Iterable[Template],
        states: Sequence[State],
        calls: Calls,
    ) -> None:
        """Open the sources. ``states``: the state of each shard. Raises SourceError."""
        self._settings, self._states, self._calls = settings, states, calls
        self._shapes = {template.id: read_shape(template) for template in templates}
        self._limits = {
            template.id: 10**9 if template.max_number == UNLIMITED else template.max_number for template in templates
        }
        self._sources = {name: source.open() for name, source in settings.sources.items()}
        self._values = {name: LastValue(source.templates()) for name, source in settings.sources.items()}
        self._levels: Levels = {}
        self._ended: dict[str, Entry] = {}
        """Terminal answers, which never change, by id."""
        self._gone: set[str] = set()
        """Returned machines. Their return requests may have left intent."""

    def step(self, now: float) -> Report:
        """Make one step, and return its report. ``now``: epoch seconds. A problem of the state or of a script ends the
        step; the next step finds out what has happened."""
        report = Report(now)
        try:
            ours, lost = self._recover()
            self._read_sources(Fleet(now, self._shapes, ours.running))
            wish = combine(self._values, self._limits, self._settings)
            self._describe(report, wish, ours)
            step = plan_step(wish, ours, lost, self._settings, self._levels, now)
            self._levels, report.reasons = step.levels, step.reasons
            if step.returns:
                id_ = self._calls.return_machines(step.returns)
                log.info("Returned machines", extra={"request": id_, "machines": len(step.returns)})
            for template, count in step.requests.items():
                id_ = self._calls.request(template, count, ACCOUNT)
                log.info("Requested machines", extra={"request": id_, "template": template, "count": count})
        except (StateError, ScriptFailed) as error:
            report.problem = str(error)
            log.warning("Step failed", extra={"problem": report.problem})
        return report

    def _recover(self) -> tuple[Ours, Mapping[str, int]]:
        """Return our requests and machines, and the seconds left of the machines that have to be returned."""
        requests, returns = self._read_intents()
        ids = {one.id for one in requests} | returns.keys()
        self._ended = {id_: entry for id_, entry in self._ended.items() if id_ in ids}
        entries = self._read_answers([one.id for one in requests])
        names = {machine["name"] for entry in entries.values() for machine in entry["machines"]}
        self._gone = names.intersection(self._gone.union(*returns.values()))
        self._read_answers([id_ for id_, returned in returns.items() if not names.isdisjoint(returned)])
        ours = recover(requests, entries, self._gone)
        return ours, self._calls.reclaimed(sorted(ours.settled))

    def _read_intents(self) -> tuple[list[Request], dict[str, Sequence[str]]]:
        """Return our requests, and the machines of each return request, of all shards."""
        intents = list(filter(None, map(read_intent, self._states)))
        requests = [one for intent in intents for one in intent.requests.values() if one.rc_account == ACCOUNT]
        return requests, {id_: one.names for intent in intents for id_, one in intent.returns.items()}

    def _read_answers(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Return the answer to each id. A terminal answer is read only once."""
        asked = [id_ for id_ in ids if id_ not in self._ended]
        read = {entry["requestId"]: entry for entry in self._calls.statuses(asked)} if asked else {}
        self._ended |= {id_: entry for id_, entry in read.items() if entry["status"] in ENDED}
        return {id_: read.get(id_) or self._ended[id_] for id_ in ids}

    def _read_sources(self, fleet: Fleet) -> None:
        """Read all sources at once, and keep the results."""
        with ThreadPoolExecutor(max(1, len(self._sources)), "source") as threads:
            results = threads.map(lambda source: _read(source, fleet), self._sources.values())
        for name, result in zip(self._sources, results, strict=True):
            value = self._values[name]
            if isinstance(result, Reading):
                self._note_unfit(name, value, result)
                self._values[name] = value.after_reading(result, fleet.now)
            else:
                log.warning("Source failed", extra={"source": name, "problem": result})
                self._values[name] = value.after_failure(result)

    def _note_unfit(self, name: str, value: LastValue, reading: Reading) -> None:
        """Log the jobs that fit no template, unless the last reading had jobs of the same description."""
        for jobs, number in reading.unfit.items():
            if value.reading is None or jobs not in value.reading.unfit:
                log.warning("Jobs fit no template", extra={"source": name, "jobs": jobs, "number": number})

    def _describe(self, report: Report, wish: Wish, ours: Ours) -> None:
        running = Counter(one.template for one in ours.running.values())
        for template in wish.wanted.keys() | ours.asked.keys():
            report.templates[template] = {
                "wanted": wish.wanted.get(template, 0),
                "asked": ours.asked.get(template, 0),
                "running": running[template],
                "idle": len(wish.idle.get(template, {}).keys() & ours.running.keys()),
            }
        for name, value in self._values.items():
            report.sources[name] = {
                "wanted": dict(value.reading.wanted) if value.reading else {},
                "read_at": value.read_at,
                "problem": value.problem,
                "failures": value.failures,
                "unfit": dict(value.reading.unfit) if value.reading else {},
            }


def _read(source: Source, fleet: Fleet) -> Reading | str:
    """Return the reading of a source, or the reason for which it failed."""
    try:
        return source.read(fleet)
    except SourceError as error:
        return str(error)
    except Exception as error:  # a bug in a source must not stop the others
        log.exception("Source has a bug")
        return f"{type(error).__name__}: {error}"


def read_intent(state: State) -> Intent | None:
    """Return intent; None if the state is new. Raises StateError if intent is lost, old or unreadable."""
    try:
        intent, newest = state.intent.read_newest()
    except StateMissing:
        if state.intent.existed() or state.memory.existed():
            raise
        return None
    if intent.generation < newest:
        raise StateStale(f"{state.path}: intent is an old copy. Run `provisioner recover`.")
    return intent


def read_shape(template: Template) -> Shape:
    """Return the size of a template's machines by HostFactory's attributes."""
    attributes = {name: value for name, (_, value) in template.attributes.items()}
    cpus = float(attributes["ncpus"]) * float(attributes["ncores"])
    return Shape(cpus, float(attributes["nram"]), _number(attributes.get("ngpus", "0")), attributes)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0

"""The service that requests and returns machines as HostFactory does. It keeps as many machines as the sources want.

The service keeps no record of its requests. Each step finds the earlier requests in intent, by the service's account.
So a crash at any point neither repeats a request nor loses a request.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from provisioner.backends.responses import words
from provisioner.demand.plan import ENDED, Entry, LastValue, Levels, Ours, Wish, combine, plan_step, recover
from provisioner.demand.settings import Demand
from provisioner.demand.sources import Fleet, Reading, Shape, SourceError
from provisioner.hostfactory import Answer
from provisioner.hostfactory.provider_config import as_number
from provisioner.hostfactory.script_calls import HostFactory, ScriptFailed
from provisioner.hostfactory.templates import UNLIMITED, Template
from provisioner.model import Request
from provisioner.names import NO_TEMPLATE
from provisioner.optional_packages import MissingExtra
from provisioner.state.errors import StateError, StateMissing, StateStale
from provisioner.state.protocols import State

log = logging.getLogger(__name__)

ACCOUNT = "demand"
"""Account (``rc_account``) of our requests, by which they are found again after a crash."""

MOST_UNFIT = 20
"""Maximum number of descriptions that a report lists for jobs that fit no template, for each source. Jobs of further
descriptions are counted together."""


class PreviewedCalls(HostFactory):
    """The stand-in for the scripts that ``--dry-run`` uses. Its answers come from data that the loop has published, and
    its calls record nothing."""

    def __init__(self, states: Sequence[State]) -> None:
        """Store the state of each shard."""
        super().__init__({})
        self._states = states

    def statuses(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the answer to each id: the recorded terminal answer, or else the answer that the loop has published.
        For an id without either, return an answer without machines. Raises StateError."""
        answers: dict[str, Answer] = {}
        for state in self._states:
            with suppress(StateMissing):  # no loop has run yet
                answers |= state.status.read_all()
            answers |= state.terminal_answers.answers()
        waiting = {"status": "running", "message": "", "machines": []}
        return [json.loads(answers[id_].text) if id_ in answers else {**waiting, "requestId": id_} for id_ in ids]

    def reclaimed(self, names: Sequence[str]) -> dict[str, int]:
        """Return the machines that HostFactory has to return. For each machine, give the seconds until its end. Raises
        StateError."""
        lost = {name: loss for state in self._states if names for name, loss in state.status.read_lost().items()}
        return {name: lost[name].grace for name in names if name in lost}

    def call(self, script: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Record nothing, and return an answer with an empty id."""
        return {"requestId": ""}


@dataclass
class Report:
    """The result of a step, for operators."""

    at: float
    """The begin of the step in epoch seconds."""
    problem: str = ""
    """Reason for which the step was not carried out completely; empty if the step is complete."""
    templates: dict[str, dict[str, int]] = field(default_factory=dict)
    """Numbers of machines (``wanted``, ``asked``, ``running``, ``idle``) by template."""
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """``wanted``, ``read_at``, ``problem``, ``failures`` and ``unfit`` by source."""
    reasons: Sequence[str] = ()
    """Sentences about the step's calls and about machines that are kept."""
    next_at: float | None = None
    """Epoch seconds at which the next step is due; None if no step follows."""

    @contextmanager
    def noted_problems(self) -> Iterator[None]:
        """Run the ``with`` block. If an error of the state, of a script or of a scheduler occurs, end only this block.

        The report keeps the text of the first error.
        """
        try:
            yield
        except (StateError, ScriptFailed, SourceError) as error:
            self.problem = self.problem or words(str(error))
            log.warning("Step failed", extra={"problem": words(str(error))})


class DemandService:
    """The steps of one provider instance."""

    def __init__(
        self, settings: Demand, templates: Sequence[Template], states: Sequence[State], calls: HostFactory
    ) -> None:
        """Store what the steps need. ``states``: the state of each shard."""
        self._settings, self._states, self._calls = settings, states, calls
        self._shapes = {one.id: read_shape(one) for one in templates}
        self._limits = {one.id: 10**9 if one.max_number == UNLIMITED else one.max_number for one in templates}
        self._values = {name: LastValue(source.templates()) for name, source in settings.sources.items()}
        self._levels: Levels = {}
        self._ended: dict[str, Entry] = {}
        """Terminal answers, which never change, by id."""
        self._gone: set[str] = set()
        """Machines that were returned. The set keeps their names, because their return requests may leave intent."""

    def step(self, now: float) -> Report:
        """Make one step, and return its report. ``now``: epoch seconds.

        If a request fails, the other requests are still made. Any other error of the state or of a script ends the
        step. The next step finds out which calls had an effect.
        """
        report = Report(now, next_at=now + self._settings.interval_seconds)
        with report.noted_problems():
            ours, lost = self._recover()
            self._read_sources(Fleet(now, self._shapes, ours.running))
            unknown = dict.fromkeys(ours.asked.keys() & {NO_TEMPLATE}, 0)
            wish = combine(self._values, unknown | self._limits, self._settings)
            self._describe(report, wish, ours)
            step = plan_step(wish, ours, lost, self._settings, self._levels, now)
            self._levels, report.reasons = step.levels, step.reasons
            self._calls.check()
            if step.returns and (id_ := self._calls.return_machines(step.returns)):  # a preview has no id
                log.info("Returned machines", extra={"request": id_, "machines": len(step.returns)})
            for template, count in step.requests.items():
                with report.noted_problems():
                    if id_ := self._calls.request(template, count, ACCOUNT):
                        log.info("Requested machines", extra={"request": id_, "template": template, "count": count})
        return report

    def _recover(self) -> tuple[Ours, Mapping[str, int]]:
        """Return our requests and machines. Also return the machines that HostFactory has to return, each with the
        seconds until its end."""
        requests, returns = read_requests(self._states, ACCOUNT)
        self._ended = {id_: entry for id_, entry in self._ended.items() if id_ in requests or id_ in returns}
        entries = self._read_answers(requests)
        names = {machine["name"] for entry in entries.values() for machine in entry["machines"]}
        self._gone = names.intersection(self._gone.union(*returns.values()))
        self._read_answers([id_ for id_, returned in returns.items() if not names.isdisjoint(returned)])
        ours = recover(requests.values(), entries, self._gone)
        return ours, self._calls.reclaimed(sorted(ours.settled))

    def _read_answers(self, ids: Iterable[str]) -> dict[str, Entry]:
        """Return the answer to each id. A terminal answer is read only once."""
        asked = [id_ for id_ in ids if id_ not in self._ended]
        read = {entry["requestId"]: entry for entry in self._calls.statuses(asked)} if asked else {}
        self._ended |= {id_: entry for id_, entry in read.items() if entry["status"] in ENDED}
        return {id_: read.get(id_) or self._ended[id_] for id_ in ids}

    def _read_sources(self, fleet: Fleet) -> None:
        """Read all sources at once, and keep the results.

        Log the jobs that fit no template. Do not log jobs again if the last reading had jobs of the same description.
        """
        sources = self._settings.sources
        with ThreadPoolExecutor(max(1, len(sources)), "source") as threads:
            reads = {name: threads.submit(source.read, fleet) for name, source in sources.items()}
        for name, read in reads.items():
            value = self._values[name]
            if error := read.exception():  # a bug in a source must not stop the others
                is_bug = not isinstance(error, (SourceError, MissingExtra))
                problem = words(f"{type(error).__name__}: {error}" if is_bug else str(error))
                log.warning("Source failed", extra={"source": name, "problem": problem}, exc_info=is_bug and error)
                self._values[name] = value.after_failure(problem)
                continue
            reading = read.result()
            unfit = {words(jobs): number for jobs, number in Counter(reading.unfit).most_common(MOST_UNFIT)}
            unfit |= {"others": rest} if (rest := sum(reading.unfit.values()) - sum(unfit.values())) else {}
            self._values[name] = value.after_reading(reading._replace(unfit=unfit), fleet.now)
            for jobs in unfit.keys() - (value.reading.unfit.keys() if value.reading else ()):
                log.warning("Jobs fit no template", extra={"source": name, "jobs": jobs, "number": unfit[jobs]})

    def _describe(self, report: Report, wish: Wish, ours: Ours) -> None:
        for template in wish.wanted.keys() | ours.asked.keys():
            running = [name for name, one in ours.running.items() if one.template == template]
            idle = len(wish.idle.get(template, {}).keys() & running)
            numbers = {"wanted": wish.wanted.get(template, 0), "asked": ours.asked.get(template, 0)}
            report.templates[template] = numbers | {"running": len(running), "idle": idle}
        for name, value in self._values.items():
            reading = value.reading or Reading({})
            facts = {"read_at": value.read_at, "problem": value.problem, "failures": value.failures}
            report.sources[name] = {"wanted": dict(reading.wanted), **facts, "unfit": dict(reading.unfit)}


def read_requests(states: Iterable[State], account: str) -> tuple[dict[str, Request], dict[str, Sequence[str]]]:
    """Return an account's requests by id, and the machines of each return request by id. The return requests are those
    of all accounts.

    Both dicts cover all shards. Raises StateError if the intent of a shard is lost, old or unreadable.
    """
    requests, returns = dict[str, Request](), dict[str, Sequence[str]]()
    for state in states:
        try:
            intent, newest = state.intent.read_newest()
        except StateMissing:
            if state.intent.existed() or state.memory.existed():
                raise
            continue  # a new state
        if intent.generation < newest:
            raise StateStale(f"{state.path}: intent is an old copy. Run `provisioner recover`.")
        requests |= {id_: one for id_, one in intent.requests.items() if one.rc_account == account}
        returns |= {id_: one.names for id_, one in intent.returns.items()}
    return requests, returns


def read_shape(template: Template) -> Shape:
    """Return the size of a template's machines, from the template's attributes in HostFactory's file."""
    numbers = {name: as_number(value) or 0.0 for name, (_, value) in template.attributes.items()}
    return Shape(numbers["ncpus"] * numbers["ncores"], numbers["nram"], numbers.get("ngpus", 0.0))

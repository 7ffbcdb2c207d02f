"""The decision of a step: the machines to request and to return. No I/O, no clock, no log.

The decision follows from the last values of all sources, and from our machines, which the scripts' answers name.

A step requests no more machines than are missing now. It returns machines that are gone, machines that have to leave,
and surplus machines if fewer have been wanted for some time. A machine that is not gone must have no work. At most a
share of a template's machines is returned; machines that are gone do not count.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from provisioner.demand.settings import Demand, TemplateDemand
from provisioner.demand.sources import Reading, Running
from provisioner.model import Request
from provisioner.names import NO_TEMPLATE, SLOT_BLOCK

ENDED = frozenset({"complete", "complete_with_error"})

STEADY = 2
"""Number of successful reads of a source in a row before machines may be returned because of this source."""

UNDECIDED = "no source decides about the template"

Entry = Mapping[str, Any]
"""The entry about a request in the output of getRequestStatus."""

Levels = Mapping[str, Sequence[tuple[float, int]]]
"""Times and numbers of the latest wishes by template, the oldest first: all wishes that were in force during the last
``fall_after_seconds``. Only machines above the highest of these numbers are too many."""


@dataclass(frozen=True, slots=True)
class LastValue:
    """The last complete reading of a source, and the results of the reads since then."""

    templates: Set[str] = frozenset()
    """The templates about which the source decides: those of its settings, and those that it has named since. Empty for
    all templates."""
    reading: Reading | None = None
    """The last reading, which stays while later reads fail; None before the first success."""
    read_at: float | None = None
    """Epoch seconds of the last success; None before the first success."""
    problem: str = ""
    """Reason for which the last read failed; empty if the last read succeeded."""
    failures: int = 0
    """Number of failed reads since the start of the process."""
    successes: int = 0
    """Number of successful reads since the last failure."""
    unconfirmed: Set[str] = frozenset()
    """Templates whose number was 0 only in the last read. Their earlier number still counts."""

    def after_reading(self, reading: Reading, now: float) -> LastValue:
        """Return the value after a successful read. If a number falls to 0, the earlier number counts until the next
        read has confirmed the 0."""
        before = self.reading.wanted if self.reading else {}
        zeros = {template for template, number in before.items() if number and not reading.wanted.get(template)}
        unconfirmed = frozenset(zeros - self.unconfirmed)
        wanted = {**reading.wanted, **{template: before[template] for template in unconfirmed}}
        named, reading = self.templates and self.templates | wanted.keys(), reading._replace(wanted=wanted)
        return LastValue(named, reading, now, "", self.failures, self.successes + 1, unconfirmed)

    def after_failure(self, problem: str) -> LastValue:
        """Return the value after a failed read."""
        return replace(self, problem=problem, failures=self.failures + 1, successes=0, unconfirmed=frozenset())

    @property
    def idle(self) -> Mapping[str, float] | None:
        """Return the machines that are idle now; None if the source knows no machines.

        If the last read failed, no machine counts as idle, because the source may have given work to a machine since
        its last reading.
        """
        return self.reading.idle if self.reading and (self.reading.idle is None or not self.problem) else {}

    def decides(self, template: str) -> bool:
        """Return True if the source decides about a template: it says how many machines of the template are wanted.

        If the state was lost, the templates of some machines are unknown (``NO_TEMPLATE``). Every source decides about
        ``NO_TEMPLATE``, and no source wants such machines.
        """
        return not self.templates or template in self.templates or template == NO_TEMPLATE


class Wish(NamedTuple):
    """The machines that all sources together want."""

    wanted: dict[str, int]
    """Number of wanted machines by template. The mapping has each template about which a source decides, and each
    template with a setting ``least``."""
    frozen: dict[str, str]
    """Reason for which no machine of a template may be returned, by template. A template whose machines may be returned
    is left out."""
    idle: dict[str, Mapping[str, float]]
    """Machines without work according to the present readings, and their idle seconds, by template. A template is left
    out if no source knows its machines; then any machine of the template may be returned."""


def combine(values: Mapping[str, LastValue], limits: Mapping[str, int], settings: Demand) -> Wish:
    """Return the wish. ``values``: the last value of each source. ``limits``: the maximum number of machines of each
    template in HostFactory's file."""
    wish, combined = Wish({}, {}, {}), max if settings.combine == "max" else sum
    for template, limit in limits.items():
        deciding = {name: value for name, value in values.items() if value.decides(template)}
        own = settings.templates.get(template, TemplateDemand())
        if reason := _find_hindrance(deciding):
            wish.frozen[template] = reason
        if not deciding and not own.least:
            continue
        numbers = [value.reading.wanted.get(template, 0) for value in deciding.values() if value.reading] or [0]
        wish.wanted[template] = min(max(own.least, combined(numbers)), limit, own.most)
        if known := [value.idle for value in deciding.values() if value.idle is not None]:
            wish.idle[template] = _idle_everywhere(known)
    return wish


def _find_hindrance(deciding: Mapping[str, LastValue]) -> str:
    """Return why no machine of a template may be returned; empty if machines may be returned. ``deciding``: the sources
    that decide about the template."""
    for name, value in deciding.items():
        if value.successes < STEADY:
            success_message = "was read only once since it failed" if value.failures else "is new"
            return f"source {name} {f'failed: {value.problem}' if value.problem else success_message}"
    return "" if deciding else UNDECIDED


def _idle_everywhere(known: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the machines that all sources in ``known`` report as idle, each with the shortest reported time."""
    return {name: min(idle[name] for idle in known) for name in set[str].intersection(*map(set, known))}


class Ours(NamedTuple):
    """Our requests and machines at one moment."""

    asked: Mapping[str, int]
    """Machines that run or are still on their way, by template."""
    running: Mapping[str, Running]
    """Machines that run, by name."""
    settled: Set[str]
    """Running machines whose request has ended. Only these may be returned: the return of a machine of an open request
    would end this request."""


def recover(requests: Iterable[Request], entries: Mapping[str, Entry], gone: Set[str]) -> Ours:
    """Return our machines, as far as the answers to ``requests`` show them. ``entries``: the answer to each request.
    ``gone``: machines that were returned."""
    asked: Counter[str] = Counter()
    running: dict[str, Running] = {}
    settled: set[str] = set()
    for request in requests:
        machines, status = entries[request.id]["machines"], entries[request.id]["status"]
        ours = [one for one in machines if one["result"] == "succeed" and one["name"] not in gone]
        for one in ours:
            running[one["name"]] = Running(request.template, float(one["launchtime"] or request.created_wall))
        if status in ENDED:
            settled.update(one["name"] for one in ours)
            asked[request.template] += len(ours)
        else:
            over = sum(one["result"] == "fail" or one["name"] in gone for one in machines)
            asked[request.template] += max(0, request.count - over)
    return Ours(asked, running, settled)


class Step(NamedTuple):
    """The machines that a step requests and returns by calls of scripts."""

    returns: Sequence[str]
    """Machines to return, with one call."""
    requests: Mapping[str, int]
    """Number of machines to request by template, with one call for each template. These calls come after the
    returns."""
    reasons: Sequence[str]
    """Sentences for operators: what the step does, and why it does no more."""
    levels: Levels
    """The ``levels`` to pass to the next step."""


def plan_step(wish: Wish, ours: Ours, lost: Mapping[str, int], settings: Demand, levels: Levels, now: float) -> Step:
    """Return the machines that this step requests and returns.

    ``lost``: seconds left for each machine that HostFactory has to return; 0 for a machine that is gone. ``levels``:
    the numbers of machines that were wanted lately, from the result of the previous step; empty for the first step
    after a start. ``now``: epoch seconds.
    """
    running = Counter(one.template for one in ours.running.values())
    shares = Counter({template: max(1, int(settings.fall_share * number)) for template, number in running.items()})
    returns = _find_leaving(wish, ours, lost, shares)
    reasons = [f"returns {len(returns)} machines that are lost or have to leave"] * bool(returns)
    leaving = Counter(ours.running[name].template for name in returns)
    free = _find_free(wish, ours, lost, now - settings.minimum_age_seconds)
    requests, kept = dict[str, int](), dict[str, Sequence[tuple[float, int]]]()
    since = now - settings.fall_after_seconds
    for template in {**wish.wanted, **ours.asked}:
        wanted, asked = wish.wanted.get(template, 0), ours.asked.get(template, 0) - leaving[template]
        frozen = wish.frozen.get(template, "" if template in wish.wanted else UNDECIDED)
        if not frozen or template in levels:  # the last numbers of a source that fails stay in force
            past = [*levels.get(template, ()), (now, wanted)]
            kept[template] = past[max(0, bisect(past, (since, math.inf)) - 1) :]
        if wanted > asked:
            requests[template] = min(wanted - asked, settings.rise_at_once, SLOT_BLOCK)
            reasons.append(f"{template}: requests {requests[template]}, because {wanted} are wanted, {asked} requested")
        elif wanted < asked and frozen:
            reasons.append(f"{template}: keeps {asked} machines ({wanted} wanted), because {frozen}")
        elif wanted < asked:
            times, numbers = zip(*kept[template], strict=True)
            surplus = max(0, asked - max(numbers)) if times[0] <= since else 0
            own = [name for name in free if ours.running[name].template == template]
            chosen = own[: min(surplus, shares[template])]
            returns += chosen
            reasons.append(
                f"{template}: {wanted} are wanted, {asked} requested; {surplus} were too many for "
                f"{settings.fall_after_seconds:g} s, {len(own)} are free; returns {len(chosen)}"
            )
    return Step(returns, requests, reasons, kept)


def _find_leaving(wish: Wish, ours: Ours, lost: Mapping[str, int], shares: Counter[str]) -> list[str]:
    """Return machines that are gone, and free machines that have to leave, the soonest end first.

    ``shares``: the number of machines that may still leave, by template. Each leaving machine reduces this number.
    """
    leaving = []
    for name in sorted(lost.keys() & ours.settled, key=lambda name: (lost[name], name)):
        template = ours.running[name].template
        if not lost[name] or (shares[template] and _is_free(name, wish, ours)):
            shares[template] -= bool(lost[name])
            leaving.append(name)
    return leaving


def _is_free(name: str, wish: Wish, ours: Ours) -> bool:
    """Return True if the machine is idle. If no source knows the machines of its template, any machine may be returned,
    so the result is also True."""
    return name in wish.idle.get(ours.running[name].template, {name})


def _find_free(wish: Wish, ours: Ours, lost: Mapping[str, int], youngest: float) -> Sequence[str]:
    """Return the machines that may be returned, the longest idle first. Of equally idle machines the oldest comes
    first. ``youngest``: machines that started after this moment are left out."""
    settled = {name: ours.running[name] for name in ours.settled - lost.keys()}
    free = [name for name, one in settled.items() if one.since <= youngest and _is_free(name, wish, ours)]
    idle = {name: wish.idle.get(settled[name].template, {}).get(name, 0.0) for name in free}
    return sorted(free, key=lambda name: (-idle[name], settled[name].since, name))

"""The last value of each source, and the wish that follows from all of them. No I/O, no clock, no log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from provisioner.demand.settings import Demand, TemplateDemand
from provisioner.demand.sources import Reading
from provisioner.names import NO_TEMPLATE

STEADY = 2
"""Successful reads in a row after which machines may be returned because of a source."""


UNDECIDED = "no source decides about the template"


@dataclass(frozen=True, slots=True)
class LastValue:
    """The last complete reading of a source, and what has happened to the reads since."""

    templates: Set[str] = frozenset()
    """The templates about which the source decides: those of its settings, and those that it has named since. Empty for
    all templates."""
    reading: Reading | None = None
    """The last reading, which stays while later reads fail; None before the first success."""
    read_at: float | None = None
    """Epoch seconds of the last success; None before it."""
    problem: str = ""
    """Reason for which the last read failed; empty if the last read succeeded."""
    failures: int = 0
    """Failed reads since the start of the process."""
    successes: int = 0
    """Successful reads since the last failure."""
    unconfirmed: Set[str] = frozenset()
    """Templates whose number was 0 only in the last read. Their earlier number still counts."""

    def after_reading(self, reading: Reading, now: float) -> LastValue:
        """Return the value after a successful read. A number that falls to 0 counts when the next read confirms it."""
        before = self.reading.wanted if self.reading else {}
        zeros = {template for template, number in before.items() if number and not reading.wanted.get(template)}
        unconfirmed = frozenset(zeros - self.unconfirmed)
        wanted = {**reading.wanted, **{template: before[template] for template in unconfirmed}}
        return replace(
            self,
            templates=self.templates and self.templates | wanted.keys(),
            reading=reading._replace(wanted=wanted),
            read_at=now,
            problem="",
            successes=self.successes + 1,
            unconfirmed=unconfirmed,
        )

    def after_failure(self, problem: str) -> LastValue:
        """Return the value after a failed read."""
        return replace(self, problem=problem, failures=self.failures + 1, successes=0, unconfirmed=frozenset())

    @property
    def idle(self) -> Mapping[str, float] | None:
        """Return the machines that are idle now; none if the source does not answer, because it may have given work to
        a machine since its last reading. Return None if the source knows no machines."""
        if self.reading is not None and (self.reading.idle is None or not self.problem):
            return self.reading.idle
        return {}

    def decides(self, template: str) -> bool:
        """Return True if the source decides about a template. Each source decides about machines whose template was
        lost with the state: none are wanted."""
        return not self.templates or template in self.templates or template == NO_TEMPLATE


class Wish(NamedTuple):
    """The machines that all sources together want."""

    wanted: dict[str, int]
    """By template, for the templates that a source decides about or that have ``least`` machines."""
    frozen: dict[str, str]
    """Reason for which no machine of a template is returned, by template. Templates that may fall are left out."""
    idle: dict[str, Mapping[str, float]]
    """Machines that have no work by the present readings, and their idle seconds, by template. A template is left out
    if no source knows its machines; then any machine of the template may be returned."""


def combine(values: Mapping[str, LastValue], limits: Mapping[str, int], settings: Demand) -> Wish:
    """Return the wish. ``values``: by source. ``limits``: the most machines of each template by HostFactory's file."""
    wish = Wish({}, {}, {})
    for template, limit in limits.items():
        deciding = {name: value for name, value in values.items() if value.decides(template)}
        own = settings.templates.get(template, TemplateDemand())
        if reason := _find_hindrance(deciding):
            wish.frozen[template] = reason
        if not deciding and not own.least:
            continue
        numbers = [value.reading.wanted.get(template, 0) for value in deciding.values() if value.reading]
        number = (max if settings.combine == "max" else sum)(numbers or [0])
        wish.wanted[template] = min(max(number, own.least), limit, limit if own.most is None else own.most)
        if known := [value.idle for value in deciding.values() if value.idle is not None]:
            wish.idle[template] = _idle_everywhere(known)
    return wish


def _find_hindrance(deciding: Mapping[str, LastValue]) -> str:
    """Return why no machine of a template may be returned; empty if machines may be returned. ``deciding``: the sources
    that decide about the template."""
    for name, value in deciding.items():
        if value.successes < STEADY:
            return f"source {name} {f'failed: {value.problem}' if value.problem else 'is new'}"
    return "" if deciding else UNDECIDED


def _idle_everywhere(known: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the machines that are idle by each source, with the shortest time."""
    return {name: min(idle[name] for idle in known) for name in set[str].intersection(*map(set, known))}

"""What became of many runs, as a document: summaries, goals, broken laws. No I/O, no clock, no logger."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from provisioner.lab.virtual.measured import MEASURES
from provisioner.lab.virtual.run import Provisioner, Result
from provisioner.lab.virtual.scenario import Scenario

VERSION = 1
"""Of the document; it rises when a key changes its meaning or goes."""

OURS = Provisioner.name


class Goal(NamedTuple):
    """The limit that a scenario sets for a measure, and the worst value of all seeds."""

    name: str
    most: float
    worst: float | None
    """The worst value of all seeds; None when a seed never came to one."""

    @property
    def met(self) -> bool:
        """True when every seed kept the limit."""
        return self.worst is not None and self.worst <= self.most


class Told(NamedTuple):
    """The reason that a scenario wants people to be told, and in how many seeds they were."""

    reason: str
    seeds: int
    """In how many seeds people were told the reason."""
    of: int

    @property
    def met(self) -> bool:
        """True when people were told in every seed."""
        return self.seeds == self.of


@dataclass
class Report:
    """Results, as far as there are any."""

    scenarios: Mapping[str, Scenario]
    _results: dict[str, dict[str, list[Result]]] = field(default_factory=dict)
    """The results by scenario and controller, in the order in which runs ended."""

    def add(self, result: Result) -> None:
        """A run has ended."""
        self._results.setdefault(result.scenario, {}).setdefault(result.controller, []).append(result)

    def played(self) -> list[str]:
        """The scenarios of which there are results, in order."""
        return [name for name in self.scenarios if name in self._results]

    def ended(self) -> int:
        """How many runs there are results of."""
        return sum(len(results) for controllers in self._results.values() for results in controllers.values())

    def controllers(self, scenario: str) -> list[str]:
        """The controllers that played the scenario, the provisioner first."""
        return sorted(self._results[scenario], key=lambda name: (name != OURS, name.lower()))

    def of(self, scenario: str, controller: str = OURS) -> list[Result]:
        """The results of a scenario with one controller, in the order of seeds."""
        return sorted(self._results[scenario].get(controller, ()), key=lambda result: result.seed)

    def forget_samples(self, scenario: str) -> None:
        """Forget the samples of a scenario whose picture is drawn: those of thousands of runs would fill the memory."""
        for results in self._results[scenario].values():
            results[:] = [replace(result, samples=()) for result in results]

    def goals(self, scenario: str) -> list[Goal]:
        """The goals of a scenario; none where the provisioner has not played it."""
        results = self.of(scenario)
        goals = self.scenarios[scenario].goals.items() if results else ()
        return [Goal(name, most, worst(values(results, name))) for name, most in goals]

    def told(self, scenario: str, controller: str = OURS) -> Told | None:
        """None where no reason is asked for."""
        reason, results = self.scenarios[scenario].reason, self.of(scenario, controller)
        return Told(reason, sum(reason in result.reasons for result in results), len(results)) if reason else None

    def broken(self) -> list[Result]:
        """Runs of the provisioner in which a law was broken."""
        return [result for name in self.played() for result in self.of(name) if result.broken]

    def fine(self) -> bool:
        """The provisioner broke no law and missed no goal."""
        told = [self.told(name) for name in self.played() if self.of(name)]
        goals = [goal.met for name in self.played() for goal in self.goals(name)]
        return not self.broken() and all(goals) and all(one.met for one in told if one is not None)


def values(results: Iterable[Result], measure: str) -> list[float | None]:
    """The value of a measure in each result; None where the run never came to one."""
    return [result.measures.get(measure) for result in results]


def worst(numbers: Sequence[float | None]) -> float | None:
    """The largest; None if there is none or one was never reached."""
    return percentile(numbers, 1.0)


def percentile(numbers: Sequence[float | None], share: float) -> float | None:
    """The least number that a ``share`` of the numbers does not exceed. None counts as larger than any number."""
    if not numbers:
        return None
    ranked = sorted(math.inf if number is None else number for number in numbers)
    value = ranked[max(0, math.ceil(share * len(ranked)) - 1)]
    return None if value == math.inf else value


def middle(results: Sequence[Result]) -> Result:
    """The one with the median time until 90 % are usable, and of equal ones the median cost."""

    def rank(result: Result) -> tuple[float, ...]:
        until, cost = result.measures.get("t90"), result.measures.get("cost")
        return (math.inf if until is None else until, math.inf if cost is None else cost, result.seed)

    return sorted(results, key=rank)[(len(results) - 1) // 2]


def document(report: Report, *, interrupted: bool = False) -> dict[str, Any]:
    """All results. Its keys: docs/pressure.md."""
    return {
        "version": VERSION,
        "interrupted": interrupted,
        "fine": report.fine(),
        "scenarios": {name: _scenario(report, name) for name in report.played()},
    }


def _scenario(report: Report, name: str) -> dict[str, Any]:
    told = report.told(name)
    return {
        "about": report.scenarios[name].about,
        "goals": {goal.name: {"most": goal.most, "worst": goal.worst, "met": goal.met} for goal in report.goals(name)},
        "reason": None if told is None else {"asked": told.reason, "seeds": told.seeds, "met": told.met},
        "controllers": {
            controller: _controller(report.of(name, controller)) for controller in report.controllers(name)
        },
    }


def _controller(results: Sequence[Result]) -> dict[str, Any]:
    measured = [name for name in MEASURES if any(name in result.measures for result in results)]
    return {
        "summary": {
            name: {"p50": percentile(values(results, name), 0.5), "p95": percentile(values(results, name), 0.95)}
            for name in measured
        },
        "runs": {
            str(result.seed): {
                "measures": dict(result.measures),
                "broken": list(result.broken),
                "reasons": list(result.reasons),
            }
            for result in results
        },
    }

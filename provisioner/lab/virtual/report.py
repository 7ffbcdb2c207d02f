"""The results of many runs as a JSON object: summaries, goals, broken laws. The functions are pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from provisioner.lab.virtual.measures import MEASURES
from provisioner.lab.virtual.run import Provisioner, Result
from provisioner.lab.virtual.scenario import Scenario

VERSION = 1
"""Version of the JSON object. The version rises when a key is removed or gets another meaning."""

OURS = Provisioner.name


class Goal(NamedTuple):
    """The limit that a scenario sets for a measure, and the worst value over all seeds."""

    name: str
    most: float
    worst: float | None
    """The worst value over all seeds; None if the measure has no value for some seed."""

    @property
    def met(self) -> bool:
        """Return True if the worst value is within the limit."""
        return self.worst is not None and self.worst <= self.most


class ReasonGoal(NamedTuple):
    """A goal of a scenario: each run must report a certain class of failure as a reason for missing machines."""

    reason: str
    seeds: int
    """The number of runs in which the reason was reported."""
    runs: int

    @property
    def met(self) -> bool:
        """Return True if the reason was reported in every run."""
        return self.seeds == self.runs


@dataclass
class Report:
    """The results of many runs, and the conclusions from them."""

    scenarios: Mapping[str, Scenario]
    _results: dict[str, dict[str, list[Result]]] = field(default_factory=dict)
    """The results by scenario and controller, in the order in which the runs ended."""

    def add(self, result: Result) -> None:
        """Add the result of a run that has ended."""
        self._results.setdefault(result.scenario, {}).setdefault(result.controller, []).append(result)

    def played(self) -> list[str]:
        """Return the scenarios that have results, in the order of ``scenarios``."""
        return [name for name in self.scenarios if name in self._results]

    def ended(self) -> int:
        """Return the number of runs that have results."""
        return sum(len(results) for controllers in self._results.values() for results in controllers.values())

    def controllers(self, scenario: str) -> list[str]:
        """Return the controllers that played the scenario, the provisioner first."""
        return sorted(self._results[scenario], key=lambda name: (name != OURS, name.lower()))

    def results(self, scenario: str, controller: str = OURS) -> list[Result]:
        """Return the results of a controller in a scenario, in the order of the seeds."""
        return sorted(self._results[scenario].get(controller, ()), key=lambda result: result.seed)

    def forget_samples(self, scenario: str) -> None:
        """Drop the samples of a scenario whose picture is drawn. The samples of thousands of runs would fill the
        computer's memory."""
        for results in self._results[scenario].values():
            results[:] = [replace(result, samples=()) for result in results]

    def goals(self, scenario: str) -> list[Goal]:
        """Return the goals of a scenario; empty if the provisioner has not played the scenario."""
        results = self.results(scenario)
        goals = self.scenarios[scenario].goals.items() if results else ()
        return [Goal(name, most, worst(values(results, name))) for name, most in goals]

    def reason_goal(self, scenario: str, controller: str = OURS) -> ReasonGoal | None:
        """Return the reason that the scenario's runs should report, and how many runs reported it.

        Return None if the scenario expects no reason.
        """
        reason, results = self.scenarios[scenario].reason, self.results(scenario, controller)
        return ReasonGoal(reason, sum(reason in result.reasons for result in results), len(results)) if reason else None

    def broken(self) -> list[Result]:
        """Return the runs of the provisioner in which a law was broken."""
        return [result for name in self.played() for result in self.results(name) if result.broken]

    def is_fine(self) -> bool:
        """Return True if the provisioner broke no law and missed no goal."""
        reason_goals = [self.reason_goal(name) for name in self.played() if self.results(name)]
        goals = [goal.met for name in self.played() for goal in self.goals(name)]
        return not self.broken() and all(goals) and all(one.met for one in reason_goals if one is not None)


def values(results: Iterable[Result], measure: str) -> list[float | None]:
    """Return the value of a measure in each result; None for a result in which the measure has no value."""
    return [result.measures.get(measure) for result in results]


def worst(numbers: Sequence[float | None]) -> float | None:
    """Return the largest number. Return None if there are no numbers, or if one of the numbers is None."""
    return percentile(numbers, 1.0)


def percentile(numbers: Sequence[float | None], share: float) -> float | None:
    """Return the percentile ``share`` (0 to 1) of the numbers. None counts as infinitely large.

    Return None if the percentile is infinite, or if there are no numbers.
    """
    if not numbers:
        return None
    ranked = sorted(math.inf if number is None else number for number in numbers)
    value = ranked[max(0, math.ceil(share * len(ranked)) - 1)]
    return None if value == math.inf else value


def middle(results: Sequence[Result]) -> Result:
    """Return the result with the median of ``t90``. Results with the same ``t90`` are ordered by ``cost``, then by
    seed."""

    def rank(result: Result) -> tuple[float, ...]:
        until, cost = result.measures.get("t90"), result.measures.get("cost")
        return (math.inf if until is None else until, math.inf if cost is None else cost, result.seed)

    return sorted(results, key=rank)[(len(results) - 1) // 2]


def document(report: Report, *, interrupted: bool = False) -> dict[str, Any]:
    """Return all results as a JSON object, whose keys docs/pressure.md describes. ``interrupted``: True if some runs
    were not played."""
    return {
        "version": VERSION,
        "interrupted": interrupted,
        "fine": report.is_fine(),
        "scenarios": {name: _scenario(report, name) for name in report.played()},
    }


def _scenario(report: Report, name: str) -> dict[str, Any]:
    wanted = report.reason_goal(name)
    return {
        "about": report.scenarios[name].about,
        "goals": {goal.name: {"most": goal.most, "worst": goal.worst, "met": goal.met} for goal in report.goals(name)},
        "reason": None if wanted is None else {"asked": wanted.reason, "seeds": wanted.seeds, "met": wanted.met},
        "controllers": {
            controller: _controller(report.results(name, controller)) for controller in report.controllers(name)
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

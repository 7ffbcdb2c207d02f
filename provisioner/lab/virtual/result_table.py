"""The results of many runs, as tables for a terminal.

Each scenario has a table with a row for each controller. In a comparison, a table shows two scenarios side by side.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from provisioner.lab.virtual.measures import AMOUNTS, LAWS, MEASURES, TIMES
from provisioner.lab.virtual.report import OURS, Goal, ReasonGoal, Report, percentile, values
from provisioner.lab.virtual.run import Result

OURS_ALONE = frozenset({"orphan", "answer", "hold"})
"""Laws that only the provisioner can break, because other controllers have neither slots nor answers."""

MOST_BROKEN = 5
"""Maximum number of runs with broken laws that are shown. The JSON output has all of them."""

BROKEN_LINES = 3
"""Maximum number of lines about broken laws that are shown for a run."""

WIDEST = 1000
"""Columns of a console that is wider than every table. So no line is cut off in a file."""


def wide(console: Console) -> Console:
    """Return a console that writes to the same output but cuts off no table, however wide the table is."""
    return Console(file=console.file, width=WIDEST, highlight=False)


def report_text(report: Report, repeat: Callable[[str], str]) -> Group:
    """Return the tables of all scenarios, then the broken laws.

    ``repeat``: a function that returns the command-line argument that plays a scenario again.
    """
    blocks = [_block(report, name) for name in report.played()]
    return Group(*blocks, *_broken_lines(report.broken(), repeat), _verdict(report))


# --- one block a scenario ---------------------------------------------------------------------------------------------


def _block(report: Report, scenario: str) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for measure in (*TIMES, *AMOUNTS, *LAWS):
        table.add_column(MEASURES[measure].heading, justify="right", no_wrap=True)
    table.add_column("reason\nreported", justify="right")
    for controller in report.controllers(scenario):
        table.add_row(controller, *_cells(report, scenario, controller))
    seeds = sorted(
        {result.seed for controller in report.controllers(scenario) for result in report.results(scenario, controller)}
    )
    title = Text.assemble((scenario, "bold"), f": {report.scenarios[scenario].about} ", (_seeds(seeds), "dim"))
    return Group(title, table, *_goal_lines(report, scenario), Text())


def _seeds(seeds: Sequence[int]) -> str:
    return f"(seed {seeds[0]})" if len(seeds) == 1 else f"({len(seeds)} seeds from {seeds[0]}: p50, p95)"


def _cells(report: Report, scenario: str, controller: str) -> Iterator[str]:
    results = report.results(scenario, controller)
    for measure in (*TIMES, *AMOUNTS):
        yield _spread(results, measure)
    for law in LAWS:
        judged = controller == OURS or law not in OURS_ALONE
        yield f"{sum(value or 0 for value in values(results, law)):.0f}" if judged else "-"
    reason_goal = report.reason_goal(scenario, controller) if controller == OURS else None
    yield "-" if reason_goal is None else f"{reason_goal.seeds}/{reason_goal.runs}"


def _spread(results: Sequence[Result], measure: str) -> str:
    """Return the median over the seeds. If the 95th percentile differs, return it on a second line."""
    numbers = values(results, measure)
    cells = [number_text(measure, percentile(numbers, share)) for share in (0.5, 0.95)]
    return "\n".join(dict.fromkeys(cells))


def number_text(measure: str, number: float | None) -> str:
    """Return a number as the table shows it; "never" for None."""
    return "never" if number is None else f"{number:,.{MEASURES[measure].digits}f}"


def _goal_lines(report: Report, scenario: str) -> Iterator[Text]:
    reason_goal = report.reason_goal(scenario) if report.results(scenario) else None
    goals: list[Goal | ReasonGoal] = [*report.goals(scenario), *([] if reason_goal is None else [reason_goal])]
    for goal in goals:
        mark, style = ("✓ met   ", "green") if goal.met else ("✗ MISSED", "bold red")
        yield Text.assemble((f"  {mark} ", style), _goal_text(goal))


def _goal_text(goal: Goal | ReasonGoal) -> str:
    if isinstance(goal, ReasonGoal):
        return f"{goal.reason} is reported as the reason: in {goal.seeds} of {goal.runs} seeds"
    most, worst = number_text(goal.name, goal.most), number_text(goal.name, goal.worst)
    return f"{goal.name} at most {most}: {worst} in the worst seed"


# --- what was broken --------------------------------------------------------------------------------------------------


def _broken_lines(results: Sequence[Result], repeat: Callable[[str], str]) -> Iterator[Text]:
    for result in results[:MOST_BROKEN]:
        yield Text(f"{result.scenario}, seed {result.seed}: a law was broken", style="bold red")
        for text in [line for broken in result.broken for line in broken.splitlines()][:BROKEN_LINES]:
            yield Text(f"  {text}")
        again = f"provisioner simulate {shlex.quote(repeat(result.scenario))} --first-seed {result.seed} --seeds 1"
        yield Text(f"  Again: {again}")
    if len(results) > MOST_BROKEN:
        yield Text(f"{len(results) - MOST_BROKEN} more runs broke a law; -o json and --out name them all.")


def _verdict(report: Report) -> Text:
    runs = sum(len(report.results(name)) for name in report.played())
    goals = [goal.met for name in report.played() for goal in report.goals(name)]
    reason_goals = [report.reason_goal(name) for name in report.played() if report.results(name)]
    goals += [one.met for one in reason_goals if one is not None]
    text = f"{runs} runs of the provisioner: laws broken in {len(report.broken())}, goals missed {goals.count(False)}"
    return Text(f"{text} of {len(goals)}.", style="green" if report.is_fine() else "bold red")


# --- two side by side -------------------------------------------------------------------------------------------------


def comparison_text(report: Report, pairs: Sequence[Sequence[str]], repeat: Callable[[str], str]) -> Group:
    """Return a table for each pair of scenarios: the provisioner's numbers in both, and the difference between the
    second and the first. ``repeat``: see ``report_text``."""
    tables = [_comparison(report, one, other) for one, other in pairs if {one, other} <= set(report.played())]
    return Group(*tables, *_broken_lines(report.broken(), repeat), _verdict(report))


def _comparison(report: Report, one: str, other: str) -> RenderableType:
    first, second = report.results(one), report.results(other)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for name in (one, other):
        table.add_column(f"{name}\np50", justify="right")
        table.add_column("\np95", justify="right")
    table.add_column("difference\nmedian over seeds", justify="right")
    for measure in MEASURES:
        numbers = [
            number_text(measure, percentile(values(results, measure), share))
            for results in (first, second)
            for share in (0.5, 0.95)
        ]
        table.add_row(measure, *numbers, _difference(first, second, measure))
    lines = [line for name in (one, other) for line in (Text(f"{name}:"), *_goal_lines(report, name))]
    return Group(table, *(lines if report.goals(one) or report.goals(other) else ()), Text())


def _difference(first: Sequence[Result], second: Sequence[Result], measure: str) -> str:
    """Return the median of the differences between runs with the same seed. A seed is left out if one of its two runs
    has no value."""
    before = {result.seed: result.measures.get(measure) for result in first}
    pairs = [(before.get(result.seed), result.measures.get(measure)) for result in second]
    both = [(one, other) for one, other in pairs if one is not None and other is not None]
    more = percentile([other - one for one, other in both], 0.5)
    if more is None:
        return "-"
    base = percentile([one for one, _ in both], 0.5)
    part = f" ({more / base:+.0%})" if base else ""
    same = number_text(measure, abs(more)) == number_text(measure, 0.0)
    return "=" if same else f"{more:+,.{MEASURES[measure].digits}f}{part}"

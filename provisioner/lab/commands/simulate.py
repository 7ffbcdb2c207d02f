"""The command ``provisioner simulate``: run the loop in virtual time under faults.

The command judges the loop and compares it with the formulas of other programs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.commands.shared_options import FINE, PROBLEM, UsageError, add_shared, allow_drawing, show
from provisioner.process_end import INTERRUPTED, interruptible

if TYPE_CHECKING:
    from provisioner.lab.virtual.parallel_runs import Run
    from provisioner.lab.virtual.report import Report
    from provisioner.lab.virtual.scenario_choice import Chosen

SEEDS = 5
"""Default number of seeds. Five runs show how much the measured numbers vary, and take little time. Tests judge the
laws over hundreds of seeds."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``provisioner simulate``."""
    command.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        help="a name in the catalogue, your own file (FILE.yaml), or one scenario in it (FILE.yaml:NAME); "
        "default: the whole catalogue",
    )
    command.add_argument("--list", action="store_true", help="print the names and descriptions of the catalogue")
    command.add_argument("--show", metavar="NAME", help="print a scenario of the catalogue as an example")
    command.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="compare two scenarios with the same seeds, without other programs",
    )
    command.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"runs per scenario; default {SEEDS}")
    command.add_argument("--first-seed", type=int, default=1, metavar="S", help="seed of the first run; default 1")
    command.add_argument("--jobs", type=int, metavar="N", help="number of processes; default: one for each processor")
    command.add_argument(
        "--baselines",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="add the formulas of other programs to the table; default yes",
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="write results.json and the pictures to DIR")
    add_shared(command, "output")


def run(options: argparse.Namespace) -> int:
    """Simulate, and return the exit code. PROBLEM means that a law was broken or a goal was missed.

    Raises ConfigError, UsageError, MissingExtra.
    """
    from provisioner.lab.virtual.scenario_choice import UnknownScenario

    try:
        if options.list:
            return _list(options)
        if options.show is not None:
            return _show(options.show)
        return _simulate(options)
    except UnknownScenario as error:
        raise UsageError(str(error)) from error


def _list(options: argparse.Namespace) -> int:
    from provisioner.lab.virtual.scenario_file import catalogue

    abouts = {name: scenario.about for name, scenario in catalogue().items()}
    width = max(map(len, abouts))
    return show(options, abouts, lambda _: (f"{name:<{width}}  {text}" for name, text in abouts.items()))


def _show(name: str) -> int:
    from provisioner.lab.virtual.scenario_choice import written

    print(written(name))
    return FINE


def _simulate(options: argparse.Namespace) -> int:
    """Play all runs and print the report. After Ctrl-C, report the runs that have ended."""
    from provisioner.lab.virtual.report import Report, document
    from provisioner.lab.virtual.scenario_choice import choose, pairs

    _check(options)
    sides = pairs(*options.compare) if options.compare else []
    chosen = {one.scenario.name: one for pair in sides for one in pair} or choose(options.scenarios)
    draw = _drawing(options.out)
    report = Report({name: one.scenario for name, one in chosen.items()})
    runs = _runs(options, chosen)
    interrupted = not _play(report, runs, options.jobs or os.cpu_count() or 1, draw)
    results = document(report, interrupted=interrupted)
    if sides:
        results["compare"] = [[one.scenario.name, other.scenario.name] for one, other in sides]
    if options.out:
        (options.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    if options.output == "json":
        print(json.dumps(results, indent=2))
    else:
        _print(report, chosen, results.get("compare"))
    if interrupted:
        print(f"Ended by Ctrl-C after {report.ended()} of {len(runs)} runs.", file=sys.stderr)
        return INTERRUPTED
    return FINE if results["fine"] else PROBLEM


def _check(options: argparse.Namespace) -> None:
    if options.seeds < 1 or options.first_seed < 0 or (options.jobs is not None and options.jobs < 1):
        raise UsageError("--seeds and --jobs have to be at least 1, --first-seed at least 0")
    if options.compare and options.scenarios:
        raise UsageError("--compare names its two scenarios itself; leave out the others")


def _runs(options: argparse.Namespace, chosen: Mapping[str, Chosen]) -> list[Run]:
    """Return the runs, ordered by scenario, so that the command can draw the picture of a scenario as soon as all its
    runs have ended."""
    from provisioner.lab.virtual.parallel_runs import CONTROLLERS, Run

    controllers = list(CONTROLLERS) if options.baselines and not options.compare else list(CONTROLLERS)[:1]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    drawn = options.out is not None
    return [
        Run(one.scenario, seed, controller, drawn)
        for one in chosen.values()
        for controller in controllers
        for seed in seeds
    ]


def _drawing(directory: Path | None) -> Callable[[Report, str], None]:
    """Return a function that draws the picture of a scenario. If ``directory`` is None, the function draws nothing.

    This call makes the directory and tests it before the runs begin. Raises UsageError if the directory cannot be used.
    """
    if directory is None:
        return lambda report, scenario: None
    from provisioner.lab.virtual.plots import draw

    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "results.json").touch()
    except OSError as error:
        raise UsageError(f"--out {directory}: {error.strerror or error}") from error
    return lambda report, scenario: draw(report, scenario, directory / re.sub(r"[^\w.-]+", "_", scenario))


def _play(report: Report, runs: Sequence[Run], jobs: int, draw: Callable[[Report, str], None]) -> bool:
    """Add the result of each run to the report. Return True if all runs were played to the end, and False after
    Ctrl-C."""
    from rich.console import Console

    from provisioner.lab.virtual.parallel_runs import play_all
    from provisioner.lab.virtual.progress import progress

    allow_drawing()
    left = dict.fromkeys((run.scenario.name for run in runs), len(runs) // len(report.scenarios))
    try:
        with (
            interruptible(),
            closing(play_all(runs, jobs)) as results,
            progress(len(runs), Console(stderr=True)) as played,
        ):
            for result in results:
                report.add(result)
                played(result)
                left[result.scenario] -= 1
                if not left[result.scenario]:
                    draw(report, result.scenario)
                    report.forget_samples(result.scenario)
    except KeyboardInterrupt:
        return False
    return True


def _print(report: Report, chosen: Mapping[str, Chosen], compared: Any) -> None:
    from rich.console import Console

    from provisioner.lab.virtual.result_table import comparison_text, report_text, wide

    def repeat(name: str) -> str:
        return chosen[name].argument

    allow_drawing()
    console = wide(Console())
    console.print(comparison_text(report, compared, repeat) if compared else report_text(report, repeat))

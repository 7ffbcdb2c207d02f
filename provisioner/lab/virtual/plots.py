"""A picture for each scenario: the machines that are wanted, running and pending, and the window.

The same results give a file with the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from provisioner.lab.virtual.report import OURS, Report, middle
from provisioner.lab.virtual.run import Result
from provisioner.lab.virtual.true_events import MINUTE, Sample
from provisioner.model import HOUR

logging.getLogger("matplotlib").setLevel(logging.WARNING)

Lines = dict[str, tuple[str, dict[str, Any]]]
"""Label and style of a line, by the field of ``Sample`` that the line shows."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "provisioner",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
MACHINES: Lines = {
    "wanted": ("wanted", {"color": "black", "linewidth": 2.2, "alpha": 0.35}),
    "usable": ("usable", {"color": "#0b3d91", "linewidth": 1.8}),
    "running": ("running", {"color": "#2e86c1", "linewidth": 1.2, "linestyle": "--"}),
}
COMING: Lines = {
    "pending": ("pending", {"color": "#b03a2e", "linewidth": 1.4}),
    "window": ("window", {"color": "#555555", "linewidth": 1.2, "linestyle": ":"}),
}
"""The lines in the lower part of the picture. The lines differ in form and lightness, so that readers can distinguish
them without colours."""

OTHERS = ((0, (1, 1)), (0, (4, 2)), (0, (6, 1, 1, 1)))
"""Dashes of the lines of the other controllers."""

MOST_IN_MINUTES = 3 * HOUR
"""Seconds of the longest run whose time axis is in minutes. The axis of a longer run is in hours."""


def draw(report: Report, scenario: str, path: Path) -> None:
    """Write the picture of a scenario to two files, ``path``.png and ``path``.svg. The picture shows the run with the
    median result."""
    with matplotlib.rc_context(STYLE):
        figure = _figure(report, scenario)
        FigureCanvasAgg(figure)
        figure.savefig(f"{path}.png", dpi=120, metadata={"Software": None})
        figure.savefig(f"{path}.svg", metadata={"Date": None, "Creator": None})


def _figure(report: Report, scenario: str) -> Figure:
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1.4])
    drawn = {controller: middle(report.results(scenario, controller)) for controller in report.controllers(scenario)}
    unit, name = (MINUTE, "minutes") if report.scenarios[scenario].seconds <= MOST_IN_MINUTES else (HOUR, "hours")
    others = [result for controller, result in drawn.items() if controller != OURS]
    for result, dashes in zip(others, OTHERS, strict=False):
        style = {"color": "#888888", "linewidth": 0.9, "linestyle": dashes}
        _line(above, result.samples, unit, ("running", f"running, {result.controller}", style))
    if OURS in drawn:
        for axes, lines in ((above, MACHINES), (below, COMING)):
            for key, (label, style) in lines.items():
                _line(axes, drawn[OURS].samples, unit, (key, label, style))
    _label(above, below, name, _title(scenario, drawn.get(OURS)))
    return figure


def _line(axes: Axes, samples: Sequence[Sample], unit: float, line: tuple[str, str, dict[str, Any]]) -> None:
    key, label, style = line
    times = [sample.at / unit for sample in samples]
    axes.step(times, [getattr(sample, key) for sample in samples], where="post", label=label, **style)


def _title(scenario: str, result: Result | None) -> str:
    return scenario if result is None else f"{scenario}, seed {result.seed}"


def _label(above: Axes, below: Axes, unit: str, title: str) -> None:
    above.set_title(title, loc="left")
    above.set_ylabel("machines")
    below.set_ylabel("machines")
    below.set_xlabel(unit)
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        axes.set_xlim(left=0)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
        if axes.lines:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)

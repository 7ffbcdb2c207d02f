"""Make pictures of the dashboards for docs/images: ``make pictures`` (four minutes; needs prometheus).

The demonstration runs, and a real Prometheus scrapes its metrics. A picture shows each panel's queries at the panel's
place on the board.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import yaml

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator
from PIL import Image

from provisioner.lab.demo import Demo
from provisioner.lab.playground import Playground
from tests.support.clients.prometheus import over, prometheus

ROOT = Path(__file__).parents[2]
BOARDS = ROOT / "deploy" / "grafana"
IMAGES = ROOT / "docs" / "images"
PICTURED = ("fleet", "provisioner", "pool", "edge", "cost")
SECONDS = 190.0
"""Seconds for which the demonstration is repeated, because costs are summed once a minute."""

LONGEST = 30
"""Maximum number of letters of a line's name that are shown."""

NAMED = 9
"""Number of lines whose names are shown: the lines with the highest values."""

WIDTH, ROW, TITLE = 14.0, 0.36, 0.42
"""Sizes in inches: the width of a picture, the height of a row of a board's grid, the height of a panel's title."""

LEGEND = 0.34
"""Share of a panel's height for its legend, which is below the plot so that it covers no line."""

UNITS = {"s": " s", "percentunit": "", "currencyUSD": " USD"}
"""Text after a value, by the panel's unit."""

COLORS = 64
"""Number of colours of a picture. They are enough for lines, and the file has a third of the bytes."""

BACKGROUND, CARD, TEXT, MUTED = "#f4f5f7", "#ffffff", "#1f2329", "#6b7280"


def main() -> None:
    """Run the demonstration, scrape its metrics, and draw the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with (
        Playground() as playground,
        tempfile.TemporaryDirectory() as directory,
        prometheus(Path(directory), [playground.url.removeprefix("http://")]) as address,
    ):
        begin = time.time()
        set_prices(playground.config / "provisioner.yaml")
        while time.time() < begin + SECONDS:
            Demo(playground).play()
        for name in PICTURED:
            print(draw(json.loads((BOARDS / f"{name}.json").read_text()), address, begin, time.time()))


def set_prices(file: Path) -> None:
    """Set prices and a budget, which the loop reads as soon as the file has them."""
    settings = yaml.safe_load(file.read_text())
    for pool, price in zip(settings["pools"].values(), (0.12, 0.04, 0.24, 0.24), strict=True):
        pool["price_per_hour"] = price
    settings["budget"] = {"per_hour": 12, "per_month": 2, "currency": "USD"}
    file.write_text(yaml.safe_dump(settings))


def draw(board: Mapping[str, Any], address: str, begin: float, end: float) -> Path:
    """Draw a board as a PNG, and return the file."""
    lowest = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = plt.figure(figsize=(WIDTH, lowest * ROW + 0.9), facecolor=BACKGROUND)
    figure.text(0.01, 1 - 0.3 / figure.get_figheight(), board["title"], size=15, weight="bold", color=TEXT, va="center")
    row, top = 1 / figure.get_figheight() * ROW, 1 - 0.7 / figure.get_figheight()
    for panel in board["panels"]:
        place = panel["gridPos"]
        plain = panel["type"] in ("row", "stat")
        height = place["h"] * row - (0 if panel["type"] == "row" else TITLE / figure.get_figheight())
        under = 0 if plain else LEGEND * height
        left, width = 0.045 + place["x"] / 24 * 0.945, place["w"] / 24 * 0.945 - 0.045
        bottom = top - (place["y"] + place["h"]) * row + under + 0.05 / figure.get_figheight()
        area = figure.add_axes((left, bottom, width, height - under))
        shown = {"row": heading, "stat": number}.get(panel["type"])
        if shown:
            shown(area, panel, address)
        else:
            lines(area, panel, address, begin, end)
    file = IMAGES / f"dashboard-{board['uid'].removeprefix('hostfactory-')}.png"
    figure.savefig(file, dpi=72, facecolor=BACKGROUND)
    plt.close(figure)
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(COLORS).save(file, optimize=True)
    return file


def chosen(expression: str) -> str:
    """Return the query with all values of the dashboard's variables chosen."""
    return re.sub(r"\$\w+", ".*", expression)


def called(target: Mapping[str, Any], series: Mapping[str, Any]) -> str:
    """Return the name of a line. Like Grafana, make it from the labels of the line's series."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(series["metric"].get(match[1], "")), target["legendFormat"])


def heading(area: Axes, panel: Mapping[str, Any], _: str) -> None:
    """Draw a row's title."""
    area.axis("off")
    area.text(-0.01, 0.1, panel["title"], size=13, weight="bold", color=TEXT)


def number(area: Axes, panel: Mapping[str, Any], address: str) -> None:
    """Draw the newest value, in the colour of its threshold."""
    bare(area, panel)
    target = panel["targets"][0]
    newest = over(address, chosen(target["expr"]), time.time() - 1, time.time())[0]
    value = float(newest["values"][-1][1])
    text = called(target, newest) or f"{value:.3g}"
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    color = next((step["color"] for step in reversed(steps) if step["value"] is None or value >= step["value"]), TEXT)
    area.text(0.5, 0.45, text, size=22, color=color, ha="center", va="center", transform=area.transAxes)
    area.set_xticks([])
    area.set_yticks([])


def lines(area: Axes, panel: Mapping[str, Any], address: str, begin: float, end: float) -> None:
    """Draw the queries over time. The name of a line is in the legend. Lines that are always 0 are drawn as one
    line."""
    bare(area, panel)
    drawn = [
        (called(target, series)[:LONGEST] or "value", by_second(series, begin, end))
        for target in panel["targets"]
        for series in over(address, chosen(target["expr"]), begin, end)
    ]
    risen = [(name, values) for name, values in drawn if any(value > 0 for value in values)]
    for name, values in sorted(risen, key=lambda one: -max(value for value in one[1] if not math.isnan(value))):
        area.plot(values, linewidth=1.6, label=name)
    if not risen:
        area.text(0.5, 0.5, "0 all the time" if drawn else "none", transform=area.transAxes, ha="center", color=MUTED)
        area.set_yticks([])
    area.set_xlim(0, end - begin)
    area.set_ylim(bottom=0)
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    million = 1e6 if unit == "bytes" else 1.0
    shown = " MB" if unit == "bytes" else UNITS.get(unit, "")
    area.yaxis.set_major_formatter(lambda value, _: f"{value / million:.4g}{shown}")
    area.xaxis.set_major_locator(MultipleLocator(60))
    area.xaxis.set_major_formatter(lambda value, _: f"{value / 60:.0f} min")
    area.tick_params(labelsize=8, colors=MUTED, length=0)
    area.grid(axis="y", linewidth=0.5, color="#e5e7eb")
    handles, names = area.get_legend_handles_labels()
    if handles:
        area.legend(
            handles[:NAMED],
            names[:NAMED],
            fontsize=8,
            ncols=3,
            loc="upper left",
            bbox_to_anchor=(-0.01, -0.13),
            frameon=False,
            handlelength=1,
            columnspacing=1.2,
            labelspacing=0.3,
        )


def by_second(series: Mapping[str, Any], begin: float, end: float) -> list[float]:
    """Return a value for each second; NaN while there is a gap."""
    known = {round(moment - begin): float(value) for moment, value in series["values"]}
    return [known.get(second, math.nan) for second in range(round(end - begin))]


def bare(area: Axes, panel: Mapping[str, Any]) -> None:
    """Draw a card with its title."""
    area.set_facecolor(CARD)
    area.set_title(panel["title"], size=10, loc="left", color=TEXT, pad=5)
    for spine in area.spines.values():
        spine.set_color("#e5e7eb")


if __name__ == "__main__":
    sys.exit(main())

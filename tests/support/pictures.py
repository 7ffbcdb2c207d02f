"""Pictures of the dashboards for docs/images: ``make pictures`` (two minutes; needs prometheus).

The demonstration runs, a real Prometheus scrapes it, and each panel's own queries are drawn where the board has it.
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

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image

from provisioner.tools.demo import Demo
from provisioner.tools.playground import Playground
from tests.support.clients.prometheus import over, prometheus

ROOT = Path(__file__).parents[2]
BOARDS = ROOT / "deploy" / "grafana"
IMAGES = ROOT / "docs" / "images"
PICTURED = ("fleet", "provisioner", "pool", "edge")
"""The boards of which two minutes show something."""

ROUNDS = 2
LONGEST = 36
"""Letters of a line's name that are shown."""

COLORS = 64
"""Enough for lines; a picture takes a third of the bytes."""

BACKGROUND, CARD, TEXT, MUTED = "#f4f5f7", "#ffffff", "#1f2329", "#6b7280"


def main() -> None:
    """Run, scrape, draw."""
    IMAGES.mkdir(exist_ok=True)
    with (
        Playground() as playground,
        tempfile.TemporaryDirectory() as directory,
        prometheus(Path(directory), [playground.url.removeprefix("http://")]) as address,
    ):
        begin = time.time()
        for _ in range(ROUNDS):
            Demo(playground).play()
        for name in PICTURED:
            print(draw(json.loads((BOARDS / f"{name}.json").read_text()), address, begin, time.time()))


def draw(board: Mapping[str, Any], address: str, begin: float, end: float) -> Path:
    """One board as a PNG; the file."""
    lowest = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = plt.figure(figsize=(14, lowest * 0.3 + 1), facecolor=BACKGROUND)
    figure.text(0.01, 1 - 0.3 / figure.get_figheight(), board["title"], size=15, weight="bold", color=TEXT, va="center")
    grid = figure.add_gridspec(
        lowest, 24, left=0.035, right=0.99, top=1 - 0.9 / figure.get_figheight(), bottom=0.02, wspace=2.2, hspace=0.25
    )
    for panel in board["panels"]:
        place = panel["gridPos"]
        top, bottom = place["y"], place["y"] + max(1, place["h"] - 2)  # the next panel's title takes the rest
        area = figure.add_subplot(grid[top:bottom, place["x"] : place["x"] + place["w"]])
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
    """The query with everything chosen."""
    return re.sub(r"\$\w+", ".*", expression)


def called(target: Mapping[str, Any], series: Mapping[str, Any]) -> str:
    """A line's name, as Grafana makes it from its labels."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(series["metric"].get(match[1], "")), target["legendFormat"])


def heading(area: Axes, panel: Mapping[str, Any], _: str) -> None:
    """A row's title."""
    area.axis("off")
    area.text(0, 1.4, panel["title"], size=11, weight="bold", color=TEXT)


def number(area: Axes, panel: Mapping[str, Any], address: str) -> None:
    """The newest value, in the colour of its threshold."""
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
    """The queries over time, each line by the name that its legend gives it."""
    bare(area, panel)
    for target in panel["targets"]:
        for series in over(address, chosen(target["expr"]), begin, end):
            name = called(target, series)
            known = {round(moment - begin): float(value) for moment, value in series["values"]}
            values = [known.get(second, math.nan) for second in range(round(end - begin))]  # no line over a gap
            if not all(math.isnan(value) for value in values):
                area.plot(values, linewidth=1.3, label=name[:LONGEST] or "value")
    area.set_xlim(0, end - begin)
    area.set_ylim(bottom=0)
    if panel["fieldConfig"]["defaults"]["unit"] == "bytes":
        area.yaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} MB")
    area.tick_params(labelsize=7, colors=MUTED, length=0)
    area.grid(axis="y", linewidth=0.4, color="#e5e7eb")
    if area.get_legend_handles_labels()[0]:
        area.legend(fontsize=6, ncols=2, loc="upper right", framealpha=0.6, borderpad=0.2, handlelength=1)


def bare(area: Axes, panel: Mapping[str, Any]) -> None:
    """A card with its title."""
    area.set_facecolor(CARD)
    area.set_title(panel["title"], size=9, loc="left", color=TEXT, pad=4)
    for spine in area.spines.values():
        spine.set_color("#e5e7eb")


if __name__ == "__main__":
    sys.exit(main())

"""Play incidents. Each play makes the incident's condition. Then it judges the first screen and the alerts as an
operator would.

An operator knows only that HostFactory's users get too few machines. The first screen has to name the cause and the
right step. It must not offer a step that makes things worse. The exit code of ``provisioner status`` is 1 if an
operator has to act.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.drill.provider_instance import Samples, Site
from tests.support.waiting import PATIENCE, until

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
EVERY = 15
"""Seconds between two scrapes."""
BEFORE = 900
"""Seconds until the condition begins."""
RINGS = 120
"""Seconds within which an alert has to fire."""


@dataclass(frozen=True)
class Incident:
    """An incident of a drill."""

    name: str
    inject: Callable[[Site], None]
    says: str
    """Regular expression for the cause in the first screen."""
    step: str
    """Regular expression for the right step in the first screen; empty if the incident ends by itself."""
    exit_code: int = 1
    alert: str = ""
    """Regular expression for the alerts, one of which has to fire; empty: docs/alerts.md has ``silent``."""
    silent: str = ""
    """The words by which docs/alerts.md explains that no alert fires within two minutes."""
    wrong: str = ""
    """Regular expression for a step that is wrong or makes things worse."""
    seconds: float = 8.0
    """Seconds within which the first screen has to name the cause."""
    begin: int = 3
    """Machines of each pool that run before."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """The outputs that an operator sees during an incident."""

    code: int
    screen: str
    before: Samples
    after: Samples
    later: Samples
    """A scrape a moment after ``after``. All are empty without a loop."""
    scraped: Sequence[float]
    """The times of the three scrapes."""

    def mistakes(self, incident: Incident) -> list[str]:
        """Return the mistakes of the first screen."""
        return [
            *([] if re.search(incident.says, self.screen) else [f"the cause is not named: {incident.says}"]),
            *([] if re.search(incident.step, self.screen) else [f"the right step is missing: {incident.step}"]),
            *([] if self.code == incident.exit_code else [f"exit code {self.code} instead of {incident.exit_code}"]),
            *self.wrong_steps(incident),
        ]

    def wrong_steps(self, incident: Incident) -> list[str]:
        """Return a list with a text about the wrong step that the first screen offers. The list is empty if the screen
        offers none."""
        offered = re.search(incident.wrong, self.screen) if incident.wrong else None
        return [f"a wrong step is offered: {offered[0]}"] if offered else []


def play(incident: Incident, directory: Path) -> Seen:
    """Play one incident until the first screen has no mistakes, or until time is up. Return the last screen, and the
    metrics of that time."""
    with Site(directory, settings=incident.settings, pools=incident.pools) as site:
        site.start_loop()
        if incident.begin:
            site.complete(incident.begin, "Pod")
            site.complete(incident.begin, "Vm")
        site.cycles(2)
        before, began = site.scrape(), time.time()
        incident.inject(site)
        screens: list[tuple[int, str]] = []

        def is_named() -> bool:
            screens.append(site.first_screen())
            seen = Seen(*screens[-1], before, before, before, ())
            return not seen.mistakes(incident)

        with suppress(AssertionError):  # the caller judges the mistakes of the last screen
            until(is_named, incident.seconds, every=0.1)
        scrapes = [(before, began), (site.scrape(), time.time())]
        until(lambda: time.time() > scrapes[-1][1] + 1.0, 5, what="a second has passed")
        scrapes.append((site.scrape(), time.time()))
        after, later = scrapes[1][0], scrapes[2][0]
        return Seen(*screens[-1], before, after, later, [at for _, at in scrapes])


# --- alerts -----------------------------------------------------------------------------------------------------------


def firing(seen: Sequence[Seen]) -> list[tuple[set[str], set[str]]]:
    """Return two sets of firing alerts for each incident: just before the incident begins, and two minutes later."""
    names = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    moments = (BEFORE - EVERY, BEFORE + RINGS)
    tests = [
        {
            "name": str(number),
            "interval": f"{EVERY}s",
            "input_series": _series(one),
            "promql_expr_test": [
                {
                    "expr": f'group by (alertname) (ALERTS{{alertstate="firing", alertname="{name}"}})',
                    "eval_time": f"{at}s",
                    "exp_samples": [{"labels": f'{{alertname="{number} {at} {name}"}}', "value": 1}],
                }
                for at in moments
                for name in names
            ],
        }
        for number, one in enumerate(seen)
    ]
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "rules.yml").write_text(RULES.read_text())
        file = Path(directory) / "test.yml"
        file.write_text(
            yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": f"{EVERY}s", "tests": tests})
        )
        done = subprocess.run(
            ["promtool", "test", "rules", str(file)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120 * PATIENCE,
        )
    # Each expectation is wrong on purpose, so that promtool prints the samples that it got.
    printed = done.stdout + done.stderr
    found = re.findall(r'exp:\s*\{alertname="(\d+) (\d+) (\w+)"\}[^\n]*\n?\s*got:\s*(nil|\{alertname)', printed)
    assert len(found) == len(seen) * len(moments) * len(names), printed
    fired = {(int(number), int(at), name) for number, at, name, got in found if got != "nil"}
    return [
        tuple({name for name in names if (number, at, name) in fired} for at in moments)  # type: ignore[misc]
        for number in range(len(seen))
    ]


def _series(seen: Seen) -> list[dict[str, str]]:
    """Return the series of one loop in promtool's notation. Until the incident begins, they have the values from before
    the incident. From then on, they have the latest values."""
    until_then, since = BEFORE // EVERY, RINGS // EVERY
    alive = bool(seen.after)
    labels = 'job="provisioner", instance="host"'
    series = [{"series": f"up{{{labels}}}", "values": f"1x{until_then - 1} {int(alive)}x{since}"}]
    for name, own in sorted({*seen.before, *seen.later}):
        key = (name, own)
        given = "".join(f', {label}="{_escaped(value)}"' for label, value in own)
        values = [_steady(name, seen.before.get(key), seen.scraped[0], at=0, steps=until_then, grows=True)]
        if alive:
            grows = seen.later.get(key) != seen.after.get(key) and name.endswith(("_timestamp_seconds", "cycles_total"))
            values.append(_steady(name, seen.later.get(key), seen.scraped[2], at=BEFORE, steps=since + 1, grows=grows))
        else:
            values.append("stale")
        series.append({"series": f"{name}{{{labels}{given}}}", "values": " ".join(values)})
    return series


def _steady(name: str, value: float | None, scraped: float, *, at: int, steps: int, grows: bool) -> str:
    """Return the samples of one value from second ``at`` on, in promtool's notation. All samples are equal. But if
    ``grows``, the samples of a timestamp or of a number of cycles increase."""
    if value != value:
        value = None  # a gauge without a value fires as little as a missing one
    if value is None:
        return f"_x{steps}"  # so many, while 1x3 is four samples
    if name.endswith("_timestamp_seconds"):
        first = at - (scraped - value)
        return f"{first:.3f}{'+' + str(EVERY) if grows else '+0'}x{steps - 1}"
    step = 10 if grows and name.endswith("cycles_total") and value else 0
    return f"{value + (10_000 if at and step else 0):f}+{step}x{steps - 1}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

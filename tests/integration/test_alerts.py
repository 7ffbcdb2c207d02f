"""The alerts with several provisioners and standbys in one Prometheus. Each alert leads to a page of docs.

deploy/prometheus/rules_test.yml tests when each alert fires. This module tests which provisioner an alert names.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from provisioner.settings import loader
from provisioner.telemetry.metrics import Metrics
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
PAGE = ROOT / "docs" / "alerts.md"
QUICK = [(0, 1), (1, 2)]
"""The cases that `make test` runs: the index of the loop that does not work, and the number of loops."""
PROMTOOL = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)")

SECONDS = 60 * PATIENCE
EVERY = 15
"""Seconds between two scrapes."""
FELL = 600
"""Seconds until the event of a test."""
PAGED = FELL + 300
"""Seconds until the operator on call has to be alerted."""
END = 3600


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


# --- several of them --------------------------------------------------------------------------------------------------


@dataclass
class Process:
    """A process as Prometheus sees it. Each of ``up``, ``active`` and ``cycles`` has two words, which ``steps`` reads:
    the values before ``FELL``, and the values from then on."""

    instance: str
    provisioner: str
    up: str = "1 1"
    active: str = "1 1"
    cycles: str = "+ +"
    job: str = "provisioner"
    more: Mapping[str, str] = field(default_factory=dict)
    """Values of further series, by series."""

    def series(self) -> Iterable[dict[str, str]]:
        target = f'job="{self.job}", instance="{self.instance}"'
        owner = f'{target}, provisioner="{self.provisioner}"'
        yield {"series": f"up{{{target}}}", "values": steps(self.up)}
        yield {"series": f"hf_provisioner_active{{{owner}}}", "values": steps(self.active)}
        yield {"series": f'hf_provisioner_cycles_total{{{target}, result="ok"}}', "values": steps(self.cycles)}
        for name, values in self.more.items():
            yield {"series": name.replace("{", f"{{{target}, "), "values": values}


def steps(words: str) -> str:
    """Return promtool's notation of the values before and after ``FELL``. Each word is a number, or ``+`` (rising),
    ``=`` (unchanged), ``stale`` (ended) or ``_`` (missing)."""
    before, after = words.split()
    first, rest = FELL // EVERY, (END - FELL) // EVERY
    top = 3 * first
    begins = {"+": f"0+3x{first - 1}"}.get(before, f"{before}x{first - 1}")
    ends = {"+": f"{top}+3x{rest}", "=": f"{top}x{rest}", "stale": f"stale _x{rest}"}.get(after, f"{after}x{rest}")
    return f"{begins} {ends}"


def standby(of: str, instance: str, **changes: Any) -> Process:
    return Process(instance, of, **({"active": "0 0", "cycles": "0 0"} | changes))


FATES: dict[str, dict[str, Any]] = {
    "dead": {"up": "1 0", "active": "1 stale", "cycles": "+ stale"},
    "hung": {"cycles": "+ ="},
    "gone from discovery": {"up": "1 stale", "active": "1 stale", "cycles": "+ stale"},
    "gone, without a mark at the end of its series": {"up": "1 _", "active": "1 _", "cycles": "+ _"},
    "standing by alone": {"active": "0 0", "cycles": "0 0"},
    "on another state directory": {"active": "1 0"},
    "never seen": {"up": "0 0", "active": "_ _", "cycles": "_ _"},
}


PLAIN = [{name: part for name, part in rule.items() if name != "annotations"} for rule in rules()]
"""The rules without annotations, which other tests check."""
SEVERITY = {rule["alert"]: rule["labels"]["severity"] for rule in PLAIN}

Firing = Mapping[str, Sequence[Mapping[str, str]]]


def case(name: str, processes: Iterable[Process], expected: Mapping[int, Firing]) -> dict[str, Any]:
    """Return a test for promtool.

    ``expected``: the labels of the alerts that fire, by second and by name of the alert. All other alerts must not
    fire.
    """
    asked = [
        {
            "eval_time": f"{when}s",
            "alertname": alert,
            "exp_alerts": [{"exp_labels": {"severity": severity, **labels}} for labels in firing.get(alert, ())],
        }
        for when, firing in expected.items()
        for alert, severity in SEVERITY.items()
    ]
    series = [one for process in processes for one in process.series()]
    return {"name": name, "interval": f"{EVERY}s", "input_series": series, "alert_rule_test": asked}


def judge(tmp_path: Path, *cases: Mapping[str, Any]) -> None:
    """Run the cases by promtool, and check that all pass."""
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "plain", "rules": PLAIN}]}))
    file, about = tmp_path / "test.yml", {"rule_files": ["rules.yml"], "evaluation_interval": f"{EVERY}s"}
    file.write_text(yaml.safe_dump({**about, "tests": list(cases)}))
    done = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unlucky(which: int, count: int, fate: str) -> dict[str, Any]:
    """Return a case in which one of ``count`` loops does not work. The other loops work, and each of them has a
    standby."""
    lost = Process("host-lost", f"grid-{which}", **FATES[fate])
    works = [Process(f"host-{n}", f"grid-{n}") for n in range(count) if n != which]
    standbys = [standby(one.provisioner, f"{one.instance}-standby") for one in works]
    owner = {"instance": "host-lost"} if fate == "never seen" else {"provisioner": f"grid-{which}"}
    down = [{"job": "provisioner", "instance": "host-lost"}] if fate in ("dead", "never seen") else []
    alerts: Firing = {"NotReconciling": [{"job": "provisioner", **owner}], "InstanceDown": down}
    return case(fate, [lost, *works, *standbys], {PAGED: alerts})


@PROMTOOL
@pytest.mark.parametrize(
    ("which", "count"),
    [
        pytest.param(which, count, marks=[] if (which, count) in QUICK else pytest.mark.slow)
        for count in (1, 2, 3)
        for which in range(count)
    ],
)
def test_a_loop_that_does_not_work_pages_within_five_minutes_whichever_it_is(
    tmp_path: Path, which: int, count: int
) -> None:
    judge(tmp_path, *(unlucky(which, count, fate) for fate in FATES))


@PROMTOOL
def test_loops_that_work_fire_nothing_nor_do_their_standbys(tmp_path: Path) -> None:
    def well(count: int) -> dict[str, Any]:
        loops = [Process(f"host-{n}", f"grid-{n}") for n in range(count)]
        standbys = [standby(f"grid-{n}", f"host-{n}-standby-{m}") for n in range(count) for m in range(2)]
        return case(f"{count} loops", [*loops, *standbys], {60: {}, PAGED: {}, END: {}})

    judge(tmp_path, *map(well, (1, 3)))


@PROMTOOL
@pytest.mark.parametrize("count", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 3))])
def test_a_standby_that_takes_over_in_time_causes_no_alert(tmp_path: Path, count: int) -> None:
    heir = standby("grid-0", "host-heir", active="0 1", cycles="0 +")
    works = [Process(f"host-{n}", f"grid-{n}") for n in range(1, count)]
    dead, gone = (Process("host-lost", "grid-0", **FATES[fate]) for fate in ("dead", "gone from discovery"))
    down: Firing = {"InstanceDown": [{"job": "provisioner", "instance": "host-lost"}]}
    judge(
        tmp_path,
        case("dead", [dead, heir, *works], {FELL + 60: {}, PAGED: down, END: down}),
        case("gone", [gone, heir, *works], {FELL + 60: {}, PAGED: {}, END: {}}),
    )


@PROMTOOL
def test_the_alert_names_the_lost_loop_by_its_last_metrics(tmp_path: Path) -> None:
    dead = standby("grid", "host-standby", up="1 0", active="0 stale", cycles="0 stale")
    only_down: Firing = {"InstanceDown": [{"job": "provisioner", "instance": "host-standby"}]}
    other_job = Process("host", "grid", job="symphony", **FATES["dead"])
    both: Firing = {
        "NotReconciling": [{"job": "symphony", "provisioner": "grid"}],
        "InstanceDown": [{"job": "symphony", "instance": "host"}],
    }
    unlabelled = Process("host", "grid", job="other", **FATES["never seen"])
    judge(
        tmp_path,
        case("a dead standby", [Process("host", "grid"), dead], {FELL: {}, PAGED: only_down}),
        case("its job has another name", [other_job, unlabelled], {PAGED: both}),
        case("no target at all", [unlabelled], {300: {"NotReconciling": [{}]}}),
    )


@PROMTOOL
def test_all_that_a_process_exports_while_it_stands_by_for_an_hour_fires_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    metrics = Metrics(CollectorRegistry(), "grid")
    config = ROOT / "deploy" / "kustomize" / "base" / "config" / "provisioner.yaml"
    metrics.configure(loader.load(config, {"HF_PROVIDER_NAME": "gkeinst"}).limits())
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    more = {
        f"{one.name}{{{', '.join(f'{label}={json.dumps(value)}' for label, value in one.labels.items())}}}": (
            f"{one.value}+0x{END // EVERY}".replace("nan", "NaN")
        )
        for one in samples
        if one.name.startswith("hf_") and one.name not in ("hf_provisioner_active", "hf_provisioner_cycles_total")
    }
    assert len(more) > 50
    processes = [Process("host", "grid"), standby("grid", "host-standby", more=more)]
    judge(tmp_path, case("stands by", processes, {PAGED: {}, END: {}}))


# --- the page that each leads to --------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """Return the section of the page about each alert, by the alert's name."""
    parts = re.split(r"(?m)^## (.+)\n", PAGE.read_text())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    assert list(sections()) == [rule["alert"] for rule in rules()]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do_and_leads_to_its_section(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert annotations["runbook_url"] == f"{{{{ $externalLabels.runbooks }}}}docs/alerts.md#{rule['alert'].lower()}"
    assert len(annotations["description"]) > 80
    section = sections()[rule["alert"]]
    assert re.findall(r"(?m)^\*\*(.+?)\*\* ", section) == ["Means.", "Look at.", "Do."]
    assert f"({rule['labels']['severity']})" in section


def test_the_page_names_metrics_that_exist() -> None:
    metrics = Metrics(CollectorRegistry())
    known = {family.name for family in metrics.registry.collect()}
    named = {name.removesuffix("_total") for name in re.findall(r"`(hf_provisioner_\w+)", PAGE.read_text())}
    assert named <= known
    assert len(named) > 5

"""The dashboards. Our code must generate exactly the files in the repository. A real Prometheus must accept each of
their queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from prometheus_client import CollectorRegistry

from deploy.grafana.dashboards import texts
from provisioner.commands.demand_metrics import DemandMetrics
from provisioner.demand.service import Report
from provisioner.settings import loader
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.server import Health, Server
from tests.support.clients.prometheus import PROMETHEUS, now, prometheus
from tests.support.every_metric import work
from tests.support.waiting import PATIENCE, until

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
CONFIG = DEPLOY / "kustomize" / "base" / "config"
RULES = DEPLOY / "prometheus" / "rules.yml"
Panel = dict[str, Any]
SECONDS = 60 * PATIENCE


def panels(board: Path) -> list[Panel]:
    return [panel for panel in json.loads(board.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Return each query of the dashboards once. Each variable of a dashboard is replaced by a pattern that matches all
    values."""
    found = [target["expr"] for board in BOARDS for panel in panels(board) for target in panel["targets"]]
    return [re.sub(r"\$\w+", ".*", expression) for expression in dict.fromkeys(found)]


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics(CollectorRegistry())
    metrics.configure(loader.load(CONFIG / "provisioner.yaml", {"HF_PROVIDER_NAME": "gkeinst"}).limits())
    work(metrics, "gke-main", "GkePod")
    return metrics


@pytest.fixture
def step(metrics: Metrics) -> Callable[[], None]:
    """Return a function that shows a step of ``provisioner demand`` in the metrics. One step has been shown."""
    numbers = {"wanted": 5, "asked": 4, "running": 3, "idle": 1}
    source = {"wanted": {"GkePod": 5}, "read_at": 1e9, "problem": "", "failures": 2, "unfit": {"8 GPUs": 1}}
    report = Report(1e9, templates={"GkePod": numbers}, sources={"pool": source})
    show = partial(DemandMetrics(metrics.registry).show, report)
    show()
    return show


def test_the_files_are_those_that_make_dashboards_writes() -> None:
    assert {file: file.read_text() for file in BOARDS} == texts()


@pytest.mark.usefixtures("step")
def test_panels_and_alerts_use_metrics_that_exist(metrics: Metrics) -> None:
    exported = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    alerts = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    used = {
        name
        for text in [*expressions(), *alerts]
        for name in re.findall(r"\b(?:hf_provisioner|hf_demand|process)_\w+", text)
    }
    assert used <= exported
    assert len(used) > 20


@pytest.mark.usefixtures("step")
def test_every_metric_of_ours_is_drawn(metrics: Metrics) -> None:
    names = {family.name for family in metrics.registry.collect() if family.name.startswith("hf_")}
    drawn = " ".join(expressions())
    assert [name for name in sorted(names) if not re.search(rf"\b{name}(_total|_bucket)?\b", drawn)] == []


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_a_board_is_whole(board: Path) -> None:
    document = json.loads(board.read_text())
    every = document["panels"]
    variables = [variable["name"] for variable in document["templating"]["list"]]
    assert document["schemaVersion"] >= 36
    assert len({panel["id"] for panel in every}) == len(every)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels(board))
    assert all(panel["title"] and panel["description"] for panel in panels(board))
    asked = {
        name
        for panel in panels(board)
        for target in panel["targets"]
        for name in re.findall(r"\$(\w+)", target["expr"])
    }
    assert sorted(variables) == sorted({"datasource"} | asked)
    cells = [
        (x, y)
        for panel in every
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie on top of each other"
    assert {x for x, _ in cells} == set(range(24))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)")
def test_every_expression_of_the_boards_is_promql(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions())]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", file], capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def scraped(metrics: Metrics, tmp_path: Path) -> Iterator[str]:
    """Yield the address of a Prometheus that scrapes ``metrics`` every second, with our own configuration."""
    server = Server("127.0.0.1:0", metrics.registry, lambda: Health(True, True, "fine"), dict)
    server.start()
    try:
        with prometheus(tmp_path, [server.url.removeprefix("http://")]) as address:
            yield address
    finally:
        server.stop()


@PROMETHEUS
@pytest.mark.slow
def test_no_panel_is_empty_on_a_real_prometheus(metrics: Metrics, step: Callable[[], None], scraped: str) -> None:
    def empty() -> list[str]:
        work(metrics, "gke-main", "GkePod")
        step()
        return [text for text in expressions() if all(value == "NaN" for value in now(scraped, text))]

    until(lambda: not empty(), 60, every=0.5, what="a value in every panel")
    assert "BrakeEngaged" in requests.get(f"{scraped}/api/v1/rules", timeout=5).text

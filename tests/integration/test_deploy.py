"""The deployment kit. The tool that reads a file at a site must also accept it here. Each file asks only for permitted
rights."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"


def needs(tool: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool} ({package})")


PROMTOOL = needs("promtool", "Debian package prometheus")
PROMETHEUS = needs("prometheus", "Debian package prometheus")


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60 * PATIENCE)


# --- Prometheus -------------------------------------------------------------------------------------------------------


@PROMTOOL
@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
    ids=" ".join,
)
def test_promtool(arguments: tuple[str, ...]) -> None:
    done = run("promtool", *arguments, cwd=DEPLOY / "prometheus")

    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    names = {alert["alert"] for alert in alerts()}
    tested = set(re.findall(r"alertname: (\w+)", (DEPLOY / "prometheus" / "rules_test.yml").read_text()))

    assert {"NotReconciling", "PoolBlind", "MachinesLate", "BrakeEngaged", "CapacityRefused", "LossSpike"} <= names
    assert tested == names
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert {"summary", "description", "runbook_url"} == alert["annotations"].keys()

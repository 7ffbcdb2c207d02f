"""A real Prometheus with our configuration and rules, and queries to it. It scrapes every second."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.support.ports import free_ports

DEPLOY = Path(__file__).parents[3] / "deploy" / "prometheus"
PROMETHEUS = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus (Debian package prometheus)"
)


@contextmanager
def prometheus(directory: Path, targets: Sequence[str]) -> Iterator[str]:
    """Run a Prometheus that scrapes these targets (``host:port``) and keeps its files in ``directory``. Yield its
    address."""
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = list(targets)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    shutil.copy(DEPLOY / "rules.yml", directory)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def now(address: str, expression: str) -> list[str]:
    """Return the values of an instant query; empty while Prometheus is not ready yet."""
    try:
        got = requests.get(f"{address}/api/v1/query", params={"query": expression}, timeout=5)
    except requests.ConnectionError:
        return []
    return [series["value"][1] for series in got.json()["data"]["result"]] if got.ok else []


def over(address: str, expression: str, begin: float, end: float) -> list[Mapping[str, Any]]:
    """Return the series of a query from ``begin`` to ``end``, with one value for each second."""
    asked: dict[str, str | float] = {"query": expression, "start": begin, "end": end, "step": 1}
    got = requests.get(f"{address}/api/v1/query_range", params=asked, timeout=30)
    got.raise_for_status()
    return list(got.json()["data"]["result"])

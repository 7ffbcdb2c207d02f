"""The speed of the embedded cloud: pods made by sixteen clients at once, and a list of ten thousand pods.

``python tests/bench/bench_simulator.py``
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import urllib3
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from provisioner.lab.cloud.server import Simulator
from tests.support.clouds.kube_cloud import SPACE, impose, manifest

CREATES, PODS, CLIENTS = 1_000, 10_000, 16


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    with Simulator(namespaces=[SPACE]) as simulator:
        impose(simulator, schedule=3600)
        pool = urllib3.HTTPConnectionPool("127.0.0.1", int(simulator.address.rpartition(":")[2]), maxsize=CLIENTS)
        path, headers = f"/api/v1/namespaces/{SPACE}/pods", {"Content-Type": "application/json"}
        body = json.dumps(manifest() | {"metadata": {"generateName": "p-"}}).encode()

        def create(_: int) -> None:
            if (status := pool.request("POST", path, body=body, headers=headers).status) != 201:
                raise SystemExit(f"a create was answered with {status}")

        with ThreadPoolExecutor(CLIENTS) as threads:
            created = seconds(lambda: list(threads.map(create, range(CREATES))))
        rest = range(PODS - CREATES)
        simulator.call(lambda cloud: [cloud.cluster.create(SPACE, manifest(f"q{number:05}")) for number in rest])
        listed = seconds(lambda: pool.request("GET", path).data)
    table = Table(title="The embedded cloud")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_row(f"pods created by {CLIENTS} clients at once", f"{CREATES / created:,.0f} / s")
    table.add_row(f"a list of {PODS:,} pods", f"{listed:.2f} s")
    Console().print(table)


if __name__ == "__main__":
    main()

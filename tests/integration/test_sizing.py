"""The tables of docs/sizing.md: what was measured, and what manifests, unit and node ask for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.backends.gke.pod_size import quantity
from tests.bench import bench_sizing
from tests.support.checks.terraform import Module
from tests.support.manifests import OVERLAYS, built, container, only

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sizing.md").read_text()
UNITS = {"MiB": "Mi", "GiB": "Gi"}


@dataclass(frozen=True)
class Row:
    """What the page says to ask for, for so many machines."""

    machines: str
    cpu: float
    burst: float
    memory: float
    memory_limit: float
    disk: float
    asked_by: tuple[str, ...]


def size(text: str) -> float:
    """Bytes of ``512 MiB``."""
    number, unit = text.split()
    return quantity(number + UNITS[unit])


@dataclass(frozen=True)
class Measured:
    """What the benchmark printed for so many machines; memory while machines come and go, in bytes as the state's."""

    machines: str
    memory: float
    calls: int
    state: float


def cells(last_heading: str) -> list[list[str]]:
    """Of the table whose last column is headed so, each row's cells."""
    table = PAGE.partition(f"| {last_heading} |\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def megabytes(text: str) -> float:
    """Bytes of ``34.6``."""
    return float(text) * 1e6


def rows() -> list[Row]:
    read = []
    for machines, cpu, memory, disk, _, _, asked_by in cells("what asks for it"):
        processor, burst = map(float, cpu.split("/"))
        request, limit = map(size, memory.split("/"))
        read.append(Row(machines, processor, burst, request, limit, size(disk), tuple(re.findall("`(.+?)`", asked_by))))
    return read


def measurements() -> list[Measured]:
    return [
        Measured(machines, megabytes(memory.split("/")[1]), int(calls.replace(",", "")), megabytes(state.split()[0]))
        for machines, _, memory, calls, state, _ in cells("one write of it")
    ]


ROWS = rows()
MEASURED = measurements()
ASKED = {name: row for row in ROWS for name in row.asked_by}


def test_every_overlay_asks_for_one_row() -> None:
    assert [row.machines for row in ROWS] == ["100", "1,000", "10,000", "50,000"]
    assert ASKED.keys() == {*OVERLAYS, "provisioner.service"}
    assert len(ASKED) == sum(len(row.asked_by) for row in ROWS)


@pytest.mark.parametrize("measured", MEASURED, ids=[measured.machines for measured in MEASURED])
def test_what_is_asked_for_has_room_for_what_was_measured(measured: Measured) -> None:
    """A request has half as much again, a limit three times; the disk has a journal and two copies of the state."""
    (row,) = [row for row in ROWS if row.machines == measured.machines]
    assert row.memory >= 1.5 * measured.memory
    assert row.memory_limit >= 3 * measured.memory
    assert row.disk >= 3 * measured.state + 60e6


@pytest.mark.parametrize("measured", MEASURED[:2], ids=[measured.machines for measured in MEASURED[:2]])
def test_the_benchmark_measures_what_the_page_says(measured: Measured) -> None:
    """What hangs neither on the processor nor on who starts it: the calls of an hour, and the bytes of the state."""
    machines = int(measured.machines.replace(",", ""))
    churn = bench_sizing.an_hour(machines, churn=True)
    held, _ = bench_sizing.stored(machines)

    assert not churn.broken
    assert churn.calls == pytest.approx(measured.calls, rel=0.02)
    assert held == pytest.approx(measured.state, rel=0.2, abs=0.05e6)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_asks_for_what_its_row_says(overlay: str) -> None:
    manifests, row = built(overlay), ASKED[overlay]
    asked = container(manifests)["resources"]
    claim = only(manifests, "PersistentVolumeClaim")["spec"]
    volumes = [one["spec"]["capacity"] for one in manifests if one["kind"] == "PersistentVolume"]

    assert {name: quantity(amount) for name, amount in asked["requests"].items()} == {
        "cpu": row.cpu,
        "memory": row.memory,
    }
    assert {name: quantity(amount) for name, amount in asked["limits"].items()} == {"memory": row.memory_limit}
    assert all(quantity(one["storage"]) == row.disk for one in (claim["resources"]["requests"], *volumes))


def test_the_unit_is_stopped_where_its_row_says() -> None:
    unit = (ROOT / "deploy" / "vm" / "provisioner.service").read_text()
    (most,) = re.findall(r"(?m)^MemoryMax=(\w+)$", unit)

    assert quantity(f"{most}i") == ASKED["provisioner.service"].memory_limit
    assert "CPUQuota" not in unit


def test_the_node_for_the_loop_has_room_for_every_row() -> None:
    """Of the types ``…-standard-N``, which have N processors and four GiB for each."""
    module = Module(ROOT / "deploy" / "terraform")
    (terraform,) = re.findall(r'system_machine\s+= optional\(string, "(.+?)"\)', module.text)
    (gcloud,) = re.findall(r"--machine-type=(\S+) --enable-autoscaling", (ROOT / "deploy/gcp/setup.sh").read_text())
    (processors,) = re.findall(r"-standard-(\d+)$", terraform)

    assert terraform == gcloud
    assert all(row.burst <= int(processors) - 1 for row in ROWS), "one is left for the cluster's own pods"
    assert all(row.memory_limit <= quantity(f"{4 * int(processors)}Gi") / 2 for row in ROWS)

"""The tables of docs/sizing.md. Measurements must fit each column, and the manifests and the systemd unit must request
the resources that the page states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from provisioner.backends.gke.pod_spec import quantity
from tests.bench import bench_sizing
from tests.support.checks.terraform import Module
from tests.support.manifests import OVERLAYS, built, container, only

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sizing.md").read_text()
HOUR = 3600.0
MEMORY_ROOM, LIMIT_ROOM = 1.25, 2.5
"""Ratios of a request and of a limit of memory to the measured memory."""
KINDS = ("groups", "pods")
UNITS = {"MiB": 2.0**20, "GiB": 2.0**30, "MB": 1e6, "": 1.0}


class Row(NamedTuple):
    """A row of the page: the resources to request for this number of machines."""

    machines: str
    cpu: float
    burst: float
    memory: float
    memory_limit: float
    disk: float
    calls: float
    pod_calls: float
    asked_by: tuple[str, ...]


class Virtual(NamedTuple):
    """The benchmark's output for a number of machines in virtual time; memory and state in bytes."""

    machines: str
    cpu: float
    memory: float
    calls: float
    state: float


class OverHttp(NamedTuple):
    """The benchmark's output for a loop with its clients, for one number and one kind of machines. The calls are the
    calls to this kind's API."""

    machines: str
    kind: str
    cpu: float
    processors: float
    memory: float
    quiet_calls: float
    most_calls: float
    pod_calls: float


def cells(last_heading: str) -> list[list[str]]:
    """Return the cells of each row of the table whose last column has this heading."""
    table = PAGE.partition(f"| {last_heading} |\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell, such as ``256 MiB / 512 MiB``, ``14 / 16`` or ``20,000``. Sizes are in bytes."""
    return [
        float(text.replace(",", "")) * UNITS[unit] for text, unit in re.findall(r"(\d[\d.,]*)(?: ([MG]i?B))?", cell)
    ]


ROWS = [
    Row._make(
        [
            machines,
            *numbers(cpu),
            *numbers(memory),
            *(numbers(cell)[0] for cell in room),
            tuple(re.findall("`(.+?)`", asked_by)),
        ]
    )
    for machines, cpu, memory, *room, asked_by in cells("files that request this")
]
VIRTUAL = [
    Virtual(machines, numbers(cpu)[1], numbers(memory)[1] * 2**20, *numbers(calls), *numbers(state))
    for machines, cpu, memory, calls, state in cells("size of the state directory")
]
HTTP = [
    OverHttp._make(
        [
            machines,
            kind,
            numbers(cpu)[1],
            *numbers(most),
            numbers(memory)[0] * 2**20,
            *(numbers(calls) or [0, 0]),
            *(numbers(pods) or [0]),
        ]
    )
    for machines, kind, cpu, most, memory, calls, pods in cells("creates and deletes of pods in an hour of churn")
]


def number(machines: str) -> int:
    return int(machines.replace(",", ""))


ASKED = {name: row for row in ROWS for name in row.asked_by}


def test_every_overlay_asks_for_one_row() -> None:
    assert [row.machines for row in ROWS] == ["100", "1,000", "10,000", "50,000"]
    assert ASKED.keys() == {*OVERLAYS, "provisioner.service"}
    assert len(ASKED) == sum(len(row.asked_by) for row in ROWS)


def row_of(machines: str) -> Row:
    (row,) = [row for row in ROWS if row.machines == machines]
    return row


def test_every_row_was_measured() -> None:
    assert [one.machines for one in VIRTUAL] == [row.machines for row in ROWS]
    assert [(one.machines, one.kind) for one in HTTP] == [(row.machines, kind) for kind in KINDS for row in ROWS]


@pytest.mark.parametrize("measured", VIRTUAL, ids=[one.machines for one in VIRTUAL])
def test_the_requested_resources_have_room_for_hours(measured: Virtual) -> None:
    """The requested memory must have the same reserve as in the next test. The requested disk must have room for three
    copies of the state and for a journal."""
    row = row_of(measured.machines)
    assert row.cpu * HOUR >= measured.cpu
    assert row.memory >= MEMORY_ROOM * measured.memory
    assert row.memory_limit >= LIMIT_ROOM * measured.memory
    assert row.disk >= 3 * measured.state + 60e6
    assert row.pod_calls >= measured.calls / 60


@pytest.mark.parametrize("measured", HTTP, ids=[f"{one.machines} {one.kind}" for one in HTTP])
def test_the_requested_resources_have_room_for_a_loop_with_its_clients(measured: OverHttp) -> None:
    row = row_of(measured.machines)
    assert row.cpu * HOUR >= 1.5 * measured.cpu
    assert row.burst >= measured.processors
    assert row.memory >= MEMORY_ROOM * measured.memory
    assert row.memory_limit >= LIMIT_ROOM * measured.memory
    assert row.calls >= max(measured.quiet_calls, measured.most_calls)
    assert row.pod_calls >= measured.pod_calls / 60


@pytest.mark.parametrize(
    "measured", [VIRTUAL[0], pytest.param(VIRTUAL[1], marks=pytest.mark.slow)], ids=["100", "1,000"]
)
def test_the_benchmark_measures_in_virtual_time_what_the_page_says(measured: Virtual) -> None:
    """Expect at most the page's processor time. Memory may be up to 50 % more than on the page, because other versions
    of Python need other amounts."""
    row, machines = row_of(measured.machines), number(measured.machines)
    use = bench_sizing.an_hour(machines, churn=True)
    stored_bytes, _ = bench_sizing.stored(machines)
    assert not use.broken
    assert use.calls == pytest.approx(measured.calls, rel=0.02)
    assert stored_bytes == pytest.approx(measured.state, rel=0.2, abs=0.05e6)
    assert use.cpu <= row.cpu * HOUR
    assert use.mebibytes * 2**20 <= 1.5 * measured.memory


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
    """The loop's node must have room for the resources of every row. Its machine type ``…-standard-N`` has N
    processors, and four GiB for each of them."""
    module = Module(ROOT / "deploy" / "terraform")
    (terraform,) = re.findall(r'system_machine\s+= optional\(string, "(.+?)"\)', module.text)
    (gcloud,) = re.findall(r"--machine-type=(\S+) --enable-autoscaling", (ROOT / "deploy/gcp/setup.sh").read_text())
    (processors,) = re.findall(r"-standard-(\d+)$", terraform)
    assert terraform == gcloud
    assert all(row.burst <= int(processors) - 1 for row in ROWS), "one is left for the cluster's own pods"
    assert all(row.memory_limit <= quantity(f"{4 * int(processors)}Gi") / 2 for row in ROWS)

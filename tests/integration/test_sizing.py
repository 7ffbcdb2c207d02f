"""The table of docs/sizing.md against what asks for it: the manifests, the unit, and the node that they run on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.backends.gke.pod_size import quantity
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


def rows() -> list[Row]:
    table = PAGE.partition("| what asks for it |\n")[2].partition("\n\n")[0].splitlines()[1:]
    found = []
    for line in table:
        machines, cpu, memory, disk, _, _, asked_by = (cell.strip() for cell in line.strip("|").split("|"))
        processors, sizes = [float(each) for each in cpu.split("/")], [size(each) for each in memory.split("/")]
        found.append(Row(machines, *processors, *sizes, size(disk), tuple(re.findall(r"`(.+?)`", asked_by))))
    return found


ROWS = rows()
ASKED = {name: row for row in ROWS for name in row.asked_by}


def test_every_overlay_asks_for_one_row() -> None:
    assert [row.machines for row in ROWS] == ["100", "1,000", "10,000", "50,000"]
    assert ASKED.keys() == {*OVERLAYS, "provisioner.service"}
    assert len(ASKED) == sum(len(row.asked_by) for row in ROWS)


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

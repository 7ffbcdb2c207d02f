"""The state directory on a disk that is really full, or read-only. Every command reports this, and no data is lost.
When the disk is writable again, the loop continues by itself."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.stage import Case, Grid, names, stage
from tests.support.disks import Disk, disk
from tests.support.hostfactory.provider import SCRIPTS, requesting
from tests.support.waiting import PATIENCE, until

SECONDS = 60.0
PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()


@dataclass(frozen=True)
class Trouble:
    """A fault of a disk, with the functions that begin and end it."""

    begin: Callable[[Disk], None]
    end: Callable[[Disk], None]
    words: str
    """The operating system's words for the fault."""
    advice: str


FULL = Trouble(Disk.fill, Disk.free, "No space left on device", "Make room")
READ_ONLY = Trouble(Disk.forbid, Disk.allow, "Read-only file system", "Mount it for writing")
TROUBLES = pytest.mark.parametrize(
    "trouble", [pytest.param(FULL, id="full"), pytest.param(READ_ONLY, id="read-only", marks=pytest.mark.slow)]
)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Disk]:
    with disk(tmp_path / "work") as mounted:
        yield mounted


@pytest.fixture
def hf(tmp_path: Path, room: Disk) -> Iterator[Grid]:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None)) as grid:
        yield grid


def command(hf: Grid, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", *arguments],
        env={**os.environ, **hf.environment, "KUBECONFIG": str(hf.simulator.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=SECONDS * PATIENCE,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def cycles(hf: Grid) -> dict[str, float]:
    """Return the number of cycles by result, as Prometheus would scrape it."""
    families = text_string_to_metric_families(requests.get(f"{hf.url}/metrics", timeout=10 * PATIENCE).text)
    samples = [sample for family in families for sample in family.samples]
    return {one.labels["result"]: one.value for one in samples if one.name == "hf_provisioner_cycles_total"}


@TROUBLES
def test_a_state_directory_that_cannot_be_written_is_said_everywhere_and_loses_nothing(
    hf: Grid, room: Disk, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = hf.request("T2", 2)
    machines = names(hf.ended(first))
    trouble.begin(room)

    lost = machines[0]
    hf.simulator.preempt(lost)
    recorded = hf.recorded()
    refused = hf.run(hf.command("requestMachines", requesting("T2", 1))).refusal
    assert trouble.words in refused
    assert trouble.advice in refused
    returned = {"machines": [{"name": machines[1], "machineId": machines[1]}]}
    assert trouble.words in hf.run(hf.command("requestReturnMachines", returned)).refusal
    assert hf.recorded() == recorded, "what was refused is not recorded"
    assert hf.call("getAvailableTemplates", {})["templates"]

    until(
        lambda: requests.get(f"{hf.url}/readyz", timeout=10 * PATIENCE).status_code == 503,
        SECONDS,
        what="it is not ready",
    )
    assert trouble.words in requests.get(f"{hf.url}/readyz", timeout=10 * PATIENCE).text
    assert requests.get(f"{hf.url}/healthz", timeout=10 * PATIENCE).ok, "another start would change nothing"
    before = cycles(hf)
    until(lambda: cycles(hf)["failed"] > before["failed"] + 3, SECONDS, what="it tries again")
    assert {**cycles(hf), "failed": 0.0} == {**before, "failed": 0.0}, "on none of them NotReconciling stays silent"
    assert trouble.words in requests.get(hf.url, timeout=10 * PATIENCE).text, "the status page says so"

    status = command(hf, "status")
    assert status.returncode == 1
    (alarm,) = re.findall(r"STATE DIRECTORY CANNOT BE WRITTEN: .*", status.stdout)
    assert trouble is not FULL or alarm in PAGE
    assert trouble.words in status.stdout
    assert command(hf, "explain", machines[1]).returncode == 0
    assert command(hf, "usage").returncode == 0
    stopped = command(hf, "stop-all", "--reason", "x")
    assert (stopped.returncode, stopped.stdout, stopped.stderr.count("\n")) == (1, "", 1)
    assert trouble.words in stopped.stderr
    assert trouble.advice in stopped.stderr

    trouble.end(room)
    until(lambda: requests.get(f"{hf.url}/readyz", timeout=10 * PATIENCE).ok, SECONDS, what="it is ready again")
    hf.reclaims(lost, among=machines)
    assert hf.complete(1), "requests are taken and filled again"
    until(lambda: command(hf, "status").returncode == 0, SECONDS, every=0.5, what="status is fine again")
    timeline = command(hf, "explain", lost).stdout
    assert f"{lost} was lost" in timeline
    for message in ("Cycle failed", "Pool status was not written", "Heartbeat could not be written"):
        assert sum(record.getMessage() == message for record in caplog.records) <= 2, f"it repeats: {message}"


@TROUBLES
def test_doctor_the_check_of_an_installation_and_a_loop_that_starts_name_the_disk_and_nothing_else(
    hf: Grid, room: Disk, trouble: Trouble
) -> None:
    hf.complete(1)
    hf.stop_loop()
    trouble.begin(room)
    found = subprocess.run(
        [str(SCRIPTS / "check_install.sh")],
        env=hf.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS * PATIENCE,
    )
    fixes = [line for line in found.stdout.splitlines() if line.startswith("fix: ")]
    assert found.returncode == 1
    assert [trouble.words in line and trouble.advice.lower() in line.lower() for line in fixes] == [True], fixes

    parts = {one["part"]: one for one in json.loads(command(hf, "doctor", "-o", "json").stdout)["parts"]}
    assert not parts["disk"]["fine"]
    assert trouble.words in parts["disk"]["text"]

    ended = command(hf, "run", "--once", "--listen", "127.0.0.1:0")
    assert ended.returncode == 1
    assert trouble.words in ended.stderr
    trouble.end(room)
    assert command(hf, "run", "--once", "--listen", "127.0.0.1:0").returncode == 0

"""`provisioner plan` and the loop's log, as an operator reads them: what would be done, and what was done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.stage import Case, Grid, stage


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Grid]:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None, loop=False)) as grid:
        yield grid


def call(hf: Grid, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command as people call it, which ends with this code."""
    done = subprocess.run(
        [sys.executable, "-m", "provisioner", *arguments],
        env={**os.environ, **hf.environment, "KUBECONFIG": str(hf.simulator.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def cycles(hf: Grid, *, level: str = "INFO") -> list[dict[str, Any]]:
    """The lines ``Cycle`` of a loop that runs one cycle."""
    log = call(hf, "--log-level", level, "run", "--once", "--listen", "127.0.0.1:0").stderr
    return [line for line in map(json.loads, log.splitlines()) if line["message"] == "Cycle"]


def test_a_plan_is_told_by_pool_template_and_reason_and_names_machines_where_asked(hf: Grid) -> None:
    id_ = hf.request("T2", 4)
    shown = call(hf, "plan").stdout
    assert shown.splitlines() == [
        "The next cycle would:", "  pool gke-main: 0 machines", "  create 4 of T2 in gke-main: wanted"
    ]  # fmt: skip
    named = call(hf, "plan", "--machines").stdout
    assert named.splitlines() == [*shown.splitlines(), *(f"    hf-{id_}-{number:06d}" for number in range(4))]
    document = json.loads(call(hf, "plan", "-o", "json").stdout)
    assert [one["machine"] for one in document["creates"]] == [line.strip() for line in named.splitlines()[3:]]
    assert hf.cloud() == []


def test_a_pod_that_somebody_deleted_is_told_as_a_difference_of_the_three(hf: Grid) -> None:
    hf.start_loop()
    lost, kept = hf.complete(2)
    hf.stop_loop()
    head, group = call(hf, "diff").stdout.splitlines()
    assert head == "HostFactory has sent no list yet, memory has 2, the clouds 2 machines."
    assert group.endswith("cloud running: memory and cloud agree; HostFactory has sent no list yet")
    assert hf.reclaimed(lost, kept) == {}
    same = call(hf, "diff").stdout.splitlines()
    assert same == [
        "HostFactory lists 2, memory has 2, the clouds 2 machines.",
        "      2  listed, memory succeeded, cloud running: all three agree",
    ]
    hf.simulator.preempt(lost)
    hf.until_cloud(lambda names: names == [kept])
    [group, rest] = json.loads(call(hf, "diff", "-o", "json", code=1).stdout)["groups"]
    assert (group["machines"], group["cloud"], rest["machines"]) == ([lost], "absent", [kept])


@pytest.mark.slow
def test_the_log_counts_what_was_done_and_is_quiet_when_nothing_is(hf: Grid) -> None:
    hf.request("T2", 3)
    done = cycles(hf)
    assert [(line["severity"], line["creates"], line["failures"]) for line in done] == [("INFO", 3, 0)]
    hf.until_cloud(lambda names: len(names) == 3, "running")
    call(hf, "run", "--once", "--listen", "127.0.0.1:0")
    assert cycles(hf) == []
    assert [(line["severity"], line["creates"]) for line in cycles(hf, level="DEBUG")] == [("DEBUG", 0)]


def test_what_the_cloud_refuses_is_no_create_and_its_cause_is_named(hf: Grid) -> None:
    hf.fault("quota")
    hf.request("T2", 3)
    (line,) = cycles(hf)
    assert (line["creates"], line["result"]) == (0, "partial")
    assert line["failures"] > 0
    assert f"{line['failures']} not created in gke-main: quota" in line["causes"]


@pytest.mark.slow
def test_one_cycle_that_could_not_do_its_work_is_a_problem(hf: Grid) -> None:
    call(hf, "init")
    call(hf, "run", "--once", "--listen", "127.0.0.1:0")
    (hf.work / "intent.json").unlink()
    log = call(hf, "run", "--once", "--listen", "127.0.0.1:0", code=1).stderr
    assert "Cycle failed" in log

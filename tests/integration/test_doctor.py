"""`provisioner doctor` runs all checks, shows how to fix each problem, and makes a bundle without secrets."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.commands.observe_pools import WAITING
from tests.conformance.stage import Case, Grid, stage
from tests.support.waiting import PATIENCE

SECRET = "hunter2"


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Grid]:
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None)) as grid:
        yield grid


def doctor(hf: Grid, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "provisioner", "doctor", *arguments],
        env={**os.environ, **hf.environment, "KUBECONFIG": str(hf.simulator.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_all_is_asked_at_once_and_what_is_wrong_says_what_to_do(hf: Grid, tmp_path: Path) -> None:
    machines = hf.complete(2)
    assert hf.reclaimed(*machines) == {}
    parts = {one["part"]: one for one in json.loads(doctor(hf, "-o", "json").stdout)["parts"]}
    part_names = (
        "state",
        "loop, requests and pools",
        "HostFactory, memory and clouds",
        "next cycle",
        "disk",
        "clock of the state against this host's",
    )
    assert {name: parts[name]["fine"] for name in part_names} == dict.fromkeys(part_names, True), parts

    hf.stop_loop()
    hf.fault("denied")
    (hf.work / "intent.json").write_text("{")
    bundle = tmp_path / "bundle.tar.gz"
    (hf.conf / "provisioner.yaml").write_text(f"password: {SECRET}\n")
    wrong = doctor(hf, "--bundle", str(bundle))
    lines = [line for line in wrong.stderr.splitlines() if not line.startswith(WAITING)]
    assert (wrong.returncode, lines) == (1, [])
    lines = wrong.stdout.splitlines()
    assert "fine  disk" in lines
    assert any("password" in line for line in lines)  # the configuration's own words
    assert any("intent.json" in line for line in lines)
    assert lines[-1].startswith(f"Written: {bundle}")

    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    with tarfile.open(bundle) as packed:
        texts = {one.name: packed.extractfile(one).read().decode() for one in packed}  # type: ignore[union-attr]
    names = set(texts)
    assert {"doctor/state.txt", "doctor/versions.txt", f"doctor/{hf.work.name}/memory.json"} <= names
    assert f"doctor/{hf.conf.name}/provisioner.yaml" in names
    assert not [name for name in names if "pod" in name]
    assert not [name for name, text in texts.items() if SECRET in text]

    again = doctor(hf, "--bundle", str(bundle))
    assert (again.returncode, "already exists" in again.stderr) == (2, True)

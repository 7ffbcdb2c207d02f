"""The pilot of an HTCondor pool: its entry point, its configuration and its pod spec. Stand-ins replace HTCondor's
programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.htcondor import CondorPool, slot
from tests.support.waiting import until

PILOT = Path(__file__).parents[2] / "deploy" / "machine" / "htcondor"
NAME = "hf-k3v9x2m7qa-000004"

MASTER = """#!/bin/sh
echo "$@" >"$POOL/master"
trap 'touch "$POOL/drains"; while [ -e "$POOL/job" ]; do sleep 0.05; done; exit 0' TERM
while [ ! -e "$POOL/unused" ]; do sleep 0.05; done
"""
"""A stand-in of condor_master. SIGTERM is a graceful shutdown, which waits for the job that runs."""


class Pilot:
    """A pod that runs the entry point."""

    def __init__(self, directory: Path, pool: CondorPool) -> None:
        self.pool, self._directory = pool, directory
        self.ready, self.token = directory / "ready", directory / "tokens.d" / "pool"
        (directory / "bin" / "condor_master").write_text(MASTER)
        (directory / "bin" / "condor_master").chmod(0o755)
        (directory / "token").write_text("secret")
        (directory / "token").chmod(0o444)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "POOL": str(directory),
            "HOSTNAME": f"{NAME}.example",
            "HF_CONDOR_HOST": "cm.example",
            "HF_TOKEN_FILE": str(directory / "token"),
            "HF_READY_FILE": str(self.ready),
            "HF_POLL_SECONDS": "0.05",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start the entry point in a new session."""
        given = {**self._environment, **environment}
        process = subprocess.Popen([PILOT / "entry.sh"], env=given, start_new_session=True)
        self._started.append(process)
        return process

    def joined(self) -> subprocess.Popen[bytes]:
        """Start the entry point, and wait until the pod is ready."""
        process = self.start()
        until(lambda: self.has("master"), 30)
        self.pool.has([slot(NAME)])
        until(self.ready.exists, 30)
        return process

    def has(self, file: str) -> bool:
        return (self._directory / file).exists()

    def puts(self, file: str) -> Path:
        path = self._directory / file
        path.touch()
        return path

    def end(self) -> None:
        """End all processes that are left."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def pilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pilot]:
    one = Pilot(tmp_path, CondorPool(tmp_path, monkeypatch))
    yield one
    one.end()


def test_a_pilot_is_ready_when_the_pool_lists_it_and_drains_at_sigterm(pilot: Pilot) -> None:
    process = pilot.joined()
    assert ["-constraint", f'HFMachine == "{NAME}"'] == pilot.pool.calls()[-1][2:4]
    job = pilot.puts("job")
    process.send_signal(signal.SIGTERM)
    until(lambda: pilot.has("drains"), 30)
    assert not pilot.ready.exists()
    assert process.poll() is None
    job.unlink()
    assert process.wait(60) == 0


def test_a_pilot_that_is_not_listed_in_time_fails(pilot: Pilot) -> None:
    pilot.pool.has([slot("another")])
    assert pilot.start(HF_JOIN_SECONDS="1").wait(60) == 1
    assert pilot.has("drains")
    assert not pilot.ready.exists()


def test_a_pilot_that_is_no_longer_used_ends_by_itself(pilot: Pilot) -> None:
    process = pilot.joined()
    pilot.puts("unused")
    assert process.wait(60) == 0
    assert not pilot.ready.exists()


def test_the_token_can_be_read_by_the_pilot_s_user_alone(pilot: Pilot) -> None:
    pilot.joined()
    assert (pilot.token.read_text(), pilot.token.stat().st_mode & 0o777) == ("secret", 0o600)


def test_a_pilot_without_a_central_manager_fails(pilot: Pilot) -> None:
    assert pilot.start(HF_CONDOR_HOST="").wait(60) == 1
    assert not pilot.has("master")


def test_each_variable_of_the_configuration_is_given_or_has_a_default() -> None:
    (container,) = yaml.safe_load((PILOT / "pod-spec.yaml").read_text())["containers"]
    script = (PILOT / "entry.sh").read_text()
    exported = re.search(r"^export (.*)$", script, re.MULTILINE)
    assert exported is not None
    given = {*exported[1].split(), *(entry["name"] for entry in container["env"])}
    assert set(re.findall(r"\$ENV\((\w+)\)", (PILOT / "pilot.conf").read_text())) <= given


def test_a_pod_is_given_the_time_to_drain() -> None:
    spec = yaml.safe_load((PILOT / "pod-spec.yaml").read_text())
    leave = re.search(r"HF_LEAVE_SECONDS:=(\d+)", (PILOT / "entry.sh").read_text())
    assert leave is not None
    assert int(leave[1]) + 2 <= min(15, spec["terminationGracePeriodSeconds"])  # 15 s: a Spot node's pods

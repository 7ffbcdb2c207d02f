"""The program that reads jobs and slots of HTCondor by the package htcondor2. The tests use the classes of PyPI's
package, and make classads from texts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from provisioner.demand.htcondor import JOB_ATTRIBUTES, OUR_SLOTS, SLOT_ATTRIBUTES, HTCondor
from provisioner.demand.sources import Fleet, Running, Shape
from tests.kube.build import BuildError
from tests.support.hostfactory.provider import ROOT
from tests.support.htcondor_package import python

pytestmark = pytest.mark.schedulers

JOB = """Owner = "ana"
JobStatus = 1
JobUniverse = 5
RequestCpus = 2
RequestMemory = ifthenelse(MemoryUsage =!= undefined,MemoryUsage,(ImageSize + 1023) / 1024)
ImageSize = 2500000
"""
GPU_JOB = 'Owner = "ben"\nJobStatus = 1\nJobUniverse = 5\nRequestCpus = 8\nRequestMemory = 4000\nRequestGPUs = 1\n'
RUNNING = GPU_JOB.replace("JobStatus = 1", "JobStatus = 2")
SLOT = """HFMachine = "hf-a-0"
State = "Unclaimed"
Activity = "Idle"
Cpus = 4
Memory = 8192
"""


@pytest.fixture(scope="module")
def condor_python() -> Path:
    """Return the Python that has the package."""
    try:
        return python(os.environ)
    except BuildError as error:
        pytest.skip(f"needs PyPI's htcondor: {error}")


class Asked:
    """The program, which gets classads from a file in place of a real pool."""

    def __init__(self, condor_python: Path, directory: Path) -> None:
        self._python, self._file = condor_python, directory / "ads.json"

    def program(self, **pool: Any) -> list[str]:
        """Write the classads into a file. Return the command that runs the program with them."""
        self._file.write_text(json.dumps({"schedds": {}, "slots": [], **pool}))
        return [str(self._python), "-m", "tests.support.htcondor_bindings", str(self._file)]

    def ask(self, what: str, constraint: str, *attributes: str, names: str = "", **pool: Any) -> Any:
        """Run the program to its end, and return its result."""
        words = [*self.program(**pool), what, "", names, constraint, *attributes]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "CONDOR_CONFIG": "/dev/null"}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)

    def lines(self, *asked: Any, **pool: Any) -> Counter[str]:
        """Run the program, and return how often it printed each line."""
        done = self.ask(*asked, **pool)
        assert done.returncode == 0, done.stderr
        return Counter(done.stdout.splitlines())


@pytest.fixture
def asked(condor_python: Path, tmp_path: Path) -> Asked:
    return Asked(condor_python, tmp_path)


def test_equal_jobs_are_one_line_with_evaluated_values(asked: Asked) -> None:
    jobs = {"ap1": [JOB, JOB, GPU_JOB, RUNNING], "ap2": [JOB]}
    lines = asked.lines("jobs", HTCondor().constraint(), *JOB_ATTRIBUTES, schedds=jobs)
    assert lines == {"2 2 2442 undefined": 1, "1 8 4000 1": 1, "1 2 2442 undefined": 1}


def test_attributes_of_the_requirements_are_grouped_too(asked: Asked) -> None:
    """The constraint may name attributes such as Owner. A schedd applies it to groups of jobs, so the jobs must be
    grouped by these attributes. Otherwise no group would match."""
    constraint = HTCondor(additional_requirements='Owner == "ben" && RequestGPUs > 0').constraint()
    lines = asked.lines("jobs", constraint, *JOB_ATTRIBUTES, schedds={"ap1": [JOB, GPU_JOB, GPU_JOB]})
    assert lines == {"2 8 4000 1": 1}


def test_groups_that_lack_jobs_fail_the_question(asked: Asked) -> None:
    pool = {"schedds": {"ap1": [JOB] * 19}}
    constraint = HTCondor().constraint()
    assert asked.ask("jobs", constraint, *JOB_ATTRIBUTES, **pool, missed=1).returncode == 0
    done = asked.ask("jobs", constraint, *JOB_ATTRIBUTES, **pool, missed=2)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ap1 has 21 idle jobs, but its groups have 19" in done.stderr


def test_a_schedd_that_is_unknown_fails_the_question(asked: Asked) -> None:
    done = asked.ask("jobs", HTCondor().constraint(), *JOB_ATTRIBUTES, names="ap1,ap9", schedds={"ap1": [JOB]})
    assert (done.returncode, done.stdout) == (1, "")
    assert "ap9" in done.stderr


def test_slots_of_ours_are_printed(asked: Asked) -> None:
    lines = asked.lines("slots", OUR_SLOTS, *SLOT_ATTRIBUTES, slots=[SLOT, SLOT.replace("HFMachine", "Other")])
    assert lines == {"hf-a-0 Unclaimed Idle 4 8192 undefined": 1}


def test_the_source_reads_jobs_and_machines_by_the_program(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are three jobs, and a machine has room for two of them. So the source must want two machines."""
    program = asked.program(schedds={"ap1": [JOB] * 3}, slots=[SLOT])
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {shlex.join(program)} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("CONDOR_CONFIG", "/dev/null")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    fleet = Fleet(1000.0, {"Small": Shape(4, 8192, 0)}, {"hf-a-0": Running("Small", 0.0)})
    read = HTCondor(client="htcondor2").read
    assert dict(read(fleet).wanted) == {"Small": 2}
    assert read(fleet._replace(now=1030.0)).idle == {"hf-a-0": 30}

"""Whatever a simulated Compute API answers, in the tests' process or in one that a test starts, is checked; and what is
wrong with it fails the run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioner.simulator.compute.methods import METHODS
from provisioner.tools.playground import Playground
from tests.support.checks import simulators
from tests.support.checks.liar import GROUPS, ask, lying_elsewhere, lying_here
from tests.support.checks.simulators import Notes
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
LIED = f"GET {GROUPS}/g is answered 200: instanceGroupManagers.get: "

LIES = [
    pytest.param({"id": 42}, ".id: expected string, got 42", id="an int64 as a number"),
    pytest.param({"targetSize": "1"}, ".targetSize: expected integer, got '1'", id="a number as a text"),
    pytest.param({"status": {"isStable": 1}}, ".status.isStable: expected boolean, got 1", id="a number for a truth"),
    pytest.param({"listManagedInstancesResults": "ALL"}, "'ALL' is not one of ", id="a word that the enum lacks"),
    pytest.param({"sizeOfTarget": 1}, ".sizeOfTarget: unknown field", id="a field that is not Google's"),
]


@pytest.mark.parametrize(("wrong", "words"), LIES)
def test_a_response_of_this_process_is_seen(notes: Notes, wrong: dict[str, Any], words: str) -> None:
    with lying_here(wrong) as compute:
        ask(compute)
        (problem,) = notes.take()
        assert problem.startswith(LIED)
        assert words in problem
        ask(compute, f"{GROUPS}?fild=1")
        (problem,) = notes.take()
        assert "unknown parameter fild; " in problem
        assert words in problem, "also in a list"


def test_a_response_of_another_process_is_seen(notes: Notes) -> None:
    with lying_elsewhere({"id": 42}) as compute:
        ask(compute)
    assert notes.take() == [f"{LIED}.id: expected string, got 42"]


@pytest.mark.slow
def test_every_response_of_the_demonstration_s_cloud_is_seen(notes: Notes) -> None:
    with Playground() as grid:
        (cloud,) = [process.pid for process in grid._processes if "simulator" in process.args]
        id_ = grid.hf.request("GceVm", 2)
        until(lambda: grid.hf.status(id_)["status"] == "complete", 60, what="two machines")

        def asked() -> int:
            calls = grid.cloud_state()["calls"]
            return sum(calls.get(name, 0) for name in {method.name for method in METHODS})

        assert asked() > 0
        until(lambda: notes.responses()[cloud] == asked(), 30, what="a note of every response")


LYING_TESTS = """
import pytest
from tests.support.checks.liar import ask, lying_elsewhere, lying_here

def test_here():
    with lying_here({"id": 42}) as compute:
        ask(compute)

def test_elsewhere():
    with lying_elsewhere({"id": 42}) as compute:
        ask(compute)

@pytest.fixture(scope="session")
def to_the_end(notes):
    with lying_elsewhere({"id": 42}) as compute:
        yield
        ask(compute)

def test_what_outlives_the_last_test(to_the_end):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_response_that_is_wrong_fails_the_run(tmp_path: Path, workers: str) -> None:
    """The run fails although its tests would pass."""
    (tmp_path / "test_lies.py").write_text(LYING_TESTS)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "setup.cfg"), "-n", workers]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1
    assert "3 passed, 3 errors" in done.stdout
    assert done.stdout.count(f"E       AssertionError: {LIED}.id: expected string, got 42") == 3


ASKING = "with lying_elsewhere({}) as compute: ask(compute)"


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        pytest.param(ASKING.format({}), 0, "checked: 1\n", id="all is well", marks=pytest.mark.slow),
        pytest.param(ASKING.format({"id": 42}), 1, f"{LIED}.id: expected string, got 42\n", id="a wrong response"),
        pytest.param("pass", 1, "checked: 0\n", id="no response", marks=pytest.mark.slow),
        pytest.param(
            f"{ASKING.format({})}; sys.exit(7)", 7, "checked: 1\n", id="the command fails", marks=pytest.mark.slow
        ),
    ],
)
def test_a_command_is_run_with_its_responses_checked(
    capfd: pytest.CaptureFixture[str], program: str, code: int, words: str
) -> None:
    program = f"import sys; from tests.support.checks.liar import ask, lying_elsewhere\n{program}"
    assert simulators.run([sys.executable, "-c", program]) == code
    assert words in capfd.readouterr().out

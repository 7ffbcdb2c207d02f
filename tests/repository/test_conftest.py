"""If a signal ends a run of pytest, conftest.py stops everything that the run's fixtures have started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.testing.waiting import PATIENCE, until

CASE = """
import pathlib, time, pytest
HERE = pathlib.Path(__file__).parent

@pytest.fixture
def server():
    (HERE / "started").touch()
    yield
    (HERE / "stopped").touch()

def test_of_a_server(server):
    time.sleep(600)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_fixtures_in_order(tmp_path: Path, ending: signal.Signals) -> None:
    (tmp_path / "test_case.py").write_text(CASE)
    words = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", tmp_path]
    with subprocess.Popen([sys.executable, "-m", "pytest", *words], stdout=subprocess.PIPE, text=True) as run:
        try:
            until((tmp_path / "started").exists, 60.0, what="the fixture starts")
            run.send_signal(ending)
            shown, _ = run.communicate(timeout=60 * PATIENCE)
        finally:
            run.kill()
    assert (tmp_path / "stopped").exists(), shown
    assert run.returncode == pytest.ExitCode.INTERRUPTED

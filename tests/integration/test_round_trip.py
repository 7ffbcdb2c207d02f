"""``make run`` prints lines for a shell, which request machines, lose some and return them. Ctrl-C ends it and leaves
nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, until

SECONDS = 120.0


@pytest.mark.slow
def test_the_lines_that_make_run_prints_are_a_whole_round_trip(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    with printed.open("w") as out:
        loop = subprocess.Popen([sys.executable, "-m", "provisioner", "demo", "--keep"], stdout=out, stderr=out)
    try:
        until(lambda: "Ctrl-C ends" in printed.read_text(), SECONDS, what="the demonstration runs")
        lines = printed.read_text().splitlines()
        begin, end = (
            lines.index("Then try a whole round trip, line by line:"),
            lines.index("Or use your own tools:"),
        )
        exports = [line for line in lines[:begin] if line.startswith(("cd ", "export "))]
        work = next(Path(line.split("=")[1]) for line in exports if "WORKDIR" in line)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join([*exports, *lines[begin + 1 : end]])],
            capture_output=True,
            text=True,
            timeout=SECONDS * PATIENCE,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        asked, complete, *_ = done.stdout.splitlines()
        assert '"requestId"' in asked
        assert complete.count('"succeed"') == 5
        assert "GCE out of resources" in done.stdout
        assert '"gracePeriod"' in done.stdout
        assert '"requestId": "ret-' in done.stdout
    finally:
        loop.send_signal(signal.SIGINT)
        loop.wait(SECONDS * PATIENCE)
    assert not work.parent.exists()

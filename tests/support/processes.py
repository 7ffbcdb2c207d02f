"""The resources that a process has used, as Linux counts them."""

from __future__ import annotations

import os
import re
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return the processor time in seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mebibytes(pid: int, key: str) -> float:
    """Return memory of a process in mebibytes. ``key``: VmRSS for the present value, VmHWM for the maximum."""
    line = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert line is not None
    return int(line[1]) / 1024

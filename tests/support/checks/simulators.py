"""Collect the faults in responses of the simulated Compute APIs from all processes of a run.

``python -m tests.support.checks.simulators COMMAND …`` runs a command and checks each response. `make test` checks them
by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

NOTES = "SIMULATOR_NOTES"
"""Environment variable with the directory in which every process writes notes about the responses of its simulated
Compute API (see ``witness.py``)."""

PLACES = (Path(__file__).parents[2] / "every_process", Path(__file__).parents[3])
"""Directories from which a started process imports ``sitecustomize`` and these tests."""


def surroundings(notes: Path) -> dict[str, str]:
    """Return the environment variables that add the checks to a started process."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = dict.fromkeys([*map(str, PLACES), *filter(None, paths)])
    return {NOTES: str(notes), "PYTHONPATH": os.pathsep.join(places)}


class Notes:
    """The files in which the processes of a run note problems.

    Each process has two files. One has a line for each response, and the other has a line for each call without a right
    (``callers.py``).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: Counter[Path] = Counter()

    def take_faults(self) -> list[str]:
        """Return the faults that were noted since the last call of this method."""
        notes: set[str] = set()
        for file in self.directory.iterdir():
            if file.stat().st_size > self._read[file]:
                lines = file.read_bytes()[self._read[file] :]
                self._read[file] += len(lines)
                notes.update(lines.decode().split("\n"))
        return sorted(notes - {""})

    def responses(self) -> Mapping[int, int]:
        """Return the number of responses that each process has noted so far, by the id of the process."""
        files = [file for file in self.directory.iterdir() if not file.suffix]
        return {int(file.name): file.read_bytes().count(b"\n") for file in files}


def run(command: Sequence[str]) -> int:
    """Run a command, and return its exit code.

    Return 1 if the simulated API gave no response, or a response that Google could not give.
    """
    with tempfile.TemporaryDirectory() as directory:
        notes = Notes(Path(directory))
        code = subprocess.run(command, env={**os.environ, **surroundings(notes.directory)}, check=False).returncode
        problems, responses = notes.take_faults(), sum(notes.responses().values())
    print(*problems, f"Answers of the simulated Compute API that were checked: {responses}", sep="\n")
    return 1 if problems or not responses else code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

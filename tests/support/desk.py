"""The state that a loop leaves after planning, and the output of commands about this state.

The state is given as values or in a state directory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.model import Limits, Memory
from provisioner.state.directory import StateDir
from provisioner.state.journal import format_time
from provisioner.state.marker_files import UNSEEN, LifeSigns
from provisioner.telemetry.brake_release_forecast import ScriptCalls
from provisioner.telemetry.pool_status import PoolStatus
from provisioner.telemetry.status_inputs import File, StatusInputs
from tests.support.parts import alter
from tests.unit.core import NOW, intent_of, limits, pool, unmet_of

ONE_POOL = limits(pool("a"))


def make_pool_status(loop_memory: Memory, allowed: Limits, **pool_status: Any) -> PoolStatus:
    """Return the pool status that a loop publishes after planning. ``pool_status``: fields to add or to replace."""
    blind = [
        name for name, sentences in pool_status.get("pools", {}).items() if any(UNSEEN in one for one in sentences)
    ]
    orphans = {name: len(machines) for name, machines in pool_status.get("orphans", {}).items()}
    return PoolStatus(**({"unmet": unmet_of(loop_memory, allowed, blind, orphans), "limits": allowed} | pool_status))


def make_status_inputs(
    loop_memory: Memory, allowed: Limits = ONE_POOL, *, ended: bool = False, **pool_status: Any
) -> StatusInputs:
    """Return the status inputs of a loop that made a plan a second ago. ``ended``: the loop has ended cleanly."""
    return StatusInputs(
        directory="/work",
        memory=alter(loop_memory, time=NOW, time_wall=NOW),
        memory_file=File(),
        intent=intent_of(loop_memory),
        intent_file=File(),
        pool_status=make_pool_status(loop_memory, allowed, **pool_status),
        signs=LifeSigns({"epoch": 1, "ended": ended}, NOW - 1, 1.0),
        refusal="",
        calls=ScriptCalls({}, frozenset(), 0.0),
        release_asked=False,
        holds={"current": [], "problem": ""},
        differing=(),
        demand={},
        wall=NOW,
    )


class Desk:
    """A state directory whose loop has just ended a cycle."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = StateDir(directory)
        self._capsys = capsys

    def leave(self, loop_memory: Memory, allowed: Limits = ONE_POOL, **pool_status: Any) -> None:
        """Write the memory, pool status and heartbeat of a loop that has just made a plan."""
        self.state.memory.write(alter(loop_memory, provisioner="demo", time=NOW, time_wall=time.time()))
        self.state.pool_status.write(asdict(make_pool_status(loop_memory, allowed, **pool_status)))
        self.state.heartbeat.touch()

    def journal(self, *lines: Mapping[str, object], ago: float = 60.0) -> None:
        """Write lines to the journal, one for each second. The first line is from ``ago`` seconds ago."""
        began = time.time() - ago
        self.state.journal.append(
            {"time": format_time(began + n), "cycle": n} | dict(line) for n, line in enumerate(lines)
        )

    def call(self, command: str, *arguments: str) -> tuple[int, str, str]:
        """Run a command, and return its exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = run([command, "--state-dir", self.state.path, *arguments])
        return (code, *self._capsys.readouterr())

    def document(self, command: str, *arguments: str) -> dict[str, Any]:
        """Run a command, and return the JSON document that it prints."""
        printed: dict[str, Any] = json.loads(self.call(command, "-o", "json", *arguments)[1])
        return printed

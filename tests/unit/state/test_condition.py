"""What a state file and its lock file say together: each row of the table in condition.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from provisioner.model import Memory
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, condition


@pytest.mark.parametrize(
    ("generation", "noted", "expected"),
    [
        pytest.param(None, None, Condition.NEW, id="nothing was ever there"),
        pytest.param(None, 0, Condition.NEW, id="a lock was taken and nothing written"),
        pytest.param(None, 3, Condition.MISSING, id="what was written is gone"),
        pytest.param(3, None, Condition.ALONE, id="no writer made it"),
        pytest.param(3, 4, Condition.OLDER, id="an old copy"),
        pytest.param(3, 3, Condition.FINE, id="the last one written"),
        pytest.param(3, 2, Condition.FINE, id="a crash before the note"),
    ],
)
def test_file_and_note(generation: int | None, noted: int | None, expected: Condition) -> None:
    assert condition(generation, noted) is expected


def test_a_memory_file_in_each_condition(tmp_path: Path) -> None:
    memory = StateDir(tmp_path).memory
    copy = f"{memory.path}.copy"
    conditions = [memory.condition()]
    memory.write(Memory("demo"))
    shutil.copy(memory.path, copy)
    conditions.append(memory.condition())
    memory.write(Memory("demo", generation=1))
    shutil.copy(copy, memory.path)
    conditions.append(memory.condition())
    Path(memory.path).write_text("{")
    conditions.append(memory.condition())
    os.unlink(memory.path)
    conditions.append(memory.condition())
    shutil.copy(copy, memory.path)
    os.unlink(memory.lock_path)
    conditions.append(memory.condition())
    assert conditions == ["new", "fine", "older", "unreadable", "missing", "alone"]

"""A state directory, and fixtures that make its tests quick."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from provisioner.state import atomic
from provisioner.state.directory import StateDir
from tests.support.hostfactory.provider import GOLDEN


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between repeated reads of a file. Their purpose is that the cache of a network file system
    catches up, and these tests use a local directory."""
    monkeypatch.setattr(atomic, "FIRST_PAUSE", 0.0)


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", os.fstat)


@pytest.fixture
def golden(tmp_path: Path) -> StateDir:
    """A state directory that an earlier version has written: see test_record_format.py."""
    shutil.copytree(GOLDEN / "state", tmp_path / "work")
    return StateDir(tmp_path / "work")

"""`provisioner init` creates intent.json once."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.commands.cli import run
from provisioner.state.directory import StateDir
from tests.support.hostfactory.sites import example_site


@pytest.mark.parametrize("name", ["init", "initializeDB"])
def test_init_creates_intent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site = example_site(tmp_path, monkeypatch)
    assert run([name]) == 0
    assert StateDir(site / "work").intent.read().provisioner == "demoinst"
    assert run(["init"]) == 1
    assert "exists already" in capsys.readouterr().err

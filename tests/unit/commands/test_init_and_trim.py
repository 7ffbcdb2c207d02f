"""`provisioner init` creates intent.json once; `provisioner trim` removes due requests, unless a loop runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.commands.cli import run
from provisioner.model import Memory, RequestRecord, RequestStatus
from provisioner.state.directory import StateDir
from tests.support.hostfactory.sites import example_site
from tests.support.parts import alter
from tests.support.stores import add_request


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return example_site(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["init", "initializeDB"])
def test_init_creates_intent_once(site: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name]) == 0
    assert StateDir(site / "work").intent.read().provisioner == "demoinst"
    assert run(["init"]) == 1
    assert "exists already" in capsys.readouterr().err


def test_trim_shows_what_is_due_and_removes_it_unless_a_loop_does_that(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["init"])
    state = StateDir(site / "work")
    id_ = add_request(state, "GkePod", 1, created_wall=0.0)
    done = RequestRecord(
        id_, "GkePod", 0, read_at=0.0, deadline_at=1.0, ended=RequestStatus.COMPLETE, ended_at=2.0, reported_at=3.0
    )
    state.memory.write(alter(Memory("demoinst"), generation=2, time=90_000.0, requests={id_: done}))
    capsys.readouterr()
    assert run(["trim", "--dry-run"]) == 0
    assert f"request {id_} would leave the files" in capsys.readouterr().out
    assert state.loop_lock.acquire(0)
    assert run(["trim"]) == 0
    assert "A loop runs" in capsys.readouterr().out
    assert id_ in state.intent.read().requests
    state.loop_lock.release()
    assert run(["trim", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "requests": [id_], "returns": [], "dry_run": False, "loop_runs": False
    }  # fmt: skip
    assert (state.intent.read().requests, state.memory.read().requests) == ({}, {})
    assert run(["trim"]) == 0
    assert "no request is due" in capsys.readouterr().out

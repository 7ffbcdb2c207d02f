"""The command line: exit codes, where things are looked for, what is printed."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from provisioner import __version__
from provisioner.commands.cli import run
from provisioner.model import Memory, RequestRecord, RequestStatus
from provisioner.state.directory import StateDir
from tests.support.hostfactory.sites import example_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A provider instance's directories, as HF's environment names them."""
    return example_site(tmp_path, monkeypatch)


def test_the_example_configuration_is_fine(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["pools"]) == {"gke-main", "gke-spare", "mig-a", "mig-b"}
    assert document["templates"]["Mixed"]["pools"] == ["gke-main", "mig-a"]
    assert not [text for text in document["warnings"] if text.startswith("template ")]


def test_every_mistake_is_on_stderr_and_the_code_is_2(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = site / "conf" / "provisioner.yaml"
    file.write_text(file.read_text().replace("max_pending: 100", "max_pending: ten").replace("loop:", "looop:"))
    assert run(["check", str(file)]) == 2
    errors = capsys.readouterr().err
    assert "pools.gke-main.max_pending" in errors
    assert "pools.gke-spare.max_pending" in errors
    assert "looop: unknown setting; did you mean 'loop'?" in errors


@pytest.mark.parametrize("command", ["run", "plan", "init", "simulator"])
def test_a_command_without_configuration_says_which_file_is_missing(
    site: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "conf" / "provisioner.yaml").unlink()
    assert run([command]) == 2
    assert "provisioner.yaml" in capsys.readouterr().err


def test_without_an_environment_the_variable_is_named(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_PROVIDER_CONFDIR")
    assert run(["check"]) == 2
    assert "HF_PROVIDER_CONFDIR" in capsys.readouterr().err


def test_what_a_command_does_not_know_is_told_with_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["check", "--lve"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: provisioner check ")
    assert "--live" in said
    assert said.endswith("provisioner check: error: unrecognized arguments: --lve\n")


def test_a_missing_state_directory_is_wrong_usage(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--state-dir", str(site / "nowhere")]) == 2
    assert "nowhere: no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["init", "initializeDB"])
def test_init_creates_intent_once(site: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name]) == 0
    assert StateDir(site / "work").intent.read().provisioner == "demoinst"
    assert run(["init"]) == 1
    assert "exists already" in capsys.readouterr().err


def test_check_warns_of_what_our_own_labels_replace(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = site / "conf" / "pod-specs" / "standard.yaml"
    body = textwrap.indent(spec.read_text(), "  ")
    spec.write_text(f"metadata: {{labels: {{hf-provisioner/pool: mine, app: grid}}}}\nspec:\n{body}")
    assert run(["check"]) == 0
    text = "pools.gke-main.pod_spec: 'standard.yaml': metadata.labels.hf-provisioner/pool: replaced by our own"
    assert f"warning: {text}" in capsys.readouterr().out
    assert run(["check", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"][0] == text


def test_trim_shows_what_is_due_and_removes_it_unless_a_loop_does_that(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["init"])
    state = StateDir(site / "work")
    with state.intent.additions() as intent:
        id_ = intent.add_request("GkePod", 1, created_wall=0.0)
    done = RequestRecord(
        id_, "GkePod", 0, read=0.0, deadline=1.0, ended=RequestStatus.COMPLETE, ended_at=2.0, told_at=3.0
    )
    state.memory.write(Memory("demoinst", generation=2, time=90_000.0, requests={id_: done}))
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
    assert "nothing is due" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"provisioner {__version__}\n"

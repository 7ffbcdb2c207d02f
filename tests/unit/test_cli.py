"""The command line: exit codes, where things are looked for, what is printed."""

from __future__ import annotations

import json
import shutil
import textwrap
import time
from pathlib import Path

import pytest

from provisioner import __version__, service
from provisioner.cli import run
from provisioner.marks import UNSEEN
from provisioner.model import (
    Brake,
    BrakeReason,
    ErrorClass,
    Failure,
    Memory,
    RequestRecord,
    RequestStatus,
    Slot,
    Unobserved,
    Verdict,
    evolve,
)
from provisioner.store import StateDir

EXAMPLE = Path(__file__).parent.parent.parent / "config" / "demoinst"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A provider instance's directories, as HF's environment names them."""
    shutil.copytree(EXAMPLE, tmp_path / "conf")
    (tmp_path / "work").mkdir()
    for name in ("HF_TOP", "HF_CONFDIR", "HF_WORKDIR", "PRO_CONF_DIR", "PRO_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_PROVIDER_NAME", "demoinst")
    monkeypatch.setenv("HF_PROVIDER_CONFDIR", str(tmp_path / "conf"))
    monkeypatch.setenv("HF_PROVIDER_WORKDIR", str(tmp_path / "work"))
    return tmp_path


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


def test_a_missing_state_directory_is_wrong_usage(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--state-dir", str(site / "nowhere")]) == 2
    assert "nowhere: no such directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["init", "initializeDB"])
def test_init_creates_intent_once(site: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name]) == 0
    assert StateDir(site / "work").intent.read().provisioner == "demoinst"
    assert run(["init"]) == 1
    assert "exists already" in capsys.readouterr().err


def test_status_of_a_new_directory_says_that_intent_is_missing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == 1
    assert "intent.json" in capsys.readouterr().err


def test_status_shows_requests_and_a_latched_brake_is_a_problem(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    state = StateDir(site / "work")
    with state.intent.additions() as intent:
        id_ = intent.add_request("GkePod", 3, created_wall=0.0)
    capsys.readouterr()
    assert run(["status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["unread"] == [id_]
    brake = Brake(BrakeReason.MEMORY_LOST, 0.0, "memory.json was lost.")
    state.memory.write(Memory(provisioner="demoinst", brake=brake))
    assert run(["status"]) == 1
    assert "BRAKE memory_lost: memory.json was lost." in capsys.readouterr().out


def test_status_says_that_memory_is_lost(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    state = StateDir(site / "work")
    state.memory.write(Memory(provisioner="demoinst"))
    assert run(["status"]) == 0
    assert "MEMORY LOST" not in capsys.readouterr().out
    Path(state.memory.path).unlink()
    assert run(["status"]) == 1
    assert "MEMORY LOST: memory.json is missing although it was written" in capsys.readouterr().out


def test_status_shows_what_is_wrong_with_a_pool(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    StateDir(site / "work").notes.write({"mig-a": ["someone else shrinks the group"]})
    assert run(["status"]) == 0
    assert "  pool mig-a: someone else shrinks the group" in capsys.readouterr().out


def test_status_of_a_pool_that_cannot_be_seen_is_a_problem(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    StateDir(site / "work").notes.write({"mig-a": [f"{UNSEEN}there is no such group"]})
    capsys.readouterr()
    assert run(["status"]) == 1
    assert "  pool mig-a: cannot be seen: there is no such group" in capsys.readouterr().out


def test_status_names_a_stuck_machine_until_it_is_gone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    state = StateDir(site / "work")
    stuck = Slot("hf-abcdefghij-000001", 1, "gke-main", Verdict.RETURNED, 0.0, stuck=True)
    capsys.readouterr()
    for slot, code, named in (
        (stuck, 1, [{"machine": stuck.name, "pool": "gke-main"}]),
        (evolve(stuck, gone=True), 0, []),
    ):
        record = RequestRecord("abcdefghij", "GkePod", 1, 0.0, 60.0, {1: slot})
        state.memory.write(Memory(provisioner="demoinst", requests={record.id: record}))
        assert run(["status", "-o", "json"]) == code
        assert json.loads(capsys.readouterr().out)["stuck"] == named
        assert run(["status"]) == code
        assert ("STUCK hf-abcdefghij-000001 in pool gke-main" in capsys.readouterr().out) is bool(named)


def test_check_warns_of_what_our_own_labels_replace(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = site / "conf" / "pod-specs" / "standard.yaml"
    body = textwrap.indent(spec.read_text(), "  ")
    spec.write_text(f"metadata: {{labels: {{hf-provisioner/pool: mine, app: grid}}}}\nspec:\n{body}")
    assert run(["check"]) == 0
    text = "pools.gke-main.pod_spec: 'standard.yaml': metadata.labels.hf-provisioner/pool: replaced by our own"
    assert f"warning: {text}" in capsys.readouterr().out
    assert run(["check", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [text]


def test_status_shows_machines_that_no_list_has_named_for_a_day(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    wall = time.time()
    known = Memory("demoinst", time=90_000.0, time_wall=wall - 10, unlisted={"hf-old": 3_600.0, "hf-new": 3_700.0})
    StateDir(site / "work").memory.write(known)
    capsys.readouterr()
    assert run(["status"]) == 0
    shown = capsys.readouterr().out
    assert "machine hf-old: no list of HostFactory has named it for a day" in shown
    assert "hf-new" not in shown


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


def test_recover_asks_the_loop_to_release_the_brake(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["init"])
    state = StateDir(site / "work")
    assert run(["recover"]) == 0
    assert not state.recovery_asked()
    state.memory.write(Memory(provisioner="demoinst", brake=Brake(BrakeReason.MEMORY_LOST, 0.0, "Lost.")))
    assert run(["recover"]) == 0
    assert state.recovery_asked()


def test_recover_shows_what_it_would_write_and_writes_it_when_told_to(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["init"])
    state = StateDir(site / "work")
    brake = Brake(BrakeReason.REQUEST_LOST, 0.0, "intent.json lacks 1 known requests.")
    known = RequestRecord("aaaaaaaaaa", "GkePod", 3, read=0.0, deadline=1.0)
    state.memory.write(Memory("demoinst", generation=1, requests={known.id: known}, brake=brake))
    capsys.readouterr()
    assert run(["recover"]) == 1
    shown = capsys.readouterr().out
    assert "writes back request aaaaaaaaaa: 3 of GkePod" in shown
    assert "To write it: provisioner recover --apply" in shown
    assert (state.intent.read().requests, state.recovery_asked()) == ({}, False)
    assert run(["recover", "--apply", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["writes"], document["applied"], document["brake"]["reason"]) == (["intent"], True, "request_lost")
    assert state.intent.read().requests["aaaaaaaaaa"].count == 3
    assert state.recovery_asked()


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(["intent"], id="memory tells all: what would be written is shown"),
        pytest.param(["intent", "memory"], id="only the machines tell: refused"),
    ],
)
def test_recover_where_a_pool_cannot_be_seen(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lost: list[str]
) -> None:
    blind = Unobserved("gke-main", 0.0, Failure(ErrorClass.UNAVAILABLE, "no route"))
    monkeypatch.setattr(service, "look_once", lambda _: {"gke-main": blind})
    run(["init"])
    StateDir(site / "work").memory.write(Memory("demoinst", generation=1))
    for kind in lost:
        (site / "work" / f"{kind}.json").unlink()
    capsys.readouterr()
    assert run(["recover"]) == 1
    told = capsys.readouterr()
    assert ("pool gke-main cannot be seen" in told.out) is (lost == ["intent"])
    assert ("cannot be seen: gke-main. Nothing was written." in told.err) is (lost != ["intent"])
    assert run(["recover", "--apply"]) == (0 if lost == ["intent"] else 1)
    assert (site / "work" / "intent.json").exists() is (lost == ["intent"])


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"provisioner {__version__}\n"

"""Upgrade and rollback. This version works on the state of the previous release, and the previous release can then
continue with this state. Scripts, loop and commands refuse state that a newer version wrote. They print one sentence,
and do not change the state."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.commands.cli import run
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from provisioner.model import BrakeReason, Hold, HoldKind, Verdict
from provisioner.state.database import SCHEMA
from provisioner.state.holds import with_hold
from tests.conformance.stage import TIMINGS, Instance, template
from tests.support.hostfactory.in_process import Here, asking
from tests.support.hostfactory.provider import GOLDEN
from tests.support.last_release import readable
from tests.support.waiting import until

RELEASE = json.loads((GOLDEN / "release.json").read_text())
"""The fields that the last release can read: see tests/support/last_release.py."""

SUCCEEDED, UNREPORTED, RETURN_ID = "gacmtgfnyp", "ihsc3p23q5", "ret-dsjn6l56km"
HOLD = Hold(HoldKind.PAUSE, "pool", "ann", 1_000_045.0, "node upgrade")
"""The hold that an operator had set while the release before ran."""
SHOWN = {"T": 500, "U": 200}
"""The maxNumbers that HostFactory had been shown."""
NEWER = f"has schema version {SCHEMA + 1}, this provisioner knows up to {SCHEMA}"


# --- upgrade and rollback ---------------------------------------------------------------------------------------------


@pytest.fixture
def upgraded(tmp_path: Path) -> Iterator[Instance]:
    """Yield a provider instance of this version, on the state directory of the previous release. Its loop does not run
    yet.

    The previous release's own programs wrote each file of the state. That release had no files in ``config/``.
    """
    pool = {"kind": "gke", "pod_spec": "pod.yaml", "observe_seconds": 0.05, "mass_loss_seconds": 0}
    settings = {
        "id": "demo",
        "loop": {"interval_seconds": 0.1, "floor_seconds": 0.02, "intent_poll_seconds": 0.02},
        "pools": {"pool": pool | {"namespace": "grid"}, "other": pool | {"namespace": "spare"}},
    }
    with Simulator(namespaces=["grid", "spare"], migs=(), conditions=Conditions.of(timings=TIMINGS)) as cloud:
        instance = Instance(tmp_path, cloud, "grid", instance="demo")
        shutil.copytree(GOLDEN / "state", instance.work, dirs_exist_ok=True)
        instance.write_templates(template("T", pools=["pool"]), template("U", pools=["other"]))
        (instance.conf / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
        (instance.conf / "provisioner.yaml").write_text(json.dumps(settings))
        with instance:
            yield instance


def test_the_state_of_the_release_before_is_worked_on_and_it_could_go_on_with_it(
    upgraded: Instance, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = {id_: answer.text for id_, answer in upgraded.state.terminal_answers.answers().items()}
    assert answers.keys() == {SUCCEEDED, UNREPORTED, RETURN_ID}
    assert upgraded.state.holds.read().released[0].kind is HoldKind.DRAIN
    upgraded.start_loop()
    machines = upgraded.complete(2, "U")
    upgraded.request("T", 1)
    later = Hold(HoldKind.PAUSE, "other", "bob", 1.0, "later")
    upgraded.state.holds.change(lambda holds: with_hold(holds, later))
    return_id = upgraded.return_machines(machines[0])
    assert upgraded.ended(return_id)["status"] == "complete"
    upgraded.cycles()
    upgraded.stop_loop()

    assert all(upgraded.state.config.read().values()), "both sides have left the marks that the release had not"
    memory = upgraded.state.memory.read()
    assert memory.brake is not None
    assert memory.brake.reason is BrakeReason.TOO_MANY_ORPHANS, "it holds across an upgrade"
    assert memory.epoch == 4, "the epochs go on"
    (opened,) = (record for record in memory.requests.values() if record.count == 2 and record.id not in answers)
    assert sorted(slot.verdict for slot in opened.slots.values()) == [Verdict.RETURNED, Verdict.SUCCEEDED]
    assert upgraded.state.holds.read().current == (HOLD, later)
    shown = status(upgraded, monkeypatch, capfd)
    assert re.search(r"PAUSED pool pool: .* by ann since .*: node upgrade", shown)
    assert "1 in pool: paused since" in shown, "that is why its request misses a machine"
    assert {id_: upgraded.state.terminal_answers.settled(id_).text for id_ in answers} == answers, (
        "no reported answer changed"
    )
    assert [json.dumps(entry) for entry in upgraded.status(*sorted(answers))] == [
        json.dumps(json.loads(answers[id_])) for id_ in sorted(answers)
    ]


def test_before_a_loop_of_this_version_has_run_what_the_release_showed_and_noted_is_read(
    upgraded: Instance, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = upgraded.call("getAvailableTemplates", {"templates": []})
    shown = {one["templateId"]: one["maxNumber"] for one in answer["templates"]}
    configured = json.loads(upgraded.templates_file.read_text())["templates"]
    assert shown == SHOWN, "no maxNumber is shown lower than before"
    assert all(one["maxNumber"] < SHOWN[one["templateId"]] for one in configured), "it would be lower"

    assert upgraded.state.pool_status.read()["limits"]["pools"].keys() == {"pool", "other"}
    shown = status(upgraded, monkeypatch, capfd)
    assert "pools.json" not in shown
    assert f"request {SUCCEEDED}" in shown


def status(upgraded: Instance, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Return the output of `provisioner status`."""
    for name, value in upgraded.environment.items():
        monkeypatch.setenv(name, value)
    capfd.readouterr()
    run(["status"])
    printed = capfd.readouterr()
    return printed.out + printed.err


def test_stored_data_can_be_read_by_the_last_release_or_has_a_higher_version() -> None:
    now = readable()
    new = {
        f"{kind}.{name}"
        for kind, names in now["fields"].items()
        for name in names
        if name not in RELEASE["fields"][kind]
    }
    assert not new or now["schema"] > RELEASE["schema"], (
        f"{sorted(new)}: the last release would take such a file for a damaged one: raise SCHEMA in state/database.py, "
        "so that it refuses with a sentence"
    )


# --- downgrade --------------------------------------------------------------------------------------------------------


def newer(work: Path, kind: str) -> bytes:
    """Return the file as a newer version has written it."""
    path = work / f"{kind}.json"
    tables = json.loads(path.read_text())
    tables["meta"]["state"]["schema"] = SCHEMA + 1
    tables["colours"] = {}
    path.write_text(json.dumps(tables))
    return path.read_bytes()


COMMANDS = (
    ["status"],
    ["plan"],
    ["recover"],
    ["recover", "--apply"],
    ["trim"],
    ["explain", SUCCEEDED],
    ["usage"],
    ["diff"],
    ["dump", "state.tar.gz"],
    ["run", "--once", "--dry-run"],
    ["run", "--once", "--listen", "127.0.0.1:0"],
)


def test_commands_and_loop_refuse_what_a_newer_version_wrote(
    upgraded: Instance, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (upgraded.environment | {"KUBECONFIG": str(upgraded.simulator.kubeconfig)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(upgraded.conf)
    written = newer(upgraded.work, "memory")
    for command in COMMANDS:
        code = run(command)
        printed = capfd.readouterr()
        assert NEWER in printed.out + printed.err, (command, printed)
        assert "Traceback" not in printed.out + printed.err
        assert code == 1, command
        assert (upgraded.work / "memory.json").read_bytes() == written


RETURNED = {"machines": [{"name": "hf-a", "machineId": "hf-a"}]}
CALLS = (
    ("getRequestStatus", asking("kfvz380nto"), "status"),
    ("getReturnRequests", RETURNED, "status"),
    ("requestMachines", {"template": {"templateId": "T1", "machineCount": 1}}, "intent"),
    ("requestReturnMachines", RETURNED, "intent"),
)


def test_scripts_refuse_what_a_newer_version_wrote(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hf = Here(tmp_path, capfd)
    shutil.copytree(GOLDEN / "state", hf.work, dirs_exist_ok=True)
    for script, document, kind in CALLS:
        written = newer(hf.work, kind)
        assert NEWER in hf.refusal(script, document)
        assert (hf.work / f"{kind}.json").read_bytes() == written


def test_a_loop_that_runs_holds_still_when_another_upgrades(upgraded: Instance) -> None:
    upgraded.start_loop()
    upgraded.cycles()
    written = newer(upgraded.work, "intent")
    until(
        lambda: upgraded._service is not None and NEWER in upgraded._service.loop.problem(),
        30,
        what="the loop reports it",
    )
    upgraded.stop_loop()
    assert (upgraded.work / "intent.json").read_bytes() == written

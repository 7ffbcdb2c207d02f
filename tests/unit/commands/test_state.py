"""`provisioner state copy`, and dumps of a state in a Kubernetes API, as commands."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.commands.cli import run
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition
from provisioner.state.kube.objects import STATES, item
from provisioner.state.kube.state import KubeState
from provisioner.state.opening import KubeStore
from tests.support.hostfactory.provider import GOLDEN
from tests.support.hostfactory.sites import example_site
from tests.support.kube_state_server import MemoryApiServer, ObjectServer

NAME, PLACE = "demo", "kubernetes:hf"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a provider instance with requests and returns."""
    example_site(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_PROVIDER_NAME", NAME)
    for kind in ("config", "templates"):
        (tmp_path / "conf" / f"demoinstprov_{kind}.json").rename(tmp_path / "conf" / f"{NAME}prov_{kind}.json")
    shutil.copytree(GOLDEN / "state", tmp_path / "work", dirs_exist_ok=True)
    return tmp_path / "work"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """The API server that the commands call."""
    made = ObjectServer("hf", lambda: 1e9)
    monkeypatch.setattr(KubeStore, "api", lambda store: MemoryApiServer(made))
    return made


def kube(server: ObjectServer) -> KubeState:
    return KubeState(MemoryApiServer(server), NAME)


def configure(work: Path, **keys: object) -> None:
    (work.parent / "conf" / f"{NAME}prov_config.json").write_text(json.dumps(keys))


def test_a_state_is_copied_there_and_back(
    work: Path, server: ObjectServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (back := tmp_path / "back").mkdir()
    files = StateDir(work)
    assert run(["state", "copy", "--from", str(work), "--to", PLACE]) == 0
    there = capsys.readouterr().out
    assert f'Set "STATE": "{PLACE}" in demoprov_config.json' in there
    assert kube(server).intent.read().requests == files.intent.read().requests
    assert run(["state", "copy", "--from", PLACE, "--to", str(back)]) == 0
    assert 'Set "STATE": "files"' in capsys.readouterr().out
    assert StateDir(back).intent.read().requests == files.intent.read().requests
    assert StateDir(back).memory.read().requests == files.memory.read().requests


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (("{work}", "{work}"), "expected a directory and kubernetes:NAMESPACE"),
        ((PLACE, "kubernetes:other"), "expected a directory and kubernetes:NAMESPACE"),
        (("{work}/none", PLACE), "/none: no such directory; create it, or correct --from"),
        ((PLACE, "{work}/none"), "/none: no such directory; create it, or correct --to"),
    ],
)
def test_other_places_are_refused(
    work: Path, server: ObjectServer, capsys: pytest.CaptureFixture[str], places: tuple[str, str], words: str
) -> None:
    source, target = (place.format(work=work) for place in places)
    assert run(["state", "copy", "--from", source, "--to", target]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("place", ["kubernetes:", "kubernetes:Hf", "kubernetes:hf/other", "kubernetes:hf/"])
def test_a_name_that_no_namespace_can_have_is_refused(
    work: Path, server: ObjectServer, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    assert run(["state", "copy", "--from", str(work), "--to", place]) == 1
    assert f"{place}: expected kubernetes:NAMESPACE" in capsys.readouterr().err
    assert server.version == 1


def test_files_of_another_instance_are_not_copied(
    work: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_PROVIDER_NAME", "other")
    assert run(["state", "copy", "--from", str(work), "--to", PLACE]) == 2
    assert f"{work}: belongs to HF's provider instance 'demo', not to 'other'" in capsys.readouterr().err
    assert not kube(server).intent.existed()


def test_a_state_of_several_loops_is_not_copied(
    work: Path, server: ObjectServer, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(work, STATE=PLACE, STATE_SHARDS=2)
    assert run(["state", "copy", "--from", str(work), "--to", PLACE]) == 2
    assert "the ids in files show no shard" in capsys.readouterr().err


def test_a_dump_of_the_objects_is_restored_into_an_empty_namespace(
    work: Path, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, dump = StateDir(work), tmp_path / "state.tar.gz"
    assert run(["state", "copy", "--from", str(work), "--to", PLACE]) == 0
    configure(work, STATE=PLACE)
    monkeypatch.delenv("HF_PROVIDER_WORKDIR")
    assert run(["dump", str(dump)]) == 0
    fresh = ObjectServer("hf", lambda: 2e9)
    monkeypatch.setattr(KubeStore, "api", lambda store: MemoryApiServer(fresh))
    assert run(["restore", str(dump)]) == 0
    restored = kube(fresh)
    trimmed = {id_ for id_, record in files.memory.read().requests.items() if record.is_trimmed}
    assert restored.intent.read().requests.keys() == files.intent.read().requests.keys() - trimmed
    assert restored.terminal_answers.answers() == files.terminal_answers.answers()
    assert restored.holds.read() == files.holds.read()
    assert restored.memory.condition() is Condition.OLDER, "the next loop rebuilds it and latches the brake"
    assert fresh.answer("GET", item("hf", STATES, NAME))["spec"]["provisioner"] == NAME
    assert run(["restore", str(dump)]) == 0, "as after an interruption"
    memory = restored.memory.read()
    restored.memory.write(replace(memory, generation=memory.generation + 1))
    assert run(["restore", str(dump)]) == 1, "the namespace has a state of its own now"

"""Documents, files and dumps that are almost right. Each is either accepted, or refused with a sentence and left
unchanged."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from hf_scripts.commands import COMMANDS
from provisioner.commands.status_text import format_status
from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import TemplatesError
from provisioner.settings import loader
from provisioner.settings.warnings import find_warnings
from provisioner.state import atomic
from provisioner.state.directory import StateDir
from provisioner.state.dump import take_dump
from provisioner.state.dump_format import pack, unpack
from provisioner.state.errors import StateError
from provisioner.state.intent_recovery import plan_recovery, read_files, summary_message
from provisioner.state.restore import restore_dump
from provisioner.telemetry.status_inputs import read_status_inputs
from provisioner.telemetry.status_model import status_model
from tests.hostile.fuzzing import SEEDS, damaged, fuzzed, mutated
from tests.support.hostfactory.in_process import call_here
from tests.support.hostfactory.provider import GOLDEN, HostFactory
from tests.support.hostfactory.sites import small_site
from tests.support.stores import contents

FUZZED = fuzzed(25)
ENDED, LOST = "gacmtgfnyp", "hf-ihsc3p23q5-000000"

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tests fast: do not sync files, and do not wait for caches."""
    monkeypatch.setattr(os, "fsync", os.fstat)
    monkeypatch.setattr(atomic, "FIRST_PAUSE", 0.0)


def refusal(act: Callable[[], object], *errors: type[Exception]) -> str:
    """Return the message if ``act`` raises one of these errors. If it raises no error, return an empty text."""
    try:
        act()
    except errors as error:
        return str(error)
    return ""


# --- the scripts' documents -------------------------------------------------------------------------------------------

INPUTS: Mapping[str, Any] = {name: json.loads((GOLDEN / f"{name}-input.json").read_bytes()) for name in COMMANDS}


@pytest.fixture
def hf(tmp_path: Path) -> HostFactory:
    return HostFactory(tmp_path)


@pytest.mark.parametrize("command", INPUTS)
@FUZZED
@given(seed=SEEDS)
def test_a_document_of_hostfactory_is_answered_or_refused(hf: HostFactory, command: str, seed: int) -> None:
    file, intent = hf.conf / "input.json", Path(hf.state.intent.path)
    intent.unlink(missing_ok=True)
    Path(hf.state.intent.lock_path).unlink(missing_ok=True)
    file.write_bytes(damaged(json.dumps(INPUTS[command]).encode(), random.Random(seed)))
    called = call_here(command, ["-f", str(file)], hf.environment)
    assert called.code in (0, 1)
    assert called.out.count("\n") == 1
    assert not (called.code and intent.exists()), "a call that is refused records nothing"
    if intent.exists():
        hf.state.intent.read()


# --- the state directory ----------------------------------------------------------------------------------------------


def journal_lines(state: StateDir) -> object:
    return state.journal.find(ENDED), state.journal.find(newest=True, most=10)


def recovered(state: StateDir) -> object:
    plan = plan_recovery(read_files(state), [LOST], "hf", "demo")
    return summary_message(plan, applied=False, release=False)


READERS: Mapping[str, tuple[Callable[[StateDir], object], ...]] = {
    "intent.json": (
        lambda state: state.intent.read_newest(),
        lambda state: state.intent.returned_names(),
        lambda state: state.intent.find([ENDED, "unknown"]),
        lambda state: state.record_return("demo", [LOST], created_wall=0.0),
    ),
    "intent.json.lock": (lambda state: state.intent.condition(), lambda state: state.intent.read_newest()),
    "memory.json": (lambda state: state.memory.read(),),
    "status.json": (
        lambda state: state.status.read_all(),
        lambda state: state.lost([LOST]),
        lambda state: state.available(),
    ),
    "holds.json": (lambda state: state.holds.read(),),
    "announced.json": (lambda state: state.announced.read(), lambda state: state.note_shown({"T1": 3})),
    "hf-inventory.json": (lambda state: state.inventory.read(), lambda state: state.note_hosts({"a": None})),
    "pools.json": (lambda state: state.pool_status.read(),),
    "journal.jsonl": (journal_lines,),
    f"seen/{ENDED}.answer-0": (
        lambda state: state.terminal_answers.settled(ENDED),
        lambda state: state.terminal_answers.ids(),
        lambda state: state.terminal_answers.answers(),
        lambda state: state.terminal_answers.settle_revised(ENDED, "{}"),
    ),
    "loop.lock": (lambda state: state.loop_lock.epoch(), lambda state: state.loop_lock.stopped_message()),
}
"""Functions that read each file of the state directory. Commands that read all files are not listed."""


@pytest.fixture
def golden(tmp_path: Path) -> StateDir:
    shutil.copytree(GOLDEN / "state", tmp_path / "work")
    (tmp_path / "work" / "loop.lock").write_text('{"epoch":3,"host":"h","pid":1}\n')
    return StateDir(tmp_path / "work")


@pytest.mark.parametrize("name", READERS)
@FUZZED
@given(seed=SEEDS)
def test_a_file_of_the_state_directory_is_read_or_refused(golden: StateDir, name: str, seed: int) -> None:
    path, right = Path(golden.path) / name, (GOLDEN / "state" / name)
    content = damaged(
        right.read_bytes() if right.exists() else b'{"epoch":3,"host":"h","pid":1}\n', random.Random(seed)
    )
    others = (
        lambda state: format_status(status_model(read_status_inputs(state)), "text"),
        recovered,
        lambda state: state.poll([ENDED]),
    )
    for read in (*READERS[name], *others):
        path.write_bytes(content)
        if message := refusal(lambda read=read: read(StateDir(golden.path)), StateError):
            assert message.startswith(golden.path)
            assert path.read_bytes() == content, "what is refused stays as it is"


# --- dumps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False], ids=["files", "bytes"])
@FUZZED
@given(seed=SEEDS)
def test_a_dump_is_restored_or_refused_before_anything_changes(golden: StateDir, whole: bool, seed: int) -> None:
    chance, work = random.Random(seed), Path(golden.path)
    packed = dumped(golden)
    if whole:
        dump = unpack("dump", packed)
        name = chance.choice(list(dump.files))
        one = replace(dump.files[name], content=damaged(dump.files[name].content, chance))
        packed = pack(dump.manifest, {**dump.files, name: one})
    else:
        packed = damaged(packed, chance)
    before = but_locks(work)
    if message := refusal(lambda: restore_dump(golden, unpack("dump", packed), "demo", replaces=True), StateError):
        assert message.startswith("dump")
        assert but_locks(work) == before
        return
    StateDir(work).intent.read()
    assert format_status(status_model(read_status_inputs(StateDir(work))), "text")
    shutil.rmtree(work)
    shutil.copytree(GOLDEN / "state", work)


def but_locks(work: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(work).items() if ".lock" not in name}


_DUMPS: list[bytes] = []


def dumped(state: StateDir) -> bytes:
    """Return a dump of the golden directory. The dump is made only once."""
    if not _DUMPS:
        _DUMPS.append(take_dump(state)[1])
    return _DUMPS[0]


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["provisioner.yaml", "tprov_config.json", "tprov_templates.json", "spec.yaml"])
@FUZZED
@given(seed=SEEDS)
def test_a_configuration_is_taken_or_refused_with_each_mistake(tmp_path: Path, file: str, seed: int) -> None:
    chance, site = random.Random(seed), small_site(tmp_path)
    site.write()
    path = tmp_path / file
    content = path.read_bytes()
    if path.suffix == ".yaml" and chance.randrange(3):
        content = yaml.safe_dump(mutated(yaml.safe_load(content), chance)).encode()
    path.write_bytes(damaged(content, chance))
    message = refusal(lambda: limits(site.path), loader.ConfigError, TemplatesError)
    assert message or site.path.exists()


def limits(path: Path) -> object:
    """Read the files as a loop or a command does. Return the limits and the warnings."""
    read = loader.load(path, {})
    return read.limits(), list(find_warnings(read, templates.load(path.parent, {}).templates))

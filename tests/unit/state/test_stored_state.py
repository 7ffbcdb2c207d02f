"""A state directory of an earlier version is read as it was written: intent, memory, status and the scripts' answers.

``tests/golden/state`` was written by the loop and the scripts before windows and slots got their names of today: a
request that succeeded, of which one machine was given back, one was lost and one has a notice, a request that runs with
a stock-out behind it, one whose answer a script has settled, and a brake that six orphans latched.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from provisioner.model import (
    Brake,
    BrakeReason,
    DeleteReason,
    ErrorClass,
    Failure,
    LossCause,
    Notice,
    Request,
    RequestStatus,
    ReturnRequest,
    ReturnResult,
    Verdict,
    Window,
)
from provisioner.state.codec import MemoryCodec
from provisioner.state.directory import Loss, StateDir
from tests.support.hostfactory.in_process import Here, asking
from tests.support.hostfactory.provider import GOLDEN

SUCCEEDED, RUNNING, UNHEARD, BACK = "gacmtgfnyp", "kfvz380nto", "ihsc3p23q5", "ret-dsjn6l56km"
GIVEN, VANISHED, NOTICED, KEPT = (f"hf-{SUCCEEDED}-00000{number}" for number in range(4))


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    """HF's scripts on a copy of the directory, with a loop that lives."""
    here = Here(tmp_path, capfd)
    here.instance = "demo"
    shutil.copytree(GOLDEN / "state", here.work, dirs_exist_ok=True)
    here.state.heartbeat.touch()
    return here


@pytest.fixture
def state(hf: Here) -> StateDir:
    return hf.state


def test_intent(state: StateDir) -> None:
    intent = state.intent.read()
    assert (intent.provisioner, intent.generation) == ("demo", 4)
    assert intent.requests == {
        SUCCEEDED: Request(SUCCEEDED, "T", 4, 1_000_000.0),
        RUNNING: Request(RUNNING, "T", 3, 1_000_025.0, rc_account="grid/night"),
        UNHEARD: Request(UNHEARD, "U", 2, 1_000_030.0),
    }
    assert intent.returns == {BACK: ReturnRequest(BACK, (GIVEN,), 1_000_025.0)}


def test_memory_of_requests_and_slots(state: StateDir) -> None:
    memory = state.memory.read()
    ended = {id_: record.ended for id_, record in memory.requests.items()}
    assert ended == {SUCCEEDED: RequestStatus.COMPLETE, RUNNING: None, UNHEARD: RequestStatus.COMPLETE}
    slots = {slot.name: slot for record in memory.requests.values() for slot in record.slots.values()}
    assert {slot.request for slot in slots.values()} == set(memory.requests)
    assert [slots[name].verdict for name in (GIVEN, VANISHED, NOTICED, KEPT)] == [
        Verdict.RETURNED,
        Verdict.LOST,
        Verdict.SUCCEEDED,
        Verdict.SUCCEEDED,
    ]
    assert (slots[GIVEN].delete, slots[GIVEN].gone) == (DeleteReason.RETURNED, True)
    assert (slots[VANISHED].cause, slots[VANISHED].early) == (LossCause.UNKNOWN, True)
    assert {(slot.tries, slot.tried) for slot in slots.values()} == {(0, None)}
    assert slots[NOTICED].notice == Notice(LossCause.PREEMPTED, 1_000_450.0)
    running = memory.requests[RUNNING]
    assert [running.slots[number].gated for number in (0, 2, 3)] == [True, False, False]
    assert running.slots[1].failure == Failure(ErrorClass.STOCKOUT, "ZONE_RESOURCE_POOL_EXHAUSTED")
    assert memory.returns[BACK].results == {GIVEN: ReturnResult.GONE}


def test_memory_of_windows_orphans_and_the_brake(state: StateDir) -> None:
    memory = state.memory.read()
    stockout = Failure(ErrorClass.STOCKOUT, "ZONE_RESOURCE_POOL_EXHAUSTED")
    backing_off = Window(
        999, ran=4, failed=1, level=1, blocked_at=1_000_035.0, retry_at=1_000_038.7514873312, probing=True,
        failure=stockout,
    )  # fmt: skip
    assert memory.pressures == {("pool", "T"): backing_off, ("other", "U"): Window(102, ran=2)}
    assert memory.orphans == {f"hf-zzzzzzzzzz-00000{number}": 1_000_055.0 for number in range(6)}
    detail = "6 of 11 machines have no request."
    assert memory.brake == Brake(BrakeReason.TOO_MANY_ORPHANS, 1_000_055.0, detail, "pool")
    assert (memory.epoch, memory.generation, memory.time) == (3, 4, 1_000_005.0)
    assert (memory.orphan_deletes, memory.accepted) == ((999_900.0,), ("hf-yyyyyyyyyy-000000",))
    assert (memory.unlisted, memory.strangers) == ({KEPT: 999_000.0}, {"hf-xxxxxxxxxx-000000": 999_500.5})
    assert (memory.lost_strangers, memory.unseen_pools) == (("hf-wwwwwwwwww-000001",), ("gone",))
    assert memory.configured_places == {"pool": "namespace grid"}


def test_memory_is_written_as_it_was_with_new_columns_after_those_of_before(state: StateDir) -> None:
    written = json.loads((GOLDEN / "state" / "memory.json").read_text())
    tables = json.loads(json.dumps(MemoryCodec().encode(state.memory.read())))
    before, columns = written["memory"].pop("columns"), tables["memory"].pop("columns")
    assert {kind: names[: len(before[kind])] for kind, names in columns.items()} == before
    assert tables == {name: written[name] for name in tables}


def test_status(state: StateDir) -> None:
    answers = state.status.read_all()
    ended = {id_: answer.ended for id_, answer in answers.items()}
    assert ended == {SUCCEEDED: True, RUNNING: False, UNHEARD: True, BACK: True}
    assert state.status.read_lost() == {VANISHED: Loss(0, "unknown"), NOTICED: Loss(370, "preempted")}
    assert {id_ for id_ in answers if state.told.settled(id_)} == {SUCCEEDED, UNHEARD, BACK}


def test_what_the_scripts_answer(hf: Here) -> None:
    expected = json.loads((GOLDEN / "state-answers.json").read_text())
    document = asking(SUCCEEDED, RUNNING, UNHEARD, BACK, "qqqqqqqqqq")
    assert hf.answer("getRequestStatus", document) == expected["getRequestStatus"]
    machines = [{"name": name, "machineId": name} for name in (VANISHED, NOTICED, KEPT)]
    assert hf.answer("getReturnRequests", {"machines": machines}) == expected["getReturnRequests"]

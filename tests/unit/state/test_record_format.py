"""Memory and intent as documents. All values, also of earlier versions, are decoded as they were encoded.

The loop and the scripts wrote ``tests/golden/state`` before windows and slots got their present names. That state has
three requests: one succeeded, one runs with a stock-out, and one has an answer that a script settled. The first has a
returned machine, a lost machine and a machine with a notice. Six orphans have latched the brake.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.model import (
    UNTRIED,
    Brake,
    BrakeReason,
    DeleteReason,
    Deletion,
    ErrorClass,
    Failure,
    Fingerprint,
    Life,
    LossCause,
    Memory,
    Notice,
    Observed,
    Request,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    ReturnRequest,
    ReturnResult,
    Slot,
    Tries,
    Verdict,
    Window,
)
from provisioner.names import SLOT_BLOCK
from provisioner.state.directory import Loss, StateDir
from provisioner.state.memory_file import MemoryCodec
from provisioner.state.record_format import ROWS, RecordError, decode
from tests.support.hostfactory.in_process import Here, asking
from tests.support.hostfactory.provider import GOLDEN
from tests.support.last_release import names
from tests.support.parts import alter

TEXT = st.text(max_size=8)
NUMBER = st.floats(-(2.0**52), 2.0**52)
WHOLE = st.integers(-(2**52), 2**52)
COUNT = st.integers(1, SLOT_BLOCK)


@pytest.fixture(autouse=True, scope="module")
def small_values() -> Iterator[None]:
    """Draw finite loop times, and short texts that keep examples readable."""
    st.register_type_strategy(float, NUMBER)
    st.register_type_strategy(int, WHOLE)
    st.register_type_strategy(str, TEXT)
    yield
    st.register_type_strategy(float, st.floats())
    st.register_type_strategy(int, st.integers())
    st.register_type_strategy(str, st.text())


def filled(kind: type, **chosen: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw values of a dataclass with every field drawn, also fields that have a default."""
    return st.builds(kind, **{name: chosen.get(name, ...) for name in get_type_hints(kind)})


def keyed(name: str, records: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw mappings from a field of each record to the record."""
    return st.lists(records, max_size=2).map(lambda drawn: {getattr(record, name): record for record in drawn})


def named(record: Any) -> Any:
    """Return a request's record whose slots have the names that belong to their numbers."""
    slots = [slot._replace(name=f"hf-{record.id}-{number:06}") for number, slot in enumerate(record.slots)]
    return dataclasses.replace(record, slots={slot.number: slot for slot in slots})


def mappings(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(keys, values, max_size=2)


def memories() -> st.SearchStrategy[Any]:
    """Draw memories in which every field of every part has any value that its type allows."""
    observed = filled(Observed, fingerprint=filled(Fingerprint), notice=filled(Notice))
    life, deletion, tries = filled(Life), filled(Deletion, hindrance=filled(Failure)), filled(Tries)
    slots = st.one_of(
        filled(Slot, observed=observed, failure=filled(Failure), life=life, deletion=deletion, tries=tries),
        filled(Slot, observed=st.just(Observed()), failure=st.none(), life=life, tries=tries),
    )
    return filled(
        Memory,
        requests=keyed("id", filled(RequestRecord, count=COUNT, slots=st.lists(slots, max_size=2)).map(named)),
        returns=keyed("id", filled(ReturnRecord)),
        windows=mappings(st.tuples(TEXT, TEXT), filled(Window)),
    )


def stored(codec: MemoryCodec, memory: Memory) -> dict[str, Any]:
    """Encode a memory, and return the tables as they are read from a file."""
    tables: dict[str, Any] = json.loads(json.dumps(codec.encode(memory), allow_nan=False))
    return tables


@settings(max_examples=6)
@given(memories(), memories())
def test_every_memory_comes_back_as_it_was(first: Memory, second: Memory) -> None:
    codec = MemoryCodec()
    for memory in (first, second, first):
        assert MemoryCodec().decode(stored(codec, memory)) == memory


@settings(max_examples=5)
@given(memories(), st.data())
def test_a_change_of_one_slot_comes_back_too(memory: Memory, data: st.DataObject) -> None:
    codec = MemoryCodec()
    codec.encode(memory)
    keys = [(key, number) for key, record in memory.requests.items() for number in record.slots]
    if not keys:
        return
    key, number = data.draw(st.sampled_from(keys))
    record = memory.requests[key]
    slots = {**record.slots, number: data.draw(filled(Slot, name=st.just(record.slots[number].name)))}
    changed = dataclasses.replace(memory, requests={**memory.requests, key: dataclasses.replace(record, slots=slots)})
    assert MemoryCodec().decode(stored(codec, changed)) == changed


def test_enums_come_back_as_enums_and_tuples_as_tuples() -> None:
    slot = Slot("hf-a-000000", "p", Verdict.LOST, 1.0)
    memory = alter(
        Memory("demo"), requests={"a": RequestRecord("a", "T", 1, 0.0, 1.0, {0: slot})}, orphan_deletes=(1.0,)
    )
    decoded = MemoryCodec().decode(stored(MemoryCodec(), memory))
    assert type(decoded.requests["a"].slots[0].verdict) is Verdict
    assert type(decoded.orphans.deletes) is tuple


def test_defaults_cost_nothing() -> None:
    slot = Slot("hf-a-000000", "p", Verdict.OPEN, 1.0)
    record = RequestRecord("a", "T", 1, 0.0, 1.0, {0: slot})
    tables = stored(MemoryCodec(), Memory("demo", requests={"a": record}))
    assert tables["requests"]["a"]["slots"] == {"0": ["hf-a-000000", "p", "open", 1.0]}
    assert tables["memory"]["memory"] == {"provisioner": "demo"}


ROW = ["hf-a-000000", "p", "open", 1.0]

DAMAGE = {
    "no provisioner": (("memory", "memory"), {}, "provisioner"),
    "unknown field": (("memory", "memory", "colour"), "red", "unknown field 'colour'"),
    "text for a number": (("memory", "memory", "epoch"), "7", "epoch: expected int, got '7'"),
    "a text that is too long": (
        ("memory", "memory", "provisioner"),
        "x" * 65_537,
        "provisioner: expected str, got 'xx",
    ),
    "a number that is none": (
        ("memory", "memory", "written"),
        {"time": math.nan},
        "written: time: expected float, got 'nan'",
    ),
    "a number that is too large": (("memory", "memory", "epoch"), -(2**53), "epoch: expected int, got '-9007"),
    "truth for a number": (("memory", "memory", "epoch"), True, "epoch: expected int"),
    "no such verdict": (("requests", "a", "slots", "0", 2), "happy", "a: slots: 0: Verdict has no 'happy'"),
    "a slot that is no row": (("requests", "a", "slots", "0"), {}, "a: slots: 0: Slot: expected a list"),
    "a row that is too long": (("requests", "a", "slots", "0"), [None] * 99, "expected a list of up to"),
    "a row that is too short": (("requests", "a", "slots", "0"), ["n"], "a: slots: 0: .*missing"),
    "a slot of another number": (("requests", "a", "slots", "1"), ROW, "a: slots: 1: has the name 'hf-a-000000'"),
    "a slot of another request": (
        ("requests", "a", "slots", "0"),
        ["hf-b-000000", *ROW[1:]],
        "a: slots: 0: has the name 'hf-b-000000'",
    ),
    "a request of another id": (("requests", "a", "id"), "b", "a: has the id 'b'"),
    "a return of another id": (("returns", "ret-a", "id"), "b", "ret-a: has the id 'b'"),
    "slots that are a list": (("requests", "a", "slots"), [], "slots: expected an object"),
    "a slot number that is none": (("requests", "a", "slots", "x"), ROW, "key 'x' is not JSON"),
    "names that are a text": (("returns", "ret-a", "names"), "ab", "ret-a: names: expected a list"),
    "a pair that is none": (("windows", '["p"]'), {"window": 1}, "expected a list of 2"),
    "a record that is none": (("memory", "memory", "brake"), [], "brake: Brake: expected an object"),
}


@pytest.mark.parametrize(("path", "value", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_named_with_its_place(path: tuple[Any, ...], value: Any, message: str) -> None:
    slot = Slot("hf-a-000000", "p", Verdict.OPEN, 1.0, observed=Observed(fingerprint=Fingerprint("u")))
    memory = Memory(
        "demo",
        requests={"a": RequestRecord("a", "T", 1, 0.0, 1.0, {0: slot})},
        returns={"ret-a": ReturnRecord("ret-a", ("n",), 0.0, 1.0)},
        brake=Brake(BrakeReason.MEMORY_LOST, 1.0, "…"),
    )
    tables = stored(MemoryCodec(), memory)
    place = tables
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(RecordError, match=message):
        MemoryCodec().decode(tables)


def test_a_type_without_a_rule_is_noticed_when_it_is_added() -> None:
    with pytest.raises(TypeError, match="no rule to store"):
        decode(set[int], [])


def test_what_json_does_not_know_is_never_written(tmp_path: Any) -> None:
    state = StateDir(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        state.memory.write(alter(Memory("demo"), time=math.nan))
    assert not state.memory.exists()


# --- what an earlier version has written ------------------------------------------------------------------------------

SUCCEEDED, RUNNING, UNHEARD, BACK = "gacmtgfnyp", "kfvz380nto", "ihsc3p23q5", "ret-dsjn6l56km"
GIVEN, VANISHED, NOTICED, KEPT = (f"hf-{SUCCEEDED}-00000{number}" for number in range(4))


def test_an_intent_of_before(golden: StateDir) -> None:
    intent = golden.intent.read()
    assert (intent.provisioner, intent.generation) == ("demo", 4)
    assert intent.requests == {
        SUCCEEDED: Request(SUCCEEDED, "T", 4, 1_000_000.0),
        RUNNING: Request(RUNNING, "T", 3, 1_000_025.0, rc_account="grid/night"),
        UNHEARD: Request(UNHEARD, "U", 2, 1_000_030.0),
    }
    assert intent.returns == {BACK: ReturnRequest(BACK, (GIVEN,), 1_000_025.0)}


def test_a_memory_of_before_with_its_requests_and_slots(golden: StateDir) -> None:
    memory = golden.memory.read()
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
    assert (slots[GIVEN].deletion.reason, slots[GIVEN].deletion.is_gone) == (DeleteReason.RETURNED, True)
    assert (slots[VANISHED].observed.cause, slots[VANISHED].life.is_early_loss) == (LossCause.UNKNOWN, True)
    assert {slot.tries for slot in slots.values()} == {UNTRIED}
    assert slots[NOTICED].observed.notice == Notice(LossCause.PREEMPTED, 1_000_450.0)
    running = memory.requests[RUNNING]
    assert [running.slots[number].observed.is_queued for number in (0, 2, 3)] == [True, False, False]
    assert running.slots[1].failure == Failure(ErrorClass.STOCKOUT, "ZONE_RESOURCE_POOL_EXHAUSTED")
    assert memory.returns[BACK].results == {GIVEN: ReturnResult.GONE}


def test_a_memory_of_before_is_written_as_it_was(golden: StateDir) -> None:
    written = json.loads((GOLDEN / "state" / "memory.json").read_text())
    tables = json.loads(json.dumps(MemoryCodec().encode(golden.memory.read())))
    assert tables == {name: written.get(name, {}) for name in tables}


def test_the_fields_of_rows_stand_after_those_of_before() -> None:
    released = json.loads((GOLDEN / "release.json").read_text())["fields"]
    for kind in ROWS:
        before = released[kind.__name__]
        assert names(kind)[: len(before)] == before


def test_a_status_of_before(golden: StateDir) -> None:
    answers = golden.status.read_all()
    ended = {id_: answer.ended for id_, answer in answers.items()}
    assert ended == {SUCCEEDED: True, RUNNING: False, UNHEARD: True, BACK: True}
    assert golden.status.read_lost() == {VANISHED: Loss(0, "unknown"), NOTICED: Loss(370, "preempted")}
    assert {id_ for id_ in answers if golden.terminal_answers.settled(id_)} == {SUCCEEDED, UNHEARD, BACK}


def test_what_the_scripts_answer_from_files_of_before(
    golden: StateDir, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hf = Here(tmp_path, capfd)
    hf.instance = "demo"
    golden.heartbeat.touch()
    expected = json.loads((GOLDEN / "state-answers.json").read_text())
    document = asking(SUCCEEDED, RUNNING, UNHEARD, BACK, "qqqqqqqqqq")
    assert hf.answer("getRequestStatus", document) == expected["getRequestStatus"]
    machines = [{"name": name, "machineId": name} for name in (VANISHED, NOTICED, KEPT)]
    assert hf.answer("getReturnRequests", {"machines": machines}) == expected["getReturnRequests"]

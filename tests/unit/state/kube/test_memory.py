"""Memory in the Kubernetes API: one write of the log is the durable moment, whatever fails or dies around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.model import Brake, BrakeReason, Memory, RequestRecord, ReturnRecord, UsageTotals, Window
from provisioner.state.errors import Condition, StateError, StateMissing, StateStale, StateUnreadable
from provisioner.state.kube import memory as memory_module
from provisioner.state.kube.memory import KubeMemory
from provisioner.state.kube.objects import PARTS, REQUESTS, RETURNS, body, collection, item, pack, unpack
from provisioner.state.kube.parts import Parts
from provisioner.state.kube.state import KubeState
from provisioner.state.memory_file import LIFE
from tests.support.kube_state_server import Call, MemoryApiServer, ObjectServer

IDS = ["r000000001", "r000000002", "ret-r000000003", "ret-r000000004"]
RUNNING = {"phase": "Running"}


class Crash(BaseException):
    """The end of the loop's process."""


@pytest.fixture
def server() -> ObjectServer:
    return make_server()


def make_server() -> ObjectServer:
    """Return a server with HF's requests."""
    server = ObjectServer()
    for id_ in IDS:
        resource = RETURNS if id_.startswith("ret-") else REQUESTS
        rest = {"names": ["m1"]} if resource == RETURNS else {"template": "t", "count": 5}
        spec = {"provisioner": "demo", "created": 5, **rest}
        server.answer("POST", collection("hf", resource), body(resource, id_, spec))
    return server


def open_memory(server: ObjectServer, noted: str = "") -> KubeMemory:
    return KubeMemory(MemoryApiServer(server), "demo", noted)


def memory_of(ids: Mapping[str, int], number: int = 0, epoch: int = 1) -> Memory:
    """Return a memory in which each record's ``read_at`` is the given number."""
    requests = {
        id_: RequestRecord(id_, "t", 5, float(value), 9.0, message=f"{value} " * value)
        for id_, value in ids.items()
        if not id_.startswith("ret-")
    }
    returns = {
        id_: ReturnRecord(id_, ("m1",), float(value), 9.0) for id_, value in ids.items() if id_.startswith("ret-")
    }
    windows = {("alpha", f"t{one}"): Window(number) for one in range(number % 3)}
    usage = UsageTotals(days={})
    return Memory("demo", epoch, number, requests=requests, returns=returns, windows=windows, usage=usage)


def logged(server: ObjectServer) -> dict[str, Any]:
    """Return the content of the log."""
    found = server.answer("GET", item("hf", PARTS, "demo.log"))
    content: dict[str, Any] = unpack(found["spec"]["data"])
    return content


# --- atomicity --------------------------------------------------------------------------------------------------------

Step = tuple[str, Any]

write_steps = st.tuples(st.just("write"), st.dictionaries(st.sampled_from(IDS), st.integers(0, 4)))
steps = st.lists(
    st.one_of(
        write_steps,
        write_steps,
        st.tuples(st.just("patch"), st.sampled_from(IDS)),
        st.tuples(st.just("save"), st.none()),
        st.tuples(st.just("remove"), st.sampled_from(IDS)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=14,
)


def crash(call: Call) -> int | None:
    raise Crash


FAULTS: dict[str, Callable[[Call], int | None]] = {
    "crash": crash,
    **{str(status): lambda call, status=status: status for status in (0, 409, 429, 500)},  # type: ignore[misc]
}


class Run:
    """A loop that writes memory, dies and starts again. ``possible``: the memories that a reader may find."""

    def __init__(self, fault: str, *, after: bool, at: int) -> None:
        self.server = make_server()
        self.possible: list[Memory | None] = [None]
        self.number = 0
        self.epoch = 0
        self._fault = FAULTS[fault], after, at
        self._calls = 0
        self.restart()

    def restart(self) -> None:
        self.epoch += 1
        api = MemoryApiServer(self.server)
        do, after, at = self._fault

        def hook(call: Call) -> int | None:
            self._calls += 1
            # A call and its repetition fail alike.
            return do(call) if self._calls in (at, at + 1) and (do is crash or call.method != "GET") else None

        setattr(api, "after" if after else "before", hook)
        self.memory = KubeMemory(api, "demo")

    def take(self, step: Step) -> None:
        """Take a step, and start the loop again if it died."""
        try:
            getattr(self, step[0])(*step[1:] if step[1] is not None else ())
        except Crash:
            self.restart()
        except StateError:
            pass
        self.check()

    def write(self, ids: Mapping[str, int]) -> None:
        self.number += 1
        new = memory_of(ids, self.number, self.epoch)
        self.possible.append(new)
        self.memory.write(new)
        self.possible = [new]

    def patch(self, id_: str) -> None:
        if self.memory.latest is not None:
            self.memory.patch(id_, RUNNING)

    def save(self) -> None:
        if self.memory.latest is not None:
            for id_ in self.memory.save():
                self.memory.patch(id_, RUNNING)

    def remove(self, id_: str) -> None:
        if self.memory.latest is not None:
            self.memory.detach([id_])
            with suppress(Exception):
                self.server.answer("DELETE", item("hf", memory_module.resource_of(id_), id_))

    def check(self) -> None:
        reader = open_memory(self.server)
        with suppress(StateMissing):
            found = reader.read()
            assert found in self.possible
            assert reader.condition() is Condition.FINE
            return
        assert None in self.possible


@settings(max_examples=300, deadline=None)
@given(steps, st.sampled_from([*FAULTS]), st.booleans(), st.integers(1, 60), st.booleans())
def test_a_reader_finds_the_memory_of_one_write(
    steps: list[Step], fault: str, after: bool, at: int, is_long: bool
) -> None:
    with (
        patch.object(memory_module, "MOST_LOGGED", 0),
        patch.object(memory_module, "MOST_RECORD", 100 if is_long else 10_000),
    ):
        run = Run(fault, after=after, at=at)
        for step in steps:
            run.take(step)


# --- what the random runs meet too seldom -----------------------------------------------------------------------------


def patch_record(memory: KubeMemory, id_: str = "r000000001") -> None:
    assert memory.patch(id_, RUNNING) is not None


def test_a_record_leaves_the_log_after_it_is_in_its_object(server: ObjectServer) -> None:
    memory = open_memory(server)
    memory.write(memory_of({"r000000001": 1, "ret-r000000003": 2}))
    assert {"requests/r000000001", "returns/ret-r000000003"} <= logged(server)["changes"].keys()
    patch_record(memory)
    memory.write(memory_of({"r000000001": 1, "ret-r000000003": 2}, 1))
    assert "requests/r000000001" not in logged(server)["changes"]
    assert logged(server)["kept"] == {"requests/r000000001": 1}
    assert open_memory(server).read() == memory_of({"r000000001": 1, "ret-r000000003": 2}, 1)


def test_an_unchanged_memory_costs_one_call(server: ObjectServer) -> None:
    memory = open_memory(server)
    memory.write(memory_of({"r000000001": 1}))
    memory._api.calls.clear()  # type: ignore[attr-defined]
    memory.write(memory_of({"r000000001": 2}))
    assert [call.method for call in memory._api.calls] == ["PATCH"]  # type: ignore[attr-defined]


def test_a_stale_loop_does_not_write(server: ObjectServer) -> None:
    stale, new = open_memory(server), open_memory(server)
    stale.write(memory_of({"r000000001": 1}))
    new.write(memory_of({"r000000001": 2}, epoch=2))
    with pytest.raises(StateStale):
        stale.write(memory_of({"r000000001": 3}))
    new.patch("r000000001", RUNNING)
    with pytest.raises(StateStale):
        stale.patch("r000000001", RUNNING)
    assert open_memory(server).read() == memory_of({"r000000001": 2}, epoch=2)


def test_what_the_loop_before_still_wrote_and_saved_is_replaced(server: ObjectServer) -> None:
    before = open_memory(server)
    before.write(memory_of({"r000000001": 1}))
    patch_record(before)
    before.write(memory_of({"r000000001": 1}, 1))
    new = open_memory(server)
    new.adopt()
    before.write(memory_of({"r000000001": 2}, 2))
    patch_record(before)
    new.write(memory_of({"r000000001": 1}, 1, epoch=2))
    assert open_memory(server).read() == memory_of({"r000000001": 1}, 1, epoch=2)
    assert open_memory(server).condition() is Condition.FINE


def test_a_place_whose_write_had_no_response_is_not_trusted(server: ObjectServer) -> None:
    memory = open_memory(server)
    memory.write(memory_of({"r000000001": 1}))
    patch_record(memory)
    memory.write(memory_of({"r000000001": 2}))
    memory._api.after = lambda call: 0  # type: ignore[attr-defined]
    with pytest.raises(StateError):
        memory.patch("r000000001", RUNNING)
    memory._api.after = lambda call: None  # type: ignore[attr-defined]
    memory.write(memory_of({"r000000001": 1}))
    assert open_memory(server).read() == memory_of({"r000000001": 1})


def test_the_rest_whose_write_had_no_response_is_not_trusted(server: ObjectServer) -> None:
    with patch.object(memory_module, "MOST_LOGGED", 0):
        memory = open_memory(server)
        memory.write(memory_of({}, 1))
        memory.save()
        memory.write(memory_of({}, 2))
        memory._api.after = lambda call: 0  # type: ignore[attr-defined]
        with pytest.raises(StateError):
            memory.save()
        memory._api.after = lambda call: None  # type: ignore[attr-defined]
        memory.write(memory_of({}, 1))
    assert open_memory(server).read() == memory_of({}, 1)
    assert open_memory(server).condition() is Condition.FINE


def test_a_write_without_a_response_is_repeated_with_another_generation(server: ObjectServer) -> None:
    memory = open_memory(server)
    memory.write(memory_of({"r000000001": 1}))
    memory._api.after = lambda call: 0 if call.method != "GET" else None  # type: ignore[attr-defined]
    with pytest.raises(StateError):
        memory.write(memory_of({"r000000001": 2}))
    memory._api.after = lambda call: None  # type: ignore[attr-defined]
    generation = server.answer("GET", item("hf", PARTS, "demo.log"))["spec"]["generation"]
    memory.write(memory_of({"r000000001": 3}))
    assert server.answer("GET", item("hf", PARTS, "demo.log"))["spec"]["generation"] > generation
    assert open_memory(server).read() == memory_of({"r000000001": 3})


@pytest.mark.parametrize("damage", ["deleted", "changed", "unreadable"])
def test_a_record_that_was_changed_from_outside_makes_memory_older(server: ObjectServer, damage: str) -> None:
    memory = open_memory(server)
    memory.write(memory_of({"r000000001": 1}))
    patch_record(memory)
    memory.write(memory_of({"r000000001": 1}, 1))
    if damage == "deleted":
        server.answer("DELETE", item("hf", REQUESTS, "r000000001"))
    else:
        record = pack({"generation": 9, "document": {}}) if damage == "changed" else pack([])
        path = item("hf", REQUESTS, "r000000001", "status")
        server.answer("PATCH", path, {"status": {"record": record}}, "application/merge-patch+json")
    successor = open_memory(server)
    assert successor.condition() is Condition.OLDER
    assert successor.read().requests == {}, "what is left"


def test_a_memory_that_another_loop_has_written_is_missing_and_not_new(server: ObjectServer) -> None:
    assert open_memory(server).condition() is Condition.NEW
    assert not open_memory(server).existed()
    memory = open_memory(server)
    memory.write(memory_of({"r000000001": 1}))
    patch_record(memory)
    server.answer("DELETE", item("hf", PARTS, "demo.log"))
    successor = open_memory(server)
    assert successor.condition() is Condition.MISSING
    assert successor.existed()
    with pytest.raises(StateMissing):
        successor.read()
    assert successor.begin_life() == 1
    successor.write(memory_of({"r000000001": 1}, epoch=2))
    patch_record(successor)
    assert successor.marks["generation"] == LIFE + 1


def test_a_restored_log_is_older_than_the_note_on_this_disk(server: ObjectServer, tmp_path: Path) -> None:
    noted = str(tmp_path / "noted")
    memory = open_memory(server, noted)
    memory.write(memory_of({"r000000001": 1}))
    old = server.snapshot()
    memory.write(memory_of({"r000000001": 2}))
    server.restore(old)
    assert open_memory(server).condition() is Condition.FINE, "without a note no host can know"
    successor = open_memory(server, noted)
    assert successor.condition() is Condition.OLDER
    successor.write(memory_of({"r000000001": 3}, epoch=2))
    assert open_memory(server, noted).condition() is Condition.FINE


def test_a_running_loop_writes_all_of_its_memory_after_a_restore(server: ObjectServer) -> None:
    memory = open_memory(server)
    memory.write(memory_of({"r000000001": 1}))
    old = server.snapshot()
    patch_record(memory)
    memory.write(memory_of({"r000000001": 1}, 1))
    server.restore(old)
    memory.write(memory_of({"r000000001": 1}, 1))
    assert open_memory(server).read() == memory_of({"r000000001": 1}, 1)
    assert open_memory(server).condition() is Condition.FINE


def test_a_memory_that_is_too_long_for_an_object_continues_in_pieces_that_are_removed_later(
    server: ObjectServer,
) -> None:
    memory, text = open_memory(server), "".join(map(str, range(300_000)))
    many = {
        f"r{number}": RequestRecord(f"r{number}", "t", 5, 1.0, 9.0, message=text[number * 60_000 :][:60_000])
        for number in range(25)
    }
    long = replace(memory_of({}), requests=many)
    with patch("provisioner.state.kube.parts.MOST_PACKED", 100_000), patch.object(memory_module, "MOST_RECORD", 10_000):
        memory.write(long)
        assert len(Parts(MemoryApiServer(server), "demo").list()) > 3
        assert open_memory(server).read() == long
        patch_record(memory)
        memory.write(replace(long, generation=1))
        assert open_memory(server).read() == replace(long, generation=1)
        memory.write(memory_of({"r000000001": 1}))
        patch_record(memory)
    assert open_memory(server).read() == memory_of({"r000000001": 1})
    assert len(Parts(MemoryApiServer(server), "demo").list()) == 1


def test_a_damaged_log_is_named(server: ObjectServer) -> None:
    open_memory(server).write(memory_of({"r000000001": 1}))
    data = pack({"kept": {}, "changes": {"requests/r000000001": {"id": "r000000001"}}})
    spec = {"data": data, "generation": 5}
    server.answer("PATCH", item("hf", PARTS, "demo.log"), {"spec": spec}, "application/merge-patch+json")
    with pytest.raises(StateUnreadable, match=r"RequestRecord"):
        open_memory(server).read()
    spec["data"] = "AAAA"
    server.answer("PATCH", item("hf", PARTS, "demo.log"), {"spec": spec}, "application/merge-patch+json")
    assert open_memory(server).condition() is Condition.UNREADABLE


def test_the_log_notes_which_intent_memory_has_read(server: ObjectServer) -> None:
    assert open_memory(server).intent_notes() == (0, False)
    memory = open_memory(server)
    memory.write(replace(memory_of({}), generation=7, brake=Brake(BrakeReason.INTENT_OLDER, 0.0, "old")))
    assert open_memory(server).intent_notes() == (7, True)


def test_the_next_loop_refuses_late_writes_of_the_one_before_from_its_beginning(server: ObjectServer) -> None:
    """The previous loop was stopped between its check and its write. Its late write is refused, although the next loop
    has only read memory and has not written it yet."""
    first = open_memory(server)
    first.write(memory_of({"r000000001": 1}, epoch=1))
    successor = KubeState(MemoryApiServer(server), "demo")
    assert successor.loop_lock.acquire(0)
    epoch = successor.loop_lock.raise_epoch(2)
    before = successor.memory.read()
    with pytest.raises(StateStale):
        first.write(memory_of({"r000000001": 2}, epoch=1))
    assert open_memory(server).read() == before
    successor.memory.write(memory_of({"r000000001": 3}, epoch=epoch))
    successor.loop_lock.release()
    with pytest.raises(StateStale):
        successor.memory.fence(1)


def test_the_first_loop_has_no_log_to_fence(server: ObjectServer) -> None:
    memory = open_memory(server)
    memory.fence(1)
    assert not memory.existed()


def test_an_unreadable_log_is_set_aside_for_a_recovery(server: ObjectServer) -> None:
    open_memory(server).write(memory_of({"r000000001": 1}))
    server.answer("PATCH", item("hf", PARTS, "demo.log"), {"spec": {"data": "AAAA"}}, "application/merge-patch+json")
    memory = open_memory(server)
    aside = memory.set_aside()
    assert server.answer("GET", item("hf", PARTS, aside))["spec"]["data"] == "AAAA"
    assert not memory.exists()
    with pytest.raises(StateMissing):
        memory.set_aside()

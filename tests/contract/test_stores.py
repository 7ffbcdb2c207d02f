"""Each store keeps the promises of ``state/protocols.py``: files, and objects of an API server in memory or of a real
one."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import suppress
from pathlib import Path

import pytest

from provisioner.hostfactory import Answer, Loss
from provisioner.hostfactory.provider_config import Digests
from provisioner.model import Hold, HoldKind, Memory, Moment, RequestRecord, ReturnRecord
from provisioner.names import RETURN_ID_PREFIX
from provisioner.state.errors import Condition, StateError, StateMissing, StateStale
from provisioner.state.holds import with_hold, without_holds
from provisioner.state.journal import format_time
from provisioner.state.protocols import ScriptState, State
from provisioner.telemetry.status_inputs import read_script_calls
from tests.contract.stores import PROVISIONER, Files, Kube, Store, in_memory
from tests.support.waiting import until

STORES = ("files", "memory", pytest.param("server", marks=pytest.mark.kube))


def text(status: str, number: int = 0) -> str:
    """Return the text of an answer."""
    return json.dumps({"status": status, "message": f"number {number}", "machines": []})


TEXT, OTHER, OPEN = text("complete"), text("complete_with_error"), text("running")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "files":
        return Files(tmp_path)
    if request.param == "memory":
        return in_memory(tmp_path)
    from tests.kube.state_client import client_of

    request.getfixturevalue("state_kinds")
    return Kube(client_of(request.getfixturevalue("space")), tmp_path)


@pytest.fixture
def script(store: Store) -> ScriptState:
    return store.script()


@pytest.fixture
def loop(store: Store) -> State:
    return store.loop()


def ask(script: ScriptState, count: int = 2) -> str:
    """Record a request."""
    return script.record_request(PROVISIONER, "T1", count, created_wall=5.5, rc_account="risk").id


def give_back(script: ScriptState, *names: str) -> str:
    """Record a return request."""
    return script.record_return(PROVISIONER, names, created_wall=6.5).id


def lead(loop: State, memory: Memory | None = None) -> int:
    """Become the loop, and write memory."""
    assert loop.loop_lock.acquire(0)
    epoch = loop.loop_lock.raise_epoch()
    loop.memory.write(memory or Memory(PROVISIONER, epoch=epoch))
    return epoch


def publish(loop: State, answers: dict[str, Answer], lost: dict[str, Loss] | None = None, **available: int) -> None:
    loop.status.write(answers, lost or {}, available)


# --- intent -----------------------------------------------------------------------------------------------------------


def test_a_recorded_request_is_durable_and_a_running_loop_sees_it(script: ScriptState, store: Store) -> None:
    first = ask(script)
    loop = store.loop()
    before = loop.intent.signature()
    assert list(loop.intent.read().requests) == [first]
    second, back = ask(script, 3), give_back(script, "hf-a-1", "hf-a-2")
    for one in (loop, store.loop()):  # it needs nothing of the script's process
        intent = one.intent.read()
        assert intent.requests.keys() == {first, second}
        request = intent.requests[second]
        assert (request.template, request.count, request.created_wall, request.rc_account) == ("T1", 3, 5.5, "risk")
        assert (intent.returns[back].names, intent.returns[back].created_wall) == (("hf-a-1", "hf-a-2"), 6.5)
        assert intent.provisioner == PROVISIONER
    assert loop.intent.signature() != before
    assert back.startswith(RETURN_ID_PREFIX)


def test_intent_is_unchanged_while_hf_asks_for_nothing(script: ScriptState, loop: State) -> None:
    ask(script)
    before = loop.intent.signature(), loop.intent.read()
    list(script.poll(before[1].requests))
    script.note_hosts({"a": 1})
    assert (loop.intent.signature(), loop.intent.read()) == before
    assert loop.intent.condition() is Condition.FINE
    assert loop.intent.read_newest() == (before[1], before[1].generation)


def test_the_generation_of_intent_grows_also_for_the_next_loop(script: ScriptState, store: Store) -> None:
    loop = store.loop()
    generations = []
    for _ in range(3):
        ask(script)
        generations.append(loop.intent.read().generation)
    lead(loop, Memory(PROVISIONER, epoch=1, generation=generations[-1]))
    generations.append(store.loop().intent.read().generation)
    assert generations == sorted(generations)
    assert len(set(generations[:3])) == 3
    assert store.loop().intent.condition() is Condition.FINE


def test_removed_requests_leave_intent_with_their_polls_and_answers(script: ScriptState, loop: State) -> None:
    gone, stays, back = ask(script), ask(script), give_back(script, "a")
    lead(loop)
    publish(loop, dict.fromkeys((gone, stays, back), Answer(TEXT, True)))
    script.poll([gone, stays, back])
    loop.intent.remove([gone, back, "unknown"])
    loop.forget_polls([gone, back, "unknown"])
    intent = loop.intent.read()
    assert (list(intent.requests), list(intent.returns)) == ([stays], [])
    assert loop.terminal_answers.ids() == {stays}
    assert loop.polls().keys() == {stays}
    publish(loop, {stays: Answer(TEXT, True)})
    assert script.poll([gone, stays, back]).answers == {stays: Answer(TEXT, True)}


# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_unknown_id_is_left_out_and_an_unpublished_answer_is_none(script: ScriptState, loop: State) -> None:
    known = ask(script)
    assert script.poll([known, "unknown"]).answers == {known: None}
    assert loop.polls().keys() == {known}
    assert script.poll([]).answers == {}


def test_a_poll_is_marked_before_the_answer_is_read(store: Store) -> None:
    script, loop = store.script(), store.loop()
    id_ = ask(script)
    lead(loop)
    seen = set()
    for number in range(3):
        publish(loop, {id_: Answer(text("running", number), False)})
        assert script.poll([id_]).answers == {id_: Answer(text("running", number), False)}
        assert id_ in loop.polls()
        seen.add(loop.polls()[id_])
    assert max(seen) == loop.polls()[id_], "the number never sinks"


def test_published_answers_are_read_by_scripts_and_by_the_next_loop(script: ScriptState, store: Store) -> None:
    ids = [ask(script), ask(script), give_back(script, "a")]
    loop = store.loop()
    assert not loop.status.exists()
    lead(loop)
    answers = {id_: Answer(OPEN, False) for id_ in ids}
    publish(loop, answers)
    publish(loop, answers)
    assert store.script().poll(ids).answers == answers
    assert store.loop().status.read_all() == answers
    assert store.loop().status.exists()


def test_many_answers_come_at_once(script: ScriptState, loop: State) -> None:
    ids = [ask(script) for _ in range(24)]
    lead(loop)
    answers = {id_: Answer(text("running", number), False) for number, id_ in enumerate(ids[:23])}
    publish(loop, answers)
    assert script.poll([*ids, "unknown"]).answers == {**answers, ids[23]: None}
    assert loop.polls().keys() == set(ids)


# --- a terminal answer stays ------------------------------------------------------------------------------------------


def test_an_answer_that_hf_has_read_stays_whatever_the_loop_publishes(store: Store) -> None:
    id_, loop = ask(store.script()), store.loop()
    lead(loop)
    publish(loop, {id_: Answer(TEXT, True)})
    assert store.script().poll([id_]).answers == {id_: Answer(TEXT, True)}
    assert not loop.terminal_answers.settle_revised(id_, OTHER)
    assert loop.terminal_answers.settled(id_) == Answer(TEXT, True)
    assert loop.terminal_answers.ids() == {id_}
    loop.beat()
    for late in (Answer(OTHER, True), Answer(OPEN, False)):
        try:
            publish(loop, {id_: late})
        except StateError:
            loop = store.loop()  # the store may refuse it
        assert store.script().poll([id_]).answers == {id_: Answer(TEXT, True)}
    assert store.loop().terminal_answers.answers() == {id_: Answer(TEXT, True)}


def test_an_answer_that_hf_has_not_read_may_be_revised_once_the_loop_has_settled_it(store: Store) -> None:
    id_, loop = ask(store.script()), store.loop()
    lead(loop)
    publish(loop, {id_: Answer(TEXT, True)})
    assert loop.terminal_answers.settled(id_) is None
    assert loop.terminal_answers.settle_revised(id_, OTHER)
    # Before the loop has published it, scripts already print it.
    assert store.script().poll([id_]).answers == {id_: Answer(OTHER, True)}
    assert not loop.terminal_answers.settle_revised(id_, TEXT)
    publish(loop, {id_: Answer(OTHER, True)})
    assert store.script().poll([id_]).answers == {id_: Answer(OTHER, True)}


def test_a_claimed_answer_may_be_revised_again_until_hf_reads_it(store: Store) -> None:
    id_, loop = ask(store.script()), store.loop()
    lead(loop)
    publish(loop, {id_: Answer(TEXT, True)})
    third = text("complete", 3)
    assert loop.terminal_answers.settle_revised(id_, OTHER)
    assert loop.terminal_answers.ids() == frozenset()
    assert store.loop().terminal_answers.settle_revised(id_, third)
    assert store.script().poll([id_]).answers == {id_: Answer(third, True)}
    assert store.loop().terminal_answers.ids() == {id_}


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ssrrp"))), ids="".join)
def test_in_each_order_every_script_prints_the_first_answer(store: Store, order: tuple[str, ...]) -> None:
    """Scripts must print the same answer in each order of these steps. ``s``: a script polls. ``r``: the loop revises
    its answer. ``p``: the loop publishes."""
    id_, loop, printed = ask(store.script()), store.loop(), set[str]()
    lead(loop)
    shown = TEXT
    publish(loop, {id_: Answer(shown, True)})
    for number, step in enumerate(order):
        if step == "s":
            answer = store.script().poll([id_]).answers[id_]
            assert answer is not None
            assert answer.ended
            printed.add(answer.text)
        elif step == "r":
            new = text("complete", number)
            shown = new if (has_settled := loop.terminal_answers.settle_revised(id_, new)) else shown
            assert has_settled is not bool(printed)
        else:
            publish(loop, {id_: loop.terminal_answers.settled(id_) or Answer(shown, True)})
    assert len(printed) == 1
    settled = store.loop().terminal_answers.settled(id_)
    assert settled is not None
    assert settled.text == printed.pop()


# --- losses, numbers, hosts -------------------------------------------------------------------------------------------


def test_losses_are_those_of_the_asked_machines_except_returned_ones(script: ScriptState, loop: State) -> None:
    ask(script)
    assert script.lost(["a", "b"]) == {}
    lead(loop)
    lost = {"hf-r-1": Loss(30, "preempted"), "hf-r-2": Loss(0), "hf-r-3": Loss(0)}
    publish(loop, {}, lost)
    assert script.lost(["hf-r-1", "hf-r-2", "other"]) == {"hf-r-1": lost["hf-r-1"], "hf-r-2": lost["hf-r-2"]}
    give_back(script, "hf-r-2", "other")
    assert script.lost(["hf-r-1", "hf-r-2"]) == {"hf-r-1": lost["hf-r-1"]}
    assert loop.status.read_lost() == lost
    publish(loop, {})
    assert script.lost(["hf-r-1"]) == {}


def test_available_numbers_are_the_latest(script: ScriptState, loop: State) -> None:
    ask(script)
    lead(loop)
    publish(loop, {}, T1=3, T2=0)
    assert script.available() == {"T1": 3, "T2": 0}
    publish(loop, {}, T2=4)
    assert script.available() == {"T2": 4}


def test_shown_numbers_never_sink(script: ScriptState, store: Store) -> None:
    ask(script)
    assert script.note_shown({"T1": 10, "T2": 5})[0] == {"T1": 10, "T2": 5}
    shown, where = store.script().note_shown({"T1": 7, "T2": 6, "T3": 1})
    assert shown == {"T1": 10, "T2": 6, "T3": 1}
    assert where
    assert store.script().note_shown({"T1": 1})[0] == {"T1": 10}


def test_the_report_of_the_last_step_of_demand_is_kept(loop: State) -> None:
    assert loop.read_demand() == {}
    for number in range(2):
        loop.write_demand({"at": number, "sources": {"pool ü": {"wanted": {"T1": 3}}}})
        assert loop.read_demand() == {"at": number, "sources": {"pool ü": {"wanted": {"T1": 3}}}}


def test_each_list_of_hosts_has_its_number(script: ScriptState, loop: State) -> None:
    assert loop.listed_hosts() is None
    ask(script)
    numbers = []
    for hosts in (["a", "b"], ["a", "b"], ["a"]):
        script.note_hosts(dict.fromkeys(hosts))
        listed = loop.listed_hosts()
        assert listed is not None
        assert sorted(listed[0]) == hosts
        numbers.append(listed[1])
    assert len(set(numbers)) == 3


def test_polls_and_lists_of_hosts_have_their_time(script: ScriptState, loop: State) -> None:
    id_ = ask(script)
    script.poll([id_])
    script.note_hosts({"a": None})
    calls = read_script_calls(loop)
    assert [calls.polled[id_], calls.listed] == pytest.approx([time.time()] * 2, abs=30)


def test_a_list_in_parts_is_put_together(script: ScriptState, loop: State) -> None:
    ask(script)
    script.note_hosts({"a": 1, "b": 1})
    script.note_hosts({"c": 1})
    listed = loop.listed_hosts()
    assert listed is not None
    assert set(listed[0]) == {"a", "b", "c"}


def test_different_contents_of_hfs_files_are_listed(script: ScriptState, loop: State) -> None:
    ask(script)
    lead(loop)
    loop.note_in_force(Digests("c" * 8, "0" * 8))

    def read(number: int) -> list[str]:
        script.note_read(Digests("c" * 8, f"{number:08x}"))
        ask(script)  # what a script has read may travel with its request
        return [found.file for found in loop.config_differences()]

    numbers = itertools.count(1)
    until(lambda: read(next(numbers)) == ["templates"], 10, what="the scripts have read other templates, later")
    until(lambda: read(0) == [], 10, what="the scripts have read the templates of the loop")


# --- signs of life ----------------------------------------------------------------------------------------------------


def test_the_silence_of_the_loop_is_unknown_before_its_first_cycle(script: ScriptState, store: Store) -> None:
    assert ask_silence(script) is None
    loop = store.loop()
    lead(loop)
    publish(loop, {})
    loop.beat()
    assert loop.loop_lock.keep()
    until(lambda: loop.life_signs().last_beat_at, 10, what="the end of a cycle shows")
    silent = ask_silence(script)
    assert silent is not None
    assert 0 <= silent < 60
    id_ = next(iter(loop.intent.read().requests))
    assert script.poll([id_]).silent_seconds is not None


def ask_silence(script: ScriptState) -> float | None:
    return script.record_request(PROVISIONER, "T1", 1, created_wall=5.0, rc_account="").silent_seconds


# --- memory -----------------------------------------------------------------------------------------------------------


def whole(script: ScriptState, epoch: int, requests: int = 2) -> Memory:
    """Let the script record requests and a return request. Return a memory that has a record of each."""
    records = {id_: RequestRecord(id_, "T1", 2, 1.0, 99.0) for id_ in (ask(script) for _ in range(requests))}
    back = give_back(script, "a")
    returns = {back: ReturnRecord(back, ("a",), 2.0, 98.0)}
    return Memory(PROVISIONER, epoch, 3, Moment(7.0, 8.0), records, returns)


def test_memory_is_read_as_it_was_written(script: ScriptState, store: Store) -> None:
    loop = store.loop()
    assert (loop.memory.existed(), loop.memory.condition()) == (False, Condition.NEW)
    with pytest.raises(StateMissing):
        loop.memory.read()
    assert loop.loop_lock.acquire(0)
    epoch = loop.loop_lock.raise_epoch()
    memory = whole(script, epoch)
    for change in range(4):
        memory = Memory(PROVISIONER, epoch, 3 + change, memory.written, memory.requests, memory.returns)
        if change == 2:
            memory = Memory(PROVISIONER, epoch, 5, memory.written, dict([*memory.requests.items()][:1]))
        loop.memory.write(memory)
        publish(loop, {id_: Answer(OPEN, False) for id_ in memory.requests})
        for one in (loop, store.loop()):
            assert one.memory.read() == memory
            assert one.memory.condition() is Condition.FINE
            assert one.memory.existed()
        loop.beat()
        assert store.loop().memory.read() == memory


def test_memory_survives_the_removal_of_its_requests(script: ScriptState, store: Store) -> None:
    loop = store.loop()
    assert loop.loop_lock.acquire(0)
    memory = whole(script, loop.loop_lock.raise_epoch())
    loop.memory.write(memory)
    publish(loop, {id_: Answer(TEXT, True) for id_ in memory.requests})
    loop.beat()
    loop.intent.remove([*memory.requests, *memory.returns])
    assert store.loop().memory.read() == memory
    assert store.loop().memory.condition() is Condition.FINE


def test_a_lost_memory_is_missing_and_another_life_makes_it_again(script: ScriptState, store: Store) -> None:
    loop = store.loop()
    memory = Memory(PROVISIONER, lead(loop))
    publish(loop, {})
    store.lose_memory()
    successor = store.loop()
    assert successor.memory.existed()
    assert successor.memory.condition() is Condition.MISSING
    lives = successor.memory.begin_life()
    successor.memory.write(memory)
    assert successor.memory.condition() is Condition.FINE
    assert store.loop().memory.condition() is Condition.FINE
    assert lives >= 1


def test_an_old_copy_of_memory_is_noticed(script: ScriptState, store: Store) -> None:
    loop = store.loop()
    lead(loop)
    publish(loop, {})
    put_back = store.copy()
    for number in range(3):
        loop.memory.write(Memory(PROVISIONER, 1, number))
        publish(loop, {}, T=number)
    loop.loop_lock.release()
    put_back()
    assert store.loop().memory.condition() is Condition.OLDER
    successor = store.loop()
    assert successor.loop_lock.acquire(0)
    epoch = successor.loop_lock.raise_epoch()
    successor.memory.begin_life()
    successor.memory.write(Memory(PROVISIONER, epoch))
    assert store.loop().memory.condition() is Condition.FINE


# --- epoch and turn ---------------------------------------------------------------------------------------------------


def test_one_process_at_a_time_is_the_loop(store: Store) -> None:
    first, second = store.loop(), store.loop()
    assert first.loop_lock.acquire(0)
    assert first.loop_lock.keep()
    assert not second.loop_lock.acquire(0)
    assert first.loop_lock.is_held()
    first.loop_lock.release()
    first.loop_lock.release()
    assert second.loop_lock.acquire(0)
    second.loop_lock.release()


def test_each_epoch_is_new_and_never_below_the_asked_one(store: Store) -> None:
    first = store.loop()
    assert first.loop_lock.acquire(0)
    epochs = [first.loop_lock.raise_epoch(), first.loop_lock.raise_epoch(7), first.loop_lock.epoch()]
    assert epochs[2] == epochs[1] >= 7 > epochs[0] >= 1
    first.loop_lock.sign_off()
    first.loop_lock.release()
    second = store.loop()
    assert second.loop_lock.acquire(0)
    assert second.loop_lock.raise_epoch() > epochs[1]
    assert first.loop_lock.epoch() == second.loop_lock.epoch(), "the loop before learns that it was replaced"
    assert second.loop_lock.holder()["epoch"] == second.loop_lock.epoch()
    second.loop_lock.release()


# --- operators --------------------------------------------------------------------------------------------------------


def test_holds_are_seen_by_every_process(script: ScriptState, store: Store) -> None:
    ask(script)
    loop, command = store.loop(), store.loop()
    lead(loop)
    assert not loop.holds.read().current
    before = loop.holds.signature()
    hold = Hold(HoldKind.PAUSE, "alpha", "ann", 5.0, "a reason")
    _, after = command.holds.change(lambda holds: with_hold(holds, hold))
    assert list(after.current) == [hold]
    assert list(loop.holds.read().current) == [hold]
    assert loop.holds.signature() != before
    command.holds.change(lambda holds: with_hold(holds, Hold(HoldKind.STOP_ALL, since=6.0)))
    command.holds.change(lambda holds: without_holds(holds, {HoldKind.PAUSE}, hold))
    assert [one.kind for one in store.loop().holds.read().current] == [HoldKind.STOP_ALL]


def test_the_pool_status_is_read_as_it_was_written(script: ScriptState, store: Store) -> None:
    ask(script)
    loop = store.loop()
    assert loop.read_pool_status() == {}
    lead(loop)
    loop.write_pool_status({"pools": {"a": 1}, "time": 5})
    loop.write_pool_status({"pools": {"a": 2}})
    assert store.loop().read_pool_status() == {"pools": {"a": 2}}


def test_a_release_is_asked_once(script: ScriptState, store: Store) -> None:
    ask(script)
    loop = store.loop()
    lead(loop)
    assert not loop.release_asked()
    store.loop().ask_release()  # type: ignore[attr-defined]
    assert loop.release_asked()
    assert loop.take_release()
    loop.forget_release()
    assert not loop.release_asked()
    assert not loop.take_release()
    loop.forget_release()
    assert not loop.release_asked()


def test_a_release_that_is_asked_again_meanwhile_is_not_forgotten(script: ScriptState, store: Store) -> None:
    """If an operator asks for a second release while the loop carries out the first, the loop must not forget the
    second. The second may be needed for requests that the operator has restored and that the loop has not read yet."""
    ask(script)
    loop = store.loop()
    lead(loop)
    store.loop().ask_release()  # type: ignore[attr-defined]
    assert loop.take_release()
    store.loop().ask_release()  # type: ignore[attr-defined]
    with suppress(StateStale):
        loop.forget_release()
    assert loop.release_asked()
    assert loop.take_release()
    loop.forget_release()
    assert not loop.release_asked()


def test_the_history_is_found_again(loop: State, script: ScriptState) -> None:
    ask(script)
    loop.add_history([{"time": format_time(5.0), "machine": name} for name in ("hf-a-1", "hf-a-2")])
    assert [line["machine"] for line in loop.find_history("hf-a-1").lines] == ["hf-a-1"]


def test_parts_that_grow_have_sizes_and_writing_is_possible(script: ScriptState, loop: State) -> None:
    ask(script)
    lead(loop)
    loop.add_history([{"event": "made"}])
    assert all(size > 0 for size in loop.sizes().values())
    assert loop.sizes()
    assert loop.find_write_error() is None

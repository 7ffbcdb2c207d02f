"""Tests of a cycle: the order of its steps, the state after a failure, and cycles without a plan."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.lab.fake_backend import Mark
from provisioner.loop import hf_activity
from provisioner.loop.clock import LONGEST_GAP
from provisioner.loop.cycle_report import SupersededError
from provisioner.model import (
    NEWS_SECONDS,
    Brake,
    BrakeReason,
    DeleteReason,
    ErrorClass,
    Failure,
    LossCause,
    MachineEnd,
    Memory,
    PendingReason,
    Verdict,
)
from provisioner.state.errors import StateUnwritable
from tests.support.cycle_bench import LIMITS, Bench, hf_calls
from tests.support.parts import alter
from tests.support.stores import add_request

DAY = 86400.0
SKEWS = {"HF's clock is right": 0.0, "a day behind": -DAY, "a day ahead": DAY}


def raise_(error: Exception) -> None:
    """Raise an error, for use in a lambda."""
    raise error


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_slot_is_on_disk_before_its_create_is_called(bench: Bench) -> None:
    bench.request(5)
    bench.cycle()
    assert bench.place.recorded == [True] * 5


def test_a_create_that_fails_does_not_stop_the_others(bench: Bench) -> None:
    bench.place.fails[2] = Failure(ErrorClass.OTHER, "the third one")
    id_ = bench.request(10)
    report = bench.cycle(2)
    assert report.result == "partial"
    assert len(bench.place.machines) == 10, "nine at once, and the replacement of the tenth"
    assert len(set(bench.place.created)) == 11, "under a name of its own"
    bench.place.place.boot()
    bench.cycle(2)
    assert json.loads(bench.answer(id_))["status"] == "complete"


def test_nothing_is_planned_when_nothing_changed_and_nothing_is_due(bench: Bench) -> None:
    bench.succeed(3)
    observations = bench.at_rest()
    before = bench.state.memory.signature(), bench.state.status.signature()
    assert bench.reconciler.cycle(observations).plan is None
    assert (bench.state.memory.signature(), bench.state.status.signature()) == before, "a quiet cycle writes nothing"


def test_the_reasons_of_unmet_machines_are_published_also_while_nothing_is_planned(bench: Bench) -> None:
    id_ = bench.request(2)
    bench.cycle(2)
    report = bench.reconciler.cycle(bench.at_rest())
    assert report.plan is None
    (unmet,) = report.unmet[id_]
    assert (unmet.reason, unmet.machines) == (PendingReason.STARTING, 2)


def test_a_loss_reported_by_an_event_is_planned_for_although_no_observation_showed_it(bench: Bench) -> None:
    bench.succeed(3)
    observations = bench.at_rest()
    with_cause = replace(observations["pool"], ends={"hf-abcdefghij-000000": MachineEnd(LossCause.DELETED)})
    assert bench.reconciler.cycle({**observations, "pool": with_cause}).plan is not None


@pytest.mark.parametrize("intent_too", [False, True])
def test_a_memory_that_goes_while_the_loop_runs_is_written_again_although_nothing_changed(
    bench: Bench, intent_too: bool
) -> None:
    bench.succeed(3)
    observations = bench.observations()
    bench.reconciler.cycle(observations)
    before = bench.state.memory.read().requests
    Path(bench.state.memory.path).unlink()
    if intent_too:
        os.truncate(bench.state.intent.path, 100)
    bench.reconciler.cycle(observations)
    assert bench.state.memory.read().requests == before, "`recover` makes intent again from it"


@pytest.mark.parametrize("loses", [Path.unlink, lambda path: os.truncate(path, 100)], ids=["missing", "unreadable"])
def test_a_loop_that_starts_without_intent_leaves_the_published_reasons_to_stand(
    bench: Bench, loses: Callable[[Path], None]
) -> None:
    id_ = bench.request(3)
    assert list(bench.cycle().unmet or ()) == [id_]
    loses(Path(bench.state.intent.path))
    assert list(bench.cycle().unmet or ()) == [id_], "as it was planned last"
    bench.restarted()
    assert bench.cycle().unmet is None


def test_what_falls_due_is_planned_for_although_every_observation_is_the_same(bench: Bench) -> None:
    id_ = bench.request(1)
    bench.cycle(2)
    observations = bench.observations()
    for _ in range(3):
        bench.reconciler.cycle(observations)
    bench.clock.time += LIMITS.request_deadline_seconds
    bench.reconciler.cycle(bench.anew(observations))
    assert json.loads(bench.answer(id_))["status"] == "complete_with_error"


def test_work_that_waited_for_a_fresh_observation_is_done_once_there_is_one(bench: Bench) -> None:
    bench.succeed(3)
    observations = bench.observations()
    bench.clock.time += max(pool.stale_after_seconds for pool in LIMITS.pools.values()) + 1.0
    bench.request(2)
    bench.reconciler.cycle(observations)
    waiting = bench.reconciler.cycle(observations)
    made = bench.reconciler.cycle(bench.anew(observations))
    assert waiting.plan is None, "nothing is done on an old observation"
    assert made.plan is not None
    assert len(made.plan.creates) == 2


@pytest.mark.parametrize("news", ["limits", "a call of HF after minutes"])
def test_changes_beside_observations_and_requests_are_planned_for_too(bench: Bench, news: str) -> None:
    id_ = bench.succeed(3)
    observations = bench.at_rest()
    if news == "limits":
        bench.reconciler.limits = replace(LIMITS)
    else:
        bench.clock.time += NEWS_SECONDS
        os.utime(os.path.join(bench.state.path, "seen", id_), ns=(1, 1))
    assert bench.reconciler.cycle(observations).plan is not None


def test_that_hf_goes_on_to_ask_for_the_same_is_no_news_within_minutes(bench: Bench) -> None:
    id_ = bench.succeed(3)
    bench.clock.time += NEWS_SECONDS - bench.clock.time % NEWS_SECONDS
    observations = bench.observations()
    for second in range(0, int(NEWS_SECONDS), 5):
        bench.clock.time += 5.0 if second else 0.0
        os.utime(os.path.join(bench.state.path, "seen", id_), ns=(second, second))
        report = bench.reconciler.cycle(bench.anew(observations))
        assert (report.plan is None) is (second > 0), f"second {second}"


def test_what_the_caps_leave_is_published_anew_when_only_they_change(bench: Bench) -> None:
    bench.succeed(3)
    for cap in (10, 7):
        templates = {"T": replace(LIMITS.templates["T"], max_machines=cap)}
        bench.reconciler.limits = replace(LIMITS, templates=templates)
        bench.cycle()
        assert bench.state.status.read_available() == {"T": cap - 3}


def test_a_pool_that_cannot_be_seen_gets_no_actions_and_the_other_goes_on(bench: Bench) -> None:
    bench.request(2)
    bench.request(2, "U")
    report = bench.cycle(2, blind={"pool"})
    assert bench.place.created == []
    assert len(bench.places["other"].created) == 2
    assert report.result == "partial"


def test_a_memory_that_cannot_be_written_stops_every_call(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.request(5)
    with monkeypatch.context() as broken:

        def full(_: object) -> None:
            raise StateUnwritable("memory.json: no space left on device")

        broken.setattr(bench.state.memory, "write", full)
        report = bench.cycle(3)
        assert report.result == "failed"
        assert "no space left" in report.problem
        assert bench.place.created == []
    bench.cycle(2)
    assert len(bench.place.created) == 5


def test_what_was_recorded_is_done_although_its_answers_could_not_be_published(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.request(2)
    observations = bench.observations()

    def again() -> None:
        bench.clock.time += 5.0
        bench.reconciler.cycle(bench.anew(observations))

    with monkeypatch.context() as refusing:
        refusing.setattr(type(bench.state.status), "write", lambda *_: raise_(StateUnwritable("no space")))
        again()
        assert bench.place.created == []
    again()
    assert len(bench.place.created) == 2


def test_only_of_returns_that_have_not_ended_pools_are_asked_for_the_names(bench: Bench) -> None:
    bench.succeed(1)
    unknown = "hf-zzzzzzzzzz-000007"
    bench.return_machines(unknown, *bench.place.machines)
    bench.cycle()
    assert set(map(str, bench.reconciler.sought().values())) == {str({unknown: ""})}
    bench.cycle(4)
    assert set(map(str, bench.reconciler.sought().values())) == {"{}"}


def test_a_return_whose_id_was_never_printed_is_carried_out_and_its_repetition_ends_at_once(bench: Bench) -> None:
    """If a script was killed after it recorded a return and before it printed the id, the loop must carry out the
    return. HostFactory then returns the machine again. This second return must end at once."""
    bench.succeed(2)
    kept, given = sorted(bench.place.machines)
    bench.return_machines(given)
    bench.cycle(4)
    assert list(bench.place.machines) == [kept]
    bench.state.inventory.write([kept, given])
    bench.cycle()
    assert dict(bench.state.status.read_lost()) == {}, "it counts as given back"
    again = bench.return_machines(given)
    bench.cycle()
    answer = json.loads(bench.answer(again))
    assert (answer["status"], [machine["result"] for machine in answer["machines"]]) == ("complete", ["succeed"])
    assert [delete.name for delete in bench.place.deleted] == [given]


def test_an_intent_that_cannot_be_read_changes_no_answer_and_deletes_nothing(bench: Bench) -> None:
    id_ = bench.succeed(3)
    answer = bench.answer(id_)
    file = Path(bench.state.intent.path)
    file.write_text(file.read_text()[:20])
    report = bench.cycle(5)
    assert report.result == "failed"
    assert "intent.json" in report.problem
    assert bench.answer(id_) == answer
    assert bench.place.deleted == []


@pytest.mark.parametrize(
    ("call", "file", "fails"),
    [
        pytest.param("lstat", "seen/", True, id="a mark of a poll"),
        pytest.param("lstat", "hf-inventory.json", False, id="the hosts HF listed: only a hint"),
        pytest.param("lstat", "heartbeat", True, id="the sign of life that tells how old a lost memory is"),
        pytest.param("unlink", "recover", True, id="what an operator released"),
    ],
)
def test_a_small_file_that_the_system_refuses_costs_a_cycle_and_not_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str, file: str, fails: bool
) -> None:
    bench.succeed(2)
    bench.state.inventory.write(sorted(bench.place.machines))
    bench.state.heartbeat.touch()
    bench.state.ask_release()
    Path(bench.state.memory.path).unlink()
    bench.restarted()
    real = getattr(os, call)

    def refused(path: object, *arguments: object, **options: object) -> object:
        if f"{bench.state.path}/{file}" in str(path):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, *arguments, **options)

    with monkeypatch.context() as refusing:
        refusing.setattr(os, call, refused)
        for _ in range(2):
            problem = bench.cycle().problem
            assert bool(problem) is fails, problem
    assert bench.cycle(2).result == "ok"
    assert len(bench.place.machines) == 2


@pytest.mark.parametrize("restart", [False, True], ids=["the loop runs on", "the loop is restarted"])
@pytest.mark.parametrize("lost", ["intent", "memory", "status"])
def test_no_file_that_is_lost_costs_a_machine(bench: Bench, lost: str, restart: bool) -> None:
    id_ = bench.succeed(5)
    Path(getattr(bench.state, lost).path).unlink()
    if restart:
        bench.restarted()
    bench.cycle(10)
    bench.clock.time += 7200
    bench.cycle(10)
    assert bench.place.deleted == []
    assert len(bench.place.created) == 5
    if lost != "intent":
        assert json.loads(bench.answer(id_))["status"] == "complete"
        assert bench.state.status.read_lost() == {}
    if restart and lost != "status":
        assert bench.reconciler.memory is not None
        assert bench.reconciler.memory.brake is not None, "the brake says that an operator has to check"


@pytest.mark.parametrize("skew", SKEWS.values(), ids=SKEWS)
def test_a_first_start_asks_no_other_hosts_clock(bench: Bench, skew: float) -> None:
    bench.request(2, skew=skew)
    bench.state.heartbeat.touch()
    bench.cycle(2)
    assert len(bench.place.created) == 2
    assert bench.reconciler.memory is not None
    assert bench.reconciler.memory.brake is None


@pytest.mark.parametrize(
    ("skew", "traces"),
    [(0.0, True), (-DAY, False), (DAY, False)],
    ids=["its lock file is left", "intent alone is left, of a clock behind", "and of a clock ahead"],
)
def test_without_memory_nothing_is_made_for_a_request_that_is_over(bench: Bench, skew: float, traces: bool) -> None:
    id_ = bench.request(2, skew=skew)
    bench.cycle(2)
    for path in Path(bench.state.path).iterdir():
        if path.is_file() and path.name != "intent.json" and not (traces and path.name == "memory.json.lock"):
            path.unlink()
    bench.place.lose(*bench.place.machines)
    bench.state.heartbeat.touch()
    over = os.stat(bench.state.heartbeat.path).st_mtime - LIMITS.request_deadline_seconds - 1
    os.utime(bench.state.intent.path, (over, over))
    bench.restarted()
    bench.cycle(10)
    assert len(bench.place.created) == 2, "those from before"
    assert json.loads(bench.answer(id_))["status"] == "complete_with_error"
    assert bench.state.memory.read().brake is not None


@pytest.mark.parametrize("newest", ["request", "return"])
def test_a_request_that_is_older_than_its_time_beside_the_newest_is_over(bench: Bench, newest: str) -> None:
    old = bench.request(2)
    bench.clock.time += LIMITS.request_deadline_seconds
    if newest == "request":
        bench.request(3)
    else:
        bench.return_machines("hf-zzzzzzzzzz-000007")
    bench.cycle(3)
    assert len(bench.place.created) == (3 if newest == "request" else 0)
    assert json.loads(bench.answer(old))["status"] == "complete_with_error"


def test_a_lost_memory_is_rebuilt_from_observations_that_show_the_last_creates(bench: Bench) -> None:
    bench.succeed(2)
    Path(bench.state.memory.path).unlink()
    late = {name: replace(pool, lag_seconds=30.0) for name, pool in LIMITS.pools.items()}
    bench.restarted().limits = replace(LIMITS, pools=late)
    assert "as soon as every pool was observed" in bench.cycle(6).problem
    assert bench.cycle().problem == ""


def test_answers_reported_to_hf_show_that_there_was_a_memory(bench: Bench) -> None:
    bench.succeed(2)
    for name in ("memory.json", "memory.json.lock", "status.json"):
        Path(bench.state.path, name).unlink()
    bench.place.lose(*bench.place.machines)
    bench.restarted()
    bench.cycle(5)
    assert len(bench.place.created) == 2
    assert bench.state.memory.read().brake is not None


@pytest.mark.parametrize("left", ["status", "returns"])
def test_each_trace_by_itself_shows_that_there_was_a_memory(bench: Bench, left: str) -> None:
    bench.request(2)
    bench.cycle(2)
    bench.place.place.boot()
    if left == "returns":
        bench.return_machines(next(iter(bench.place.machines)))
    for path in Path(bench.state.path).iterdir():
        if path.is_file() and path.name not in (
            "intent.json",
            "intent.json.lock",
            "status.json" if left == "status" else "",
        ):
            path.unlink()
    bench.restarted()
    bench.cycle(3)
    brake = bench.state.memory.read().brake
    assert brake is not None
    assert brake.reason is BrakeReason.MEMORY_LOST
    assert brake.detail.startswith("memory.json was lost and was rebuilt"), "and not taken for the first one"


def test_a_release_before_memory_was_lost_releases_no_brake(bench: Bench) -> None:
    bench.succeed(2)
    Path(bench.state.memory.path).unlink()
    bench.state.ask_release()
    bench.restarted()
    bench.cycle(3)
    assert bench.state.memory.read().brake is not None


def test_orphans_that_an_operator_released_latch_the_brake_no_more(bench: Bench) -> None:
    bench.succeed(1)
    for number in range(8):
        name = f"hf-zzzzzzzzzz-{number:06d}"
        bench.place.place.create(name, Mark("demo", "pool", name))
    bench.place.place.boot()
    bench.cycle(2)
    brake = bench.state.memory.read().brake
    assert brake is not None
    assert brake.reason is BrakeReason.TOO_MANY_ORPHANS
    bench.state.ask_release()
    bench.cycle(3)
    assert bench.state.memory.read().brake is None


def test_a_brake_that_holds_keeps_its_reason_when_intent_is_lost_as_well(bench: Bench) -> None:
    bench.succeed(1)
    brake = Brake(BrakeReason.TOO_MANY_ORPHANS, bench.clock.time, "8 of 9 machines have no request.", "pool")
    assert bench.reconciler.memory is not None
    bench.reconciler.memory = replace(bench.reconciler.memory, brake=brake)
    bench.cycle()
    Path(bench.state.intent.path).unlink()
    assert bench.cycle(2).result == "failed"
    assert bench.state.memory.read().brake == brake


def test_a_release_of_the_brake_covers_orphans_and_unlisted_machines(bench: Bench) -> None:
    bench.succeed(1)
    assert bench.reconciler.memory is not None
    seen = {"orphans": {"an-orphan": 0.0}, "unlisted": {"an-unlisted": 0.0}}
    bench.reconciler.memory = alter(bench.reconciler.memory, orphans=seen["orphans"], unlisted=seen["unlisted"])
    bench.state.ask_release()
    bench.cycle()
    assert set(bench.state.memory.read().orphans.accepted) == {"an-orphan", "an-unlisted"}


def test_a_restored_intent_shows_that_there_was_a_memory(bench: Bench) -> None:
    id_ = bench.request(2)
    bench.cycle(2)
    bench.place.place.boot()
    for path in Path(bench.state.path).iterdir():
        if path.name != "intent.json":
            path.unlink()
    bench.restarted()
    bench.cycle(3)
    remembered = bench.state.memory.read()
    assert remembered.brake is not None
    assert remembered.brake.reason is BrakeReason.MEMORY_LOST
    assert remembered.requests[id_].reported_at is not None, "its machines count as HF's"


def test_the_brake_is_released_only_by_an_operator(bench: Bench) -> None:
    bench.succeed(2)
    Path(bench.state.memory.path).unlink()
    bench.restarted()
    bench.cycle(3)
    assert bench.reconciler.memory is not None
    assert bench.reconciler.memory.brake is not None
    assert bench.reconciler.memory.brake.reason is BrakeReason.MEMORY_LOST
    bench.state.ask_release()
    bench.cycle()
    assert bench.state.memory.read().brake is None
    assert not bench.state.release_asked()


def list_in_parts(bench: Bench, names: Sequence[str], seconds: float) -> int:
    """Let HF list half of its hosts every 150 s, the two halves by turns. Return the number of cycles that changed more
    of memory than the times in it."""
    changes = 0
    for turn in range(round(seconds / 150)):
        bench.clock.time += 145.0
        before = timeless(bench)
        bench.state.inventory.write(names[turn % 2 :: 2])
        mark = round(bench.clock.time * 1e9)
        os.utime(bench.state.inventory.path, ns=(mark, mark))
        bench.cycle()
        changes += timeless(bench) != before
    return changes


def timeless(bench: Bench) -> Memory:
    return alter(bench.state.memory.read(), time=0.0, time_wall=0.0)


def test_hours_are_on_the_day_of_the_wall_clock_that_a_loop_goes_by_now(bench: Bench) -> None:
    bench.succeed(1)
    bench.clock.ahead = 500 * DAY
    bench.place.lose(*bench.place.machines)
    bench.cycle(3)
    assert list(bench.state.memory.read().usage.days) == ["1971-05-27"]


def test_the_time_of_a_quiet_grid_is_written_before_a_gap_could_cut_it(bench: Bench) -> None:
    bench.succeed(2)
    began = bench.clock.time
    for _ in range(60):
        bench.clock.time += 295.0
        bench.cycle()
    assert bench.clock.time - began > 4 * LONGEST_GAP
    assert bench.clock.time - bench.state.memory.read().written.time < LONGEST_GAP / 2


def test_a_machine_that_lists_in_parts_never_name_is_noted_once_and_the_note_survives_a_restart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_activity, "LISTED_SECONDS", 7500.0)
    bench.succeed(5)
    *listed, missing = sorted(bench.place.machines)
    assert list_in_parts(bench, listed, 3300) == 0
    assert list_in_parts(bench, listed, 3600) == 1
    noted = bench.state.memory.read().hosts.unlisted
    assert list(noted) == [missing]
    bench.restarted()
    assert list_in_parts(bench, listed, 3000) == 0
    assert bench.state.memory.read().hosts.unlisted == noted
    assert bench.place.deleted == [], "it is only shown"
    list_in_parts(bench, [*listed, missing], 300)
    assert bench.state.memory.read().hosts.unlisted == {}


def test_an_unlisted_machine_goes_when_that_is_configured(bench: Bench) -> None:
    bench.succeed(5)
    *listed, missing = sorted(bench.place.machines)
    bench.reconciler.limits = alter(LIMITS, delete_unlisted_after=7200.0)
    list_in_parts(bench, listed, 6900)
    assert bench.place.deleted == []
    list_in_parts(bench, listed, 600)
    assert [(delete.name, delete.reason) for delete in bench.place.deleted] == [(missing, DeleteReason.ORPHANED)]


def test_what_is_due_leaves_the_files_on_demand_and_nothing_else_is_done(bench: Bench) -> None:
    id_ = bench.succeed(2)
    back = bench.return_machines(*bench.place.machines)
    bench.cycle(5)
    bench.hears(back)
    bench.cycle()
    bench.request(3)
    bench.clock.time += LIMITS.retention_seconds + 10
    before = bench.state.memory.signature()
    assert bench.restarted().trim(dry_run=True) == (back,)
    assert bench.state.memory.signature() == before
    assert set(bench.restarted().trim(dry_run=False)) == {back, id_}
    intent = bench.state.intent.read()
    assert (len(intent.requests), intent.returns) == (1, {})
    assert bench.state.memory.read().requests == {}, "the new request is left to the loop"
    assert bench.state.status.read_all() == {}
    assert list(Path(bench.state.seen.path).iterdir()) == []
    assert bench.restarted().trim(dry_run=False) == ()


def test_a_superseded_loop_neither_writes_nor_acts(bench: Bench) -> None:
    bench.succeed(1)
    bench.request(5)
    before = bench.state.memory.signature()
    bench.superseded = True
    with pytest.raises(SupersededError):
        bench.cycle()
    assert len(bench.place.created) == 1
    assert bench.state.memory.signature() == before


def test_the_state_directory_of_another_instance_is_refused(bench: Bench) -> None:
    add_request(bench.state, "T", 1, created_wall=0.0, create_for="another")
    report = bench.cycle()
    assert "belongs to HF's provider instance 'another'" in report.problem
    assert bench.place.created == []


def test_a_forbidden_transition_sets_its_slot_aside_and_the_cycle_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = bench.succeed(3)
    monkeypatch.setattr("provisioner.planning.core.draft.TRANSITIONS", {verdict: frozenset() for verdict in Verdict})
    victim = next(iter(bench.place.machines))
    bench.return_machines(victim)
    bench.request(2, "U")
    bench.cycle(3)
    memory = bench.reconciler.memory
    assert memory is not None
    aside = [slot.name for slot in memory.requests[id_].slots.values() if slot.is_set_aside]
    assert aside == [victim]
    assert bench.place.deleted == []
    assert len(bench.places["other"].created) == 2


def test_a_crash_before_the_outcome_is_recorded_repeats_the_create_under_its_name(bench: Bench) -> None:
    bench.request(3)
    bench.cycle()
    assert len(bench.place.created) == 3
    bench.place.lose(max(bench.place.machines))
    bench.restarted()
    bench.cycle()
    assert len(bench.place.machines) == 3
    assert len(set(bench.place.created)) == 3, "no new name was needed"


def test_what_a_slot_is_deleted_for_is_said(bench: Bench) -> None:
    bench.succeed(2)
    first, second = sorted(bench.place.machines)
    bench.return_machines(first)
    bench.place.place.crash(second)
    bench.cycle(2)
    assert {delete.name: delete.reason for delete in bench.place.deleted} == {
        first: DeleteReason.RETURNED,
        second: DeleteReason.LOST,
    }
    assert set(bench.state.status.read_lost()) == {second}


@pytest.mark.parametrize(
    ("every", "cancelled"),
    [(60.0, True), (2400.0, False)],
    ids=["HF calls every minute, but not for it", "HF was away and calls for another one first"],
)
def test_a_request_is_cancelled_only_when_hf_calls_on_without_it(bench: Bench, every: float, cancelled: bool) -> None:
    id_ = bench.request(1)
    bench.cycle(2)
    bench.place.place.boot()
    passed = 0.0
    while passed <= 2400.0:
        bench.cycle()
        bench.clock.time += every
        passed += every
        bench.state.inventory.write([f"other{passed:.0f}"])
        bench.cycle(3)
    answer = json.loads(bench.answer(id_))
    assert (answer["status"] == "complete_with_error") is cancelled
    assert bool(bench.place.deleted) is cancelled


def test_nothing_is_cancelled_before_hf_could_read_that_it_will_be(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = bench.request(1)
    bench.cycle(2)
    bench.place.place.boot()
    hf_calls(bench, LIMITS.cancel_after_seconds - 180)
    with monkeypatch.context() as refusing:
        refusing.setattr(type(bench.state.status), "write", lambda *_: raise_(StateUnwritable("no space")))
        hf_calls(bench, 600)
    bench.state.seen.touch(id_)
    bench.cycle(3)
    assert json.loads(bench.answer(id_))["status"] == "complete"
    assert bench.place.deleted == []


def test_what_the_loop_itself_trims_is_no_call_of_hf(bench: Bench) -> None:
    ended = []
    for _ in range(12):
        ended.append(bench.request(1, "unknown"))
        bench.cycle(2)
        bench.hears(ended[-1])
        bench.cycle()
        bench.clock.time += 240.0
    unheard = bench.request(1)
    bench.cycle(2)
    bench.place.place.boot()
    bench.clock.time += LIMITS.retention_seconds - 3600.0
    while set(bench.state.intent.read().requests) != {unheard}:
        bench.cycle()
        bench.clock.time += 60.0
    assert json.loads(bench.answer(unheard))["status"] == "complete"
    assert bench.place.deleted == []


def test_what_one_part_of_a_list_names_stands_while_the_others_come(bench: Bench) -> None:
    bench.succeed(1)
    unknown = "hf-zzzzzzzzzz-000007"
    for part in ([unknown], ["other"], ["another"]):
        bench.state.inventory.write(part)
        bench.cycle()
    assert set(bench.state.status.read_lost()) == {unknown}
    bench.clock.time += 300.0
    bench.state.inventory.write(["other"])
    bench.cycle(2)
    assert bench.state.status.read_lost() == {}


def test_preview_writes_nothing_and_says_what_the_next_cycle_would_do(bench: Bench) -> None:
    assert bench.reconciler.preview({}) is None, "without intent"
    bench.request(4)
    plan = bench.reconciler.preview(bench.observations())
    assert plan is not None
    assert len(plan.creates) == 4
    assert not bench.state.memory.exists()
    assert bench.place.created == []

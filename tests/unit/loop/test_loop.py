"""Tests of the loop in a thread: wake-ups, standby, succession and end."""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from provisioner.backends import MayStart
from provisioner.backends.gke.api import KubeTimes
from provisioner.backends.mig.api import USUAL_TIMES
from provisioner.backends.registry import built_in_kinds
from provisioner.loop import loop as loops
from provisioner.loop.cycle_report import CycleReport, SupersededError, check_directory
from provisioner.loop.loop import Hints, Loop, Pace, Setup
from provisioner.loop.wakeups import Wake
from provisioner.model import (
    Create,
    Hold,
    HoldKind,
    Limits,
    LossCause,
    Memory,
    ObservationFailed,
    Outcome,
    PoolLimits,
    Slot,
    TemplateLimits,
)
from provisioner.process_end import Latch
from provisioner.state.directory import StateDir
from provisioner.state.directory_note import SUFFIX
from provisioner.state.errors import StateError
from provisioner.state.holds import with_hold, without_holds
from provisioner.state.locks import get_boot_id
from provisioner.state.loop_lock import LoopLock
from tests.support.slow_place import SlowPlace
from tests.support.stores import add_request, forgotten
from tests.support.waiting import PATIENCE, until

LIMITS = Limits("hf", {"pool": PoolLimits("pool")}, {"T": TemplateLimits("T", ("pool",))})
QUICK = Pace(interval_seconds=0.2, floor_seconds=0.0, act_seconds=1.0, intent_poll_seconds=0.01)


class Running:
    """A loop in a thread."""

    def __init__(
        self, path: Path, *places: SlowPlace, pace: Pace | None = None, hints: Hints | None = None, **options: object
    ) -> None:
        self.state = StateDir(path)
        self.reports: list[CycleReport] = []
        self.wakes: list[Wake] = []
        self.stood_by = threading.Event()
        self.error: Exception | None = None
        limits = replace(LIMITS, pools={place.pool: PoolLimits(place.pool) for place in places})
        setup = Setup(self.state, {place.pool: place for place in places}, limits, "demo", pace or QUICK)
        self.loop = Loop(
            replace(setup, note=str(path.with_name(f".demo{SUFFIX}"))),
            self.reports.append,
            count_wake=self.wakes.append,
            hints=hints,
            stands_by=self.stood_by.set,
        )
        self.thread = threading.Thread(target=self._run, kwargs=options)
        self.thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _run(self, **options: bool) -> None:
        try:
            self.loop.run(**options)
        except (StateError, SupersededError) as error:
            self.error = error

    def ran(self) -> list[Slot]:
        """Return the slots of the last cycle's memory that are not closed, and whose machines have run."""
        records = running.requests.values() if self.reports and (running := self.reports[-1].memory) else ()
        return [
            slot
            for record in records
            for slot in record.slots.values()
            if slot.ran_at and slot.deletion.closed_at is None
        ]

    def end(self) -> None:
        self.loop.stop()
        self.thread.join(10 * PATIENCE)
        assert not self.thread.is_alive()


def ask(state: StateDir, count: int) -> None:
    """Record a request, as a script does."""
    add_request(state, "T", count, created_wall=time.time(), create_for="demo")


# --- the garbage collector --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_the_garbage_collector_waits_for_the_end_of_a_cycle_however_it_ends(tmp_path: Path, fails: bool) -> None:
    enabled: list[bool] = []

    def refresh(limits: Limits, _: Memory | None) -> Limits:
        enabled.append(gc.isenabled())
        if fails:
            raise StateError("so ends the cycle")
        return limits

    loop = Loop(
        Setup(StateDir(tmp_path), {"pool": SlowPlace()}, LIMITS, "demo", QUICK),
        lambda _: enabled.append(gc.isenabled()),
        refresh=refresh,
    )
    with pytest.raises(StateError) if fails else nullcontext():
        loop.run(once=True)
    assert enabled == ([False] if fails else [False, True])
    assert gc.isenabled()


def test_a_pool_that_lacks_many_machines_at_once_is_listed_anew_and_reported(tmp_path: Path) -> None:
    class Watched(SlowPlace):
        wanted = 0.0

        def list_after(self, when: float) -> None:
            self.wanted = when

    place = Watched()
    ask(StateDir(tmp_path), 8)
    with Running(tmp_path, place) as running:
        until(lambda: len(running.ran()) == 8, 30)
        place.place._entries = {}  # all at once, and no event says why
        until(lambda: place.wanted, 30)
        problems = until(lambda: running.reports[-1].problems.get("pool"), 30)
        assert problems[0].startswith("8 of 8 machines are missing since ")
        assert any(0 <= place.wanted - report.now <= 60.0 for report in running.reports)
        assert len(running.ran()) == 8, "no loss is reported, and no machine is created in their place"


def test_a_slow_observation_delays_no_other_pool(tmp_path: Path) -> None:
    place = SlowPlace()
    place.slow.clear()
    with Running(tmp_path, place) as running:
        until(lambda: len(running.reports) >= 3, 30, what="cycles go on")
        assert isinstance(running.reports[-1].observations["pool"], ObservationFailed)
        place.slow.set()


# --- one loop ---------------------------------------------------------------------------------------------------------


def test_a_request_is_noticed_by_the_files_signature(tmp_path: Path) -> None:
    place = SlowPlace()
    with Running(tmp_path, place) as running:
        until(lambda: len(running.reports) >= 2, 30)
        ask(running.state, 2)
        until(lambda: len(place.machines) == 2, 30)
        assert Wake.INTENT in running.wakes
        assert running.state.heartbeat.age_against(running.state.intent.path) is not None


def test_a_busy_loop_pauses_as_long_as_its_state_demands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(latch: Latch, seconds: float | None = None) -> bool:
        waits.append(seconds or 0.0)
        return latch.is_set()

    monkeypatch.setattr(Latch, "wait", wait)
    monkeypatch.setattr(StateDir, "least_pause_seconds", 50.0)
    with Running(tmp_path, SlowPlace()) as running:
        add_request(running.state, "T", 1, created_wall=time.time(), create_for="demo")
        until(lambda: any(seconds > 30.0 for seconds in waits), 30, what="a pause")


def test_a_hold_is_noticed_by_the_files_signature(tmp_path: Path) -> None:
    with Running(tmp_path, SlowPlace(), pace=replace(QUICK, interval_seconds=60.0)) as running:
        until(lambda: len(running.reports) >= 2, 30)
        running.state.holds.change(lambda holds: with_hold(holds, Hold(HoldKind.STOP_ALL, who="ann")))
        until(lambda: running.reports[-1].holds.stop is not None, 30)
        running.state.holds.change(lambda holds: without_holds(holds, [HoldKind.STOP_ALL], Hold(HoldKind.STOP_ALL)))
        until(lambda: running.reports[-1].holds.stop is None, 30)
        assert Wake.INTENT in running.wakes


def stands_by(caplog: pytest.LogCaptureFixture) -> None:
    """Wait until a loop logs that it stands by."""
    until(lambda: "Standing by: another loop runs" in caplog.messages, 30)


class Stream:
    """A stream without any hint."""

    def __init__(self) -> None:
        self.began = self.ended = False

    def start(self) -> None:
        self.began = True

    def close(self) -> None:
        self.ended = True


def test_a_second_loop_stands_by_and_reads_no_hints_until_the_first_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "provisioner")
    streams = [Stream(), Stream()]
    first = Running(tmp_path, SlowPlace(), hints=streams[0])
    until(lambda: first.reports, 30)
    assert not first.state.loop_lock.holder().get("ended")
    with Running(tmp_path, SlowPlace(), hints=streams[1]) as second:
        stands_by(caplog)
        assert (second.reports, [stream.began for stream in streams]) == ([], [True, False])
        assert (first.stood_by.is_set(), second.stood_by.wait(30)) == (False, True)
        first.end()
        assert streams[0].ended
        holder = first.state.loop_lock.holder()
        assert holder.get("ended") is True or holder["epoch"] == 2, "signed off, unless the second has signed since"
        until(lambda: second.reports and streams[1].began, 30)
        assert second.state.loop_lock.epoch() == 2
    assert streams[1].ended


def test_calls_that_hang_hold_up_the_end_for_a_moment_and_the_loop_does_not_sign_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, released = threading.Event(), threading.Event()

    class Hanging(SlowPlace):
        def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
            asked.set()
            released.wait(60 * PATIENCE)
            return []

    monkeypatch.setattr(loops, "SETTLE_SECONDS", 0.05)
    ask(StateDir(tmp_path), 1)
    running = Running(tmp_path, Hanging(), pace=replace(QUICK, longest_call_seconds=60 * PATIENCE))
    until(asked.is_set, 30, what="a call is under way")
    running.end()
    assert not released.is_set()
    assert not running.state.loop_lock.holder().get("ended")
    said = [record for record in caplog.records if record.message.startswith("Calls were under way")]
    assert [record.__dict__["pools"] for record in said] == [["pool"]]
    released.set()


def test_standing_by_can_be_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "provisioner")
    with Running(tmp_path, SlowPlace()) as first:
        until(lambda: first.reports, 30)
        with Running(tmp_path, SlowPlace()) as second:
            stands_by(caplog)
        assert second.error is None


def test_a_loop_that_finds_a_newer_epoch_ends_without_writing(tmp_path: Path) -> None:
    place = SlowPlace()
    running = Running(tmp_path, place)
    until(lambda: running.reports, 30)
    file = Path(running.state.loop_lock.path)
    file.write_text(file.read_text().replace('"epoch": 1', '"epoch": 9').replace('"epoch":1', '"epoch":9'))
    ask(running.state, 2)
    assert isinstance(until(lambda: running.error, 30), SupersededError)
    assert place.machines == {}
    assert not running.state.memory.exists()


def test_a_loop_at_rest_ends_when_another_process_has_its_lock(tmp_path: Path) -> None:
    running = Running(tmp_path, SlowPlace())
    until(lambda: running.reports, 30)
    forgotten(running.state.loop_lock)
    other = LoopLock(running.state.loop_lock.path)
    assert other.acquire(30)
    assert isinstance(until(lambda: running.error, 30), SupersededError)
    assert "this loop has lost its lock" in str(running.error)
    other.release()


def test_once_is_one_cycle_on_complete_observations_with_its_actions_done(tmp_path: Path) -> None:
    place = SlowPlace()
    state = StateDir(tmp_path)
    ask(state, 3)
    running = Running(tmp_path, place, once=True)
    until(lambda: not running.thread.is_alive(), 30)
    assert running.error is None
    assert {report.number for report in running.reports} == {1}
    assert sum(len(done.outcomes) for report in running.reports for done in report.results) == 3, "they are reported"
    assert len(place.machines) == 3
    (record,) = state.memory.read().requests.values()
    assert all(slot.observed.is_accepted for slot in record.slots.values()), "the outcomes are recorded too"


def test_a_hint_has_every_pool_observed_at_once(tmp_path: Path) -> None:
    places = [SlowPlace(), SlowPlace()]
    for number, place in enumerate(places):
        place.pool, place.pace = f"pool-{number}", 600.0
    with Running(tmp_path, *places) as running:
        until(
            lambda: running.reports and all(place.observations == 1 for place in places),
            30,
            what="the first observations",
        )
        running.loop.observe_now(Wake.PUBSUB)
        until(lambda: all(place.observations > 1 for place in places), 30, what="another observation of each")
        assert [place.observations for place in places] == [2, 2]


def test_an_announced_end_is_reported_before_any_observation_shows_it(tmp_path: Path) -> None:
    place = SlowPlace()
    state = StateDir(tmp_path)
    ask(state, 2)
    with Running(tmp_path, place) as running:
        until(lambda: state.status.exists() and all(one.ended for one in state.status.read_all().values()), 30)
        until(lambda: len(state.status.read_all()) == 1, 30)
        name = sorted(place.machines)[0]
        running.loop.announce(name, LossCause.PREEMPTED, 3000.0)
        running.loop.observe_now(Wake.PUBSUB)
        lost = until(state.status.read_lost, 30)
        assert set(lost) == {name}
        assert 2900 <= lost[name].grace <= 3000
        assert Wake.PUBSUB in running.wakes


def test_a_loop_on_a_directory_without_records_does_not_serve_machines_that_exist(tmp_path: Path) -> None:
    place = SlowPlace()
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for directory in (right, wrong):
        directory.mkdir()
    with Running(wrong, place) as running:
        until(lambda: running.reports, 30, what="a cycle")
        assert not running.loop.problem(), "no machine exists yet"
    with Running(right, place) as running:
        ask(running.state, 2)
        until(lambda: len(running.ran()) == 2, 30, what="machines run")
        assert not running.reports[-1].is_elsewhere
    names = set(place.machines)
    with Running(wrong, place) as running:
        report = until(lambda: [one for one in running.reports if one.is_elsewhere], 30, what="the machines are seen")[
            -1
        ]
        assert report.result == "failed"
        assert f"machines of this provisioner exist (pools pool). The loop worked on {right} before." in report.problem
        assert (
            "It is not known where the loop worked before."
            in check_directory(replace(report, problem=""), str(wrong), "").problem
        )
        running.state.intent.create("demo")
        until(lambda: not running.reports[-1].problem, 30, what="an operator says that this directory is right")
        assert not running.reports[-1].is_elsewhere
    assert set(place.machines) == names


# --- succession -------------------------------------------------------------------------------------------------------


GONE = 2**22 + 1
"""Id that no process has, as Linux assigns none above 2**22."""

HERE = {"host": socket.gethostname(), "boot": get_boot_id()}


@pytest.mark.parametrize(
    ("holder", "lives"),
    [
        pytest.param({}, False, id="no previous holder"),
        pytest.param(HERE | {"pid": GONE}, False, id="its process on this host is gone"),
        pytest.param(
            HERE | {"pid": GONE, "waits_until": "x"}, True, id="it was gone before the one that it waited for"
        ),
        pytest.param(HERE | {"pid": GONE, "boot": "another"}, True, id="it ran on a host of this name, not this boot"),
        pytest.param(HERE | {"pid": os.getpid()}, False, id="it was this very process"),
        pytest.param(HERE | {"pid": os.getppid()}, True, id="its process runs on this host"),
        pytest.param({"host": "elsewhere", "pid": 1}, True, id="it ran on another host"),
        pytest.param({"host": "elsewhere", "pid": 1, "ended": True}, False, id="it ran there and signed off"),
    ],
)
def test_a_successor_waits_only_for_one_that_may_still_act(
    tmp_path: Path, holder: dict[str, object], lives: bool
) -> None:
    lock = LoopLock(str(tmp_path / "loop.lock"))
    assert lock.acquire(0)
    lock.sign({"epoch": 1, **holder})
    assert lock.has_calls() is lives


def test_no_batch_outlives_the_time_that_a_successor_waits() -> None:
    """A successor must wait as long as the longest batch of a loop can take. A group's longest batch creates machines,
    gets the error that a name is in use, and then observes the names."""
    group = USUAL_TIMES.call + USUAL_TIMES.admission + USUAL_TIMES.call
    pod = KubeTimes().call
    kinds = {kind.name: kind.longest_call for kind in built_in_kinds()}
    assert kinds["mig"] >= group
    assert kinds["gke"] >= pod
    longest = Pace(act_seconds=3.0, longest_call_seconds=max(kinds.values())).longest_cycle
    assert longest >= 3.0 + max(group, pod)


def test_a_successor_waits_for_the_longest_cycle_of_a_loop_that_may_still_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []
    fates: list[str] = []

    class Waits(Latch):
        def wait(self, seconds: float | None = None) -> bool:
            waited.append(seconds)
            fates.append(before.state.loop_lock.fate())
            return self.is_set()

    pace = replace(QUICK, longest_call_seconds=30.0)
    before = Running(tmp_path, SlowPlace(), pace=pace)
    until(lambda: before.reports, 30)
    before.end()
    file = Path(before.state.loop_lock.path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "host": "elsewhere", "ended": False}))
    monkeypatch.setattr(loops, "Latch", Waits)
    successor = Running(tmp_path, SlowPlace(), pace=pace)
    until(lambda: successor.reports, 30)
    fates.append(before.state.loop_lock.fate())
    successor.end()
    assert fates[0] == "waits"
    assert fates[-1] == "holds", "the record of the wait ends with the wait"
    assert waited[0] == QUICK.act_seconds + 30.0

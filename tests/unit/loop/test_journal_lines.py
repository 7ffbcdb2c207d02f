"""Tests of the journal: its events, the counts of repeated lines, and the lines that remain in a storm."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.hostfactory import Loss
from provisioner.loop.batch_threads import Results
from provisioner.loop.cycle_report import Changes
from provisioner.loop.holds import HoldChange
from provisioner.loop.journal_lines import History
from provisioner.loop.publisher import Reported
from provisioner.loop.repeated_lines import COUNTED_SECONDS, IN_FULL, NAMED
from provisioner.model import (
    Create,
    Deferral,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Hold,
    HoldKind,
    LossCause,
    Memory,
    Outcome,
    PendingReason,
    Plan,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Verdict,
    Window,
    WindowChange,
)
from provisioner.names import machine_name
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from provisioner.state.journal import Journal, parse_time
from tests.support.cycle_bench import Bench
from tests.support.holds import CANCEL, PAUSE, STOP, release, set_holds
from tests.unit.core import (
    BROKEN,
    OTHER,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    UNREADY,
    ended,
    giving_back,
    limits,
    memory,
    name,
    plan,
    pool,
    record,
    running,
    slot,
    snapshot,
    transitions,
    unsent,
)

WALL = 1_790_000_000.0
DENIED = Failure(ErrorClass.DENIED, "compute.instances.delete is not allowed")
WAITING = {REQUEST: Deferral("a", 3, {"a": PendingReason.BACKOFF})}


class Diary:
    """A journal that a test writes cycle by cycle."""

    def __init__(self, path: Path) -> None:
        self.state = StateDir(path)
        self.wall = WALL
        self.restart(memory())

    def restart(self, current: Memory) -> None:
        """Start a loop with this memory."""
        self.history, self.current, self.number = History(self.state), current, 0
        self.reported: Mapping[str, RequestRecord | ReturnRecord] = records(current)

    def cycle(self, current: Memory | None = None, *, seconds: float = 5.0, published: bool = True, **more: Any) -> Any:
        """Record a cycle. Return the cycle's lines without their time and cycle number. ``more``: further changes of
        the cycle."""
        ending = more.pop("ending", False)
        former, self.current, before = self.current, current or self.current, len(self.lines())
        self.wall += seconds
        self.number += 1
        if published:
            self.reported, reported = records(self.current), self.reported
            pairs = [(reported.get(id_), one) for id_, one in self.reported.items() if reported.get(id_) is not one]
            more.setdefault("reported", [Reported(tuple(pairs), {})])
        plan, closes = more.setdefault("plan", made(former, self.current)), more.pop("closes", ())
        if closes:
            more["plan"] = replace(plan, transitions=(*closes, *plan.transitions))
        changed = {"transitions": plan.transitions, "windows": plan.windows} if (plan := more["plan"]) else {}
        self.history.record(Changes(self.number, self.wall, **(changed | more)), ending=ending)
        return [{k: v for k, v in one.items() if k not in ("time", "cycle")} for one in self.lines()[before:]]

    def lines(self) -> Sequence[dict[str, Any]]:
        path = Path(self.state.journal.path)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def records(current: Memory) -> Mapping[str, RequestRecord | ReturnRecord]:
    return {**current.requests, **current.returns}


def made(former: Memory, current: Memory, **more: Any) -> Plan:
    """Return a plan that changes the memory ``former`` into the memory ``current``."""
    windows = [
        WindowChange(*key, former.windows.get(key), one)
        for key, one in current.windows.items()
        if former.windows.get(key) is not one
    ]
    asked = [one for id_, one in records(current).items() if id_ not in records(former)]
    return Plan(
        current,
        transitions=tuple(transitions(former, current)),
        windows=tuple(windows),
        new_records=tuple(asked),
        **more,
    )


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


def refused(*numbers: int, failure: Failure | None = DENIED) -> Sequence[Results]:
    """Return the results of deletes; by default, the pool refuses them."""
    deletes = [Delete(name(number), "a", DeleteReason.RETURNED) for number in numbers]
    return [Results("a", tuple(Outcome(delete, failure) for delete in deletes), ())]


# --- events -----------------------------------------------------------------------------------------------------------


def test_a_request_is_asked_opened_running_reported_and_gone(diary: Diary) -> None:
    assert diary.cycle(memory(record(unsent(0), count=2, rc_account="risk")))[:1] == [
        {"event": "asked", "request": REQUEST, "template": TEMPLATE, "count": 2, "account": "risk"}
    ]
    assert diary.cycle(memory(record(running(0), slot(1, pool="b"), count=2))) == [
        {"event": "opened", "request": REQUEST, "pool": "b", "count": 1},
        {"event": "running", "request": REQUEST, "pool": "a", "machines": [name(0)]},
        {"event": "reported", "request": REQUEST, "answer": "running", "running": 1},
    ]
    both = [running(n, Verdict.SUCCEEDED) for n in (0, 1)]
    assert diary.cycle(memory(record(*both, ended=RequestStatus.COMPLETE))) == [
        {"event": "running", "request": REQUEST, "pool": "a", "machines": [name(1)]},
        {"event": "reported", "request": REQUEST, "answer": "complete", "running": 2},
    ]
    given = [running(n, Verdict.RETURNED, is_gone=True) for n in (0, 1)]
    ended, back = record(*given, ended=RequestStatus.COMPLETE), giving_back(name(0), name(1))
    closed = {"event": "close", "pool": "a", "template": TEMPLATE, "verdict": "returned"}
    assert diary.cycle(memory(ended, back)) == [
        *({**closed, "machine": name(n)} for n in (0, 1)),
        {"event": "return", "return": back.id, "machines": [name(0), name(1)]},
        {"event": "gone", "request": REQUEST, "pool": "a", "machines": [name(0), name(1)]},
    ]
    assert diary.cycle(memory(ended, replace(back, ended=RequestStatus.COMPLETE))) == [
        {"event": "reported", "return": back.id, "answer": "complete"}
    ]
    assert diary.cycle() == []


def test_a_machines_failure_is_recorded_when_its_class_changes(diary: Diary) -> None:
    diary.cycle(memory(record(slot(0))))
    assert diary.cycle(memory(record(slot(0, failure=UNREADY)))) == [], "each pod boots so"
    said = {"event": "troubled", "machine": name(0), "pool": "a", "template": TEMPLATE}
    full = said | {"error": "stockout", "text": STOCKOUT.text}
    assert diary.cycle(memory(record(slot(0, failure=STOCKOUT)))) == [full]
    assert diary.cycle(memory(record(slot(0, failure=replace(STOCKOUT, text="in other words"))))) == []
    assert diary.cycle(memory(record(slot(0, failure=BROKEN)))) == [said | {"error": "other", "text": BROKEN.text}]
    (burst,) = diary.cycle(memory(record(*[slot(n, failure=STOCKOUT) for n in range(50)])))[1:]
    assert (burst["times"], len(burst["machines"])) == (50, 50)


def test_a_loss_is_recorded_once(diary: Diary) -> None:
    lost = {name(0): Loss(0, "preempted"), name(1): Loss(30, "node")}
    current = memory(record(running(0, Verdict.LOST), running(1, Verdict.SUCCEEDED), ended=RequestStatus.COMPLETE))
    lines = diary.cycle(current, reported=[Reported((), lost)], plan=Plan(current))
    assert sorted(lines, key=str) == [
        {"event": "reported", "answer": "lost", "cause": "node", "machines": [name(1)], "seconds": 30},
        {"event": "reported", "answer": "lost", "cause": "preempted", "machines": [name(0)]},
    ]


def test_a_deferral_is_recorded_once_with_its_reason_and_once_when_it_is_over(diary: Diary) -> None:
    full = {("a", TEMPLATE): Window(8, level=1, failure=STOCKOUT)}
    current = memory(record(count=3), record(count=1, id_=OTHER, template="else"), windows=full)
    diary.cycle(current)
    waiting = Plan(current, deferrals=WAITING)
    assert diary.cycle(plan=waiting) == [
        {
            "event": "deferred",
            "request": REQUEST,
            "template": TEMPLATE,
            "pool": "a",
            "reason": "backoff",
            "count": 3,
            "error": "stockout",
            "text": STOCKOUT.text,
        }
    ]
    assert [diary.cycle(plan=waiting) for _ in range(50)] == [[]] * 50
    assert diary.cycle(plan=None) == [], "nothing was planned"
    (over,) = diary.cycle(memory(record(slot(0), slot(1), slot(2)), windows=full))[1:]
    assert over == {"event": "deferred", "request": REQUEST, "template": TEMPLATE, "over": True, "seconds": 260.0}


@pytest.mark.parametrize(
    ("changes", "reason", "bound"),
    [
        ({"max_machines": 2}, PendingReason.CAP, 2),
        ({"initial_window": 3}, PendingReason.WINDOW, 3),
        ({"is_paused": True}, PendingReason.PAUSED, None),
    ],
    ids=["cap", "window", "paused"],
)
def test_a_deferral_says_which_bound_is_reached(
    diary: Diary, changes: dict[str, Any], reason: PendingReason, bound: int | None
) -> None:
    planned = plan(memory(record(count=5)), snapshot(), limits=limits(pool("a", **changes)))
    (line,) = [line for line in diary.cycle(plan=planned) if line["event"] == "deferred"]
    assert (line["reason"], line.get("bound")) == (reason, bound)


@pytest.mark.parametrize(
    ("windows", "bound"),
    [
        ({}, 7),
        ({("a", TEMPLATE): Window(3)}, 3),
        ({("a", TEMPLATE): Window(3, is_probing=True, level=1, failure=STOCKOUT)}, 1),
    ],
    ids=["new", "known", "probing"],
)
def test_a_window_is_recorded_as_the_bound_although_the_pool_is_busy(
    diary: Diary, windows: dict[tuple[str, str], Window], bound: int
) -> None:
    current, places = memory(record(count=9), windows=windows), limits(pool("a", initial_window=7))
    waiting = [plan(current, snapshot(), limits=places, busy=["a"]), plan(current, snapshot(), limits=places)]
    lines = [line for one in waiting for line in diary.cycle(plan=one) if line["event"] == "deferred"]
    assert [(line["reason"], line.get("bound")) for line in lines] == [(PendingReason.WINDOW, bound)]


def test_windows_are_recorded_when_they_halve_double_or_turn(diary: Diary) -> None:
    sizes = [(8, 0), (9, 0), (15, 0), (16, 0), (17, 0), (8, 1), (8, 2), (8, 0), (7, 0), (4, 0)]
    lines = []
    for size, level in sizes:
        window = Window(size, level=level, failure=STOCKOUT if level else None)
        lines += diary.cycle(memory(windows={("a", TEMPLATE): window}))
    backing = {"backing_off": True, "error": "stockout", "text": STOCKOUT.text}
    said = {"event": "window", "pool": "a", "template": TEMPLATE}
    over = {"window": 8, "backing_off": False}
    assert lines == [said | {"window": 16}, said | {"window": 8} | backing, said | over, said | {"window": 4}]


@pytest.mark.parametrize("former", [None, Window(8)], ids=["new", "known"])
def test_a_window_is_recorded_as_the_cycle_leaves_it(diary: Diary, former: Window | None) -> None:
    closed = Window(8, level=1, failure=STOCKOUT)
    outcome = WindowChange("a", TEMPLATE, former, closed)
    other = WindowChange("b", TEMPLATE, None, closed)
    opened = [outcome, other, WindowChange("a", TEMPLATE, closed, Window(8))]
    assert [line["pool"] for line in diary.cycle(windows=opened)] == ["b"]
    (line,) = diary.cycle(windows=[outcome, WindowChange("a", TEMPLATE, closed, Window(2))])
    assert (line["window"], "backing_off" in line) == (2, False)


def test_a_pool_that_is_first_seen_backing_off_is_recorded(diary: Diary) -> None:
    (line,) = diary.cycle(memory(windows={("a", TEMPLATE): Window(100, level=1, failure=STOCKOUT)}))
    assert (line["event"], line["backing_off"]) == ("window", True)


def test_pools_that_an_operator_pauses_are_recorded(diary: Diary) -> None:
    paused = frozenset({"a"})
    assert diary.cycle(paused=paused) == [{"event": "paused", "pool": "a"}]
    assert diary.cycle(paused=paused) == []
    assert diary.cycle() == [], "the end of a loop changes no pause"
    assert diary.cycle(paused=frozenset({"b"}), plan=None) == [
        {"event": "resumed", "pool": "a"},
        {"event": "paused", "pool": "b"},
    ]


def test_pools_are_recorded_as_paused_and_resumed_although_no_plan_can_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StateError("no space left")

    bench = Bench(tmp_path)
    limits = bench.reconciler.limits
    monkeypatch.setattr(bench.state.memory, "write", full)
    bench.request(1)
    set_holds(bench.state, replace(PAUSE, target="pool"))
    settings = {**limits.pools, "other": replace(limits.pools["other"], is_paused=True)}
    bench.reconciler.limits = replace(limits, pools=settings)
    assert bench.cycle().problem == "no space left"
    release(bench.state, HoldKind.PAUSE, target="pool")
    assert bench.cycle(2).problem == "no space left"
    found = bench.state.journal.find("paused", "resumed").lines
    assert [(line["event"], line["pool"]) for line in found] == [
        ("paused", "other"),
        ("paused", "pool"),
        ("resumed", "pool"),
    ]


def test_a_stop_of_everything_is_no_pause_of_each_pool(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    set_holds(bench.state, replace(PAUSE, target="pool"), STOP)
    bench.cycle()
    release(bench.state, HoldKind.STOP_ALL, target="")
    bench.cycle(2)
    lines = bench.state.journal.find("paused", "resumed", "hold").lines
    assert [(line["event"], line.get("pool")) for line in lines if line["event"] != "hold"] == [("paused", "pool")]
    assert len(lines) == 4, "two holds set, and one released"


def test_a_pause_outlasts_the_last_outcomes_of_a_loop(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    set_holds(bench.state, replace(PAUSE, target="pool"))
    bench.cycle()
    bench.reconciler.settle()
    (line,) = bench.state.journal.find("paused", "resumed").lines
    assert line["event"] == "paused"


@pytest.mark.parametrize(
    ("hold", "place"),
    [
        (PAUSE, {"pool": "a"}),
        (replace(CANCEL, target=name()), {"machine": name()}),
        (replace(CANCEL, target=REQUEST), {"request": REQUEST}),
        (STOP, {}),
    ],
    ids=["pool", "machine", "request", "all"],
)
def test_a_hold_that_was_set_is_written_with_what_it_holds(diary: Diary, hold: Hold, place: dict[str, str]) -> None:
    said = {"event": "hold", "hold": hold.kind, "result": "set", "who": hold.who, "text": hold.reason}
    assert diary.cycle(holds=[HoldChange("set", hold)]) == [said | place]


def test_what_is_not_published_is_not_recorded_as_reported(diary: Diary) -> None:
    current = memory(record(running(0)))
    assert [line["event"] for line in diary.cycle(current, published=False)] == ["asked", "opened", "running"]
    assert [line["event"] for line in diary.cycle()] == ["reported"]


def test_a_restart_tells_only_what_is_new(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    id_ = bench.succeed(2)
    bench.place.place.crash(min(bench.place.machines))
    bench.cycle(3)
    before = bench.state.journal.find(id_).lines
    bench.restarted()
    bench.cycle(3)
    assert bench.state.journal.find(id_).lines == before
    bench.place.place.crash(max(bench.place.machines))
    bench.cycle(3)
    events = [line["event"] for line in bench.state.journal.find(id_).lines[len(before) :]]
    assert events == ["close", "reported", "delete", "gone"]


@pytest.mark.parametrize("published", [False, True], ids=["meanwhile", "before"])
@pytest.mark.parametrize("by", [HoldKind.DRAIN, HoldKind.CANCEL])
def test_machines_that_are_reported_as_lost_across_a_restart_are_recorded_once(
    tmp_path: Path, by: HoldKind, published: bool
) -> None:
    bench = Bench(tmp_path)
    bench.succeed(2)
    machines = sorted(bench.place.machines)
    targets, cause = (["pool"], "drained") if by is HoldKind.DRAIN else (machines, "cancelled")
    set_holds(bench.state, *[Hold(by, target, "ann") for target in targets])
    if published:
        bench.cycle(2)
    bench.restarted()
    bench.cycle(2)
    (line,) = bench.state.journal.find('"answer":"lost"').lines
    assert (line["cause"], line["machines"]) == (cause, machines)


def test_a_window_that_a_refused_create_closed_is_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.place.fails[0] = STOCKOUT
    bench.request(1)
    bench.cycle(2)
    (line,) = bench.state.journal.find('"event":"window"').lines
    assert (line["pool"], line["backing_off"], line["error"]) == ("pool", True, "stockout")


def test_the_real_cycle_writes_each_event(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    id_ = bench.succeed(2)
    first, second = sorted(bench.place.machines)
    bench.return_machines(first)
    bench.place.place.crash(second)
    bench.cycle(4)
    found = bench.state.journal.find(id_)
    events = Counter(line["event"] for line in found.lines)
    assert events == {
        "asked": 1,
        "opened": 1,
        "create": 2,
        "running": 1,
        "reported": 2,
        "return": 1,
        "close": 2,
        "delete": 2,
        "gone": 1,
    }
    assert [line["answer"] for line in found.lines if line["event"] == "reported"] == ["complete", "lost"]


# --- what is counted --------------------------------------------------------------------------------------------------


def test_equal_failures_are_counted_after_the_first_few(diary: Diary) -> None:
    first = [diary.cycle(results=refused(number)) for number in range(10)]
    assert [len(lines) for lines in first] == [1] * IN_FULL + [0] * (10 - IN_FULL)
    (counted,) = diary.cycle(seconds=COUNTED_SECONDS)
    machines = [name(number) for number in range(IN_FULL, 10)]
    assert (counted["times"], counted["machines"], counted["result"]) == (7, machines, "denied")
    assert parse_time({"time": counted["since"]}) == WALL + 5.0 * (IN_FULL + 1)
    assert counted["text"] == DENIED.text


def test_a_burst_of_one_cycle_is_one_line(diary: Diary) -> None:
    closes = [ended(n, Verdict.FAILED, BROKEN) for n in range(500)]
    (line,) = diary.cycle(closes=closes)
    assert (line["times"], len(line["machines"])) == (500, 500), "an end is met once: each is named"
    (line,) = diary.cycle(results=refused(*range(500)))
    assert (line["times"], len(line["machines"])) == (500, NAMED), "a delete is sent again and again"


def test_what_differs_is_not_counted_together(diary: Diary) -> None:
    other = [
        ended(0, Verdict.FAILED, BROKEN),
        ended(1, Verdict.FAILED, BROKEN, pool="b"),
        ended(2, Verdict.FAILED, BROKEN, template="else"),
        ended(3, Verdict.FAILED, STOCKOUT),
        ended(4, Verdict.WITHDRAWN, BROKEN),
    ]
    assert len(diary.cycle(closes=other * IN_FULL)) == len(other) * IN_FULL


def test_ends_that_happen_once_are_never_counted(diary: Diary) -> None:
    closes = [ended(n, Verdict.LOST, cause=LossCause.NODE) for n in range(50)]
    assert [line["machine"] for line in diary.cycle(closes=closes)] == [name(n) for n in range(50)]


def test_accepted_deletes_that_are_sent_again_are_counted(diary: Diary) -> None:
    lines = [line for _ in range(100) for line in diary.cycle(results=refused(0, failure=None))]
    assert len(lines) == 1 + IN_FULL
    again = diary.cycle(seconds=2 * COUNTED_SECONDS, results=refused(0, failure=None))
    assert [line.get("times") for line in again] == [None, 100 - 1 - IN_FULL], "much later it is a delete as any other"


def test_what_was_counted_is_written_as_the_loop_ends(diary: Diary) -> None:
    for number in range(10):
        diary.cycle(results=refused(number))
    (counted,) = diary.cycle(ending=True)
    assert counted["times"] == 10 - IN_FULL


def test_two_days_of_storm_leave_the_two_days_of_the_rest(tmp_path: Path) -> None:
    """Each hour has one request, a thousand refused deletes, and a pool that keeps changing. After two days, the
    journal still has all requests."""
    state = StateDir(tmp_path)
    journal = state.__dict__["journal"] = Journal(state.journal.path, max_bytes=300_000, keep=2)
    history, asked, former = History(state), [f"r{hour:09d}" for hour in range(48)], memory()
    storm = refused(*range(200))
    for hour, id_ in enumerate(asked):
        create = Outcome(Create(machine_name("hf", id_, 0), "a", TEMPLATE, id_))
        for step, results in enumerate([[Results("a", (create,), ())], *[storm] * 5]):
            flap = Window(1 + step % 2, level=step % 2, failure=STOCKOUT if step % 2 else None)
            current = memory(record(count=1, id_=id_), windows={("b", TEMPLATE): flap})
            wall = WALL + hour * 3600.0 + step * COUNTED_SECONDS
            planned = made(former, current)
            history.record(Changes(hour, wall, results, planned.transitions, planned.windows, planned))
            former = current
    found = journal.find('"event":"asked"')
    assert [line["request"] for line in found.lines] == asked
    assert len(journal.find('"event":"create"').lines) == len(asked)
    deletes = journal.find('"event":"delete"').lines
    assert sum(line.get("times", 1) for line in deletes) >= 1000 * (len(asked) - 1), "the storm itself is recorded, too"
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_000_000, "a line each would be 9 MB"

"""`provisioner status` beside short requests: why, since when, and what comes next, as text and as JSON."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.loop.clock import utc
from provisioner.model import (
    Brake,
    BrakeReason,
    ErrorClass,
    Failure,
    Limits,
    Memory,
    RequestRecord,
    RequestStatus,
    Verdict,
    Window,
)
from provisioner.state.directory import StateDir
from provisioner.telemetry.notes import Notes, terms_of
from provisioner.telemetry.shortages import lasting, local
from tests.support.hostfactory.sites import example_site
from tests.unit.core import (
    NOW,
    OTHER,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    limits,
    memory,
    pool,
    record,
    running,
    slot,
    unsent,
)

FULL = Window(4, level=2, blocked_at=NOW - 240, retry_at=NOW + 3600, probing=True, failure=STOCKOUT)
ONE_POOL, TWO_POOLS = limits(pool("a")), limits(pool("a"), pool("b", paused=True))
TIME = r"\d\d:\d\d:\d\d"


class Desk:
    """A state directory beside a loop that has just ended a cycle, and what the command says of it."""

    def __init__(self, state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self._capsys = capsys

    def leave(self, held: Memory, allowed: Limits = ONE_POOL, **notes: Any) -> None:
        """What a loop leaves that has just planned."""
        self.state.memory.write(replace(held, provisioner="demoinst", time=NOW, time_wall=time.time()))
        known = {"terms": terms_of(allowed), "pool_limits": allowed.pools, "template_limits": allowed.templates}
        self.state.notes.write(asdict(Notes(**(known | notes))))

    def text(self) -> str:
        self._capsys.readouterr()
        run(["status"])
        return self._capsys.readouterr().out

    def lines(self) -> Sequence[str]:
        """Of a request that is short."""
        return [line.strip() for line in self.text().splitlines() if line.startswith("    ")]

    def document(self) -> dict[str, Any]:
        self._capsys.readouterr()
        run(["status", "-o", "json"])
        shown: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return shown


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = example_site(tmp_path, monkeypatch)
    assert run(["init"]) == 0
    state = StateDir(made / "work")
    state.heartbeat.touch()
    return Desk(state, capsys)


def full(*records: RequestRecord) -> Memory:
    """Requests while pool ``a`` has no room."""
    return memory(*records, pressures={("a", TEMPLATE): FULL})


def test_a_stock_out_is_told_with_its_words_since_when_and_the_next_try(desk: Desk) -> None:
    desk.leave(full(record(running(0), count=6)), TWO_POOLS)
    (line,) = desk.lines()
    assert re.fullmatch(
        rf"5 in a: backoff, stockout since {TIME} \(4 min\): ZONE_RESOURCE_POOL_EXHAUSTED; next try in 60 min; "
        r"nor in b \(paused\)",
        line,
    )
    assert re.search(rf"running, 1 of 6 running, 5 missing until {TIME} at the latest; slots: 1 open\n", desk.text())


def test_json_has_the_same_facts(desk: Desk) -> None:
    desk.leave(full(record(count=5)), TWO_POOLS)
    shown = desk.document()
    ((one,),) = (request["missing"] for request in shown["requests"])
    assert 239 < one.pop("since_seconds") < 260
    assert 3580 < one.pop("next_try_seconds") <= 3600
    assert one.pop("since") < shown["requests"][0]["deadline"]
    assert one.pop("next_try") > utc(time.time() + 3500)
    assert one == {
        "machines": 5,
        "pool": "a",
        "reason": "backoff",
        "error": "stockout",
        "text": STOCKOUT.text,
        "spills_to": "",
        "spills_at": None,
        "spills_at_seconds": None,
        "behind": "",
        "bound": None,
        "holders": {},
        "braked": False,
        "elsewhere": {"b": "paused"},
        "quiet": False,
    }


def test_who_holds_a_cap_is_told_and_what_the_brake_keeps(desk: Desk) -> None:
    held = memory(
        record(running(0), count=3),
        record(*(running(n, Verdict.SUCCEEDED, OTHER) for n in range(4)), id_=OTHER, ended=RequestStatus.COMPLETE),
    )
    allowed = limits(pool("a", max_machines=7))
    desk.leave(held, allowed, orphans={"a": ["hf-zzzzzzzzzz-000001", "hf-zzzzzzzzzz-000002"]})
    (line,) = desk.lines()
    assert re.fullmatch(rf"2 in a: cap of 7 since {TIME} \(\d+ s\); held by (.*)", line)
    assert line.endswith(f"held by {OTHER} (4), 2 machines without a request, {REQUEST} (1)")
    brake = Brake(BrakeReason.TOO_MANY_ORPHANS, NOW, "2 of 7 machines have no request.")
    desk.leave(replace(held, brake=brake), allowed, orphans={"a": ["hf-zzzzzzzzzz-000001", "hf-zzzzzzzzzz-000002"]})
    (line,) = desk.lines()
    assert "2 machines without a request that the brake keeps" in line


def test_of_many_that_hold_a_cap_three_are_told(desk: Desk) -> None:
    ids = [letter * 10 for letter in "bcdef"]
    others = [record(running(0, Verdict.SUCCEEDED, id_), id_=id_, ended=RequestStatus.COMPLETE) for id_ in ids]
    desk.leave(memory(record(count=1), *others), limits(pool("a", max_machines=5)))
    (line,) = desk.lines()
    assert line.endswith(f"held by {ids[0]} (1), {ids[1]} (1), {ids[2]} (1) and 2 more")


WAITS: dict[str, tuple[Memory, Limits, dict[str, Any], str]] = {
    "a window, and the pool after it": (
        memory(
            record(slot(0, seen=True), slot(1, seen=True), count=5),
            pressures={("a", TEMPLATE): Window(2, closed_since=NOW - 5)},
        ),
        limits(pool("a", spill_after=4000.0), pool("b")),
        {},
        rf"3 in a: window of 2 since {TIME} \(\d+ s\); spills over to b in 6\d min",
    ),
    "a pool that is blind": (
        memory(record(count=2)),
        ONE_POOL,
        {"pools": {"a": ["cannot be seen: no route\nto host"]}},
        rf"2 in a: the pool is unseen, unavailable since {TIME} \(\d+ s\): no route to host",
    ),
    "a gate": (
        memory(record(slot(seen=True, gated=True))),
        limits(pool("a", spill_after=4000.0), pool("b")),
        {},
        rf"1 in a: held back by a gate since {TIME} \(\d+ s\); spills over to b in 6\d min; "
        r"asked for again in 58 min at the latest",
    ),
    "a place without room, and the pool after it": (
        memory(record(slot(seen=True, failure=STOCKOUT))),
        TWO_POOLS,
        {},
        rf"1 in a: asked for and not running, stockout since {TIME} \(\d+ s\): ZONE_RESOURCE_POOL_EXHAUSTED; "
        r"spills over to b once it takes them; asked for again in 8 min at the latest",
    ),
    "a throttled pool": (
        memory(
            record(unsent()),
            pressures={("a", TEMPLATE): replace(FULL, failure=Failure(ErrorClass.THROTTLED, "slow down"))},
        ),
        ONE_POOL,
        {},
        rf"1 in a: not sent yet, throttled since {TIME} \(4 min\): slow down; next try in 60 min",
    ),
    "no loop that has told of pools": (
        memory(record(count=1)),
        Limits("hf", {}, {}),
        {},
        rf"1: no loop has said which pools the template names since {TIME} \(\d+ s\)",
    ),
}


@pytest.mark.parametrize(("held", "allowed", "left", "says"), WAITS.values(), ids=WAITS)
def test_what_machines_wait_for_is_one_line(
    desk: Desk, held: Memory, allowed: Limits, left: dict[str, Any], says: str
) -> None:
    desk.leave(held, allowed, **left)
    shown = [line for line in desk.lines() if "starting" not in line]
    assert len(shown) == 1, shown
    assert re.fullmatch(says, shown[0]), shown[0]


def test_who_waits_behind_another_is_told(desk: Desk) -> None:
    desk.leave(full(record(count=1), record(count=2, id_=OTHER, read=NOW)))
    first, second = desk.lines()
    assert "behind" not in first
    assert f"behind {REQUEST}" in second


def test_fifty_requests_whose_machines_start_or_run_have_a_line_each(desk: Desk) -> None:
    ids = [f"a{number:09d}" for number in range(50)]
    starting = [record(slot(0, request=id_), running(1, request=id_), id_=id_) for id_ in ids]
    desk.leave(memory(*starting, record(count=0, id_=OTHER, ended=RequestStatus.COMPLETE)))
    assert desk.lines() == []
    assert sum("  request " in line for line in desk.text().splitlines()) == 51
    assert [sum(one["machines"] for one in request["missing"]) for request in desk.document()["requests"]] == [
        1
    ] * 50 + [0]


def test_what_the_next_cycle_asks_for_is_told_where_no_loop_makes_one(desk: Desk) -> None:
    desk.leave(memory(record(count=2)))
    assert desk.lines() == []
    Path(desk.state.heartbeat.path).unlink()
    (line,) = desk.lines()
    assert re.fullmatch(rf"2 in a: to be asked for since {TIME} \(\d+ s\); next try once the loop acts", line)


def test_a_pool_says_since_when_it_backs_off_the_next_probe_and_its_last_error(desk: Desk) -> None:
    failed = slot(0, Verdict.FAILED, failure=STOCKOUT, gone=True, closed=NOW - 600)
    desk.leave(full(record(failed, count=5)))
    (line,) = (line for line in desk.text().splitlines() if line.startswith("  pool a, "))
    assert re.fullmatch(
        rf"  pool a, T: window 4, 5 missing, backing off since {TIME} \(10 min\), next probe in 60 min: "
        r"ZONE_RESOURCE_POOL_EXHAUSTED, last error 4 min ago",
        line,
    )
    (told,) = desk.document()["pressure"]
    assert (told["missing"], told["backing_off"], told["last_error"]["error"]) == (5, True, "stockout")
    assert (599 < told["since_seconds"] < 620, 3580 < told["next_probe_seconds"] <= 3600) == (True, True)


def test_a_pool_that_has_recovered_still_says_its_last_error(desk: Desk) -> None:
    failed = slot(0, Verdict.FAILED, failure=STOCKOUT, gone=True, closed=NOW - 600)
    desk.leave(memory(record(failed, running(1), count=1), pressures={("a", TEMPLATE): Window(6)}))
    (line,) = (line for line in desk.text().splitlines() if line.startswith("  pool a, "))
    assert line == "  pool a, T: window 6, last error 10 min ago, stockout: ZONE_RESOURCE_POOL_EXHAUSTED"


@pytest.mark.parametrize("section", ['{"a": {"max_machines": "x"}}', '{"a": {"nonsense": 1}}', "[]"])
def test_limits_that_no_loop_of_ours_left_are_named(
    desk: Desk, capsys: pytest.CaptureFixture[str], section: str
) -> None:
    Path(desk.state.notes.path).write_text(f'{{"pools": {{}}, "pool_limits": {section}}}')
    assert run(["status"]) == 1
    assert "pools.json: holds what no loop of ours writes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_seconds_are_said_as_people_do(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


def test_a_time_of_another_day_has_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert local("2020-02-01T23:00:00Z") == "2020-02-02 08:00:00"
        assert re.fullmatch(TIME, local(utc(time.time())))
        assert local(utc(1e18)) == utc(1e18)
    finally:
        monkeypatch.undo()
        time.tzset()

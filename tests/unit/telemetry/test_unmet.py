"""Reasons why requests miss machines and pools back off. Text and JSON show them with start and next try."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from provisioner.model import (
    Brake,
    BrakeReason,
    ErrorClass,
    Failure,
    Limits,
    Memory,
    PendingReason,
    RequestRecord,
    RequestStatus,
    Unmet,
    Verdict,
    Window,
    format_utc,
)
from provisioner.state.marker_files import UNSEEN
from provisioner.state.record_format import encode
from provisioner.telemetry.pool_windows import format_duration, format_local_time, format_pool_line, pool_failures
from provisioner.telemetry.status_model import StatusModel, status_model
from provisioner.telemetry.unmet import unmet_lines
from tests.support.desk import ONE_POOL, make_status_inputs
from tests.unit.core import (
    BROKEN,
    NOW,
    OTHER,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    UNREADY,
    limits,
    memory,
    pool,
    record,
    running,
    slot,
    unmet_of,
    unsent,
)

FULL = Window(4, level=2, blocked_at=NOW - 240, retry_at=NOW + 3600, is_probing=True, failure=STOCKOUT)
TWO_POOLS = limits(pool("a"), pool("b", is_paused=True))
SLOW = pool("a", spill_after_seconds=4000.0)
SPILLS = limits(SLOW, pool("b"))
TIME = r"[-\d]{10} \d\d:\d\d:\d\d"
STRAYS = {"orphans": {"a": ["hf-zzzzzzzzzz-000001", "hf-zzzzzzzzzz-000002"]}}
OTHERS = [letter * 10 for letter in "cdefg"]


def full(*records: RequestRecord) -> Memory:
    """Return the loop's memory of a time when pool ``a`` has no room for the requests."""
    return memory(*records, windows={("a", TEMPLATE): FULL})


def kept(id_: str, count: int) -> RequestRecord:
    """Return a request that has ended, and of which HF has ``count`` machines."""
    slots = (running(n, Verdict.SUCCEEDED, id_) for n in range(count))
    return record(*slots, id_=id_, ended=RequestStatus.COMPLETE)


def lines(seen: StatusModel) -> list[str]:
    """Return the lines of the requests that miss machines."""
    return [line.strip() for one in seen.requests for line in unmet_lines(one, loop_acts=seen.is_loop_acting)]


CAPPED = memory(record(running(0), count=3), kept(OTHER, 4))
CAP = limits(pool("a", max_machines=7))
MANY = Brake(BrakeReason.TOO_MANY_ORPHANS, NOW, "2 of 7 machines have no request.")
WAITS: dict[str, tuple[Memory, Limits, dict[str, Any], str]] = {
    "a stock-out, with its words, the next try, and where else there is no room": (
        full(record(running(0), count=6)),
        TWO_POOLS,
        {},
        rf"5 in a: backoff, stockout since {TIME} \(4 min\): ZONE_RESOURCE_POOL_EXHAUSTED; next try in 60 min; "
        r"b is paused",
    ),
    "a cap, and the requests that use it up": (
        CAPPED,
        CAP,
        STRAYS,
        rf"2 in a: cap of 7 since {TIME} \(100 s\); "
        rf"used by {OTHER} \(4\), 2 machines without a request, {REQUEST} \(1\)",
    ),
    "a cap that machines hold which the brake keeps": (
        replace(CAPPED, brake=MANY), CAP, STRAYS, r"2 in a: .*, 2 machines without a request that the brake keeps, .*"
    ),
    "a cap that many requests use up, of which three are named": (
        memory(record(count=1), *(kept(id_, 1) for id_ in OTHERS)),
        limits(pool("a", max_machines=5)),
        {},
        rf"1 in a: .*; used by {OTHERS[0]} \(1\), {OTHERS[1]} \(1\), {OTHERS[2]} \(1\) and 2 more",
    ),
    "a window, and the pool after it": (
        memory(
            record(slot(0, was_seen=True), slot(1, was_seen=True), count=5),
            windows={("a", TEMPLATE): Window(2, closed_since=NOW - 5)},
        ),
        SPILLS,
        {},
        rf"3 in a: window of 2 since {TIME} \(\d+ s\); spills over to b in 6\d min",
    ),
    "a probe, in the words of the failure that it follows": (
        memory(record(slot(was_seen=True), count=4), windows={("a", TEMPLATE): replace(FULL, retry_at=NOW - 3)}),
        ONE_POOL,
        {},
        rf"3 in a: window of 1, stockout since {TIME} \(4 min\): ZONE_RESOURCE_POOL_EXHAUSTED",
    ),
    "a pool that is blind": (
        memory(record(count=2)),
        ONE_POOL,
        {"pools": {"a": ["cannot be seen: no route\nto host"]}},
        rf"2 in a: the pool is unseen, unavailable since {TIME} \(\d+ s\): no route to host",
    ),
    "a queue": (
        memory(record(slot(was_seen=True, is_queued=True, queue_reason="Priority"))),
        SPILLS,
        {},
        rf"1 in a: queued since {TIME} \(\d+ s\): Priority",
    ),
    "a place without room, and the pools after it": (
        memory(record(slot(was_seen=True, failure=BROKEN)), windows={("d", TEMPLATE): FULL}),
        limits(SLOW, pool("b", is_paused=True), pool("c", max_machines=0), pool("d"), pool("e")),
        {},
        rf"1 in a: not running, other since {TIME} \(\d+ s\): ImagePullBackOff; "
        r"spills over to e in 6\d min; the earliest one fails in 8 min unless it runs; c is at its cap of 0; "
        r"b is paused; none is made in d \(backoff\)",
    ),
    "a throttled pool": (
        memory(
            record(unsent()),
            windows={("a", TEMPLATE): replace(FULL, failure=Failure(ErrorClass.THROTTLED, "slow down"))},
        ),
        ONE_POOL,
        {},
        rf"1 in a: not sent yet, throttled since {TIME} \(4 min\): slow down; next try in 60 min",
    ),
    "a loop that has published nothing, and does not run": (
        memory(record(running(0), count=3)),
        ONE_POOL,
        {"unmet": {}, "ended": True},
        rf"2: no loop has published a reason since {TIME} \(100 s\)",
    ),
    "a loop that has published nothing, of machines that are down and not of those that were given up": (
        memory(record(running(0, down_since=NOW - 1), running(1), count=9, failed_without_slot=4)),
        ONE_POOL,
        {"unmet": {}, "ended": True},
        rf"4: no loop has published a reason since {TIME} \(100 s\)",
    ),
    "a loop that has published nothing, of machines that ran and have ended": (
        memory(record(running(0, Verdict.FAILED), running(1, Verdict.CANCELLED), running(2), count=7)),
        ONE_POOL,
        {"unmet": {}, "ended": True},
        rf"5: no loop has published a reason since {TIME} \(100 s\)",
    ),
    "a cap over all templates, and the requests that use it up": (
        memory(record(running(0), count=2), record(running(0, request=OTHER), id_=OTHER, template="U")),
        limits(pool("a", max_machines=9, max_machines_total=2)),
        {},
        rf"1 in a: cap of 2 since {TIME} \(100 s\): max_machines_total, over all templates; "
        rf"used by {REQUEST} \(1\), {OTHER} \(1\)",
    ),
    "calls that are under way": (
        memory(record(count=1)),
        ONE_POOL,
        {"unmet": {REQUEST: [Unmet("a", PendingReason.WINDOW, 1, since=NOW - 5)]}},
        rf"1 in a: earlier calls are under way since {TIME} \(5 s\)",
    ),
    "a pool whose newest observation is too old": (
        memory(record(count=1)),
        ONE_POOL,
        {"unmet": {REQUEST: [Unmet("a", PendingReason.UNSEEN, 1, since=NOW - 5)]}},
        rf"1 in a: the pool is unseen since {TIME} \(5 s\): its newest observation is too old or not trusted",
    ),
    "a back-off from a failure that is older than the last back-off": (
        full(record(slot(0, Verdict.FAILED, failure=STOCKOUT, is_gone=True, closed_at=NOW - 600), count=2)),
        ONE_POOL,
        {},
        rf"2 in a: backoff, stockout since {TIME} \(10 min\): ZONE_RESOURCE_POOL_EXHAUSTED; next try in 60 min",
    ),
    "a pool that waits for room, in the words of its machine that waits": (
        memory(record(slot(was_seen=True, failure=STOCKOUT), running(1, down_since=NOW - 1), count=3)),
        ONE_POOL,
        {"unmet": {REQUEST: [Unmet("a", PendingReason.BACKOFF, 1), Unmet("a", PendingReason.STARTING, 2)]}},
        rf"1 in a: backoff, stockout since {TIME} \(100 s\): ZONE_RESOURCE_POOL_EXHAUSTED",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("remembered", "allowed", "left", "says"), WAITS.values(), ids=WAITS)
def test_a_reason_of_missing_machines_is_one_line(
    remembered: Memory, allowed: Limits, left: dict[str, Any], says: str
) -> None:
    shown = [
        line for line in lines(status_model(make_status_inputs(remembered, allowed, **left))) if "starting" not in line
    ]
    assert len(shown) == 1, shown
    assert re.fullmatch(says, shown[0]), shown[0]


def test_json_has_the_same_facts() -> None:
    seen = status_model(make_status_inputs(full(record(count=5)), TWO_POOLS))
    (request,) = json.loads(json.dumps(seen.document()))["requests"]
    assert request["missing"] == [
        {
            "machines": 5,
            "pool": "a",
            "reason": "backoff",
            "error": "stockout",
            "text": STOCKOUT.text,
            "since": format_utc(NOW - 240),
            "since_seconds": 240.0,
            "next_try": format_utc(NOW + 3600),
            "next_try_seconds": 3600.0,
            "spills_to": "",
            "spills_at": None,
            "spills_at_seconds": None,
            "behind": "",
            "bound": None,
            "holders": {},
            "braked": False,
            "elsewhere": {"b": "paused"},
            "full": {},
            "usual_seconds": None,
            "expected_start": None,
            "quiet": False,
        }
    ]


def test_the_failure_of_a_back_off_is_not_published_for_each_request() -> None:
    """A pool's failure must not be repeated for each of the requests that wait for the pool. The file is written at
    each change, and ten thousand requests may wait."""
    remembered = full(*(record(count=5, id_=f"{number:010d}") for number in range(100)))
    pool_status = make_status_inputs(remembered).pool_status
    later = replace(FULL, blocked_at=NOW + 10, retry_at=NOW + 60, failure=Failure(ErrorClass.QUOTA, "q" * 300))
    again = make_status_inputs(replace(remembered, windows={("a", TEMPLATE): later})).pool_status
    assert len(json.dumps(encode(pool_status)["unmet"])) < 100 * 100
    assert again.unmet == pool_status.unmet, "and is not written again if the next try fails"


def test_a_request_that_waits_behind_another_names_it() -> None:
    first, second = lines(
        status_model(make_status_inputs(full(record(count=1), record(count=2, id_=OTHER, read_at=NOW))))
    )
    assert ("served first" in first, f"request {REQUEST} is served first" in second) == (False, True)


@pytest.mark.parametrize(
    ("remembered", "says"),
    [
        pytest.param(
            memory(record(slot(0, was_seen=True), running(1, submitted_at=NOW - 53, ran_at=NOW - 50))),
            rf"1 in a: starting for 100 s \(usual: 3 s\); must run by {TIME}",
            id="it starts, and others have run",
        ),
        pytest.param(
            memory(record(slot(0, was_seen=True))), rf"1 in a: starting for 100 s; must run by {TIME}", id="it starts"
        ),
        pytest.param(memory(record(count=2)), "2 in a: create not answered yet since .*", id="with the next cycle"),
    ],
)
def test_an_open_request_always_has_a_reason_even_if_its_machines_only_start(remembered: Memory, says: str) -> None:
    seen = status_model(make_status_inputs(remembered))
    (request,) = seen.requests
    (line,) = lines(seen)
    assert re.fullmatch(says, line), line
    assert sum(one["machines"] for one in request["missing"]) == request["count"] - request["running"]


def test_a_pool_that_is_full_is_named_with_its_cap() -> None:
    waits = Unmet("a", PendingReason.WINDOW, 3, bound=2, since=NOW, full={"b": 6}, elsewhere={"b": PendingReason.CAP})
    seen = status_model(make_status_inputs(memory(record(count=3)), TWO_POOLS, unmet={REQUEST: [waits]}))
    (line,) = lines(seen)
    assert line.endswith("; b is at its cap of 6")
    assert "spills over" not in line
    assert "nor in" not in line


TRIED = slot(0, Verdict.FAILED, failure=STOCKOUT, is_gone=True, closed_at=NOW - 600)
BACKS_OFF = (
    rf"window 4, 5 missing, backing off since {TIME} \(10 min\), next probe in 60 min, cause: "
    "ZONE_RESOURCE_POOL_EXHAUSTED, last error 4 min ago"
)
FAILED_LAST = "window 6, 1 missing, last error 10 min ago, stockout: ZONE_RESOURCE_POOL_EXHAUSTED"
RECOVERED = "window 6, 4 missing, last error 10 min ago, stockout: ZONE_RESOURCE_POOL_EXHAUSTED"


@pytest.mark.parametrize(
    ("one", "window", "says", "numbers"),
    [
        pytest.param(record(TRIED, count=5), FULL, BACKS_OFF, (5, True, 600.0, 3600.0), id="while it backs off"),
        pytest.param(record(TRIED, running(1), count=5), Window(6), RECOVERED, (4, False, None, None), id="afterwards"),
        pytest.param(record(TRIED, count=1), Window(6), FAILED_LAST, (1, False, None, None), id="no machine ran since"),
    ],
)
def test_the_window_of_a_pool_is_a_line(
    one: RequestRecord, window: Window, says: str, numbers: tuple[object, ...]
) -> None:
    (document,) = status_model(make_status_inputs(memory(one, windows={("a", TEMPLATE): window}))).pressure
    assert re.fullmatch(rf"  pool a, T: {says}", format_pool_line(document)), format_pool_line(document)
    assert document["last_error"]["error"] == "stockout"
    names = ("missing", "backing_off", "since_seconds", "next_probe_seconds")
    assert tuple(document[name] for name in names) == numbers


@pytest.mark.parametrize(
    ("seconds_ago", "level", "forgotten"),
    [
        pytest.param(300.0, 0, True, id="a machine ran since"),
        pytest.param(900.0, 0, False, id="a machine ran before"),
        pytest.param(300.0, 1, False, id="the pool backs off"),
    ],
)
def test_the_error_of_a_pool_that_is_well_again_is_no_last_error(
    seconds_ago: float, level: int, forgotten: bool
) -> None:
    one = record(TRIED, running(1, ran_at=NOW - seconds_ago), count=1)
    window = replace(FULL, level=level) if level else Window(6)
    seen = status_model(make_status_inputs(memory(one, windows={("a", TEMPLATE): window})))
    assert [document["last_error"] is None for document in seen.pressure] == [forgotten]
    assert [row.last_error is None for row in seen.pools if row.pool == "a"] == [forgotten]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_durations_are_formatted_in_the_usual_unit(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_a_time_of_another_day_has_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert format_local_time("2020-02-01T23:00:00Z") == "2020-02-02 08:00:00"
        assert re.fullmatch(r"\d\d:\d\d:\d\d", format_local_time(format_utc(time.time())))
        assert format_local_time(format_utc(1e18)) == format_utc(1e18)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_failures_of_a_pool_count_since_its_last_machine_ran() -> None:
    failed = {"verdict": Verdict.FAILED, "failure": STOCKOUT, "is_gone": True}
    remembered = memory(
        record(
            slot(0, **failed, closed_at=NOW - 90),
            running(1, ran_at=NOW - 80),
            slot(2, **failed, closed_at=NOW - 70),
            slot(3, **failed, closed_at=NOW - 50),
            count=9,
        )
    )
    last = pool_failures(remembered)["a", TEMPLATE]
    assert last == (STOCKOUT, NOW - 50, NOW - 70, False, 2)
    assert pool_failures(memory(record(running()))) == {}


def test_a_machine_that_starts_in_place_of_one_that_failed_is_named_with_the_failure() -> None:
    (line,) = lines(status_model(make_status_inputs(memory(record(slot(was_seen=True, tried=BROKEN, tries=1))))))
    assert re.match(r"1 in a: starting, other since .*: ImagePullBackOff; ", line)


def test_a_pod_that_boots_is_starting_and_a_pod_that_ran_is_troubled() -> None:
    booting = memory(record(slot(was_seen=True, failure=UNREADY)))
    (unmet,) = unmet_of(booting, limits(pool("a")))[REQUEST]
    assert (unmet.reason, unmet.error) == (PendingReason.STARTING, None)
    seen = status_model(make_status_inputs(booting))
    assert [one["last_error"] for one in seen.pressure] + [row.last_error for row in seen.pools] == [None, None]
    down = record(running(0, down_since=NOW, failure=UNREADY))
    (unmet,) = unmet_of(memory(down), limits(pool("a")))[REQUEST]
    assert (unmet.reason, unmet.error) == (PendingReason.TROUBLED, ErrorClass.OTHER)


def test_a_machine_in_an_unseen_pool_is_unseen_since_the_pool_is() -> None:
    inputs = make_status_inputs(memory(record(slot())), pools={"a": [f"{UNSEEN}no"]}, unseen_since={"a": NOW - 7})
    (entry,) = status_model(inputs).requests[0]["missing"]
    assert entry["since_seconds"] == 7


def test_the_line_of_a_pool_has_its_queue_in_one() -> None:
    waits = [
        Unmet("a", PendingReason.QUEUED, 2, text="Resources", since=NOW - 9, expected_start=1_700_000_900),
        Unmet("a", PendingReason.QUEUED, 3, text="Priority", since=NOW - 600, expected_start=1_700_000_000),
    ]
    two = memory(record(count=2), record(id_=OTHER, count=3))
    seen = status_model(make_status_inputs(two, unmet={REQUEST: waits[:1], OTHER: waits[1:]}))
    (line,) = map(format_pool_line, seen.pressure)
    starts = format_local_time(format_utc(1_700_000_000))
    wait = f"5 queued, the longest for 10 min: Priority (expected to start at {starts})"
    assert line == f"  pool a, {TEMPLATE}: 5 missing, {wait}"
    assert [one["quiet"] for request in seen.requests for one in request["missing"]] == [True, True]

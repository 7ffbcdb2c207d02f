"""The sentences of a timeline: of each event, of equal events together, and with lines that no loop wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import DeleteReason, Fingerprint
from provisioner.state.journal import format_time
from provisioner.telemetry.timeline import Kind, Subject, search_texts, timeline
from tests.unit.core import OTHER, REQUEST, giving_back, memory, name, record, running

BACK = "ret-bbbbbbbbbb"

EVENTS: Sequence[tuple[dict[str, Any], str]] = [
    ({"event": "asked", "template": "T", "count": 2, "account": "risk"},
     "asked for 2 machines of template T for account risk"),
    ({"event": "opened", "pool": "a", "count": 2}, "2 slots opened in pool a"),
    ({"event": "deferred", "pool": "a", "reason": "cap", "bound": 9, "count": 2},
     "2 machines wait in pool a: the cap of 9"),
    ({"event": "deferred", "pool": "a", "reason": "budget", "count": 1}, "1 machine waits in pool a: the budget"),
    ({"event": "hold", "hold": "drain", "pool": "a", "result": "set", "who": "ann", "text": "it is ill"},
     "Drain in pool a set by ann: it is ill."),
    ({"event": "create", "machine": name(0), "pool": "a", "result": "ok"}, f"Pool a accepted the create of {name(0)}."),
    ({"event": "create", "machine": name(0), "pool": "a", "result": "denied", "text": "no\nway"},
     f"Pool a refused 1 create of {name(0)}: denied: “no way”"),
    ({"event": "troubled", "machine": name(0), "pool": "a", "error": "other", "text": "ImagePullBackOff"},
     f"The cloud says of {name(0)} in pool a: other: “ImagePullBackOff”."),
    ({"event": "running", "pool": "a", "machines": [name(0)]}, f"{name(0)} runs in pool a"),
    ({"event": "reported", "answer": "running", "running": 3}, "reports to HostFactory that 3 machines run"),
    ({"event": "reported", "answer": "complete_with_error", "running": 1},
     "the end to HostFactory: complete_with_error; 1 machine runs"),
    ({"event": "reported", "answer": "complete_with_error", "running": 0},
     "the end to HostFactory: complete_with_error."),
    ({"event": "reported", "answer": "lost", "cause": "preempted", "machines": [name(0)]}, "is gone (preempted)"),
    ({"event": "reported", "answer": "lost", "cause": "node", "machines": [name(0)], "seconds": 30},
     "ends in 30 s (node)"),
    ({"event": "close", "machine": name(0), "pool": "a", "verdict": "lost", "cause": "evicted"},
     "was lost in pool a: evicted"),
    ({"event": "close", "machine": name(0), "pool": "a", "verdict": "returned"}, "was returned in pool a"),
    ({"event": "close", "machine": name(0), "pool": "a", "verdict": "cancelled"}, "was cancelled in pool a"),
    ({"event": "close", "machine": name(0), "pool": "a", "verdict": "withdrawn", "error": "timeout"},
     "was withdrawn in pool a: timeout"),
    ({"event": "close", "pool": "a", "verdict": "failed", "error": "other", "machines": [name(0), name(1)], "times": 2},
     f"{name(0)}, {name(1)} failed in pool a: other"),
    ({"event": "return", "return": BACK, "machines": [name(0)]},
     f"HostFactory returned {name(0)} (return request {BACK})"),
    ({"event": "delete", "machine": name(0), "pool": "a", "result": "ok", "reason": "returned"}, "accepted the delete"),
    ({"event": "delete", "pool": "a", "result": "denied", "text": "no", "machines": [name(0)], "times": 50},
     "Pool a refused 50 deletes: denied: “no”"),
    ({"event": "gone", "machines": [name(0)]}, f"{name(0)} is gone."),
    ({"event": "reported", "answer": "lost", "cause": "node", "machines": [*map(name, range(12))]},
     "12 machines are gone"),
    ({"event": "reported", "answer": "lost", "cause": "drained", "machines": [name(0)], "seconds": 3600},
     f"The loop asks HostFactory to return {name(0)} (drained)."),
    ({"event": "cancel", "who": "ann", "reason": "a test"}, "Cancel by ann: a test."),
]  # fmt: skip
"""A line and its sentence for each event of a request that a loop or a command writes."""


@pytest.mark.parametrize(("line", "said"), EVENTS, ids=lambda value: value["event"] if isinstance(value, dict) else "")
def test_each_event_has_its_sentence(line: dict[str, Any], said: str) -> None:
    if line["event"] not in ("return", "create", "close", "delete", "troubled"):
        line = {"request": REQUEST} | line
    (sentence,) = timeline(Subject(Kind.REQUEST, REQUEST), [line | {"at": 5.0}], None)
    assert said in sentence.text
    assert "\n" not in sentence.text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"event": "window", "template": "T", "window": 5}, "The window of template T is 5."),
        ({"event": "paused"}, "Paused in pool a."),
        ({"event": "resumed", "who": "ann", "reason": "fixed"}, "Resumed in pool a by ann: fixed."),
    ],
)
def test_each_event_of_a_pool_has_its_sentence(line: dict[str, Any], said: str) -> None:
    (sentence,) = timeline(Subject(Kind.POOL, "a"), [line | {"pool": "a", "at": 5.0}], None)
    assert sentence.text == said


def test_a_deferral_ends_when_no_machine_waits_any_more() -> None:
    waits = {"event": "deferred", "request": REQUEST, "pool": "a", "reason": "window", "count": 5, "at": 10.0}
    over = {"event": "deferred", "request": REQUEST, "over": True, "seconds": 300.0, "at": 310.0}
    (sentence,) = timeline(Subject(Kind.REQUEST, REQUEST), [waits, over], None)
    assert (sentence.at, sentence.until) == (10.0, 310.0)


def test_ten_thousand_machines_become_milestones() -> None:
    asked = {"event": "asked", "request": REQUEST, "template": "T", "count": 10_000, "at": 0.0}
    runs = [
        {"event": "running", "request": REQUEST, "pool": "a", "machines": [name(n)], "at": 1.0 + n}
        for n in range(9_500)
    ]
    reported = [(one.at, one.text) for one in timeline(Subject(Kind.REQUEST, REQUEST), [asked, *runs], None)][1:]
    assert reported == [
        (1.0, "The first machine runs: 1 of 10,000."),
        (5000.0, "Half run: 5,000 of 10,000."),
        (9000.0, "90 % run: 9,000 of 10,000."),
        (9500.0, "The last so far runs: 9,500 of 10,000."),
    ]


def test_equal_events_are_one_sentence_until_ten_minutes_pass_without_one() -> None:
    line = {"event": "create", "pool": "a", "result": "stockout", "text": "full"}
    lines = [line | {"machine": name(n), "at": 300.0 * n} for n in range(5)] + [
        line | {"machine": name(9), "at": 1801.0}
    ]
    reported = [(one.at, one.until, one.text) for one in timeline(Subject(Kind.REQUEST, REQUEST), lines, None)]
    assert reported == [
        (0.0, 1200.0, "Pool a refused 5 creates: stockout: “full”."),
        (1801.0, 1801.0, f"Pool a refused 1 create of {name(9)}: stockout: “full”."),
    ]


KEYS = sorted(
    {key for line, _ in EVENTS for key in line} | {"running", "since", "window", "backing_off", "over", "seconds"}
)
ODD: Sequence[Any] = [
    None,
    True,
    -1,
    1e300,
    "",
    [],
    {},
    [1],
    ["a"],
    {"a": []},
    [[]],
    format_time(5.0),
    name(0),
    [name(0)],
]
WORDS = [*dict.fromkeys(line["event"] for line, _ in EVENTS), "window", REQUEST, BACK, "a"]
LINES = st.lists(st.dictionaries(st.sampled_from(KEYS), st.sampled_from([*ODD, *WORDS]), max_size=6), max_size=4)


@given(LINES, st.sampled_from([Subject(Kind.REQUEST, REQUEST), Subject(Kind.RETURN, BACK), Subject(Kind.POOL, "a")]))
def test_no_foreign_line_breaks_a_timeline(lines: list[dict[str, Any]], subject: Subject) -> None:
    remembered = memory(record(running(0, fingerprint=Fingerprint(), delete=DeleteReason.FAILED)))
    reported = timeline(subject, [line | {"at": float(number)} for number, line in enumerate(lines)], remembered)
    assert reported == sorted(reported, key=lambda one: one.at)
    assert all(one.until >= one.at for one in reported)


def test_the_search_texts_find_each_line() -> None:
    remembered = memory(giving_back(name(0), name(0, OTHER), id_=BACK))
    assert search_texts(Subject(Kind.RETURN, BACK), remembered) == (BACK, REQUEST, OTHER)
    assert search_texts(Subject(Kind.REQUEST, REQUEST), remembered) == (REQUEST,)
    assert search_texts(Subject(Kind.MACHINE, name(0)), None) == (name(0), f'"request":"{REQUEST}"')

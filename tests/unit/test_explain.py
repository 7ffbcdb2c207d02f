"""`provisioner explain`: stories of requests, returns, machines and pools, from journal and memory."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.commands.cli import run
from provisioner.model import (
    Brake,
    BrakeReason,
    DeleteReason,
    ErrorClass,
    Failure,
    Fingerprint,
    LossCause,
    Memory,
    Notice,
    RequestStatus,
    ReturnResult,
    Verdict,
    Window,
)
from provisioner.state.directory import StateDir
from provisioner.state.journal import stamp
from provisioner.telemetry.notes import Notebook, Notes, StandingRefusal, terms_of
from provisioner.telemetry.story import Kind, Subject, needles, story
from tests.support.cycle_bench import LIMITS, Bench
from tests.unit.core import (
    BEFORE,
    NOW,
    OTHER,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    giving_back,
    limits,
    memory,
    name,
    pool,
    record,
    running,
    slot,
)

NO_ROOM = Failure(ErrorClass.STOCKOUT, "ZONE_RESOURCE_POOL_EXHAUSTED: no c3 here")
BACK = "ret-bbbbbbbbbb"
ALLOWED = limits(pool("a"), pool("b", paused=True))


class Desk:
    """A state directory, and what the command says of it."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = StateDir(directory)
        self._capsys = capsys

    def leave(self, held: Memory, **notes: Any) -> None:
        """What a loop leaves that has just planned."""
        self.state.memory.write(replace(held, provisioner="demo", time=NOW, time_wall=time.time()))
        known = {"terms": terms_of(ALLOWED), "pool_limits": ALLOWED.pools, "template_limits": ALLOWED.templates}
        self.state.notes.write(asdict(Notes(**(known | notes))))
        self.state.heartbeat.touch()

    def journal(self, *lines: Mapping[str, object], ago: float = 60.0) -> None:
        """Lines of a second each, the first so many seconds ago."""
        began = time.time() - ago
        self.state.journal.append({"time": stamp(began + n), "cycle": n} | dict(line) for n, line in enumerate(lines))

    def says(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert run(["explain", *arguments, "--state-dir", self.state.path]) == code
        return self._capsys.readouterr().out

    def document(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.says(*arguments, "-o", "json"))
        return found

    def told(self, *arguments: str) -> list[str]:
        """The sentences of the story."""
        return [one["text"] for one in self.document(*arguments)["story"]]

    def now(self, *arguments: str) -> list[str]:
        sentences: list[str] = self.document(*arguments)["now"]
        return sentences


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def in_order(text: str, *patterns: str) -> None:
    """Each pattern fits a line below that of the one before."""
    lines = iter(text.splitlines())
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in lines), f"no line fits {pattern!r} here\n{text}"


# --- a loop's own life ------------------------------------------------------------------------------------------------


class Life:
    """A request that two creates are refused of, one machine is lost of, and one is returned of."""

    def __init__(self, directory: Path) -> None:
        self.bench = Bench(directory)
        self.notes = Notebook(self.bench.state)
        self.bench.clock.time = time.time() - 3000
        self.bench.place.fails = {0: NO_ROOM, 1: NO_ROOM}
        self.request = self.bench.request(6)
        self.cycles(40, boots=12)
        self.bench.hears(self.request)
        self.cycles(40)
        self.lost, self.returned, *_ = sorted(self.bench.place.machines)
        self.bench.place.place.crash(self.lost)
        self.cycles(4)
        self.back = self.bench.give_back(self.returned)
        self.cycles(4)

    def cycles(self, count: int, boots: int = -1) -> None:
        for number in range(count):
            if number == boots:
                self.bench.place.place.boot()
            self.notes.take(self.bench.cycle(), LIMITS, self.bench.clock.wall())


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def test_the_life_of_a_request_is_told_in_order(desk: Desk, life: Life) -> None:
    text = desk.says(life.request, "--machines")
    in_order(
        text,
        f"^Request {life.request}$",
        r"  HostFactory asked for 6 machines of template T\.$",
        r"  8 slots opened in pool pool\.$",
        r"  2 machines wait in pool pool: the pool backs off, stockout: “ZONE_RESOURCE_POOL_EXHAUSTED: no c3 here”\.$",
        r"  Pool pool took the creates of 6 machines\.$",
        r"  Pool pool refused 2 creates: stockout: “ZONE_.* no c3 here”\.$",
        r"  hf-.*, hf-.* failed in pool pool: stockout: “ZONE_.*”\.$",
        r"  1 machine waits in pool pool: the window of 1\.$",
        r"  All run: 6 of 6\.$",
        r"  HostFactory is told the end: complete; 6 machines run\.$",
        r"  HostFactory has heard the end: complete\.$",
        rf"  {life.lost} was lost in pool pool: exited",
        rf"  HostFactory is told that {life.lost} is gone \(exited\)\.$",
        rf"  Pool pool took the delete of {life.lost} \(lost\)\.$",
        rf"  HostFactory gave back {life.returned} \(return request {life.back}\)\.$",
        rf"  {life.returned} was returned in pool pool\.$",
        rf"  Pool pool took the delete of {life.returned} \(returned\)\.$",
        "^Now$",
        r"^  It ended as complete at \d\d:",
        "^  4 of its machines are HostFactory's; 0 ",
        "^Machines$",
        f"^  {life.lost} in pool: lost, gone: .*ended",
    )
    assert "no c3 here" in text
    assert re.search(r"^  \d\d:\d\d:\d\d – \d\d:\d\d:\d\d  8 slots", text, re.M), "times are the terminal's"


@pytest.mark.parametrize("spelled", ["{}", "{}.example.com", "{}.EXAMPLE.COM."])
def test_the_life_of_a_machine_is_told_by_whatever_name_hf_gives_it(desk: Desk, life: Life, spelled: str) -> None:
    in_order(
        desk.says(spelled.format(life.returned)),
        f"^Machine {life.returned}$",
        "asked for 6 machines",
        "1 slot opened in pool pool",
        f"took the create of {life.returned}",
        f"{life.returned} runs in pool pool",
        "is told the end: complete; 6 machines run",
        f"gave back {life.returned}",
        f"{life.returned} was returned",
        r"took the delete of .* \(returned\)",
        f"Nothing is left of {life.returned}",
        "^Now$",
        f"belongs to request {life.request} of template T, and was asked for in pool pool",
        "is returned, and nothing is left of it",
    )
    assert not any(life.lost in one for one in desk.told(life.returned))


def test_the_life_of_a_return_request_is_told(desk: Desk, life: Life) -> None:
    told = [
        f"HostFactory gave back {life.returned} (return request {life.back}).",
        f"{life.returned} was returned in pool pool.",
        f"Pool pool took the delete of {life.returned} (returned).",
        "HostFactory is told the end: complete.",
        f"Nothing is left of {life.returned}.",
    ]
    assert desk.told(life.back) == told
    assert "1 of 1 machines are settled" in desk.now(life.back)[0]


def test_the_life_of_a_pool_tells_what_went_wrong_and_what_it_learned(desk: Desk, life: Life) -> None:
    in_order(
        desk.says("pool"),
        "^Pool pool$",
        "refused 2 creates: stockout",
        "The window of template T is 1000; the pool backs off, stockout: “ZONE_",
        "The window of template T is 1000; the pool backs off no more",
        f"{life.lost} was lost",
        "^Now$",
        r"^  T: window \d+, last error 50 min ago, stockout: ZONE_",
        "^  4 machines run in it, 0 are to run",
    )
    assert not any("took" in one for one in desk.told("pool"))


def test_memory_tells_what_an_old_journal_lacks(desk: Desk, life: Life) -> None:
    """One of an earlier version: numbers for times, and none of the events that were added."""
    path = Path(desk.state.journal.path)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    old = [line for line in kept if line["event"] in ("create", "delete", "close")]
    path.write_text("".join(json.dumps(line | {"time": 1.7e9}) + "\n" for line in old))
    text = desk.says(life.request)
    for sentence in ("asked for 6 machines", "8 slots opened", "All run: 6 of 6", "has heard", "Nothing is left of"):
        assert sentence in text
    path.unlink()
    assert "There is no journal" in desk.says(life.request)
    assert f"{life.lost} was lost" in desk.says(life.lost)


def test_the_journal_tells_of_what_has_left_the_other_files(desk: Desk, life: Life) -> None:
    before = {id_: desk.told(id_) for id_ in (life.request, life.back)}
    desk.leave(memory())
    for id_ in before:
        assert len(before[id_]) - len(desk.told(id_)) <= 1, "only what HF has heard stood in memory alone"
        assert desk.now(id_) == ["It has left the state files; the journal alone tells of it."]
    assert f"{life.lost} runs in pool pool." in desk.told(life.lost)
    Path(desk.state.memory.path).write_text("{")
    assert desk.told(life.back) == before[life.back]
    assert "not valid JSON" in desk.says(life.back)


# --- what is and what comes next --------------------------------------------------------------------------------------


def test_a_deferred_request_says_why_since_when_and_what_is_next(desk: Desk) -> None:
    full = Window(4, level=2, blocked_at=NOW - 240, retry_at=NOW + 3600, probing=True, failure=STOCKOUT)
    held = memory(record(running(0), count=6, deadline=NOW + 60), pressures={("a", TEMPLATE): full})
    desk.leave(held)
    first, why, last = desk.now(REQUEST)
    assert first == "It is running: 1 of 6 machines run."
    assert re.match(r"5 in a: backoff, stockout since .* \(4 min\): ZONE_.*; next try in 60 min; nor in b", why)
    assert last.startswith("What does not run by ")


def test_a_machine_that_boots_says_until_when_and_what_its_place_says(desk: Desk) -> None:
    desk.leave(memory(record(slot(0, submitted=NOW, failure=NO_ROOM), running(1, notice=Notice(LossCause.NODE, NOW)))))
    _, waits, until = desk.now(name(0))
    assert waits == "It does not run yet: stockout, “ZONE_RESOURCE_POOL_EXHAUSTED: no c3 here”."
    assert until.startswith("If it does not run by ")
    _, ends, runs = desk.now(name(1))
    assert ends.endswith(": node.")
    assert "10.0.0.1" in runs


def test_a_machine_that_is_to_go_says_so(desk: Desk) -> None:
    sent = slot(0, Verdict.FAILED, delete_sent=NOW - 5, stuck=True)
    aside = slot(1, set_aside=True)
    desk.leave(memory(record(sent, slot(2, Verdict.FAILED), aside)))
    (_, stuck) = desk.now(name(0))
    assert re.fullmatch(r"It is failed\. Its delete was sent at .*, and is repeated .* It is stuck: .*", stuck)
    assert "is to be sent" in desk.now(name(2))[1]
    assert "set aside" in desk.now(name(1))[1]


def test_a_machine_that_no_request_explains_says_when_it_goes(desk: Desk) -> None:
    stray = name(7, OTHER)
    brake = Brake(BrakeReason.TOO_MANY_ORPHANS, NOW, "many")
    desk.leave(memory(orphans={stray: NOW}), orphans={"a": [stray]})
    assert re.match(r"No request explains it: it is deleted as an orphan at \d\d:\d\d:\d\d\.", desk.now(stray)[0])
    desk.leave(memory(orphans={stray: NOW}, brake=brake), orphans={"a": [stray]})
    assert "once the brake is released" in desk.now(stray)[0]


def test_a_return_that_goes_on_says_how_far_it_is(desk: Desk) -> None:
    desk.leave(memory(giving_back(name(0), name(1), id_=BACK, results={name(0): ReturnResult.GONE})))
    assert desk.now(BACK)[0].startswith("It is running: 1 of 2 machines are settled; it ends by ")
    assert desk.told(BACK) == [f"HostFactory gave back {name(0)}, {name(1)} (return request {BACK})."]


def test_a_pool_says_what_people_have_to_know(desk: Desk) -> None:
    desk.leave(
        memory(record(running(0), slot(1)), brake=Brake(BrakeReason.POOL_ASTRAY, NOW, "Another place.", "a")),
        paused=["a"],
        pools={"a": ["not seen: no route"]},
        refused=[
            StandingRefusal("a", "delete", "", time.time(), "denied"),
            StandingRefusal("a", "create", "T", time.time(), "no"),
        ],
    )
    text = "\n".join(desk.now("a"))
    for words in (
        "It is paused",
        "no route",
        "refuses deletes since",
        "creates of T since",
        "The brake is on",
        "1 mach",
    ):
        assert words in text


def test_a_request_that_ended_says_whether_hf_has_heard(desk: Desk) -> None:
    desk.leave(memory(record(running(0, Verdict.SUCCEEDED), ended=RequestStatus.COMPLETE)))
    assert desk.now(REQUEST)[0].endswith("; HostFactory has not heard of it yet.")


def test_a_dead_loop_is_said(desk: Desk) -> None:
    desk.leave(memory(record(count=1)))
    assert not any("LOOP" in one for one in desk.now(REQUEST))
    desk.state.loop_lock.acquire(0)
    desk.state.loop_lock.raise_epoch()
    desk.state.loop_lock.sign_off()
    desk.state.loop_lock.release()
    assert desk.now(REQUEST)[-1].startswith("LOOP NOT RUNNING since ")
    Path(desk.state.heartbeat.path).unlink()
    assert "never run" in desk.now(REQUEST)[-1]


# --- ids, and files that are not what they should be ------------------------------------------------------------------


def test_an_unknown_id_says_what_was_looked_for_and_what_is_near(desk: Desk) -> None:
    desk.leave(memory(record(running(0)), giving_back(name(0), id_=BACK)))
    text = desk.says(REQUEST[:-1] + "x", code=1)
    assert "no request, return request, machine or pool" in text
    assert f"spelled alike: {REQUEST}." in text
    assert BACK in desk.says(BACK[:-1] + "x", code=1)
    assert name(0) in desk.says(name(5), code=1)
    assert REQUEST in desk.says(name(0, REQUEST[:-1] + "x"), code=1)
    assert "alike" not in desk.says("nonsense", code=1)
    assert json.loads(desk.says("nonsense", "-o", "json", code=1))["kind"] is None


def test_a_directory_that_holds_nothing_knows_nothing(desk: Desk) -> None:
    text = desk.says("x", code=1)
    assert "memory.json" in text
    assert "There is no journal" in text


def test_a_torn_line_and_a_part_that_cannot_be_read_cost_a_sentence(desk: Desk) -> None:
    desk.leave(memory(record(running(0))))
    desk.journal({"event": "asked", "request": REQUEST, "template": "T", "count": 9})
    with Path(desk.state.journal.path).open("ab") as file:
        file.write(b'{"time":5,"event":"asked","requ')
    Path(desk.state.journal.path + ".3").symlink_to("elsewhere")
    text = desk.says(REQUEST)
    assert "1 lines of the journal are torn" in text
    assert "symbolic link" in text
    assert "asked for 9 machines" in text


def test_a_story_of_nothing_says_where_the_journal_begins(desk: Desk) -> None:
    desk.leave(memory())
    desk.journal({"event": "asked", "request": OTHER, "template": "T", "count": 9})
    assert "The journal, which begins at" in desk.says("a")


# --- sentences --------------------------------------------------------------------------------------------------------

EVENTS: Sequence[tuple[dict[str, Any], str]] = [
    (
        {"event": "asked", "template": "T", "count": 2, "account": "risk"},
        "asked for 2 machines of template T for account risk",
    ),
    ({"event": "opened", "pool": "a", "count": 2}, "2 slots opened in pool a"),
    (
        {"event": "deferred", "pool": "a", "reason": "cap", "bound": 9, "count": 2},
        "2 machines wait in pool a: the cap of 9",
    ),
    ({"event": "deferred", "pool": "a", "reason": "budget", "count": 1}, "1 machine waits in pool a: the budget"),
    (
        {"event": "lever", "lever": "drain", "pool": "a", "result": "pulled", "who": "ann", "text": "it is ill"},
        "Drain in pool a pulled by ann: it is ill.",
    ),
    ({"event": "create", "machine": name(0), "pool": "a", "result": "ok"}, f"Pool a took the create of {name(0)}."),
    (
        {"event": "create", "machine": name(0), "pool": "a", "result": "denied", "text": "no\nway"},
        f"Pool a refused 1 create of {name(0)}: denied: “no way”",
    ),
    (
        {"event": "troubled", "machine": name(0), "pool": "a", "error": "other", "text": "ImagePullBackOff"},
        f"The cloud says of {name(0)} in pool a: other: “ImagePullBackOff”.",
    ),
    ({"event": "running", "pool": "a", "machines": [name(0)]}, f"{name(0)} runs in pool a"),
    ({"event": "told", "answer": "running", "running": 3}, "is told that 3 machines run"),
    ({"event": "told", "answer": "complete_with_error", "running": 1}, "the end: complete_with_error; 1 machine runs"),
    ({"event": "told", "answer": "complete_with_error", "running": 0}, "the end: complete_with_error."),
    ({"event": "told", "answer": "lost", "cause": "preempted", "machines": [name(0)]}, "is gone (preempted)"),
    ({"event": "told", "answer": "lost", "cause": "node", "machines": [name(0)], "seconds": 30}, "ends in 30 s (node)"),
    (
        {"event": "close", "machine": name(0), "pool": "a", "verdict": "lost", "cause": "evicted"},
        "was lost in pool a: evicted",
    ),
    ({"event": "close", "machine": name(0), "pool": "a", "verdict": "returned"}, "was returned in pool a"),
    ({"event": "close", "machine": name(0), "pool": "a", "verdict": "cancelled"}, "was cancelled in pool a"),
    (
        {"event": "close", "machine": name(0), "pool": "a", "verdict": "withdrawn", "error": "timeout"},
        "was withdrawn in pool a: timeout",
    ),
    (
        {
            "event": "close",
            "pool": "a",
            "verdict": "failed",
            "error": "other",
            "machines": [name(0), name(1)],
            "times": 2,
        },
        f"{name(0)}, {name(1)} failed in pool a: other",
    ),
    ({"event": "back", "return": BACK, "machines": [name(0)]}, f"gave back {name(0)} (return request {BACK})"),
    ({"event": "delete", "machine": name(0), "pool": "a", "result": "ok", "reason": "returned"}, "took the delete of"),
    (
        {"event": "delete", "pool": "a", "result": "denied", "text": "no", "machines": [name(0)], "times": 50},
        "Pool a refused 50 deletes: denied: “no”",
    ),
    ({"event": "gone", "machines": [name(0)]}, f"Nothing is left of {name(0)}"),
    ({"event": "cancel", "who": "ann", "reason": "a test"}, "Cancel by ann: a test."),
]
"""Of each event that a loop or a command writes of a request."""


@pytest.mark.parametrize(("line", "said"), EVENTS, ids=lambda value: value["event"] if isinstance(value, dict) else "")
def test_each_event_has_its_sentence(line: dict[str, Any], said: str) -> None:
    if line["event"] not in ("back", "create", "close", "delete", "troubled"):
        line = {"request": REQUEST} | line
    (sentence,) = story(Subject(Kind.REQUEST, REQUEST), [line | {"at": 5.0}], None)
    assert said in sentence.text
    assert "\n" not in sentence.text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"event": "window", "template": "T", "window": 5}, "The window of template T is 5."),
        ({"event": "paused"}, "Paused in pool a."),
        ({"event": "resumed", "who": "ann", "reason": "mended"}, "Resumed in pool a by ann: mended."),
    ],
)
def test_each_event_of_a_pool_has_its_sentence(line: dict[str, Any], said: str) -> None:
    (sentence,) = story(Subject(Kind.POOL, "a"), [line | {"pool": "a", "at": 5.0}], None)
    assert sentence.text == said


def test_a_deferral_ends_when_nothing_waits_any_more() -> None:
    waits = {"event": "deferred", "request": REQUEST, "pool": "a", "reason": "window", "count": 5, "at": 10.0}
    over = {"event": "deferred", "request": REQUEST, "over": True, "seconds": 300.0, "at": 310.0}
    (sentence,) = story(Subject(Kind.REQUEST, REQUEST), [waits, over], None)
    assert (sentence.at, sentence.until) == (10.0, 310.0)


def test_ten_thousand_machines_are_told_by_milestones() -> None:
    asked = {"event": "asked", "request": REQUEST, "template": "T", "count": 10_000, "at": 0.0}
    runs = [
        {"event": "running", "request": REQUEST, "pool": "a", "machines": [name(n)], "at": 1.0 + n}
        for n in range(9_500)
    ]
    told = [(one.at, one.text) for one in story(Subject(Kind.REQUEST, REQUEST), [asked, *runs], None)][1:]
    assert told == [
        (1.0, "The first machine runs: 1 of 10,000."),
        (5000.0, "Half run: 5,000 of 10,000."),
        (9000.0, "90 % run: 9,000 of 10,000."),
        (9500.0, "The last so far runs: 9,500 of 10,000."),
    ]


def test_equal_events_are_one_sentence_until_ten_minutes_pass_without_one() -> None:
    line = {"event": "create", "pool": "a", "result": "stockout", "text": "full"}
    lines = [line | {"machine": name(n), "at": 300.0 * n} for n in range(5)] + [
        line | {"machine": name(9), "at": 9000.0}
    ]
    told = [(one.at, one.until, one.text) for one in story(Subject(Kind.REQUEST, REQUEST), lines, None)]
    assert told == [
        (0.0, 1200.0, "Pool a refused 5 creates: stockout: “full”."),
        (9000.0, 9000.0, f"Pool a refused 1 create of {name(9)}: stockout: “full”."),
    ]


KEYS = sorted(
    {key for line, _ in EVENTS for key in line} | {"running", "since", "window", "backing_off", "over", "seconds"}
)
ODD: Sequence[Any] = [None, True, -1, 1e300, "", [], {}, [1], ["a"], {"a": []}, [[]], stamp(5.0), name(0), [name(0)]]
WORDS = [*dict.fromkeys(line["event"] for line, _ in EVENTS), "window", REQUEST, BACK, "a"]
LINES = st.lists(st.dictionaries(st.sampled_from(KEYS), st.sampled_from([*ODD, *WORDS]), max_size=6), max_size=4)


@given(LINES, st.sampled_from([Subject(Kind.REQUEST, REQUEST), Subject(Kind.RETURN, BACK), Subject(Kind.POOL, "a")]))
def test_no_line_of_somebody_else_costs_the_story(lines: list[dict[str, Any]], subject: Subject) -> None:
    held = memory(record(running(0, fingerprint=Fingerprint(), delete=DeleteReason.FAILED)))
    told = story(subject, [line | {"at": float(number)} for number, line in enumerate(lines)], held)
    assert told == sorted(told, key=lambda one: one.at)
    assert all(one.until >= one.at for one in told)


def test_a_journal_of_somebody_else_is_searched_all_the_same(desk: Desk) -> None:
    desk.journal({"event": "asked", "return": BACK, "machines": 3}, {"event": "x", "machines": [1], "pool": "zz"})
    assert "Return request" in desk.says(BACK)
    assert "Pool zz" in desk.says("zz")
    assert "spelled" not in desk.says("machines", code=1)


def test_what_the_journal_is_searched_for_finds_each_line() -> None:
    held = memory(giving_back(name(0), name(0, OTHER), id_=BACK))
    assert needles(Subject(Kind.RETURN, BACK), held) == (BACK, REQUEST, OTHER)
    assert needles(Subject(Kind.REQUEST, REQUEST), held) == (REQUEST,)
    assert needles(Subject(Kind.MACHINE, name(0)), None) == (name(0), f'"request":"{REQUEST}"')


def test_memory_and_journal_tell_each_machine_once(desk: Desk) -> None:
    desk.leave(memory(record(*[running(n) for n in range(3)], ended=RequestStatus.COMPLETE, told_at=BEFORE)))
    desk.journal({"event": "running", "request": REQUEST, "pool": "a", "machines": [name(0), name(1)]}, ago=3.0)
    runs = [one for one in desk.told(REQUEST) if " run" in one]
    assert runs == [f"{name(2)}, {name(0)}, {name(1)} run in pool a."]

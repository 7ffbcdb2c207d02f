"""`provisioner explain`: timelines of requests, returns, machines and pools, from journal and memory."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import (
    Brake,
    BrakeReason,
    ErrorClass,
    Failure,
    LossCause,
    Memory,
    Notice,
    RequestStatus,
    ReturnResult,
    Verdict,
    Window,
)
from provisioner.telemetry.pool_status import PoolStatusWriter, StandingRefusal
from tests.support import desk as desks
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
ALLOWED = limits(pool("a"), pool("b", is_paused=True))


class Desk(desks.Desk):
    """A state directory, and the output of the command for it."""

    def says(self, *arguments: str, code: int = 0) -> str:
        found, text, _ = self.call("explain", *arguments)
        assert found == code
        return text

    def timeline_of(self, id_: str) -> list[str]:
        """Return the sentences of the timeline."""
        return [one["text"] for one in self.document("explain", id_)["timeline"]]

    def now(self, id_: str) -> list[str]:
        sentences: list[str] = self.document("explain", id_)["now"]
        return sentences


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def in_order(text: str, *patterns: str) -> None:
    """Assert that the patterns match lines in this order."""
    lines = iter(text.splitlines())
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in lines), f"no line fits {pattern!r} here\n{text}"


# --- a loop's own life ------------------------------------------------------------------------------------------------


class Life:
    """A request with two refused creates, a lost machine and a returned machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bench = Bench(directory)
        self.pool_status = PoolStatusWriter(self.bench.state)
        self.bench.clock.time = time.time() - 3000
        self.bench.place.fails = {0: NO_ROOM, 1: NO_ROOM}
        self.request = self.bench.request(6)
        self.cycles(40, boots=12)
        self.bench.hears(self.request)
        self.cycles(40)
        self.lost, self.returned, *_ = sorted(self.bench.place.machines)
        self.bench.place.place.crash(self.lost)
        self.cycles(4)
        self.return_id = self.bench.return_machines(self.returned)
        self.cycles(4)

    def cycles(self, count: int, boots: int = -1) -> None:
        for number in range(count):
            if number == boots:
                self.bench.place.place.boot()
            self.pool_status.record_cycle(self.bench.cycle(), LIMITS, self.bench.clock.wall())


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return Life(tmp_path_factory.mktemp("life"))


@pytest.fixture
def life(lived: Life, tmp_path: Path) -> Life:
    """The request of the fixture ``lived`` with its events. The files are copied into the state directory of ``desk``,
    so that a test may change them."""
    shutil.copytree(lived.directory, tmp_path, dirs_exist_ok=True)
    return lived


def test_the_life_of_a_request_is_shown_in_order(desk: Desk, life: Life) -> None:
    text = desk.says(life.request, "--machines")
    in_order(
        text,
        f"^Request {life.request}$",
        r"  HostFactory asked for 6 machines of template T\.$",
        r"  8 slots opened in pool pool\.$",
        r"  2 machines wait in pool pool: the pool backs off, stockout: “ZONE_RESOURCE_POOL_EXHAUSTED: no c3 here”\.$",
        r"  Pool pool accepted the creates of 6 machines\.$",
        r"  Pool pool refused 2 creates: stockout: “ZONE_.* no c3 here”\.$",
        r"  hf-.*, hf-.* failed in pool pool: stockout: “ZONE_.*”\.$",
        r"  1 machine waits in pool pool: the window of 1\.$",
        r"  All run: 6 of 6\.$",
        r"  The loop reports the end to HostFactory: complete; 6 machines run\.$",
        r"  HostFactory has read the end: complete\.$",
        rf"  {life.lost} was lost in pool pool: exited",
        rf"  The loop reports to HostFactory that {life.lost} is gone \(exited\)\.$",
        rf"  Pool pool accepted the delete of {life.lost} \(lost\)\.$",
        rf"  HostFactory returned {life.returned} \(return request {life.return_id}\)\.$",
        rf"  {life.returned} was returned in pool pool\.$",
        rf"  Pool pool accepted the delete of {life.returned} \(returned\)\.$",
        "^Now$",
        r"^  It ended as complete at \d\d:",
        r"^  Machines of this request that HostFactory has: 4\.",
        "^Machines$",
        f"^  {life.lost} in pool: lost, gone: .*ended",
    )
    assert "no c3 here" in text
    assert re.search(r"^  \d\d:\d\d:\d\d – \d\d:\d\d:\d\d  8 slots", text, re.M), "times are the terminal's"


@pytest.mark.parametrize("spelled", ["{}", "{}.example.com", "{}.EXAMPLE.COM."])
def test_the_life_of_a_machine_is_shown_by_any_name_of_hf(desk: Desk, life: Life, spelled: str) -> None:
    in_order(
        desk.says(spelled.format(life.returned)),
        f"^Machine {life.returned}$",
        "asked for 6 machines",
        "1 slot opened in pool pool",
        f"accepted the create of {life.returned}",
        f"{life.returned} runs in pool pool",
        "reports the end to HostFactory: complete; 6 machines run",
        f"HostFactory returned {life.returned}",
        f"{life.returned} was returned",
        r"accepted the delete of .* \(returned\)",
        f"{life.returned} is gone.",
        "^Now$",
        f"belongs to request {life.request} of template T, and was requested in pool pool",
        "is returned and gone",
    )
    assert not any(life.lost in one for one in desk.timeline_of(life.returned))


def test_the_life_of_a_return_request_is_shown(desk: Desk, life: Life) -> None:
    in_order(
        "\n".join(desk.timeline_of(life.return_id)),
        f"^HostFactory returned {life.returned} ",
        f"^{life.returned} was returned in pool pool.$",
        rf"^Pool pool accepted the delete of {life.returned} \(returned\).$",
        "^The loop reports the end to HostFactory: complete.$",
        f"^{life.returned} is gone.$",
    )
    assert "1 of 1 settled" in desk.now(life.return_id)[0]


def test_the_life_of_a_pool_shows_its_refusals_and_windows(desk: Desk, life: Life) -> None:
    in_order(
        desk.says("pool"),
        "^Pool pool$",
        "refused 2 creates: stockout",
        "The window of template T is 1000; the pool backs off, stockout: “ZONE_",
        "The window of template T is 1000; the pool backs off no more",
        f"{life.lost} was lost",
        "^Now$",
        r"^  T: window \d+\.$",
        r"^  Machines that run in this pool: 4\.",
    )
    assert not any("took" in one for one in desk.timeline_of("pool"))


def test_memory_adds_the_events_that_a_journal_lacks(desk: Desk, life: Life) -> None:
    """If most lines of the journal were rotated away, the timeline must get the missing events from memory."""
    path = Path(desk.state.journal.path)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    old = [line for line in kept if line["event"] in ("create", "delete", "close")]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    text = desk.says(life.request)
    for sentence in ("asked for 6 machines", "8 slots opened", "All run: 6 of 6", "has read the end", " are gone."):
        assert sentence in text
    path.unlink()
    assert "There is no journal" in desk.says(life.request)
    assert f"{life.lost} was lost" in desk.says(life.lost)


def test_the_journal_contains_the_events_that_left_the_other_files(desk: Desk, life: Life) -> None:
    before = {id_: desk.timeline_of(id_) for id_ in (life.request, life.return_id)}
    desk.leave(memory())
    for id_ in before:
        assert len(before[id_]) - len(desk.timeline_of(id_)) <= 1, "only what HF has heard stood in memory alone"
        assert desk.now(id_) == ["It has left the state files; only the journal still contains it."]
    assert f"{life.lost} runs in pool pool." in desk.timeline_of(life.lost)
    Path(desk.state.memory.path).write_text("{")
    assert (desk.timeline_of(life.return_id), desk.now(life.return_id)) == (before[life.return_id], [])
    assert "not valid JSON" in desk.says(life.return_id)


# --- state and next steps ---------------------------------------------------------------------------------------------

FULL = Window(4, level=2, blocked_at=NOW - 240, retry_at=NOW + 3600, is_probing=True, failure=STOCKOUT)
STRAY = name(7, OTHER)
BRAKE = Brake(BrakeReason.TOO_MANY_ORPHANS, NOW, "many")
HELD = Failure(ErrorClass.OTHER, "it waits for its finalizers: example.com/a")
TO_GO = memory(
    record(
        slot(0, Verdict.FAILED, delete_sent=NOW - 5, is_stuck=True, hindrance=HELD),
        slot(1, is_set_aside=True),
        slot(2, Verdict.FAILED),
    )
)
BOOTS = memory(record(slot(0, submitted_at=NOW, failure=NO_ROOM), running(1, notice=Notice(LossCause.NODE, NOW))))
STANDS: dict[str, tuple[Memory, dict[str, Any], str, Sequence[str]]] = {
    "a deferred request: why, since when, and what is next": (
        memory(record(running(0), count=6, deadline_at=NOW + 60), windows={("a", TEMPLATE): FULL}),
        {},
        REQUEST,
        [
            r"The request is open\. Machines that run: 1 of 6\.$",
            r"5 in a: backoff, stockout since .* \(4 min\): ZONE_.*; next try in 60 min; b is paused",
            "The request ends by ",
        ],
    ),
    "a request that ended: whether HF has heard": (
        memory(record(running(0, Verdict.SUCCEEDED), ended=RequestStatus.COMPLETE)),
        {},
        REQUEST,
        [".*; not reported to HostFactory yet", ""],
    ),
    "a return that goes on: how far it is": (
        memory(giving_back(name(0), name(1), id_=BACK, results={name(0): ReturnResult.GONE})),
        {},
        BACK,
        ["It is running: 1 of 2 settled; it ends by "],
    ),
    "a machine that boots: until when, and what its place says": (
        BOOTS,
        {},
        name(0),
        ["", "It does not run yet: stockout, “ZONE_RESOURCE_POOL_EXHAUSTED: no c3 here”", "If it does not run by "],
    ),
    "a machine in a queue: why it waits": (
        memory(record(slot(is_queued=True, queue_reason="Priority"))),
        {},
        name(0),
        ["", "It is queued in a: Priority."],
    ),
    "a machine in a queue that is no normal one": (
        memory(record(slot(is_queued=True, queue_reason="Priority", failure=NO_ROOM))),
        {},
        name(0),
        ["", "It does not run yet: stockout, “ZONE_RESOURCE_POOL_EXHAUSTED: no c3 here”"],
    ),
    "a machine that does not run any more": (
        memory(record(running(0, Verdict.SUCCEEDED, down_since=NOW, failure=NO_ROOM))),
        {},
        name(0),
        ["", "It has not run since .*: “ZONE_RESOURCE_POOL_EXHAUSTED: no c3 here”"],
    ),
    "a machine whose end is announced": (BOOTS, {}, name(1), ["", ".*: node.$", ".*10.0.0.1"]),
    "a machine whose delete was sent": (
        TO_GO,
        {},
        name(0),
        ["", r"It is failed\. Its delete was sent at ", "It is stuck; ", "Its place reports why .*: other: "],
    ),
    "a machine that is to be deleted": (TO_GO, {}, name(2), ["", ".*is to be sent"]),
    "a machine that is set aside": (TO_GO, {}, name(1), ["", ".*set aside", "", ""]),
    "an orphan": (
        memory(orphans={STRAY: NOW}),
        {"orphans": {"a": [STRAY]}},
        STRAY,
        [r"It belongs to no known request, so it is deleted as an orphan at \d\d:\d\d:\d\d\."],
    ),
    "an orphan that the brake holds": (
        memory(orphans={STRAY: NOW}, brake=BRAKE),
        {"orphans": {"a": [STRAY]}},
        STRAY,
        [".*once the brake is released"],
    ),
    "a pool with all that can be wrong": (
        memory(record(running(0), slot(1)), brake=Brake(BrakeReason.WRONG_ENDPOINT, NOW, "Another place.", "a")),
        {
            "paused": ["a"],
            "pools": {"a": ["not seen: no route"]},
            "refused": [
                StandingRefusal("a", "delete", "", NOW, "denied"), StandingRefusal("a", "create", "T", NOW, "no")
            ],
        },
        "a",
        ["It is paused", ".*route", ".*deletes since", ".*of template T", "It has latched", "T: 1 missing", "Machines"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("held", "left", "id_", "says"), STANDS.values(), ids=STANDS)
def test_it_shows_the_state_and_the_next_steps(
    desk: Desk, held: Memory, left: dict[str, Any], id_: str, says: Sequence[str]
) -> None:
    desk.leave(held, ALLOWED, **left)
    sentences = desk.now(id_)
    for sentence, pattern in zip(sentences, says, strict=True):
        assert re.match(pattern, sentence), sentences
    if id_ == BACK:
        assert desk.timeline_of(BACK) == [f"HostFactory returned {name(0)}, {name(1)} (return request {BACK})."]


def test_a_dead_loop_is_reported(desk: Desk) -> None:
    desk.leave(memory(record(count=1)))
    assert not any("LOOP" in one for one in desk.now(REQUEST))
    desk.state.loop_lock.acquire(0)
    desk.state.loop_lock.raise_epoch()
    desk.state.loop_lock.sign_off()
    desk.state.loop_lock.release()
    assert desk.now(REQUEST)[-1].startswith("LOOP NOT RUNNING since ")
    Path(desk.state.heartbeat.path).unlink()
    assert "never run" in desk.now(REQUEST)[-1]


# --- unknown ids and damaged files ------------------------------------------------------------------------------------


def test_an_unknown_id_is_answered_with_similar_ids(desk: Desk) -> None:
    desk.leave(memory(record(running(0)), giving_back(name(0), id_=BACK)))
    text = desk.says(REQUEST[:-1] + "x", code=1)
    assert "no request, return request, machine or pool" in text
    assert f"similar spelling: {REQUEST}." in text
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
    assert "Torn lines of the journal, which are left out: 1." in text
    assert "symbolic link" in text
    assert "asked for 9 machines" in text


def test_an_empty_timeline_says_where_the_journal_begins(desk: Desk) -> None:
    desk.leave(memory())
    desk.journal({"event": "asked", "request": OTHER, "template": "T", "count": 9})
    assert "The journal, which begins at" in desk.says("a")


def test_a_journal_with_unknown_lines_is_searched_all_the_same(desk: Desk) -> None:
    desk.journal({"event": "asked", "return": BACK, "machines": 3}, {"event": "x", "machines": [1], "pool": "zz"})
    assert "Return request" in desk.says(BACK)
    assert "Pool zz" in desk.says("zz")
    assert "spelled" not in desk.says("machines", code=1)


def test_memory_and_journal_show_each_machine_once(desk: Desk) -> None:
    desk.leave(memory(record(*[running(n) for n in range(3)], ended=RequestStatus.COMPLETE, reported_at=BEFORE)))
    desk.journal({"event": "running", "request": REQUEST, "pool": "a", "machines": [name(0), name(1)]}, ago=3.0)
    runs = [one for one in desk.timeline_of(REQUEST) if " run" in one]
    assert runs == [f"{name(2)}, {name(0)}, {name(1)} run in pool a."]

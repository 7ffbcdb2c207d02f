"""Requests leave the files, whatever happens between any two steps of it; a week of HF's calls stays small."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.model import (
    RETURN_ID_PREFIX,
    Contact,
    Intent,
    Limits,
    Memory,
    Request,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    ReturnRequest,
    machine_name,
)
from provisioner.plan import make_trim
from provisioner.store import StateDir, new_id
from tests.simulation.story import LIMITS, Story, crash, disk_is_full

RETENTION = LIMITS.retention


def told_story() -> Story:
    """HF has had machines, gave them back, and heard all about it long ago: everything is about to leave."""
    story = Story()
    for template in ("pods", "vms"):
        story.request(template, 2)
    story.run(300.0, 15)
    story.poll_all()
    story.return_all()
    story.run(200.0, 10)
    story.poll_all()
    story.cycle()
    assert all(story.returns.values())
    assert story.machines() == {}
    story.advance(RETENTION - 1.0)
    story.cycle()
    assert len(remains(story)["intent"]) == 3, "nothing leaves before its time"
    story.advance(1.0)
    return story


def remains(story: Story) -> dict[str, set[str]]:
    """The ids that each file still holds."""
    intent, memory = story.hf.intent.read(), story.memory()
    assert memory is not None
    return {
        "intent": {*intent.requests, *intent.returns},
        "memory": {*memory.requests, *memory.returns},
        "status": set(story.hf.status.read_all()),
        "seen": set(story.hf.seen.marks()),
    }


@pytest.mark.parametrize("end", [crash, disk_is_full], ids=["killed", "disk full"])
def test_trimming_is_taken_up_again_wherever_it_ended(end: Callable[[str], None]) -> None:
    """The return leaves first, then, as nothing names their machines any more, the requests: four cycles in all."""
    places: set[str] = set()
    for before in range(4):
        for at in itertools.count(1):
            if not (ended := trimmed_but_for(before, at, end)):
                break
            places |= ended
    writes = ["memory.write", "status.write", "intent.transaction", "seen.forget"]
    assert places >= {f"{when} {write}" for when in ("before", "after") for write in writes}


def trimmed_but_for(before: int, at: int, end: Callable[[str], None]) -> set[str]:
    """A story whose cycle after ``before`` others ends at step ``at`` of it; where that was."""
    places: set[str] = set()

    def ends(where: str) -> None:
        places.add(where)
        end(where)

    story = told_story()
    story.run(1.0 * before, before)
    story.fuse.light(at, ends)
    story.cycle()
    story.run(RETENTION, 20)  # a restart may have put loop time back
    assert remains(story) == {"intent": set(), "memory": set(), "status": set(), "seen": set()}
    story.poll_all()  # HF asks once more: the judge sees that no answer reverts
    story.run(60.0, 3)
    assert story.machines() == {}
    story.close()
    return places


# --- a week of HF's calls ---------------------------------------------------------------------------------------------

INTERVAL = 30.0
"""Seconds between two calls of profile P1: each asks for machines, and gives others back."""

DAY = 86400.0
"""Seconds of calls that are written at once, and the time for which they stay: twice that is there at most."""

WEEK = 7 * DAY


def machines(chance: random.Random, most: int) -> int:
    """A number of machines by profile P1: lognormal, median 6."""
    return min(most, max(1, round(chance.lognormvariate(math.log(6.0), 0.9))))


def test_a_week_of_hf_s_calls_keeps_intent_small(tmp_path: Path) -> None:
    chance, state, limits = random.Random(1), StateDir(tmp_path), Limits("hf", {}, {})
    state.intent.create("demo")
    memory, largest, calls = Memory("demo"), 0, 0
    for day in range(round(WEEK / DAY)):
        began = day * DAY
        calls += _call(state, began, chance)
        memory = _ended(state, memory, began)
        for _ in range(2):  # marked and removed from intent; then, as intent lacks it, forgotten
            plan = make_trim(state.intent.read(), Contact(), memory, limits, began + DAY)
            memory = plan.memory
            with state.intent.transaction() as intent:
                intent.remove(plan.forget)
        largest = max(largest, Path(state.intent.path).stat().st_size)
    assert calls == 2 * WEEK / INTERVAL
    assert len(memory.requests) <= DAY / INTERVAL, "all that is older than a day has left memory too"
    assert largest < 5_000_000


def _call(state: StateDir, began: float, chance: random.Random) -> int:
    """HF's calls of one step; how many they were."""
    walls = [began + number * INTERVAL for number in range(round(DAY / INTERVAL))]
    requests = [Request(new_id(), "GkePod", machines(chance, 50), wall) for wall in walls]
    returns = [
        ReturnRequest(
            RETURN_ID_PREFIX + new_id(),
            tuple(machine_name("hf", request.id, slot) for slot in range(machines(chance, 30))),
            request.created_wall,
        )
        for request in requests
    ]
    # Puts them all in by one write; a transaction would look at every known id for each new one.
    before = state.intent.restore(
        Intent("demo", 0, {each.id: each for each in requests}, {each.id: each for each in returns})
    )
    assert before is not None
    Path(before).unlink()
    return len(requests) + len(returns)


def _ended(state: StateDir, memory: Memory, began: float) -> Memory:
    """What the loop knows after the step: HF heard at once that each new call was carried out."""
    intent, done = state.intent.read(), RequestStatus.COMPLETE
    new = {
        wish.id: RequestRecord(
            wish.id, wish.template, wish.count, wish.created_wall, 0.0, ended=done, ended_at=began, told_at=began
        )
        for wish in intent.requests.values()
        if wish.id not in memory.requests
    }
    backs = {
        back.id: ReturnRecord(back.id, back.names, back.created_wall, 0.0, ended=done, ended_at=began, told_at=began)
        for back in intent.returns.values()
        if back.id not in memory.returns
    }
    return replace(memory, requests=memory.requests | new, returns={**memory.returns, **backs})

"""Requests leave the files, whatever happens between any two steps of it; a week of HF's calls stays small."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("end", [pytest.param(crash, id="killed"), pytest.param(disk_is_full, id="disk full")])
def test_trimming_is_taken_up_again_wherever_it_ended(end: Callable[[str], None]) -> None:
    """The return leaves intent in one cycle, memory and status in the next; then, as it names no machine any more, its
    requests do the same."""
    places: set[str] = set()
    for before in range(2):
        for at in itertools.count(1):
            if not (ended := trimmed_but_for(before, at, end)):
                break
            places |= ended
    writes = ["memory.write", "status.write", "intent.remove", "seen.forget"]
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
    story.run(RETENTION, 8)  # a restart may have put loop time back
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
    memory, sizes = Memory("demo"), []
    for day in range(round(WEEK / DAY)):
        calls = a_day(day * DAY, chance)
        before = state.intent.restore(calls)  # all by one write
        assert before is not None
        Path(before).unlink()
        sizes.append(Path(state.intent.path).stat().st_size)
        memory = heard(memory, calls)
        for _ in range(2):  # marked and removed from intent; then, as intent lacks it, forgotten
            plan = make_trim(state.intent.read(), Contact(), memory, limits, (day + 1) * DAY)
            memory = plan.memory
            state.intent.remove(plan.forget)
    assert len(memory.requests) == len(memory.returns) == DAY / INTERVAL, "yesterday's have left memory too"
    assert 1_000_000 < max(sizes) < 5_000_000
    assert max(sizes[2:]) < 1.1 * sizes[1], "it grows no more after the second day"


def a_day(began: float, chance: random.Random) -> Intent:
    """HF's calls of one day."""
    walls = [began + number * INTERVAL for number in range(round(DAY / INTERVAL))]
    requests = [Request(new_id(), "GkePod", machines(chance, 50), wall) for wall in walls]
    returns = [
        ReturnRequest(RETURN_ID_PREFIX + new_id(), names_of(request, machines(chance, 30)), request.created_wall)
        for request in requests
    ]
    return Intent("demo", 0, {each.id: each for each in requests}, {each.id: each for each in returns})


def names_of(request: Request, count: int) -> tuple[str, ...]:
    return tuple(machine_name("hf", request.id, slot) for slot in range(count))


def heard(memory: Memory, calls: Intent) -> Memory:
    """What the loop knows of these calls: each was carried out, and HF heard so at its next call."""
    requests = {
        wish.id: RequestRecord(wish.id, wish.template, wish.count, wish.created_wall, 0.0, **_ended(wish.created_wall))
        for wish in calls.requests.values()
    }
    returns = {
        back.id: ReturnRecord(back.id, back.names, back.created_wall, 0.0, **_ended(back.created_wall))
        for back in calls.returns.values()
    }
    return replace(memory, requests={**memory.requests, **requests}, returns={**memory.returns, **returns})


def _ended(read: float) -> dict[str, Any]:
    return {"ended": RequestStatus.COMPLETE, "ended_at": read, "told_at": read + INTERVAL}

"""Requests leave the files, whatever happens between any two steps of it; a week of HF's calls leaves nothing."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.story import LIMITS, Story, crash, disk_is_full

RETENTION = LIMITS.retention


def told_story() -> Story:
    """HF has had machines, gave them back, and heard all about it long ago: everything is about to leave."""
    story = Story()
    for template in ("pods", "vms"):
        story.request(template, 2)
    story.run(150.0, 6)
    story.poll_all()
    story.return_all()
    story.run(200.0, 6)
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


@pytest.mark.parametrize(
    "end", [pytest.param(crash, id="killed", marks=pytest.mark.slow), pytest.param(disk_is_full, id="disk full")]
)
def test_trimming_is_taken_up_again_wherever_it_ended(end: Callable[[str], None]) -> None:
    """The return leaves intent in one cycle, memory and status in the next; then, as it names no machine any more, its
    requests do the same."""
    places: set[str] = set()
    for before in range(2):
        for at in itertools.count(1):
            if not (ended := trimmed_but_for(before, at, end)):
                break
            places |= ended
    writes = ["memory.write", "status.write", "intent.remove", "terminal_answers.forget"]
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


INTERVAL = 30.0
"""Seconds between two calls of profile P1: each asks for machines, and gives others back."""

FILES = ("intent", "memory", "status")


def machines(chance: random.Random, most: int, median: float = 6.0) -> int:
    """A number of machines by profile P1: lognormal."""
    return min(most, max(1, round(chance.lognormvariate(math.log(median), 0.9))))


KEPT = 600.0
"""Seconds for which a request stays: a day in small, of as many calls as the loop can be told of in seconds."""

NO_CAPS = replace(
    LIMITS,
    pools={
        name: replace(pool, max_machines=None, max_pending=1000, initial_window=1000)
        for name, pool in LIMITS.pools.items()
    },
    templates={name: replace(template, max_machines=None) for name, template in LIMITS.templates.items()},
    retention=KEPT,
)


@pytest.mark.slow
def test_what_the_loop_records_in_a_week_grows_no_more_and_leaves_nothing_behind() -> None:
    story, chance = Story(limits=NO_CAPS), random.Random(1)
    work(story, chance)
    come_to_rest(story)
    rest = sizes_of(story)
    peaks = [work(story, chance) for _ in range(6)]
    for kind, size in rest.items():
        early, late = (max(peak[kind] for peak in some) for some in (peaks[:2], peaks[2:]))
        assert late < 1.5 * early, f"{kind}.json grows from day to day"
        assert early > 5 * size, f"{kind}.json was written"
    come_to_rest(story)
    for kind, size in sizes_of(story).items():
        assert size < 1.1 * rest[kind], f"something stays in {kind}.json"
    story.close()


def work(story: Story, chance: random.Random) -> dict[str, int]:
    """One small day of profile P1, every step of it by the loop; the largest size of each file."""
    peak = dict.fromkeys(FILES, 0)
    for _ in range(round(2 * KEPT / INTERVAL)):
        story.request(chance.choice(["wide", "pods", "vms"]), machines(chance, 12, median=3.0))
        hosts = sorted(story.judge.hosts())
        if len(hosts) > 10:
            story.give_back(chance.sample(hosts, min(len(hosts), machines(chance, 12, median=4.0))))
        poll_open(story)
        story.list_hosts()
        story.run(INTERVAL, 2)
        peak = {kind: max(size, peak[kind]) for kind, size in sizes_of(story).items()}
    return peak


def come_to_rest(story: Story) -> None:
    """HF gives everything back, hears so, and all leaves the files."""
    for _ in range(40):
        story.return_all()
        poll_open(story)
        story.list_hosts()
        story.run(120.0, 4)
        if not any(remains(story).values()):
            return
    raise AssertionError(f"still there: {remains(story)}")


def poll_open(story: Story) -> None:
    """getRequestStatus for what HF waits for."""
    told = {id_: wanted.told for id_, wanted in story.requests.items()} | story.returns
    for id_ in [id_ for id_, answer in told.items() if answer is None]:
        story.poll(id_)


def sizes_of(story: Story) -> dict[str, int]:
    """Of what they hold, but for usage: of each day it keeps some, for as many days as a setting says."""
    files = {kind: json.loads((Path(story.directory.name) / f"{kind}.json").read_text()) for kind in FILES}
    files["memory"].pop("usage", None)
    return {kind: len(json.dumps(content)) for kind, content in files.items()}

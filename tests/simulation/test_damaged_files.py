"""What HF was told of how a request or a return ended never differs in a byte, and no machine pays for it, whatever
became of the files, in whatever order, under whatever loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.simulation.story import Story

FILES, DAMAGES, LOOPS = ("status", "memory", "intent"), ("deleted", "cut", "old copy"), ("running", "down", "restarted")

Blow = tuple[str, str]
"""A file and what becomes of it."""

BLOWS: list[Blow] = list(itertools.product(FILES, DAMAGES))


def site() -> Story:
    """A story with a request in each state that an answer can be in."""
    story = Story()
    for template, count in (("wide", 3), ("pods", 1), ("vms", 2), ("pods", 2), ("wide", 1), ("vms", 1)):
        story.request(template, count)
    told, unheard, partly, lost, early, trimmed = story.requests
    story.run(600.0, 30)
    for id_ in (told, partly, lost, trimmed):
        story.poll(id_)
    listed = {id_: sorted(story.requests[id_].listed) for id_ in story.requests}
    assert all(story.requests[id_].told for id_ in (told, partly, lost, trimmed))
    story.give_back(listed[trimmed])
    story.run(120.0, 6)
    story.poll_all(unheard, early)
    story.keep_copies()
    story.give_back(listed[partly][:1])
    story.vanish(listed[lost][0])
    story.give_back(name for name in story.machines() if early in name)
    story.run(120.0, 6)
    story.request("pods", 1)
    story.cycle()
    return story


def strike(story: Story, blow: Blow, loop: str) -> None:
    """The file is damaged; HF asks before the loop has noticed, and after."""
    kind, damage = blow
    story.lose([kind], put_back=damage == "old copy", cut=damage == "cut", restarted=False)
    if loop == "restarted":
        story.restart()
        story.cycle()
    if loop != "running":
        story.poll_all()
    if loop == "down":
        story.list_hosts()
        story.restart()
    story.run(40.0, 2)
    story.poll_all()
    story.list_hosts()


def survives(blows: tuple[Blow, ...], loop: str) -> None:
    """The judge watches; at the end everything has to come to rest."""
    with closing(site()) as story:
        for blow in blows:
            strike(story, blow, loop)
        story.run(300.0, 10)
        story.poll_all()
        story.settle()


def orders(count: int) -> Iterator[tuple[Blow, ...]]:
    """So many blows at different files, in every order."""
    return (blows for blows in itertools.permutations(BLOWS, count) if len({kind for kind, _ in blows}) == count)


@pytest.mark.parametrize(
    "loop", [pytest.param(loop, marks=[] if loop == "running" else pytest.mark.slow) for loop in LOOPS]
)
@pytest.mark.parametrize("blow", BLOWS, ids=" ".join)
def test_what_was_told_stands_when_one_file_is_damaged(blow: Blow, loop: str) -> None:
    survives((blow,), loop)


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("count", [2, 3])
@settings(max_examples=10, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=st.data())
def test_what_was_told_stands_when_several_files_are_damaged(data: st.DataObject, loop: str, count: int) -> None:
    survives(data.draw(st.sampled_from(list(orders(count)))), loop)

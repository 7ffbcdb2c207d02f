"""Damaged files. No byte of a reported terminal answer changes, and no machine is lost.

Files are damaged in any order. Meanwhile the loop runs, restarts or is down.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.simulation.simulation import Simulation

FILES, DAMAGES, LOOPS = ("status", "memory", "intent"), ("deleted", "cut", "old copy"), ("running", "down", "restarted")

Blow = tuple[str, str]
"""A file and its damage."""

BLOWS: list[Blow] = list(itertools.product(FILES, DAMAGES))


def site() -> Simulation:
    """Return a simulation with one request of each sort: open, complete but not read, reported, with some or all
    machines returned, with a lost machine, and with machines that were returned before their answer was read."""
    sim = Simulation()
    for template, count in (("wide", 3), ("pods", 1), ("vms", 2), ("pods", 2), ("wide", 1), ("vms", 1)):
        sim.request(template, count)
    reported, unheard, partly, lost, early, trimmed = sim.requests
    sim.run(600.0, 30)
    for id_ in (reported, partly, lost, trimmed):
        sim.poll(id_)
    listed = {id_: sorted(sim.requests[id_].listed) for id_ in sim.requests}
    assert all(sim.requests[id_].reported for id_ in (reported, partly, lost, trimmed))
    sim.return_machines(listed[trimmed])
    sim.run(120.0, 6)
    sim.poll_all(unheard, early)
    sim.keep_copies()
    sim.return_machines(listed[partly][:1])
    sim.vanish(listed[lost][0])
    sim.return_machines(name for name in sim.machines() if early in name)
    sim.run(120.0, 6)
    sim.request("pods", 1)
    sim.cycle()
    return sim


def strike(sim: Simulation, blow: Blow, loop: str) -> None:
    """Damage the file, and let HF call the scripts afterwards.

    ``loop``: the loop is ``running``, is ``restarted``, or is ``down``. If it is down, HF calls the scripts before the
    loop is started again, and once more afterwards.
    """
    kind, damage = blow
    sim.lose([kind], put_back=damage == "old copy", cut=damage == "cut", restarted=False)
    if loop == "restarted":
        sim.restart()
        sim.cycle()
    if loop != "running":
        sim.poll_all()
    if loop == "down":
        sim.list_hosts()
        sim.restart()
    sim.run(40.0, 2)
    sim.poll_all()
    sim.list_hosts()


def survives(blows: tuple[Blow, ...], loop: str) -> None:
    """Damage these files one after the other, and check that all requests then end without a broken law."""
    with closing(site()) as sim:
        for blow in blows:
            strike(sim, blow, loop)
        sim.run(300.0, 10)
        sim.poll_all()
        sim.settle()


def orders(count: int) -> Iterator[tuple[Blow, ...]]:
    """Return every sequence of ``count`` damages to different files."""
    return (blows for blows in itertools.permutations(BLOWS, count) if len({kind for kind, _ in blows}) == count)


@pytest.mark.parametrize(
    "loop", [pytest.param(loop, marks=[] if loop == "running" else pytest.mark.slow) for loop in LOOPS]
)
@pytest.mark.parametrize("blow", BLOWS, ids=" ".join)
def test_reported_answers_stay_when_one_file_is_damaged(blow: Blow, loop: str) -> None:
    survives((blow,), loop)


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("count", [2, 3])
@settings(max_examples=10, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=st.data())
def test_reported_answers_stay_when_several_files_are_damaged(data: st.DataObject, loop: str, count: int) -> None:
    survives(data.draw(st.sampled_from(list(orders(count)))), loop)

"""An operator's release of the brake takes effect, even if it comes in the middle of a cycle, at any step."""

from __future__ import annotations

from contextlib import closing
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.simulation import Simulation
from tests.simulation.stores import STORES, KubeStore


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("_state", "take_release"),
        ("_intent", "read"),
        ("_startup", "memory"),
        ("_memory_file", "record"),
        ("_state", "forget_release"),
        ("_publisher", "publish"),
        ("_intent", "forget"),
    ],
)
@pytest.mark.parametrize("store", STORES)
def test_a_release_in_the_middle_of_a_cycle_is_not_lost(store: str, part: str, step: str, is_after: bool) -> None:
    with closing(Simulation(store=STORES[store])) as sim:
        sim.request("pods", 2)
        sim.run(300.0, 15)
        sim.poll_all()
        sim.keep_copies()
        old = sim.store.server.snapshot() if isinstance(sim.store, KubeStore) else None
        sim.request("pods", 1)
        sim.run(300.0, 15)
        sim.judge.note_lost_files(["intent", "memory", "status"])
        if isinstance(sim.store, KubeStore):
            sim.store.server.restore(old)
        else:
            sim.lose(["intent"], put_back=True, restarted=False)
        sim.run(15.0, 15)
        assert has_brake(sim)
        sim.hf.ask_release()  # too early, because the lost request is not written yet
        place = getattr(sim.life.reconciler, part)
        original, recovered = getattr(place, step), []

        def meanwhile(*arguments: Any, **options: Any) -> Any:
            if recovered:
                return original(*arguments, **options)
            recovered.append(True)
            result = original(*arguments, **options) if is_after else None
            sim.recover()
            return result if is_after else original(*arguments, **options)

        sim.expected = (*sim.expected, "the object has been modified")
        with patch.object(place, step, meanwhile):
            sim.cycle()
        assert recovered
        sim.run(120.0, 15)
        assert not has_brake(sim)
        assert not sim.hf.release_asked()


def has_brake(sim: Simulation) -> bool:
    memory = sim.memory()
    assert memory is not None
    return memory.brake is not None

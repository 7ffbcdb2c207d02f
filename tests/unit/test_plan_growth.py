"""Ten times the slots are ten times the work, and not more: counted, as times depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from provisioner.model import Contact, Limits, Memory, Plan, ReturnRequest
from provisioner.planning.plan import World, make_plan
from tests.bench.bench_plan import running, scene

LINEAR = 10.5
"""Times the steps for ten times the slots: ten, and a little for what is rounded up."""


def steps(act: Callable[[], object]) -> int:
    """How many instructions of Python it takes."""
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return counted


def plans(slots: int, per_request: int) -> dict[str, Callable[[], Plan]]:
    """Each kind of plan with so many slots."""
    intent, limits, empty = scene(slots, per_request)
    opened = make_plan(World(intent, {"pool": empty}), Memory("demo"), limits, 1000.0)
    full = running(opened)
    settled = make_plan(World(intent, {"pool": full}), opened.memory, limits, 1002.0).memory
    told = Contact(told=frozenset(intent.requests))
    back = replace(intent, generation=2, returns={"ret-1": ReturnRequest("ret-1", tuple(full.machines), 0.0)})
    strange = replace(full, machines={f"x{name}": machine for name, machine in full.machines.items()})

    def plan(world: World, memory: Memory, now: float, caps: Limits = limits) -> Callable[[], Plan]:
        return lambda: make_plan(world, memory, caps, now)

    return {
        "open all": plan(World(intent, {"pool": empty}), Memory("demo"), 1000.0),
        "all begin to run": plan(World(intent, {"pool": full}), opened.memory, 1002.0),
        "steady": plan(World(intent, {"pool": full}), settled, 1003.0),
        "all vanish": plan(World(intent, {"pool": replace(empty, began=1003.0)}), settled, 1004.0),
        "all are returned": plan(World(back, {"pool": full}, told), settled, 1004.0),
        "all are strange": plan(World(intent, {"pool": strange}), settled, 1004.0),
        "all are overdue": plan(World(intent, {"pool": replace(empty, began=9999.0)}), opened.memory, 10_000.0),
        "all are listed": plan(
            World(intent, {"pool": full}, Contact(inventory=frozenset(full.machines))), settled, 1004.0
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("requests", ["one request", "many requests"])
@pytest.mark.parametrize("kind", plans(1, 1))
def test_ten_times_the_slots_take_ten_times_the_steps(kind: str, requests: str) -> None:
    few, many = (plans(slots, slots if requests == "one request" else 10)[kind] for slots in (200, 2000))
    few(), many()  # what is made at the first use is not counted
    assert steps(many) <= LINEAR * steps(few)

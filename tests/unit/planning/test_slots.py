"""Tries of a wanted machine. Some failures use up a try. After the last try, HF gets an answer."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.model import (
    Create,
    ErrorClass,
    Failure,
    Limits,
    Machine,
    Memory,
    Outcome,
    Phase,
    RequestRecord,
    RequestStatus,
    Slot,
    Tries,
    Verdict,
)
from provisioner.planning.core.slots import count_missing, find_missing_tries
from provisioner.planning.finish.deadlines_and_ends import NOT_BOOTED
from provisioner.planning.observe.call_outcomes import apply_outcomes
from provisioner.planning.report.answers import request_answer
from tests.support.parts import alter
from tests.unit.core import (
    BROKEN,
    NOW,
    REQUEST,
    STOCKOUT,
    TEMPLATE,
    limits,
    machine,
    memory,
    name,
    plan,
    pool,
    record,
    running,
    slot,
    snapshot,
    unsent,
)

REFUSED = Failure(ErrorClass.INVALID, "the disk image does not exist")
FAILED, GONE = Verdict.FAILED, {"is_gone": True}


def tried(times: int = 3, *pools: str, **changes: float) -> Limits:
    known = limits(
        *(pool(one, spill_after_seconds=1e6) for one in pools or ("a",)), backoff_last=1.0, backoff_first=1.0
    )
    one = replace(known.templates[TEMPLATE], tries=times)
    return replace(known, templates={TEMPLATE: one}, **changes)


def failed(number: int, tries: int = 0, why: Failure | None = BROKEN, before: Failure | None = None) -> Slot:
    """Return the slot of a failed try whose machine has no leftovers. ``tries``: the failed tries before this one."""
    return slot(number, FAILED, failure=why, tries=tries, tried=before, **GONE)


@pytest.mark.parametrize(
    ("slots", "count", "expected"),
    [
        pytest.param([], 2, [Tries(), Tries()], id="nothing was tried"),
        pytest.param([unsent(0), running(1, Verdict.SUCCEEDED)], 2, [], id="one was not sent yet, one is there"),
        pytest.param([failed(0), slot(1)], 2, [Tries(1, BROKEN)], id="one failed"),
        pytest.param([failed(0), slot(1, tries=1, tried=BROKEN)], 1, [], id="one failed, and is replaced"),
        pytest.param([failed(0), failed(1, 1, REFUSED, BROKEN)], 1, [Tries(2, REFUSED)], id="its replacement failed"),
        pytest.param([failed(0), failed(1), slot(2, tries=1, tried=BROKEN)], 3, [Tries(), Tries(1, BROKEN)],
                     id="two failed, one of them is replaced, one was never tried"),
        pytest.param([failed(0, why=STOCKOUT)], 1, [Tries(0, STOCKOUT)], id="a stock-out: no try, and a reason"),
        pytest.param([failed(0, why=STOCKOUT), failed(1, why=STOCKOUT, before=STOCKOUT)], 1, [Tries(0, STOCKOUT)],
                     id="stock-outs, one after the other"),
        pytest.param([failed(0), slot(1, Verdict.WITHDRAWN, tries=1, tried=BROKEN)], 1, [Tries(1, BROKEN)],
                     id="its replacement was withdrawn"),
        pytest.param([failed(0), unsent(1, FAILED, tries=1, tried=BROKEN)], 1, [], id="it was given up"),
        pytest.param([failed(0), slot(1, Verdict.CANCELLED, tries=1, tried=BROKEN)], 1, [], id="HF took it back"),
        pytest.param([failed(0), failed(1, 1, NOT_BOOTED, BROKEN)], 1, [Tries(2, BROKEN)],
                     id="that time ran out is no reason where there is a better one"),
        pytest.param([failed(0, why=NOT_BOOTED)], 1, [Tries(1, NOT_BOOTED)], id="else it is the reason"),
        pytest.param([failed(0, 0, None)], 1, [Tries()], id="its end is unknown: no try"),
        pytest.param([failed(0), failed(1), slot(2), slot(3), failed(4)], 3, [Tries(1, BROKEN)],
                     id="of an earlier version, whose replacements know of no tries"),
    ],
)  # fmt: skip
def test_gaps(slots: list[Slot], count: int, expected: list[Tries]) -> None:
    known = record(*slots, count=count)
    assert find_missing_tries(known) == expected
    assert count_missing(known) == len(expected)


@pytest.mark.parametrize("error", ErrorClass)
def test_which_failures_say_nothing_of_the_machine(error: ErrorClass) -> None:
    no_try = {ErrorClass.THROTTLED, ErrorClass.STOCKOUT, ErrorClass.QUOTA, ErrorClass.UNAVAILABLE}
    [gap] = find_missing_tries(record(failed(0, why=Failure(error, "why"))))
    assert gap == Tries(0 if error in no_try else 1, Failure(error, "why"))


def replaced(one: Slot, observation: Machine | None = None, times: int = 3) -> tuple[RequestRecord, int]:
    """Return the request after a plan, and the number of creates in the plan. Two tries failed before ``one``."""
    known = memory(record(failed(0), failed(1, 1, REFUSED, BROKEN), one, count=1))
    made = plan(known, snapshot(*([observation] if observation else [])), limits=tried(times))
    return made.memory.requests[REQUEST], len(made.creates)


THIRD = slot(2, tries=2, tried=REFUSED)
DEAD = Failure(ErrorClass.OTHER, "exit code 1")


@pytest.mark.parametrize(
    ("one", "observation", "why"),
    [
        pytest.param(alter(THIRD, verdict=FAILED, failure=BROKEN, closed_at=NOW, is_gone=True), None, BROKEN,
                     id="its create was refused for good"),
        pytest.param(alter(THIRD, submitted_at=NOW - 600, was_seen=True, failure=BROKEN),
                     machine(2, Phase.PENDING, failure=BROKEN), BROKEN, id="its boot failed"),
        pytest.param(alter(THIRD, submitted_at=NOW - 600), None, REFUSED, id="its boot failed for an unknown reason"),
        pytest.param(running(2, tries=2, tried=REFUSED), machine(2, Phase.GONE, failure=DEAD), DEAD, id="it died"),
    ],
)  # fmt: skip
def test_after_three_tries_a_machine_is_given_up_with_the_last_real_reason(
    one: Slot, observation: Machine | None, why: Failure
) -> None:
    known, creates = replaced(one, observation)
    assert (known.ended, creates) == (RequestStatus.COMPLETE_WITH_ERROR, 0)
    reported = known.slots[3]
    assert (reported.verdict, reported.submitted_at, reported.tries.failed) == (FAILED, None, 3)
    assert reported.failure is not None
    assert reported.failure.text.endswith(why.text), "in the cloud's words"
    entries = json.loads(request_answer(known).text)["machines"]
    assert [(entry["machineId"], entry["result"]) for entry in entries] == [(name(3), "fail")], "HF hears of it once"


@pytest.mark.parametrize("times", [0, 4])
def test_more_tries_go_on(times: int) -> None:
    known, creates = replaced(alter(THIRD, verdict=FAILED, failure=BROKEN, closed_at=NOW, is_gone=True), times=times)
    assert (known.ended, creates, known.slots[3].tries.failed, known.slots[3].tries.failure) == (None, 1, 3, BROKEN)


def test_a_stock_out_waits_for_the_deadline_however_often() -> None:
    """A stock-out uses up no try. So the machine is tried again and again until the request's deadline."""
    before = [failed(number, why=STOCKOUT, before=STOCKOUT) for number in range(9)]
    made = plan(memory(record(*before, count=1)), snapshot(), limits=tried())
    again = made.memory.requests[REQUEST].slots[9]
    assert (len(made.creates), again.tries.failed, again.tries.failure) == (1, 0, STOCKOUT)


def test_a_machine_that_goes_to_the_next_pool_takes_its_tries_along() -> None:
    both = tried(3, "a", "b")
    pools = both.pools | {"a": replace(both.pools["a"], spill_after_seconds=60.0)}
    one = slot(1, submitted_at=NOW - 60, was_seen=True, tries=1, tried=BROKEN)
    seen = snapshot(machine(1, Phase.PENDING))
    made = plan(memory(record(failed(0), one, count=1)), seen, snapshot(pool="b"), limits=replace(both, pools=pools))
    slots = made.memory.requests[REQUEST].slots
    assert (slots[1].verdict, slots[2].pool) == (Verdict.WITHDRAWN, "b")
    assert (slots[2].tries.failed, slots[2].tries.failure) == (1, BROKEN)
    assert count_missing(made.memory.requests[REQUEST]) == 0


def test_what_failed_least_is_asked_for_first() -> None:
    slots = [failed(0), failed(1, 1, REFUSED, BROKEN), failed(2)]
    made = plan(memory(record(*slots, count=3)), snapshot(), limits=replace(tried(), pools={"a": pool(max_pending=2)}))
    opened = [made.memory.requests[REQUEST].slots[number].tries.failed for number in (3, 4)]
    assert opened == [0, 1]
    assert find_missing_tries(made.memory.requests[REQUEST]) == [Tries(2, REFUSED)]


ANY = settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")), derandomize="EXAMPLES" not in os.environ, deadline=None
)
FATES = st.sampled_from(
    [
        *(Failure(error, f"{error} said the cloud") for error in ErrorClass if not error.is_ambiguous),
        BROKEN,
        "stays pending",
        "runs",
        "runs and dies",
    ]
)
STEP = 700.0
"""Seconds that are longer than any boot or back-off."""


class Cloud:
    """A cloud that gives each machine the fate that is drawn from ``data``, and the memory of a loop with one request.
    If ``data`` is None, every machine runs."""

    def __init__(self, data: st.DataObject | None, count: int, times: int) -> None:
        self.data = data
        self.limits = tried(times, request_deadline_seconds=1e9)
        self.known: Memory = memory(record(count=count, deadline_at=1e9))
        self.machines: dict[str, Machine] = {}
        self.now = NOW

    def step(self) -> RequestRecord:
        self.now += STEP
        made = plan(self.known, snapshot(*self.machines.values(), began=self.now - 1), limits=self.limits, now=self.now)
        for delete in made.deletes:
            self.machines.pop(delete.name, None)
        outcomes = [Outcome(create, self.fate(create)) for create in made.creates]
        self.known = apply_outcomes(made.memory, outcomes, (), self.limits, self.now).memory
        return self.known.requests[REQUEST]

    def fate(self, create: Create) -> Failure | None:
        fate = "runs" if self.data is None else self.data.draw(FATES)
        if isinstance(fate, Failure) and fate != BROKEN:
            return fate
        number = int(create.name[-6:])
        phase = {"runs": Phase.RUNNING, "stays pending": Phase.PENDING}.get(str(fate), Phase.GONE)
        self.machines[create.name] = machine(number, phase, failure=BROKEN if fate == BROKEN else None)
        return None


@ANY
@given(st.data(), st.integers(1, 5), st.integers(1, 3))
def test_no_machine_is_tried_more_often_and_each_is_reported_once(data: st.DataObject, count: int, times: int) -> None:
    cloud = Cloud(data, count, times)
    reported: dict[str, str] = {}
    for step in range(30):
        if step == 20:
            cloud.data = None  # from now on everything works
        known = cloud.step()
        for one in known.slots.values():
            assert one.tries.failed <= times
            assert one.submitted_at is None or one.tries.failed < times, "tried once more than it may be"
            assert (one.tries.failure is None) <= (one.tries.failed == 0), "a try that failed has a reason"
        entries = json.loads(request_answer(known).text)["machines"]
        failures = {entry["machineId"]: entry["message"] for entry in entries if entry["result"] == "fail"}
        assert reported.items() <= failures.items(), "what was given up stays so, with its reason"
        reported = failures
        assert len(entries) <= count, "HF hears of each wanted machine once"
        if known.ended:
            break
    assert known.ended is not None
    assert len(entries) == count
    slots = [one for one in known.slots.values() if one.verdict is FAILED and one.submitted_at is not None]
    spent = [one for one in slots if find_missing_tries(record(alter(one, tries=0)))[0].failed]
    assert times * len(reported) <= len(spent) <= times * count
    words = {f"{one.failure.error}: {one.failure.text}" for one in slots if one.failure}
    assert {text.partition(" Error Code")[0] for text in reported.values()} <= words, "why a slot failed"

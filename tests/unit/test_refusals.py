"""Refusals: whatever becomes of a slot, its machine's refusal is counted, shown and said in the place's words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from provisioner.loop.cycle import CycleReport
from provisioner.model import (
    DeferReason,
    ErrorClass,
    Failure,
    Look,
    Machine,
    Memory,
    Phase,
    Plan,
    Slot,
    Snapshot,
    Unobserved,
    Verdict,
    Window,
    evolve,
)
from provisioner.planning.refusals import REFUSALS, Refusal, held_back, news, waiting
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.refusal_log import AGAIN_SECONDS, RefusalLog
from tests.unit.core import NOW, STOCKOUT, TEMPLATE, limits, memory, record, running, slot, unsent

QUOTA = Failure(ErrorClass.QUOTA, "Quota 'N2_CPUS' exceeded.")
FULL = Refusal("a", TEMPLATE, ErrorClass.STOCKOUT, STOCKOUT.text)
ASKED = slot(0)


def seen(*slots: Slot, no_room: bool = True) -> Mapping[str, Snapshot]:
    """Snapshots in which the machines of these slots wait."""
    return {
        pool: Snapshot(pool, NOW, {one.name: Machine(one.name, Phase.PENDING, no_room=no_room) for one in slots})
        for pool in ("a", "b")
    }


def after(now: Slot, before: Slot | None = ASKED, *, no_room: bool = True) -> list[Refusal]:
    """What is newly refused where one slot was as ``before`` and is as ``now``."""
    former, memory_now = memory(record(before)) if before else memory(), memory(record(now))
    known, held = (waiting(one, seen(now, no_room=no_room)) for one in (former, memory_now))
    return list(news(former, memory_now, known, held))


# --- what counts as a refusal -----------------------------------------------------------------------------------------

FATES: dict[str, Callable[[Slot], Slot]] = {
    "still open": lambda one: evolve(one, failure=STOCKOUT),
    "withdrawn for another pool": lambda one: evolve(one, failure=STOCKOUT, verdict=Verdict.WITHDRAWN),
    "failed": lambda one: evolve(one, failure=STOCKOUT, verdict=Verdict.FAILED),
    "cancelled": lambda one: evolve(one, failure=STOCKOUT, verdict=Verdict.CANCELLED),
}


@pytest.mark.parametrize("fate", FATES.values(), ids=FATES)
def test_a_machine_that_was_refused_counts_once_whatever_becomes_of_its_slot(fate: Callable[[Slot], Slot]) -> None:
    assert after(fate(ASKED)) == [FULL]
    assert after(fate(ASKED), before=evolve(ASKED, failure=STOCKOUT)) == []
    assert after(fate(ASKED), before=fate(ASKED)) == []


@pytest.mark.parametrize("error", ErrorClass)
def test_refusals_are_stock_out_quota_denied_and_what_a_person_has_to_mend(error: ErrorClass) -> None:
    counted = bool(after(evolve(ASKED, failure=Failure(error, "no"))))

    assert counted is (error in REFUSALS)
    assert counted is (error in {"stockout", "quota", "denied", "invalid", "not_found"})


NO_REFUSALS = {
    "our own cap, for which nothing was asked": unsent(0, Verdict.FAILED, failure=QUOTA),
    "the end of a machine that ran": running(0, Verdict.LOST, failure=STOCKOUT),
    "nothing new": ASKED,
}


@pytest.mark.parametrize("now", NO_REFUSALS.values(), ids=NO_REFUSALS)
def test_no_refusal_is(now: Slot) -> None:
    assert after(now) == []


def test_that_no_node_takes_a_pod_is_a_refusal_once_there_is_none_to_add_or_its_time_is_over() -> None:
    unplaced = evolve(ASKED, failure=STOCKOUT)
    former, held = memory(record(unplaced)), waiting(memory(record(unplaced)), seen(unplaced))

    assert after(unplaced, no_room=False) == []
    assert list(news(former, former, {}, held)) == [FULL], "its place has said so since"
    assert after(evolve(unplaced, verdict=Verdict.WITHDRAWN), before=unplaced, no_room=False) == [FULL]


def test_another_reason_is_another_refusal_and_other_words_for_the_same_are_not() -> None:
    was = evolve(ASKED, failure=STOCKOUT)

    assert after(evolve(ASKED, failure=QUOTA), before=was) == [Refusal("a", TEMPLATE, QUOTA.error, QUOTA.text)]
    assert after(evolve(ASKED, failure=replace(STOCKOUT, text="in other words")), before=was) == []


# --- what waits because of it -----------------------------------------------------------------------------------------


def backing_off(failure: Failure | None = STOCKOUT, level: int = 1) -> Memory:
    return memory(pressures={("a", TEMPLATE): Window(1, level=level, failure=failure)})


def test_machines_wait_that_the_pool_is_not_asked_for_because_it_refused_another() -> None:
    deferred = {("a", TEMPLATE, DeferReason.BACKOFF): 7, ("a", TEMPLATE, DeferReason.WINDOW): 2}

    assert list(held_back(backing_off(), deferred)) == [FULL._replace(machines=7), FULL._replace(machines=2)]


NOT_REFUSED: dict[str, tuple[Memory, DeferReason]] = {
    "a cap": (backing_off(), DeferReason.CAP),
    "a person": (backing_off(), DeferReason.PAUSED),
    "a window that is small": (backing_off(level=0), DeferReason.WINDOW),
    "boots that fail": (backing_off(Failure(ErrorClass.TIMEOUT, "late")), DeferReason.BACKOFF),
    "a pool that cannot be seen": (memory(), DeferReason.BACKOFF),
}


@pytest.mark.parametrize(("held", "reason"), NOT_REFUSED.values(), ids=NOT_REFUSED)
def test_what_is_held_back_is_not_refused_when_it_is_for(held: Memory, reason: DeferReason) -> None:
    assert list(held_back(held, {("a", TEMPLATE, reason): 7})) == []


def test_what_ended_waits_for_nothing() -> None:
    closed = [slot(number, verdict, failure=STOCKOUT) for number, verdict in enumerate(Verdict) if verdict != "open"]

    assert waiting(memory(record(*closed)), seen(*closed)) == {}


# --- metric and log ---------------------------------------------------------------------------------------------------


class Told:
    """Cycles told to metrics and log, and what came of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.metrics = Metrics(CollectorRegistry())
        self.metrics.configure(limits())
        self._refusals = RefusalLog(self.metrics)

    def cycle(
        self,
        held: Memory | None,
        at: float = 0.0,
        *,
        planned: bool = True,
        deferred: int = 0,
        looks: Mapping[str, Look] | None = None,
    ) -> None:
        self._refusals.take(
            CycleReport(
                number=1,
                now=NOW + at,
                seconds=0.1,
                looks=seen(slot(0), slot(1), slot(2)) if looks is None else looks,
                memory=held,
                plan=Plan(held) if planned and held else None,
                deferred={("a", TEMPLATE, DeferReason.BACKOFF): deferred} if deferred else {},
            )
        )

    @property
    def lines(self) -> list[tuple[Any, ...]]:
        """Pool, template, class, machines refused and waiting, and words of each line."""
        facts = ("pool", "template", "error", "refused", "waiting", "text")
        assert {line.levelno for line in self._caplog.records} <= {logging.WARNING}
        return [tuple(vars(line)[fact] for fact in facts) for line in self._caplog.records]

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"hf_provisioner_{name}", {"pool": "a", **labels})


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


REFUSED_ONE = memory(record(slot(0, failure=STOCKOUT)))
WITHDRAWN_ONE = memory(record(slot(0, Verdict.WITHDRAWN, failure=STOCKOUT), slot(1, pool="b")))


def test_the_first_refusal_is_said_and_counted_in_its_own_cycle(told: Told) -> None:
    told.cycle(memory(record(ASKED)))
    told.cycle(WITHDRAWN_ONE, 5.0)

    assert told.lines == [("a", TEMPLATE, "stockout", 1, 0, STOCKOUT.text)]
    assert told.value("refusals_total", error="stockout") == 1
    assert told.value("refusals_total", error="quota") == 0


def test_what_waits_is_shown_until_it_is_over(told: Told) -> None:
    told.cycle(REFUSED_ONE)
    waits = told.value("machines_refused", template=TEMPLATE, error="stockout")
    told.cycle(REFUSED_ONE, 5.0, planned=False)
    quiet = told.value("machines_refused", template=TEMPLATE, error="stockout")
    told.cycle(memory(record(running(0))), 10.0)

    assert (waits, quiet, told.value("machines_refused", template=TEMPLATE, error="stockout")) == (1, 1, None)


def test_what_waits_in_a_pool_that_cannot_be_seen_goes_on_waiting(told: Told) -> None:
    told.cycle(memory(record(ASKED)))
    told.cycle(REFUSED_ONE)
    blind = {"a": Unobserved("a", NOW, Failure(ErrorClass.TIMEOUT, "slow"))}
    told.cycle(REFUSED_ONE, 5.0, looks=blind)
    told.cycle(REFUSED_ONE, 10.0)

    assert told.value("machines_refused", template=TEMPLATE, error="stockout") == 1
    assert told.value("refusals_total", error="stockout") == 1


def test_what_goes_on_is_said_every_ten_minutes_with_how_many(told: Told) -> None:
    told.cycle(memory(record(ASKED)))
    held = backing_off()
    for second in range(0, 1801, 5):
        failed = [slot(number, Verdict.FAILED, failure=STOCKOUT) for number in range(second // 5 + 1)]
        held = replace(held, requests=memory(record(*failed)).requests)
        told.cycle(held, second, deferred=9)

    each = int(AGAIN_SECONDS // 5)
    assert told.lines == [("a", TEMPLATE, "stockout", refused, 9, STOCKOUT.text) for refused in (1, each, each, each)]
    assert told.value("refusals_total", error="stockout") == 361


def test_those_that_followed_the_first_line_are_said_although_it_is_over(told: Told) -> None:
    told.cycle(memory(record(slot(0), slot(1), slot(2))))
    told.cycle(memory(record(slot(0, Verdict.FAILED, failure=STOCKOUT), slot(1), slot(2))))
    over = memory(record(*(slot(number, Verdict.FAILED, failure=STOCKOUT) for number in range(3))))
    for second in (5.0, 599.0, 600.0, 5000.0):
        told.cycle(over, second)

    assert [line[3:5] for line in told.lines] == [(1, 0), (2, 0)]


def test_pools_templates_and_classes_have_lines_of_their_own(told: Told) -> None:
    slots = (slot(0, failure=STOCKOUT), slot(1, failure=QUOTA), slot(2, pool="b", failure=STOCKOUT))
    told.cycle(memory(record(slot(0), slot(1), slot(2, pool="b"))))
    told.cycle(memory(record(*slots)), 5.0)
    told.cycle(memory(record(*slots)), 10.0)

    assert [line[:3] for line in told.lines] == [
        ("a", TEMPLATE, "quota"),
        ("a", TEMPLATE, "stockout"),
        ("b", TEMPLATE, "stockout"),
    ]


def test_a_loop_that_starts_says_what_waits_and_counts_nothing_that_was(told: Told) -> None:
    past = slot(1, Verdict.FAILED, failure=QUOTA)
    told.cycle(None)
    told.cycle(memory(record(slot(0, failure=STOCKOUT), past)))

    assert told.lines == [("a", TEMPLATE, "stockout", 0, 1, STOCKOUT.text)]
    assert told.value("refusals_total", error="stockout") == 0
    assert told.value("refusals_total", error="quota") == 0

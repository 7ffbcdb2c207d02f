"""Refusals in metrics and log: the first is logged at once, the following ones every ten minutes with their number."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from provisioner.loop.cycle import CycleReport
from provisioner.model import (
    ErrorClass,
    Failure,
    Machine,
    Memory,
    Observation,
    ObservationFailed,
    PendingReason,
    Phase,
    Plan,
    Slot,
    Snapshot,
    Verdict,
    Window,
)
from provisioner.telemetry.cycle_log import AGAIN_SECONDS, RefusalLog
from provisioner.telemetry.metrics import Metrics
from tests.unit.core import NOW, STOCKOUT, TEMPLATE, limits, memory, record, running, slot, transitions

QUOTA = Failure(ErrorClass.QUOTA, "Quota 'N2_CPUS' exceeded.")
ASKED = slot(0)


def seen(*slots: Slot) -> Mapping[str, Snapshot]:
    """Snapshots in which the machines of these slots wait."""
    waiting = {one.name: Machine(one.name, Phase.PENDING, no_room=True) for one in slots}
    return {pool: Snapshot(pool, NOW, waiting) for pool in ("a", "b")}


class Told:
    """Cycles told to metrics and log, and what came of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.metrics = Metrics(CollectorRegistry())
        self.metrics.configure(limits())
        self._refusals = RefusalLog(self.metrics)
        self._held: Memory | None = None

    def cycle(
        self,
        held: Memory | None,
        at: float = 0.0,
        *,
        planned: bool = True,
        deferred: int = 0,
        observations: Mapping[str, Observation] | None = None,
    ) -> None:
        changed, self._held = transitions(self._held, held), held or self._held
        self._refusals.record_cycle(
            CycleReport(
                number=1,
                now=NOW + at,
                seconds=0.1,
                observations=seen(slot(0), slot(1), slot(2)) if observations is None else observations,
                memory=held,
                plan=Plan(held) if planned and held else None,
                deferred={("a", TEMPLATE, PendingReason.BACKOFF): deferred} if deferred else {},
                transitions=changed,
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
    blind = {"a": ObservationFailed("a", NOW, Failure(ErrorClass.TIMEOUT, "slow"))}
    told.cycle(REFUSED_ONE, 5.0, observations=blind)
    told.cycle(REFUSED_ONE, 10.0)

    assert told.value("machines_refused", template=TEMPLATE, error="stockout") == 1
    assert told.value("refusals_total", error="stockout") == 1


def test_what_goes_on_is_said_every_ten_minutes_with_how_many(told: Told) -> None:
    told.cycle(memory(record(ASKED)))
    held = memory(windows={("a", TEMPLATE): Window(1, level=1, failure=STOCKOUT)})
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

    assert [(line[0], line[2]) for line in told.lines] == [("a", "quota"), ("a", "stockout"), ("b", "stockout")]


def test_a_loop_that_starts_says_what_waits_and_counts_nothing_that_was(told: Told) -> None:
    past = slot(1, Verdict.FAILED, failure=QUOTA)
    told.cycle(None)
    told.cycle(memory(record(slot(0, failure=STOCKOUT), past)))

    assert told.lines == [("a", TEMPLATE, "stockout", 0, 1, STOCKOUT.text)]
    assert told.value("refusals_total", error="stockout") == 0
    assert told.value("refusals_total", error="quota") == 0

"""Refusals in metrics and log: the first is logged at once, later refusals every ten minutes with their number."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from provisioner.loop.cycle_report import CycleReport
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
    """Return snapshots in which the machines of these slots wait."""
    waiting = {one.name: Machine(one.name, Phase.PENDING, spills_at_once=True) for one in slots}
    return {pool: Snapshot(pool, NOW, waiting) for pool in ("a", "b")}


class RefusalRecorder:
    """Cycles passed to the refusal log, and the resulting metrics and log lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.metrics = Metrics(CollectorRegistry())
        self.metrics.configure(limits())
        self._refusals = RefusalLog(self.metrics)
        self._remembered: Memory | None = None

    def cycle(
        self,
        remembered: Memory | None,
        at: float = 0.0,
        *,
        planned: bool = True,
        deferred: int = 0,
        observations: Mapping[str, Observation] | None = None,
    ) -> None:
        changed, self._remembered = transitions(self._remembered, remembered), remembered or self._remembered
        self._refusals.record_cycle(
            CycleReport(
                number=1,
                now=NOW + at,
                seconds=0.1,
                observations=seen(slot(0), slot(1), slot(2)) if observations is None else observations,
                memory=remembered,
                plan=Plan(remembered) if planned and remembered else None,
                deferred={("a", TEMPLATE, PendingReason.BACKOFF): deferred} if deferred else {},
                transitions=changed,
            )
        )

    @property
    def lines(self) -> list[tuple[Any, ...]]:
        """Return the fields of each log line: pool, template, error class, number of refused machines, number of
        waiting machines, and text."""
        facts = ("pool", "template", "error", "refused", "waiting", "text")
        assert {line.levelno for line in self._caplog.records} <= {logging.WARNING}
        return [tuple(vars(line)[fact] for fact in facts) for line in self._caplog.records]

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"hf_provisioner_{name}", {"pool": "a", **labels})


@pytest.fixture
def recorder(caplog: pytest.LogCaptureFixture) -> RefusalRecorder:
    return RefusalRecorder(caplog)


REFUSED_ONE = memory(record(slot(0, failure=STOCKOUT)))
WITHDRAWN_ONE = memory(record(slot(0, Verdict.WITHDRAWN, failure=STOCKOUT), slot(1, pool="b")))


def test_the_first_refusal_is_logged_and_counted_in_its_own_cycle(recorder: RefusalRecorder) -> None:
    recorder.cycle(memory(record(ASKED)))
    recorder.cycle(WITHDRAWN_ONE, 5.0)

    assert recorder.lines == [("a", TEMPLATE, "stockout", 1, 0, STOCKOUT.text)]
    assert recorder.value("refusals_total", error="stockout") == 1
    assert recorder.value("refusals_total", error="quota") == 0


def test_waiting_machines_are_exported_until_they_run(recorder: RefusalRecorder) -> None:
    recorder.cycle(REFUSED_ONE)
    waits = recorder.value("machines_refused", template=TEMPLATE, error="stockout")
    recorder.cycle(REFUSED_ONE, 5.0, planned=False)
    quiet = recorder.value("machines_refused", template=TEMPLATE, error="stockout")
    recorder.cycle(memory(record(running(0))), 10.0)

    assert (waits, quiet, recorder.value("machines_refused", template=TEMPLATE, error="stockout")) == (1, 1, None)


def test_machines_that_wait_in_an_unseen_pool_keep_waiting(recorder: RefusalRecorder) -> None:
    recorder.cycle(memory(record(ASKED)))
    recorder.cycle(REFUSED_ONE)
    blind = {"a": ObservationFailed("a", NOW, Failure(ErrorClass.TIMEOUT, "slow"))}
    recorder.cycle(REFUSED_ONE, 5.0, observations=blind)
    recorder.cycle(REFUSED_ONE, 10.0)

    assert recorder.value("machines_refused", template=TEMPLATE, error="stockout") == 1
    assert recorder.value("refusals_total", error="stockout") == 1


def test_lasting_refusals_are_logged_every_ten_minutes_with_their_number(recorder: RefusalRecorder) -> None:
    recorder.cycle(memory(record(ASKED)))
    remembered = memory(windows={("a", TEMPLATE): Window(1, level=1, failure=STOCKOUT)})
    for second in range(0, 1801, 5):
        failed = [slot(number, Verdict.FAILED, failure=STOCKOUT) for number in range(second // 5 + 1)]
        remembered = replace(remembered, requests=memory(record(*failed)).requests)
        recorder.cycle(remembered, second, deferred=9)

    each = int(AGAIN_SECONDS // 5)
    assert recorder.lines == [
        ("a", TEMPLATE, "stockout", refused, 9, STOCKOUT.text) for refused in (1, each, each, each)
    ]
    assert recorder.value("refusals_total", error="stockout") == 361


def test_refusals_after_the_first_line_are_logged_although_they_are_over(recorder: RefusalRecorder) -> None:
    recorder.cycle(memory(record(slot(0), slot(1), slot(2))))
    recorder.cycle(memory(record(slot(0, Verdict.FAILED, failure=STOCKOUT), slot(1), slot(2))))
    over = memory(record(*(slot(number, Verdict.FAILED, failure=STOCKOUT) for number in range(3))))
    for second in (5.0, 599.0, 600.0, 5000.0):
        recorder.cycle(over, second)

    assert [line[3:5] for line in recorder.lines] == [(1, 0), (2, 0)]


def test_pools_templates_and_classes_have_lines_of_their_own(recorder: RefusalRecorder) -> None:
    slots = (slot(0, failure=STOCKOUT), slot(1, failure=QUOTA), slot(2, pool="b", failure=STOCKOUT))
    recorder.cycle(memory(record(slot(0), slot(1), slot(2, pool="b"))))
    recorder.cycle(memory(record(*slots)), 5.0)
    recorder.cycle(memory(record(*slots)), 10.0)

    assert [(line[0], line[2]) for line in recorder.lines] == [("a", "quota"), ("a", "stockout"), ("b", "stockout")]


def test_a_loop_that_starts_logs_waiting_machines_and_counts_no_earlier_refusal(recorder: RefusalRecorder) -> None:
    past = slot(1, Verdict.FAILED, failure=QUOTA)
    recorder.cycle(None)
    recorder.cycle(memory(record(slot(0, failure=STOCKOUT), past)))

    assert recorder.lines == [("a", TEMPLATE, "stockout", 0, 1, STOCKOUT.text)]
    assert recorder.value("refusals_total", error="stockout") == 0
    assert recorder.value("refusals_total", error="quota") == 0

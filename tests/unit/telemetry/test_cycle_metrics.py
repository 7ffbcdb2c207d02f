"""The metrics of a cycle: its actions, and the contents of memory and snapshots after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from provisioner.loop.batch_threads import Results
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import (
    Brake,
    BrakeReason,
    Create,
    Delete,
    DeleteReason,
    Hold,
    HoldKind,
    Holds,
    Limits,
    LossCause,
    Memory,
    Notice,
    Observation,
    Outcome,
    PendingReason,
    Phase,
    RequestStatus,
    TemplateLimits,
    Verdict,
    Window,
)
from provisioner.state.directory import StateDir
from provisioner.telemetry.cycle_metrics import CycleMeter
from provisioner.telemetry.metrics import Metrics
from tests.support.parts import alter
from tests.unit.core import (
    BEFORE,
    BROKEN,
    NOW,
    OTHER,
    REQUEST,
    STOCKOUT,
    ended,
    failed_observation,
    giving_back,
    limits,
    machine,
    memory,
    name,
    record,
    running,
    slot,
    snapshot,
    transitions,
    unsent,
)

WALL = NOW + 1_000_000.0
"""The epoch time of loop time ``NOW``."""
LIMITS = limits()
LIMITS = replace(LIMITS, templates={**LIMITS.templates, "U": TemplateLimits("U", ("a",))})
Series = dict[str, float | None]
"""Values by metric and labels, as ``machines pool=a template=T``; None: the series does not exist."""


def report(remembered: Memory | None, *observations: Observation, now: float = NOW) -> CycleReport:
    return CycleReport(
        1, now, 0.5, {observation.pool: observation for observation in observations}, remembered, None, {}
    )


def metered(directory: Path, reports: Sequence[CycleReport], allowed: Limits = LIMITS) -> Metrics:
    """Return the metrics after these cycles."""
    metrics = Metrics(CollectorRegistry())
    metrics.configure(LIMITS)
    meter = CycleMeter(metrics, StateDir(directory))
    former = None
    for one in reports:
        last = allowed if one is reports[-1] else LIMITS
        meter.record_cycle(replace(one, transitions=[*one.transitions, *transitions(former, one.memory)]), last)
        former = one.memory
    return metrics


def value(metrics: Metrics, series: str) -> float | None:
    metric, *labels = series.split()
    named = dict(label.split("=") for label in labels)
    return metrics.registry.get_sample_value(f"hf_provisioner_{metric}", named)


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: WALL)


PAIR = "pool=a template=T"
EMPTY = report(memory(record()))
BLIND = report(memory(record()), failed_observation("a"), now=NOW + 60)
ALL_VERDICTS = [report(memory(record(*(slot(n, verdict) for n, verdict in enumerate(Verdict)), slot(99, pool="b"))))]
UNLISTED = memory(
    record(running(0, Verdict.SUCCEEDED), running(1, Verdict.SUCCEEDED)),
    unlisted={name(0): NOW - 86400, name(1): NOW - 86399},
)
OLDEST = memory(
    record(slot(1), id_="aaaaaaaaaa", ended=RequestStatus.COMPLETE, read_at=NOW - 60),
    *(record(slot(1), id_=id_ * 10, read_at=NOW - age) for id_, age in (("c", 30), ("b", 50), ("d", 10))),
)
COUNTED = memory(record(), record(id_=OTHER, ended=RequestStatus.COMPLETE), giving_back("x"))
STARTS = (slot(1), slot(1, ran_at=BEFORE + 42), slot(1, ran_at=BEFORE + 42, notice=Notice(LossCause.PREEMPTED, NOW)))
GOING = [running(1, Verdict.RETURNED, closed_at=NOW - 50), running(2, Verdict.FAILED)]
GONE = [alter(one, is_gone=True) for one in GOING]
CLOSES = (
    ended(0, Verdict.FAILED, STOCKOUT),
    ended(2, Verdict.LOST, cause=LossCause.PREEMPTED),
    ended(3, Verdict.RETURNED),
    ended(4, Verdict.RETURNED, cause=LossCause.EVICTED),
)
CREATE, DELETE = Create("a", "a", "T", REQUEST), Delete("c", "a", DeleteReason.LOST)
DONE = Results("a", (Outcome(CREATE), Outcome(CREATE, BROKEN), Outcome(DELETE), Outcome(DELETE, BROKEN)), ())
HELD_BACK = replace(EMPTY, deferred={("a", "T", PendingReason.BACKOFF): 4, ("a", "T", PendingReason.BUDGET): 3})
STOP, PAUSE = Hold(HoldKind.STOP_ALL), Hold(HoldKind.PAUSE, "a")
CANCELS = [Hold(HoldKind.CANCEL, target) for target in (REQUEST, OTHER, name(0, OTHER))]
ENDED = RequestStatus.COMPLETE
WANTS = memory(record(running(0)), record(running(0, Verdict.SUCCEEDED, OTHER), id_=OTHER, ended=ENDED))
HOLDS_SET = [replace(report(WANTS), holds=Holds(remembered)) for remembered in ((STOP, PAUSE, *CANCELS), (PAUSE,))]

MEANS: dict[str, tuple[Sequence[CycleReport], Series]] = {
    "desired are the slots that are open or succeeded": (
        ALL_VERDICTS, {f"machines_desired {PAIR}": 2, "machines_desired pool=b template=T": 1}
    ),
    "a pool counts a template's losses from zero once it has machines of it": (
        ALL_VERDICTS, {"machines_lost_total pool=b template=T cause=node": 0}
    ),
    "and not before": ([EMPTY], {"machines_lost_total pool=b template=T cause=node": None}),
    "machines are counted by the template of their request": (
        [report(memory(record()), snapshot(machine(0), machine(1), machine(2, Phase.PENDING)))],
        {f"machines {PAIR} phase=running": 2, f"machines {PAIR} phase=pending": 1},
    ),
    "machines that were asked for and not yet seen are submitted": (
        [report(memory(record(unsent(1), slot(2), slot(3, was_seen=True), slot(4))))],
        {f"machines {PAIR} phase=submitted": 2},
    ),
    "a series ends with what it counted": (
        [report(memory(record()), snapshot(machine(0, Phase.STOPPING))), report(memory(record()), snapshot())],
        {f"machines {PAIR} phase=stopping": None},
    ),
    "a blind pool is not an empty one, and keeps the time of its last observation": (
        [report(memory(record()), snapshot(machine(0), began=NOW - 10)), BLIND],
        {
            "observation_timestamp_seconds pool=a": WALL - 10,
            "cycles_total result=partial": 1,
            f"machines {PAIR} phase=running": 1,
        },
    ),
    "a machine without a known request has a template of its own": (
        [report(memory(), snapshot(machine(0, request=OTHER)))], {"machines pool=a template=unknown phase=running": 1}
    ),
    "a pool that was never tried shows its first window, for each template": (
        [report(memory())], {"window pool=a": 200, "window pool=b": 100}
    ),
    "the window of a pool is the sum over its templates": (
        [report(memory(windows={("a", "T"): Window(20), ("a", "U"): Window(7)}))], {"window pool=a": 27}
    ),
    "the longest wait is that of the oldest request without an answer": (
        [report(OLDEST)],
        {
            "oldest_unmet_timestamp_seconds template=T": WALL - 50,
            "oldest_unmet_timestamp_seconds template=U": math.nan,
        },
    ),
    "requests and returns are counted by status": (
        [report(COUNTED)],
        {
            "requests kind=request status=running": 1,
            "requests kind=request status=complete": 1,
            "requests kind=return status=running": 1,
        },
    ),
    "a latched brake shows with its reason": (
        [report(memory(brake=Brake(BrakeReason.MEMORY_LOST, BEFORE, "gone")))],
        {"brake_engaged pool= reason=memory_lost": 1, "brake_engaged pool= reason=intent_lost": 0},
    ),
    "machines that HF no longer lists are counted after a day": (
        [report(UNLISTED)], {"machines_unlisted pool=a": 1, "machines_unlisted pool=b": 0}
    ),
    "each on its day": ([report(UNLISTED), report(UNLISTED, now=NOW + 1)], {"machines_unlisted pool=a": 2}),
    "queued machines show with the longest wait": (
        [report(memory(record(slot(1, is_queued=True), slot(2, is_queued=True, submitted_at=BEFORE + 9), slot(3))))],
        {"machines_queued pool=a": 2, "oldest_queued_timestamp_seconds pool=a": WALL - NOW + BEFORE},
    ),
    "slots set aside wait in a gauge": (
        [report(memory(record(slot(1), slot(2, is_set_aside=True))))], {"slots_set_aside": 1}
    ),
    "a start counts once from request to running": (
        [report(memory(record(one))) for one in STARTS],
        {f"machine_startup_seconds_count {PAIR}": 1, f"machine_startup_seconds_sum {PAIR}": 42},
    ),
    "machines that ran before this process are no starts": (
        [report(memory(record(STARTS[1])))], {f"machine_startup_seconds_count {PAIR}": None}
    ),
    "a shutdown counts once from return to gone": (
        [report(memory(record(*slots))) for slots in (GOING, GONE, [alter(one, absent_since=NOW) for one in GONE])],
        {"machine_shutdown_seconds_count pool=a": 1, "machine_shutdown_seconds_sum pool=a": 50},
    ),
    "what ended counts with its class or cause": (
        [replace(report(memory()), transitions=CLOSES)],
        {
            f"slots_failed_total {PAIR} error=stockout": 1,
            f"slots_failed_total {PAIR} error=quota": None,
            f"machines_lost_total {PAIR} cause=preempted": 1,
            f"machines_lost_total {PAIR} cause=evicted": 1,
            f"machines_lost_total {PAIR} cause=unknown": 0,
        },
    ),
    "actions count with their results": (
        [replace(report(memory()), results=(DONE,))],
        {"cycles_total result=partial": 1}
        | {f"creates_total pool=a result={result}": 1 for result in ("ok", "failed")}
        | {f"deletes_total pool=a reason=lost result={result}": 1 for result in ("ok", "failed")},
    ),
    "held back machines are shown, also by the budget": (
        [HELD_BACK],
        {f"machines_deferred {PAIR} reason=backoff": 4, f"machines_deferred {PAIR} reason=budget": 3},
    ),
    "and no longer once they are not, where the budget has no series": (
        [HELD_BACK, EMPTY],
        {f"machines_deferred {PAIR} reason=backoff": 0, f"machines_deferred {PAIR} reason=budget": None},
    ),
    "only a cycle that needed the lock counts its wait": (
        [replace(EMPTY, lock_wait_seconds=waited) for waited in (None, 0.25, 0.0)],
        {"store_lock_wait_seconds_count": 2, "store_lock_wait_seconds_sum": 0.25},
    ),
    "a cycle without memory still counts": (
        [replace(report(None), problem="intent.json does not parse")],
        {"cycles_total result=failed": 1, "window pool=a": 200},
    ),
    "a cycle on a directory that does not serve the machines is no loop of the provisioner": (
        [report(None), replace(report(None), problem="no request here", is_elsewhere=True)],
        {"active provisioner=": 0, "cycles_total result=failed": 1},
    ),
    "any other cycle is": ([report(None)], {"active provisioner=": 1}),
    "holds are shown, cancels that are not done yet as a number": (
        HOLDS_SET[:1],
        {"hold hold=stop-all pool=": 1, "hold hold=pause pool=a": 1, "hold hold=cancel pool=": 2},
    ),
    "and no longer after they are released": (
        HOLDS_SET,
        {"hold hold=stop-all pool=": None, "hold hold=pause pool=a": 1, "hold hold=cancel pool=": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reports", "expected"), MEANS.values(), ids=MEANS)
def test_cycles_set_these_metrics(tmp_path: Path, reports: Sequence[CycleReport], expected: Series) -> None:
    metrics = metered(tmp_path, reports)
    assert {series: value(metrics, series) for series in expected} == pytest.approx(expected, nan_ok=True)


def test_a_pool_that_left_the_configuration_is_not_blind_for_ever(tmp_path: Path) -> None:
    seen = report(memory(), *(snapshot(pool=pool, began=NOW - 10) for pool in ("a", "b")))
    metrics = metered(tmp_path, [seen, report(memory())], replace(LIMITS, pools={"a": LIMITS.pools["a"]}))
    metrics.configure(replace(LIMITS, pools={"a": LIMITS.pools["a"]}))
    assert value(metrics, "observation_timestamp_seconds pool=b") is None
    assert value(metrics, "observation_timestamp_seconds pool=a") == WALL - 10


def test_a_machine_that_does_not_run_any_more_is_counted_until_it_does_or_is_lost(tmp_path: Path) -> None:
    one = running(0, Verdict.SUCCEEDED)
    down = alter(one, down_since=1.0)
    for each, count in ((one, 0), (down, 1), (alter(down, verdict=Verdict.LOST), 0)):
        metrics = metered(tmp_path, [report(memory(record(each)))])
        assert (value(metrics, "machines_down pool=a"), value(metrics, "machines_down pool=b")) == (count, 0)


def test_a_stuck_machine_is_counted_until_it_is_gone_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed = running(0, Verdict.RETURNED)
    stuck = alter(closed, is_stuck=True)
    steps = [report(memory(record(one))) for one in (closed, stuck, alter(stuck, is_gone=True))]
    steps.insert(2, report(memory(record(alter(stuck, delete_sent=1.0)))))
    for number, count in enumerate((0, 1, 1, 0), 1):
        metrics = metered(tmp_path, steps[:number])
        assert (value(metrics, "machines_stuck pool=a"), value(metrics, "machines_stuck pool=b")) == (count, 0)
    caplog.clear()
    metered(tmp_path, steps)
    assert [vars(one)["machine"] for one in caplog.records if one.levelname == "WARNING"] == [closed.name]

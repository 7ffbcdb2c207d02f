"""The metrics of a cycle: its actions, the contents of memory and snapshots after the cycle, and usage and costs."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from provisioner.loop.cycle_report import CycleReport
from provisioner.model import (
    DESIRED,
    LONG_AGO,
    Limits,
    LossCause,
    Memory,
    Phase,
    RequestRecord,
    RequestStatus,
    Slot,
    Snapshot,
    Transition,
    Verdict,
    Window,
)
from provisioner.names import NO_TEMPLATE, split_name
from provisioner.planning.allocate.budget import get_hourly_cost, get_month_cost, has_prices
from provisioner.planning.core.holds import count_holds
from provisioner.planning.core.usage import by_pool, find_present_spans, find_span
from provisioner.planning.report.answers import find_unlisted
from provisioner.state.protocols import State
from provisioner.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class CycleMeter:
    """A writer of the metrics of each cycle, in the loop's thread."""

    def __init__(self, metrics: Metrics, state: State) -> None:
        self._metrics = metrics
        self._state = state
        self._seen: dict[str, Snapshot] = {}
        """The last complete snapshot of each pool. While a pool cannot be observed, its last snapshot is kept."""
        self._observed: dict[str, float] = {}
        """The time at which the last complete snapshot of each pool began, in epoch seconds."""
        self._memory: Memory | None = None
        """The memory from which the metrics were last computed."""

    def record_cycle(self, report: CycleReport, limits: Limits) -> None:
        """Set and increase the metrics of one cycle."""
        metrics, wall = self._metrics, time.time()
        metrics.count_cycle(report.result, report.seconds, wall, is_active=not report.is_elsewhere)
        metrics.deferred.replace(report.deferred)
        metrics.holds.replace(count_holds(report.holds, report.memory))
        self._observed |= {pool: wall - (report.now - one.began_at) for pool, one in report.snapshots.items()}
        metrics.observation.replace({pool: at for pool, at in self._observed.items() if pool in limits.pools})
        for done in report.results:
            for outcome in done.outcomes:
                metrics.count_outcome(outcome)
        for one in report.transitions:
            if one.is_closed:
                self._count_end(one)
            self._count_machine(one, report.now)
        if report.lock_wait_seconds is not None:
            metrics.lock_wait.observe(report.lock_wait_seconds)
        # Before HF's first request there is no memory.
        metrics.window.replace(_sum_windows(report.memory.windows if report.memory else {}, limits))
        if report.memory is not None:
            unlisted = find_unlisted(report.memory, limits.prefix, report.now)
            metrics.unlisted.replace(Counter(slot.pool for slot in unlisted))
            self._count_memory(report, report.memory, limits, wall)

    def _count_end(self, one: Transition) -> None:
        """Count a slot that was lost or failed, under its cause or error class."""
        metrics, slot = self._metrics, one.slot
        if slot.is_lost:
            metrics.lost.labels(slot.pool, one.template, slot.observed.cause or LossCause.UNKNOWN).inc()
        elif slot.verdict is Verdict.FAILED and slot.failure is not None:
            metrics.failed.labels(slot.pool, one.template, slot.failure.error).inc()

    def _count_machine(self, one: Transition, now: float) -> None:
        """Record the duration of a machine's start when the machine first runs. Record the duration of a returned
        machine's end when the machine is gone. Log a machine that has become stuck."""
        metrics, slot, before = self._metrics, one.slot, one.before
        if one.is_first_run and slot.ran_at is not None:
            metrics.startup.labels(slot.pool, one.template).observe(slot.ran_at - one.read_at)
        if before and one.is_gone and slot.verdict is Verdict.RETURNED and slot.deletion.closed_at is not None:
            metrics.shutdown.labels(slot.pool).observe(now - slot.deletion.closed_at)
        if slot.deletion.is_stuck and not (before and before.deletion.is_stuck):
            why = slot.deletion.hindrance.log_fields if slot.deletion.hindrance else {}
            log.warning("Machine is stuck", extra={"machine": slot.name, "pool": slot.pool, **why})

    def _count_memory(self, report: CycleReport, memory: Memory, limits: Limits, wall: float) -> None:
        """Set the metrics of memory and snapshots. Skip the parts that have not changed since the last cycle."""
        news = {
            pool: observation
            for pool, observation in report.snapshots.items()
            if pool not in self._seen or self._seen[pool].machines is not observation.machines
        }
        if memory is self._memory and not news:
            return
        self._seen |= news
        metrics = self._metrics
        metrics.observed.replace(_count_machines(self._seen, memory, limits.prefix))
        if memory is self._memory:
            return
        self._memory = memory
        self._count_slots(list(memory.slots))
        self._count_queues([slot for _, slot in memory.slots if slot.observed.is_queued], wall - report.now)
        metrics.oldest_unmet.replace(_oldest_requests(memory, wall - report.now))
        metrics.brake.replace({(memory.brake.pool, memory.brake.reason): 1.0} if memory.brake else {})
        kinds = (("request", memory.requests.values()), ("return", memory.returns.values()))
        ended = Counter((kind, record.ended or RequestStatus.RUNNING) for kind, records in kinds for record in records)
        metrics.requests.replace(ended)
        metrics.bytes.replace(self._state.sizes())

    def _count_queues(self, slots: Sequence[Slot], ahead: float) -> None:
        newest_first = sorted((one for one in slots if one.verdict is Verdict.OPEN), key=lambda one: -one.asked_at)
        self._metrics.queued.replace(Counter(slot.pool for slot in newest_first))
        self._metrics.queued_since.replace({slot.pool: slot.asked_at + ahead for slot in newest_first})

    def _count_slots(self, slots: Sequence[tuple[RequestRecord, Slot]]) -> None:
        metrics = self._metrics
        desired = Counter((slot.pool, record.template) for record, slot in slots if slot.verdict in DESIRED)
        metrics.use_pairs(desired.keys())
        metrics.desired.replace(desired)
        metrics.set_aside.set(sum(slot.is_set_aside for _, slot in slots))
        down = (slot for _, slot in slots if slot.life.down_since is not None)
        metrics.down.replace(Counter(slot.pool for slot in down if slot.verdict is Verdict.SUCCEEDED))
        stuck = (slot for _, slot in slots if slot.deletion.is_stuck)
        metrics.stuck.replace(Counter(slot.pool for slot in stuck if not slot.deletion.is_gone))


def _sum_windows(windows: Mapping[tuple[str, str], Window], limits: Limits) -> Mapping[str, int]:
    """Return for each pool the sum of its windows over all its templates. A template that was never tried in the pool
    counts with its first window."""
    by_pool: Counter[str] = Counter()
    for template in limits.templates.values():
        for name in template.pools:
            window, pool = windows.get((name, template.id)), limits.pools.get(name)
            if window is not None:
                by_pool[name] += window.window
            elif pool is not None:
                by_pool[name] += min(pool.initial_window, pool.max_pending)
    return by_pool


def _count_machines(seen: Mapping[str, Snapshot], memory: Memory, prefix: str) -> Mapping[tuple[str, str, Phase], int]:
    """Return the number of machines by pool, template and phase. A machine that was requested and has not been seen yet
    counts as ``submitted``."""
    counts: Counter[tuple[str, str, Phase]] = Counter()
    for snapshot in seen.values():
        for machine in snapshot.machines.values():
            parts = split_name(prefix, machine.name)
            record = memory.requests.get(parts[0]) if parts else None
            counts[snapshot.pool, record.template if record else NO_TEMPLATE, machine.phase] += 1
    for record, slot in memory.slots:
        if slot.verdict is Verdict.OPEN and slot.submitted_at is not None and not slot.observed.was_seen:
            counts[slot.pool, record.template, Phase.SUBMITTED] += 1
    return counts


def _oldest_requests(memory: Memory, offset: float) -> Mapping[str, float]:
    """Return a dict of template → wall clock time at which the loop read the template's oldest open request."""
    newest_first = sorted(memory.requests.values(), key=lambda record: -record.read_at)
    return {record.template: record.read_at + offset for record in newest_first if record.ended is None}


# --- usage ------------------------------------------------------------------------------------------------------------

SUM_SECONDS = 60.0
"""Minimum seconds between two sums of the usage. A sum reads every slot, which takes longer than an idle cycle."""


class UsageMeter:
    """A writer of the metrics of usage and costs, in the loop's thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._observed: dict[str, float] = {}
        """The time at which the last complete observation of each pool by this process began, in loop time."""
        self._summed = LONG_AGO

    def record_cycle(self, report: CycleReport, limits: Limits, wall: float) -> None:
        """Set the metrics of usage and costs after a cycle that ended at ``wall`` (epoch seconds)."""
        memory, now = report.memory, report.now
        if memory is None or report.problem:
            return
        self._observed |= {observation.pool: observation.began_at for observation in report.own_snapshots.values()}
        if now < self._summed + SUM_SECONDS:
            return
        self._summed = now
        self._metrics.seconds.replace(machine_seconds(memory, self._observed))
        if has_prices(limits):
            machines = Counter((pool, template) for (template, pool, _), _ in find_present_spans(memory, now))
            self._metrics.per_hour.replace({(): get_hourly_cost(limits, machines)})
            self._metrics.month.replace({(): get_month_cost(memory, limits, now, wall - now)})
        else:
            self._metrics.per_hour.replace({})
            self._metrics.month.replace({})
        amounts = {"hour": limits.budget.per_hour, "month": limits.budget.per_month}
        self._metrics.budget.replace({per: most for per, most in amounts.items() if most is not None})


def machine_seconds(memory: Memory, observed_at: Mapping[str, float]) -> Mapping[str, float]:
    """Return a dict of observed pool → machine-seconds. The numbers never decrease, even if the process restarts.

    A running machine counts until the last observation that showed the machine. A machine that has never run does not
    count.
    """
    sums = Counter(by_pool(memory.usage.days))
    for _, slot in memory.slots:
        if slot.ran_at is None or slot.deletion.is_gone or slot.pool not in observed_at:
            continue
        if one := find_span(slot, observed_at[slot.pool]):
            sums[slot.pool] += max(0, one.milliseconds)
    return {pool: sums[pool] / 1000 for pool in observed_at}

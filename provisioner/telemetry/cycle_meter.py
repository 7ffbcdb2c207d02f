"""What a cycle means for the metrics: what it did, and what memory and snapshots hold after it; and usage and costs."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from provisioner.loop.cycle import CycleReport
from provisioner.model import (
    DESIRED,
    LONG_AGO,
    Limits,
    LossCause,
    Memory,
    Phase,
    RequestStatus,
    Snapshot,
    Transition,
    Verdict,
    Window,
)
from provisioner.names import NO_TEMPLATE, split_name
from provisioner.planning.allocate.budget import hourly, month_cost, priced
from provisioner.planning.core.levers import counts
from provisioner.planning.core.usage import by_pool, span, there
from provisioner.planning.report.answers import unlisted
from provisioner.state.interfaces import State
from provisioner.telemetry.metrics import Metrics, UsageMetrics

log = logging.getLogger(__name__)

UNTRIED: Mapping[tuple[str, str], Window] = {}
"""What a pool's window is before its first create."""


class CycleMeter:
    """Takes in each cycle, in the loop's thread."""

    def __init__(self, metrics: Metrics, state: State) -> None:
        self._metrics = metrics
        self._state = state
        self._seen: dict[str, Snapshot] = {}
        """The last complete snapshot of each pool, kept while the pool cannot be seen."""
        self._memory: Memory | None = None
        """The memory that was measured last."""
        self._allowed: tuple[object, object] = (None, None)
        """The windows and limits from which the allowed pressure was counted last."""

    def take(self, report: CycleReport, limits: Limits) -> None:
        """Take in one cycle."""
        metrics, wall = self._metrics, time.time()
        metrics.loop.cycle(report.result, report.seconds, wall)
        metrics.machines.deferred.replace(report.deferred)
        metrics.machines.levers.replace(counts(report.levers, report.memory))
        for look in report.snapshots.values():
            metrics.backends.observation.update(look.pool, wall - (report.now - look.began))
        for done in report.results:
            for outcome in done.outcomes:
                metrics.backends.outcome(outcome)
        for one in report.transitions:
            self._count(report, one)
        if report.lock_wait is not None:
            metrics.store.lock_wait.observe(report.lock_wait)
        self._count_windows(report.memory, limits)
        if report.memory is not None:
            pools = Counter(slot.pool for slot in unlisted(report.memory, limits.prefix, report.now))
            metrics.machines.unlisted.replace(pools)
            self._count_memory(report, report.memory, limits, wall)

    def _count_windows(self, memory: Memory | None, limits: Limits) -> None:
        """Count the allowed pressure again when windows or limits have changed. Before HF's first request there is no
        memory.
        """
        pressures = memory.pressures if memory is not None else UNTRIED
        if self._allowed[0] is not pressures or self._allowed[1] is not limits:
            self._metrics.machines.window.replace(_windows(pressures, limits))
            self._allowed = (pressures, limits)

    def _count(self, report: CycleReport, one: Transition) -> None:
        """Count a slot that ended, and what its machine did."""
        slots, slot = self._metrics.slots, one.slot
        if one.closes and one.is_lost:
            slots.lost.labels(slot.pool, one.template, slot.observed.cause or LossCause.UNKNOWN).inc()
        elif one.closes and slot.verdict is Verdict.FAILED and slot.failure is not None:
            slots.failed.labels(slot.pool, one.template, slot.failure.error).inc()
        self._count_machine(report, one)

    def _count_machine(self, report: CycleReport, one: Transition) -> None:
        """Count a machine that began to run, a returned one that went, and a stuck one."""
        slots, slot = self._metrics.slots, one.slot
        if one.runs and slot.ran is not None:
            slots.startup.labels(slot.pool, one.template).observe(slot.ran - one.read)
        closed = slot.deletion.closed
        if one.before is not None and one.is_gone and slot.verdict is Verdict.RETURNED and closed is not None:
            slots.shutdown.labels(slot.pool).observe(report.now - closed)
        if slot.deletion.stuck and not (one.before is not None and one.before.deletion.stuck):
            why = slot.deletion.hindrance.facts if slot.deletion.hindrance else {}
            log.warning("Machine is stuck", extra={"machine": slot.name, "pool": slot.pool, **why})

    def _count_memory(self, report: CycleReport, memory: Memory, limits: Limits, wall: float) -> None:
        """Count memory and snapshots. What has not changed since it was counted last is not counted again."""
        news = list(self._unmeasured(report))
        if memory is self._memory and not news:
            return
        self._seen |= {snapshot.pool: snapshot for snapshot in news}
        self._metrics.machines.observed.replace(_machines(self._seen, memory, limits.prefix))
        if memory is self._memory:
            return
        self._count_slots(memory)
        machines, store = self._metrics.machines, self._metrics.store
        machines.oldest_unmet.replace(_oldest(memory, wall - report.now))
        machines.brake.replace({(memory.brake.pool, memory.brake.reason): 1.0} if memory.brake else {})
        store.requests.replace(_requests(memory))
        store.bytes.replace(self._state.sizes())
        self._memory = memory

    def _unmeasured(self, report: CycleReport) -> Iterator[Snapshot]:
        """Snapshots whose machines are not those that were counted last."""
        for look in report.snapshots.values():
            before = self._seen.get(look.pool)
            if before is None or before.machines is not look.machines:
                yield look

    def _count_slots(self, memory: Memory) -> None:
        machines = self._metrics.machines
        slots = list(memory.slots)
        desired = Counter((slot.pool, record.template) for record, slot in slots if slot.verdict in DESIRED)
        self._metrics.use(desired.keys())
        machines.desired.replace(desired)
        self._metrics.slots.set_aside.set(sum(slot.set_aside for _, slot in slots))
        machines.down.replace(
            Counter(slot.pool for _, slot in slots if slot.life.down is not None and slot.verdict is Verdict.SUCCEEDED)
        )
        machines.stuck.replace(
            Counter(slot.pool for _, slot in slots if slot.deletion.stuck and not slot.deletion.gone)
        )


def _windows(pressures: Mapping[tuple[str, str], Window], limits: Limits) -> Mapping[str, int]:
    """Pressure allowed by pool, summed over templates. An untried template counts with the first window."""
    windows: Counter[str] = Counter()
    for template in limits.templates.values():
        for name in template.pools:
            pressure, pool = pressures.get((name, template.id)), limits.pools.get(name)
            if pressure is not None:
                windows[name] += pressure.window
            elif pool is not None:
                windows[name] += min(pool.initial_window, pool.max_pending)
    return windows


def _machines(seen: Mapping[str, Snapshot], memory: Memory, prefix: str) -> Mapping[tuple[str, str, Phase], int]:
    """Machines by pool, template and phase; a machine that was asked for and not yet seen counts as ``submitted``."""
    counts: Counter[tuple[str, str, Phase]] = Counter()
    for snapshot in seen.values():
        for machine in snapshot.machines.values():
            parts = split_name(prefix, machine.name)
            record = memory.requests.get(parts[0]) if parts else None
            counts[snapshot.pool, record.template if record else NO_TEMPLATE, machine.phase] += 1
    for record, slot in memory.slots:
        if slot.verdict is Verdict.OPEN and slot.submitted is not None and not slot.observed.seen:
            counts[slot.pool, record.template, Phase.SUBMITTED] += 1
    return counts


def _oldest(memory: Memory, offset: float) -> Mapping[str, float]:
    """When the oldest open request of each template was read, by the wall clock."""
    oldest: dict[str, float] = {}
    for record in memory.requests.values():
        if record.ended is None:
            oldest[record.template] = min(record.read + offset, oldest.get(record.template, float("inf")))
    return oldest


def _requests(memory: Memory) -> Mapping[tuple[str, RequestStatus], int]:
    kinds = (("request", memory.requests.values()), ("return", memory.returns.values()))
    return Counter((kind, record.ended or RequestStatus.RUNNING) for kind, records in kinds for record in records)


# --- usage ------------------------------------------------------------------------------------------------------------

SUM_SECONDS = 60.0
"""Least seconds between two sums: each looks at every slot, which takes longer than a cycle with nothing to do."""


class UsageMeter:
    """Takes in each cycle, in the loop's thread."""

    def __init__(self, metrics: UsageMetrics) -> None:
        self._metrics = metrics
        self._looked: dict[str, float] = {}
        """The begin of the last complete look at each pool in this process."""
        self._summed = LONG_AGO

    def take(self, report: CycleReport, limits: Limits, wall: float) -> None:
        """Take in one cycle, which ended at ``wall`` (epoch seconds)."""
        memory = report.memory
        if memory is None or report.problem:
            return
        self._looked |= {look.pool: look.began for look in report.shown.values()}
        if report.now < self._summed + SUM_SECONDS:
            return
        self._summed = report.now
        self._metrics.seconds.replace(seconds(memory, self._looked))
        self._tell_costs(memory, limits, report.now, wall - report.now)

    def _tell_costs(self, memory: Memory, limits: Limits, now: float, ahead: float) -> None:
        """What machines cost, where something has a price, and what they may."""
        per_hour: dict[tuple[()], float] = {}
        month: dict[tuple[()], float] = {}
        if priced(limits):
            machines = Counter((pool, template) for (template, pool, _), _ in there(memory, now))
            per_hour, month = {(): hourly(limits, machines)}, {(): month_cost(memory, limits, now, ahead)}
        self._metrics.per_hour.replace(per_hour)
        self._metrics.month.replace(month)
        amounts = {"hour": limits.budget.per_hour, "month": limits.budget.per_month}
        self._metrics.budget.replace({per: most for per, most in amounts.items() if most is not None})


def seconds(memory: Memory, looked: Mapping[str, float]) -> Mapping[str, float]:
    """Machine-seconds of each pool that was looked at; the sums never fall, also across processes. A machine that has
    run counts until the last look that showed it; any other does not count yet, as its begin is not known.
    """
    sums = Counter(by_pool(memory.usage.days))
    for _, slot in memory.slots:
        if slot.ran is None or slot.deletion.gone or slot.pool not in looked:
            continue
        if one := span(slot, looked[slot.pool]):
            sums[slot.pool] += max(0, one.milliseconds)
    return {pool: sums[pool] / 1000 for pool in looked}

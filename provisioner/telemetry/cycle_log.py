"""The log lines of a cycle: its actions and problems, the brake, distrusted pools, and refused machines."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from provisioner.loop.cycle_report import CycleReport
from provisioner.model import (
    LONG_AGO,
    Brake,
    Create,
    Delete,
    Distrusted,
    DistrustReason,
    ErrorClass,
    Memory,
    Outcome,
    PendingReason,
    Snapshot,
    find_failures,
    format_utc,
)
from provisioner.planning.report.refusals import (
    Refusal,
    find_deferred_refusals,
    find_new_refusals,
    find_waiting_refusals,
)
from provisioner.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class CycleLog:
    """A writer of the log lines of each cycle, in the loop's thread."""

    def __init__(self) -> None:
        self._standing: object = ({}, {})
        """The deferrals and unseen pools at the last cycle. If the next cycle has others, the line of the next cycle is
        logged at INFO."""
        self._problem = ""
        """The problem that was logged last; empty if the last cycle had no problem."""
        self._brake: Brake | None = None
        """The brake that was logged last; None if no latched brake was logged, or if the release was logged."""
        self._distrusted: Mapping[str, Distrusted] = {}
        """The distrusted pools that were logged last."""

    def record_cycle(self, report: CycleReport) -> None:
        """Log one cycle."""
        if report.problem and report.problem != self._problem:
            log.error("Cycle failed", extra={"error": report.problem})
        elif not report.problem:
            self._log_cycle(report)
        self._problem = report.problem
        self._log_brake(report)
        self._log_distrust(report)

    def _log_cycle(self, report: CycleReport) -> None:
        """Log a cycle at INFO if it acted or has news. If not, log it at DEBUG."""
        # Deferrals and unseen pools may last for many cycles, so they are news only when they change.
        standing = dict(report.deferred), {pool: failure.error for pool, failure in report.unseen.items()}
        has_news = report.closes or _outcomes(report) or standing != self._standing
        self._standing = standing
        level = logging.INFO if has_news else logging.DEBUG
        if log.isEnabledFor(level):
            log.log(level, "Cycle", extra=cycle_facts(report))

    def _log_brake(self, report: CycleReport) -> None:
        """Log once when the brake latches, and once when the brake is released. A brake that is latched when the loop
        starts is logged, too."""
        if report.memory is None or report.memory.brake == self._brake:
            return
        before, brake = self._brake, report.memory.brake
        self._brake = brake
        if brake is None:
            log.info("Brake released", extra={"reason": str(before.reason) if before else ""})
            return
        log.error(
            "Brake latched: no orphan is deleted until an operator runs provisioner recover --release-brake",
            extra={
                "reason": str(brake.reason),
                "detail": brake.detail,
                "pool": brake.pool,
                "since": format_utc(time.time() - (report.now - brake.since)),
                "orphans": len(report.memory.orphans.since),
            },
        )

    def _log_distrust(self, report: CycleReport) -> None:
        """Log when distrust of a pool begins and when distrust ends. A failed observation does not end distrust."""
        failed = find_failures(report.observations)
        standing = {pool: one for pool, one in self._distrusted.items() if pool in failed} | dict(report.distrusted)
        for pool in self._distrusted.keys() - standing.keys():
            log.warning("Pool is trusted again", extra={"pool": pool})
        for pool, one in standing.items():
            before = self._distrusted.get(pool)
            if before is not None and before.reason is one.reason:
                continue
            if one.reason is DistrustReason.MASS_LOSS:
                since = format_utc(one.since + report.ahead_seconds)
                facts = {"pool": pool, "machines": one.missing, "known": one.expected, "since": since}
                log.warning("Pool lacks many machines at once: waiting for a second observation", extra=facts)
            elif pool in report.unseen:
                log.error("Pool cannot be seen", extra={"pool": pool, "text": report.unseen[pool].text})
        self._distrusted = standing


# --- the line ``Cycle`` -----------------------------------------------------------------------------------------------


def cycle_facts(report: CycleReport) -> Mapping[str, object]:
    """Return the keys and values of a cycle's log line. ``creates`` and ``deletes`` count accepted calls, and
    ``failures`` counts failed calls. ``closes`` counts closed slots."""
    outcomes = _outcomes(report)
    accepted = Counter(type(outcome.action) for outcome in outcomes if outcome.failure is None)
    return {
        "result": report.result,
        "creates": accepted[Create],
        "deletes": accepted[Delete],
        "closes": len(report.closes),
        "failures": sum(outcome.failure is not None for outcome in outcomes),
        "deferred": sum(report.deferred.values()),
        "seconds": round(report.seconds, 3),
        "causes": "; ".join(_causes(report)),
    }


def _causes(report: CycleReport) -> Iterator[str]:
    """Yield a text for each cause, with the number of machines: causes of failed calls, of deletes, of closed slots and
    of deferrals. Then yield a text for each unseen pool."""
    counts = Counter[str]()
    for outcome in _outcomes(report):
        action, verb = outcome.action, "deleted" if isinstance(outcome.action, Delete) else "created"
        if outcome.failure is not None:
            counts[f"not {verb} in {action.pool}: {outcome.failure.error}"] += 1
        elif isinstance(action, Delete):
            counts[f"deleted in {action.pool}: {action.reason}"] += 1
    for close in report.closes:
        slot = close.slot
        cause = slot.observed.cause or (slot.failure.error if slot.failure else None)
        counts[f"{slot.verdict} in {slot.pool}" + (f": {cause}" if cause else "")] += 1
    for (pool, template, reason), machines in report.deferred.items():
        counts[f"deferred in {pool}: {_format_deferral(report, pool, template, reason)}"] += machines
    yield from (f"{count} {cause}" for cause, count in counts.items())
    yield from (f"{pool} unseen: {failure.error}" for pool, failure in report.unseen.items())


def _outcomes(report: CycleReport) -> list[Outcome]:
    return [outcome for done in report.results for outcome in done.outcomes]


def _format_deferral(report: CycleReport, pool: str, template: str, reason: PendingReason) -> str:
    """Return the reason of a deferral. If the pool backs off, add the error class of the failure that caused the
    back-off."""
    window = report.memory.windows.get((pool, template)) if report.memory else None
    if reason is PendingReason.BACKOFF and window is not None and window.failure is not None:
        return f"{reason} after {window.failure.error}"
    return str(reason)


# --- machines that their places refuse --------------------------------------------------------------------------------


AGAIN_SECONDS = 600.0
"""Seconds between two lines about the same pool, template and error class, while machines are refused again and again.
"""

Key = tuple[str, str, ErrorClass]
"""Pool, template and error class."""


def _sum_refusals(refusals: Iterable[Refusal]) -> dict[Key, Refusal]:
    """Return the refusals added up by pool, template and error class. Each sum has the text of the newest refusal."""
    sums: dict[Key, Refusal] = {}
    for one in refusals:
        key = one.pool, one.template, one.error
        sums[key] = one._replace(machines=one.machines + (sums[key].machines if key in sums else 0))
    return sums


class RefusalLog:
    """A writer of log lines and metrics about refused machines, in the loop's thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._has_recorded = False
        """True after the first cycle with a memory."""
        self._refused_before: Mapping[str, Refusal] = {}
        """The refused machines that were waiting in the previous cycle, by name."""
        self._snapshots: dict[str, Snapshot] = {}
        """The last complete snapshot of each pool. While a pool cannot be observed, its last snapshot is kept."""
        self._waiting: Mapping[Key, Refusal] = {}
        """The machines that wait now because of a refusal: their place refused them, or they are deferred after a
        refusal. Summed by pool, template and error class."""
        self._unlogged: dict[Key, Refusal] = {}
        """The refusals that no log line contains yet."""
        self._logged_at: dict[Key, float] = {}
        """Loop time of the last line, by pool, template and error class."""

    def record_cycle(self, report: CycleReport) -> None:
        """Count and log the new refusals of one cycle. Set the metric of the refused machines that wait now.

        In the first cycle no refusal counts as new, because the refusals in memory may be older than this process.
        """
        if report.memory is None:
            return
        self._snapshots |= report.own_snapshots
        if report.plan is not None or report.transitions or not self._has_recorded:
            self._count_refusals(report, report.memory)
        self._log_refusals(report.now)

    def _count_refusals(self, report: CycleReport, memory: Memory) -> None:
        waiting_now = find_waiting_refusals(memory, self._snapshots)
        if self._has_recorded:
            new = list(find_new_refusals(report.transitions, self._refused_before, waiting_now))
            self._unlogged = _sum_refusals([*self._unlogged.values(), *new])
            for refusal in new:
                self._metrics.refusals.labels(refusal.pool, refusal.error).inc()
        self._has_recorded, self._refused_before = True, waiting_now
        self._waiting = _sum_refusals([*waiting_now.values(), *find_deferred_refusals(memory, report.deferred)])
        self._metrics.refused.replace({key: one.machines for key, one in self._waiting.items()})

    def _log_refusals(self, now: float) -> None:
        for key in sorted(self._unlogged.keys() | self._waiting.keys()):
            if now - self._logged_at.get(key, LONG_AGO) < AGAIN_SECONDS:
                continue
            self._logged_at[key] = now
            pool, template, error = key
            waiting_machines = self._waiting.get(key, Refusal(*key, text="", machines=0))
            refused = self._unlogged.pop(key, waiting_machines._replace(machines=0))
            facts = {
                "pool": pool,
                "template": template,
                "error": str(error),
                "refused": refused.machines,
                "waiting": waiting_machines.machines,
                "text": refused.text or waiting_machines.text,
            }
            log.warning("Machines are refused", extra=facts)

"""What a cycle was, told to Prometheus, the log and the health page."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from provisioner.loop.cycle import CycleReport
from provisioner.model import (
    Brake,
    Limits,
    LossCause,
    Memory,
    Phase,
    RequestRecord,
    RequestStatus,
    Slot,
    Snapshot,
    Unobserved,
    Verdict,
)
from provisioner.names import NO_TEMPLATE, split_name
from provisioner.planning.answers import unlisted
from provisioner.state.directory import StateDir
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.notes import Notebook, longest_silence, utc
from provisioner.telemetry.server import Health

log = logging.getLogger(__name__)

QUIET_SECONDS = 60.0
"""A cycle that changed nothing is logged at most this often."""

DESIRED = frozenset({Verdict.OPEN, Verdict.SUCCEEDED})


class Reporter:
    """Called with each cycle's report, in the loop's thread; ``health`` and ``status`` in the server's."""

    def __init__(
        self,
        metrics: Metrics,
        state: StateDir,
        *,
        limits: Limits,
        interval: float,
        refused: Callable[[], str] = lambda: "",
    ) -> None:
        """``refused``: why the configuration in the files is not in force; empty when it is."""
        self._metrics = metrics
        self._state = state
        self.limits = limits
        self._seen: dict[str, Snapshot] = {}
        """The last complete snapshot of each pool: a pool that cannot be seen is not an empty one."""
        self._alive_within = longest_silence(interval)
        self._report: CycleReport | None = None
        self._memory: Memory | None = None
        self._complete = False
        self._began = self._ended = time.monotonic()
        self._logged = float("-inf")
        self._problem = ""
        self._failing: float | None = None
        """Since when no cycle could do its work, by the monotonic clock."""
        self._brake: Brake | None = None
        """As it was logged."""
        self._notebook = Notebook(state, interval, refused)

    def __call__(self, report: CycleReport) -> None:
        """Take in one cycle."""
        self._ended = time.monotonic()
        self._complete = self._complete or (
            not report.problem and all(isinstance(look, Snapshot) for look in report.looks.values())
        )
        if not report.problem:
            self._failing = None
        elif self._failing is None:
            self._failing = self._ended
        self._measure(report)
        self._log(report)
        self._log_brake(report)
        self._notebook.take(report, self.limits, time.time())
        self._report = report

    # --- health and status ----------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Alive while cycles end; ready once one was complete, and while the last one could do its work.

        Who waits (for a pool that must be seen before memory.json can be made again, for a person who puts
        intent.json back) is alive all the same: another start would see no more, and would begin to wait anew.
        """
        report = self._report
        if report is None:
            return Health(True, False, "No cycle has ended yet: the loop starts, or stands by for another one.")
        silent = time.monotonic() - self._ended
        if silent > self._alive_within:
            return Health(False, self._complete, f"No cycle has ended for {silent:.0f} s.")
        if report.problem and self._failing is not None:
            words = f"Nothing has been planned for {time.monotonic() - self._failing:.0f} s: {report.problem}"
            return Health(True, False, words + _blind(report))
        if not self._complete:
            return Health(True, False, "No cycle has seen every pool yet." + _blind(report))
        return Health(True, True, f"The last cycle ended {silent:.1f} s ago.")

    def status(self) -> Mapping[str, Any]:
        """The last cycle, in a few numbers."""
        report = self._report
        if report is None:
            return {"cycle": 0}
        return {
            "cycle": report.number,
            "result": report.result,
            "problem": report.problem,
            "seconds": round(report.seconds, 4),
            "pools": {
                name: {"machines": len(look.machines), "problems": list(look.problems)}
                if isinstance(look, Snapshot)
                else {"error": str(look.failure.error), "text": look.failure.text}
                for name, look in report.looks.items()
            },
            "deferred": [
                {"pool": pool, "template": template, "reason": str(reason), "machines": count}
                for (pool, template, reason), count in report.deferred.items()
            ],
        }

    # --- metrics --------------------------------------------------------------------------------------------------

    def _measure(self, report: CycleReport) -> None:
        metrics, wall = self._metrics, time.time()
        metrics.cycle(report.result, report.seconds, wall)
        metrics.deferred(report.deferred)
        for look in report.looks.values():
            if isinstance(look, Snapshot):
                metrics.observed(look.pool, wall - (report.now - look.began))
        for done in report.results:
            for outcome in done.outcomes:
                metrics.outcome(outcome)
        for close in report.closes:
            if close.verdict is Verdict.LOST:
                metrics.lost(close.pool, close.template, close.cause or LossCause.UNKNOWN)
            elif close.verdict is Verdict.FAILED and close.failure is not None:
                metrics.failed(close.pool, close.template, close.failure.error)
        if report.lock_wait is not None:
            metrics.lock_wait(report.lock_wait)
        if report.memory is not None:
            metrics.unlisted(Counter(slot.pool for slot in unlisted(report.memory, self.limits.prefix, report.now)))
            self._measure_memory(report, report.memory, wall)

    def _measure_memory(self, report: CycleReport, memory: Memory, wall: float) -> None:
        news = [
            look
            for look in report.looks.values()
            if isinstance(look, Snapshot)
            and (look.pool not in self._seen or self._seen[look.pool].machines is not look.machines)
        ]
        if memory is self._memory and not news:
            return
        self._seen |= {look.pool: look for look in news}
        metrics = self._metrics
        metrics.machines(_machines(self._seen, memory, self.limits.prefix))
        if memory is self._memory:
            return
        slots = [(record, slot) for record in memory.requests.values() for slot in record.slots.values()]
        metrics.desired(Counter((slot.pool, record.template) for record, slot in slots if slot.verdict in DESIRED))
        metrics.set_aside(sum(slot.set_aside for _, slot in slots))
        metrics.stuck(Counter(slot.pool for _, slot in slots if slot.stuck and not slot.gone))
        metrics.oldest_unmet(_oldest(memory, wall - report.now))
        metrics.windows(_windows(memory, self.limits))
        metrics.brakes([(memory.brake.pool, memory.brake.reason)] if memory.brake else [])
        metrics.requests(_requests(memory))
        metrics.store_bytes(self._sizes())
        self._measure_changes(report, memory)
        self._memory = memory

    def _measure_changes(self, report: CycleReport, memory: Memory) -> None:
        """Machines that began to run, returned ones that went, and ones that do not go, since the cycle before."""
        if self._memory is None:
            return
        for id_, record in memory.requests.items():
            before = self._memory.requests.get(id_)
            if before is record:
                continue
            for number, slot in record.slots.items():
                known = before.slots.get(number) if before else None
                if known is not slot:
                    self._measure_slot(report, record, slot, known)

    def _measure_slot(self, report: CycleReport, record: RequestRecord, slot: Slot, known: Slot | None) -> None:
        if slot.ran is not None and (known is None or known.ran is None):
            self._metrics.started(slot.pool, record.template, slot.ran - record.read)
        went = slot.gone and known is not None and not known.gone
        if went and slot.verdict is Verdict.RETURNED and slot.closed is not None:
            self._metrics.stopped(slot.pool, report.now - slot.closed)
        if slot.stuck and not (known is not None and known.stuck):
            log.warning("Machine is stuck terminating", extra={"machine": slot.name, "pool": slot.pool})

    def _sizes(self) -> Mapping[str, int]:
        sizes = {}
        for store in (self._state.intent, self._state.memory, self._state.status):
            if (signature := store.signature()) is not None:
                sizes[os.path.basename(store.path)] = signature[2]
        return sizes

    # --- log ------------------------------------------------------------------------------------------------------

    def _log(self, report: CycleReport) -> None:
        if report.problem:
            if report.problem != self._problem:
                log.error("Cycle failed", extra={"cycle": report.number, "error": report.problem})
            self._problem = report.problem
            return
        self._problem = ""
        plan = report.plan
        acted = plan is not None and not plan.settled
        if not (acted or report.results or report.closes) and time.monotonic() - self._logged < QUIET_SECONDS:
            return
        self._logged = time.monotonic()
        created = [outcome for done in report.results for outcome in done.outcomes if outcome.failure]
        log.info(
            "Cycle",
            extra={
                "cycle": report.number,
                "result": report.result,
                "creates": len(plan.creates) if plan else 0,
                "deletes": len(plan.deletes) if plan else 0,
                "closes": len(report.closes),
                "failures": len(created),
                "deferred": sum(report.deferred.values()),
                "seconds": round(report.seconds, 3),
            },
        )

    def _log_brake(self, report: CycleReport) -> None:
        """Once when it latches, or holds at the start, and once when it is released."""
        if report.memory is None or report.memory.brake == self._brake:
            return
        before, brake = self._brake, report.memory.brake
        self._brake = brake
        if brake is None:
            log.info("Brake released", extra={"reason": str(before.reason) if before else ""})
            return
        log.error(
            "Brake latched: no orphan is deleted until a person has looked and ran provisioner recover --release-brake",
            extra={
                "reason": str(brake.reason),
                "detail": brake.detail,
                "pool": brake.pool,
                "since": utc(time.time() - (report.now - brake.since)),
                "orphans": len(report.memory.orphans),
            },
        )


def _blind(report: CycleReport) -> str:
    """Which pools cannot be seen, and why: sentences that follow another."""
    unseen = {name: look.failure.text for name, look in report.looks.items() if isinstance(look, Unobserved)}
    return "".join(f" Pool {name} cannot be seen: {text}" for name, text in unseen.items())


def _windows(memory: Memory, limits: Limits) -> Mapping[str, int]:
    """Pressure allowed, by pool, over its templates; where nothing was tried yet, what a first try is allowed."""
    windows: Counter[str] = Counter()
    for template in limits.templates.values():
        for name in template.pools:
            known, pool = memory.pressures.get((name, template.id)), limits.pools.get(name)
            if known is not None:
                windows[name] += known.window
            elif pool is not None:
                windows[name] += min(pool.initial_window, pool.max_pending)
    return windows


def _machines(seen: Mapping[str, Snapshot], memory: Memory, prefix: str) -> Mapping[tuple[str, str, Phase], int]:
    """Observed machines by pool, template and phase; asked for and not yet seen ones as ``submitted``."""
    counts: Counter[tuple[str, str, Phase]] = Counter()
    for snapshot in seen.values():
        for machine in snapshot.machines.values():
            parts = split_name(prefix, machine.name)
            record = memory.requests.get(parts[0]) if parts else None
            counts[snapshot.pool, record.template if record else NO_TEMPLATE, machine.phase] += 1
    for record in memory.requests.values():
        for slot in record.slots.values():
            if slot.verdict is Verdict.OPEN and slot.submitted is not None and not slot.seen:
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

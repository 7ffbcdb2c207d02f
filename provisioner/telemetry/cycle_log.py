"""What the log says of a cycle, of what hinders it, and of the brake."""

from __future__ import annotations

import logging
import time

from provisioner.loop.clock import utc
from provisioner.loop.cycle import CycleReport
from provisioner.model import Brake

log = logging.getLogger(__name__)

QUIET_SECONDS = 60.0
"""A cycle that changed nothing is logged at most this often."""


class CycleLog:
    """Takes in each cycle, in the loop's thread."""

    def __init__(self) -> None:
        self._logged = float("-inf")
        """When a cycle was logged last, by the monotonic clock."""
        self._problem = ""
        """As it was logged last."""
        self._brake: Brake | None = None
        """As it was logged last."""

    def take(self, report: CycleReport) -> None:
        """Take in one cycle."""
        if report.problem:
            self._log_problem(report)
        else:
            self._problem = ""
            self._log_cycle(report)
        self._log_brake(report)

    def _log_problem(self, report: CycleReport) -> None:
        if report.problem != self._problem:
            log.error("Cycle failed", extra={"cycle": report.number, "error": report.problem})
        self._problem = report.problem

    def _log_cycle(self, report: CycleReport) -> None:
        plan = report.plan
        acted = plan is not None and not plan.settled
        if not (acted or report.results or report.closes) and time.monotonic() - self._logged < QUIET_SECONDS:
            return
        self._logged = time.monotonic()
        log.info(
            "Cycle",
            extra={
                "cycle": report.number,
                "result": report.result,
                "creates": len(plan.creates) if plan else 0,
                "deletes": len(plan.deletes) if plan else 0,
                "closes": len(report.closes),
                "failures": sum(bool(outcome.failure) for done in report.results for outcome in done.outcomes),
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

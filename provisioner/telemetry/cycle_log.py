"""What the log says of a cycle, of what hinders it, and of the brake."""

from __future__ import annotations

import logging
import time

from provisioner.loop.clock import utc
from provisioner.loop.cycle import CycleReport
from provisioner.model import Brake
from provisioner.telemetry import cycle_line

log = logging.getLogger(__name__)


class CycleLog:
    """Takes in each cycle, in the loop's thread."""

    def __init__(self) -> None:
        self._standing: object = ({}, {})
        """The deferrals and unseen pools that the last line told."""
        self._problem = ""
        """The problem that was logged last."""
        self._brake: Brake | None = None
        """The brake that was logged last."""

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
            log.error("Cycle failed", extra={"error": report.problem})
        self._problem = report.problem

    def _log_cycle(self, report: CycleReport) -> None:
        """INFO for a cycle that did something or met something new, DEBUG for a quiet one."""
        standing = cycle_line.standing(report)
        quiet = cycle_line.is_quiet(report) and standing == self._standing
        self._standing = standing
        level = logging.DEBUG if quiet else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "Cycle", extra=cycle_line.facts(report))

    def _log_brake(self, report: CycleReport) -> None:
        """Log the brake once when it latches, or holds at the start, and once when it is released."""
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

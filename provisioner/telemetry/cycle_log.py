"""What the log says of a cycle, of what hinders it, of the brake, and of machines that their places refuse."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from provisioner.loop.cycle import CycleReport
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
    Transition,
    Unobserved,
    format_utc,
)
from provisioner.planning.report.refusals import Refusal, held_back, news, waiting
from provisioner.telemetry.metrics import Metrics

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
        self._distrusted: Mapping[str, Distrusted] = {}
        """The pools in distrust that were logged last."""

    def take(self, report: CycleReport) -> None:
        """Take in one cycle."""
        if report.problem and report.problem != self._problem:
            log.error("Cycle failed", extra={"error": report.problem})
        elif not report.problem:
            self._log_cycle(report)
        self._problem = report.problem
        self._log_brake(report)
        self._log_distrust(report)

    def _log_cycle(self, report: CycleReport) -> None:
        """INFO for a cycle that did something or met something new, DEBUG for a quiet one."""
        standing = _standing(report)
        quiet = _is_quiet(report) and standing == self._standing
        self._standing = standing
        level = logging.DEBUG if quiet else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "Cycle", extra=facts(report))

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
                "since": format_utc(time.time() - (report.now - brake.since)),
                "orphans": len(report.memory.orphans.since),
            },
        )

    def _log_distrust(self, report: CycleReport) -> None:
        """Log once that a pool's snapshots are not acted upon, and once that they are again: a failed one ends none."""
        failed = {pool for pool, look in report.looks.items() if isinstance(look, Unobserved)}
        standing = {pool: one for pool, one in self._distrusted.items() if pool in failed} | dict(report.distrusted)
        for pool in self._distrusted.keys() - standing.keys():
            log.warning("Pool is trusted again", extra={"pool": pool})
        for pool, one in standing.items():
            before = self._distrusted.get(pool)
            if before is not None and before.reason is one.reason:
                continue
            if one.reason is DistrustReason.MASS_LOSS:
                since = format_utc(one.since + report.ahead)
                facts = {"pool": pool, "machines": one.missing, "known": one.expected, "since": since}
                log.warning("Pool lacks many machines at once: waiting for a second look", extra=facts)
            elif pool in report.unseen:
                log.error("Pool cannot be seen", extra={"pool": pool, "text": report.unseen[pool].text})
        self._distrusted = standing


# --- the line ``Cycle`` -----------------------------------------------------------------------------------------------


def _is_quiet(report: CycleReport) -> bool:
    """True when no call and no slot has ended in this cycle or the one before."""
    return not (report.closes or any(done.outcomes for done in report.results))


def _standing(report: CycleReport) -> object:
    """The deferrals and unseen pools, which may stay for many cycles and are news only when they change."""
    return dict(report.deferred), {pool: failure.error for pool, failure in report.unseen.items()}


def facts(report: CycleReport) -> Mapping[str, object]:
    """The line's numbers. ``creates`` and ``deletes`` were accepted, ``failures`` refused; ``closes`` are slots."""
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
    """Each cause once, with its count."""
    counts = Counter[str]()
    counts.update(cause for outcome in _outcomes(report) if (cause := _cause_of_outcome(outcome)))
    counts.update(map(_cause_of_close, report.closes))
    for (pool, template, reason), machines in report.deferred.items():
        counts[f"deferred in {pool}: {_deferral(report, pool, template, reason)}"] += machines
    yield from (f"{count} {cause}" for cause, count in counts.items())
    yield from (f"{pool} unseen: {failure.error}" for pool, failure in report.unseen.items())


def _outcomes(report: CycleReport) -> list[Outcome]:
    return [outcome for done in report.results for outcome in done.outcomes]


def _cause_of_outcome(outcome: Outcome) -> str:
    """The cause of a delete or of a refused create; empty for a create that was accepted."""
    action = outcome.action
    if outcome.failure is not None:
        return f"not {'deleted' if isinstance(action, Delete) else 'created'} in {action.pool}: {outcome.failure.error}"
    return f"deleted in {action.pool}: {action.reason}" if isinstance(action, Delete) else ""


def _cause_of_close(close: Transition) -> str:
    slot = close.slot
    cause = slot.observed.cause or (slot.failure.error if slot.failure else None)
    return f"{slot.verdict} in {slot.pool}" + (f": {cause}" if cause else "")


def _deferral(report: CycleReport, pool: str, template: str, reason: PendingReason) -> str:
    """The reason of a deferral, and the failure from which its pool backs off."""
    window = report.memory.pressures.get((pool, template)) if report.memory else None
    if reason is PendingReason.BACKOFF and window is not None and window.failure is not None:
        return f"{reason} after {window.failure.error}"
    return str(reason)


# --- machines that their places refuse --------------------------------------------------------------------------------


log = logging.getLogger(__name__)

AGAIN_SECONDS = 600.0
"""Seconds between two lines of the same pool, template and class while its refusals last."""

Key = tuple[str, str, ErrorClass]
"""Pool, template and class."""


class Sums(dict[Key, Refusal]):
    """Refusals added up by pool, template and class, each with its newest words."""

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Add these."""
        for one in refusals:
            key = one.pool, one.template, one.error
            self[key] = one._replace(machines=self.of(key).machines + one.machines)

    def of(self, key: Key) -> Refusal:
        """What they add up to; no machines where there is none."""
        return self.get(key) or Refusal(*key, text="", machines=0)


class RefusalLog:
    """Takes in each cycle, in the loop's thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._begun = False
        """A cycle was taken in before."""
        self._refused_before: Mapping[str, Refusal] = {}
        """The refused machines that were waiting in the cycle before, by name."""
        self._snapshots: dict[str, Snapshot] = {}
        """The last complete snapshot of each pool; a pool that cannot be seen keeps its own."""
        self._waiting = Sums()
        """Machines that wait because their place refused them, or another machine before them."""
        self._unsaid = Sums()
        """Refusals since the last line that told of them."""
        self._said: dict[Key, float] = {}
        """Loop time of the last line, by pool, template and class."""

    def take(self, report: CycleReport) -> None:
        """Take in one cycle. The first cycle counts the machines that wait, and no earlier refusal."""
        if report.memory is None:
            return
        self._snapshots |= report.shown
        if report.plan is not None or report.transitions or not self._begun:
            self._compare(report, report.memory)
        self._say(report.now)

    def _compare(self, report: CycleReport, memory: Memory) -> None:
        held = waiting(memory, self._snapshots)
        if self._begun:
            new = list(news(report.transitions, self._refused_before, held))
            self._unsaid.add(new)
            for refusal in new:
                self._metrics.refusals.labels(refusal.pool, refusal.error).inc()
        self._begun, self._refused_before = True, held
        self._waiting = Sums()
        self._waiting.add([*held.values(), *held_back(memory, report.deferred)])
        self._metrics.refused.replace({key: one.machines for key, one in self._waiting.items()})

    def _say(self, now: float) -> None:
        for key in sorted(self._unsaid.keys() | self._waiting.keys()):
            if now - self._said.get(key, LONG_AGO) < AGAIN_SECONDS:
                continue
            self._said[key] = now
            refused, waits = self._unsaid.of(key), self._waiting.of(key)
            self._unsaid.pop(key, None)
            facts = {
                "pool": waits.pool,
                "template": waits.template,
                "error": str(waits.error),
                "refused": refused.machines,
                "waiting": waits.machines,
                "text": refused.text or waits.text,
            }
            log.warning("Machines are refused", extra=facts)

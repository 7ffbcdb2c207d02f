"""Machines that their places refuse, told to Prometheus and to the log, in the places' own words."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from provisioner.loop.cycle import CycleReport
from provisioner.model import LONG_AGO, ErrorClass, Memory, Snapshot
from provisioner.planning.report.refusals import Refusal, held_back, news, waiting
from provisioner.telemetry.metrics import Metrics

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
                self._metrics.slots.refused.labels(refusal.pool, refusal.error).inc()
        self._begun, self._refused_before = True, held
        self._waiting = Sums()
        self._waiting.add([*held.values(), *held_back(memory, report.deferred)])
        self._metrics.machines.refused.replace({key: one.machines for key, one in self._waiting.items()})

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

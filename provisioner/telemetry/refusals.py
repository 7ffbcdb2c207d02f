"""Machines that their places refuse, told to Prometheus and to the log, in the places' own words."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from provisioner.loop.cycle import CycleReport
from provisioner.model import LONG_AGO, ErrorClass, Memory, Snapshot
from provisioner.planning.refusals import Refusal, held_back, news, waiting
from provisioner.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

AGAIN_SECONDS = 600.0
"""What goes on being refused is logged at most this often, by pool, template and class."""

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


class Refusals:
    """Takes in each cycle, in the loop's thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._memory: Memory | None = None
        """As it was taken in last."""
        self._known: Mapping[str, Refusal] = {}
        """The machines that were waiting then although they had been refused, by name."""
        self._snapshots: dict[str, Snapshot] = {}
        """The last complete snapshot of each pool: one that cannot be seen has not found room."""
        self._waiting = Sums()
        """What waits because it, or another machine before it, was refused."""
        self._unsaid = Sums()
        """What was refused since a line last said so."""
        self._said: dict[Key, float] = {}
        """When a line was last written, in loop time."""

    def take(self, report: CycleReport) -> None:
        """Take in one cycle. At the first one, what waits is known, and what was refused before is not."""
        if report.memory is None:
            return
        self._snapshots |= {name: look for name, look in report.looks.items() if isinstance(look, Snapshot)}
        if report.plan is not None or self._memory is None:
            self._compare(report, report.memory)
        self._say(report.now)

    def _compare(self, report: CycleReport, memory: Memory) -> None:
        held = waiting(memory, self._snapshots)
        if self._memory is not None:
            new = list(news(self._memory, memory, self._known, held))
            self._unsaid.add(new)
            for refusal in new:
                self._metrics.slots.refused(refusal.pool, refusal.error)
        self._memory, self._known = memory, held
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

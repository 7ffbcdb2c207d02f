"""What a cycle means for the metrics of usage: machine-seconds as a counter, costs and budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from provisioner.loop.cycle import CycleReport
from provisioner.model import LONG_AGO, Limits, Memory
from provisioner.planning.allocate.budget import hourly, month_cost, priced
from provisioner.planning.core.usage import by_pool, span, there
from provisioner.telemetry.metrics import UsageMetrics

EVERY = 60.0
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
        if report.now < self._summed + EVERY:
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
    sums = Counter(by_pool(memory.usage))
    for _, slot in memory.slots:
        if slot.ran is None or slot.gone or slot.pool not in looked:
            continue
        if one := span(slot, looked[slot.pool]):
            sums[slot.pool] += max(0, one.milliseconds)
    return {pool: sums[pool] / 1000 for pool in looked}

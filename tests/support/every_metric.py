"""Something happens in every metric, so that each has a series."""

from __future__ import annotations

from provisioner.model import Create, Delete, DeleteReason, ErrorClass, Failure, LeverKind, LossCause, Outcome, Phase
from provisioner.telemetry.metrics import Metrics


def work(metrics: Metrics, pool: str, template: str) -> None:
    """What may happen to this template in this pool, once."""
    create = Create("name", pool, template, "request")
    metrics.loop.cycle("ok", 0.1, 1e9)
    metrics.loop.wakeups.labels("timer").inc()
    metrics.machines.observed.replace({(pool, template, phase): 1 for phase in Phase})
    metrics.machines.oldest_unmet.replace({template: 1e9})
    metrics.machines.refused.replace({(pool, template, ErrorClass.QUOTA): 3})
    metrics.machines.levers.replace({(LeverKind.PAUSE, pool): 1})
    metrics.loop.config_differs.replace({"templates": 1})
    metrics.backends.outcome(Outcome(create))
    metrics.backends.outcome(Outcome(create, Failure(ErrorClass.QUOTA, "no")))
    metrics.backends.outcome(Outcome(Delete("name", pool, DeleteReason.RETURNED)))
    metrics.slots.startup.labels(pool, template).observe(40)
    metrics.slots.shutdown.labels(pool).observe(10)
    metrics.slots.lost.labels(pool, template, LossCause.PREEMPTED).inc()
    metrics.slots.failed.labels(pool, template, ErrorClass.STOCKOUT).inc()
    metrics.slots.refused.labels(pool, ErrorClass.STOCKOUT).inc()
    metrics.backends.calls.labels(pool, "observe").observe(0.1)
    metrics.backends.errors.labels(pool, "create", ErrorClass.QUOTA).inc()
    metrics.store.lock_wait.observe(0.01)
    metrics.store.bytes.replace({"intent.json": 100})
    metrics.server.rejections.labels("token").inc()
    metrics.usage.seconds.replace({pool: 100})
    metrics.usage.per_hour.replace({(): 1})
    metrics.usage.month.replace({(): 1})
    metrics.usage.budget.replace({"hour": 1, "month": 1})

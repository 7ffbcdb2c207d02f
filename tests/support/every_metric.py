"""Record an event for every metric, so that each metric has a series."""

from __future__ import annotations

from provisioner.model import Create, Delete, DeleteReason, ErrorClass, Failure, HoldKind, LossCause, Outcome, Phase
from provisioner.telemetry.metrics import Metrics


def work(metrics: Metrics, pool: str, template: str) -> None:
    """Record one event for each metric. The events belong to this pool and template."""
    create = Create("name", pool, template, "request")
    metrics.count_cycle("ok", 0.1, 1e9)
    metrics.wakeups.labels("timer").inc()
    metrics.observed.replace({(pool, template, phase): 1 for phase in Phase})
    metrics.oldest_unmet.replace({template: 1e9})
    metrics.refused.replace({(pool, template, ErrorClass.QUOTA): 3})
    metrics.queued.replace({pool: 2})
    metrics.queued_since.replace({pool: 1e9})
    metrics.holds.replace({(HoldKind.PAUSE, pool): 1})
    metrics.last_call.replace({"getRequestStatus": 1e9})
    metrics.refused_calls.replace({"requestMachines": 1})
    metrics.operator_needed.replace({"REFUSED": 1})
    metrics.config_differs.replace({"templates": 1})
    metrics.count_outcome(Outcome(create))
    metrics.count_outcome(Outcome(create, Failure(ErrorClass.QUOTA, "no")))
    metrics.count_outcome(Outcome(Delete("name", pool, DeleteReason.RETURNED)))
    metrics.startup.labels(pool, template).observe(40)
    metrics.shutdown.labels(pool).observe(10)
    metrics.lost.labels(pool, template, LossCause.PREEMPTED).inc()
    metrics.failed.labels(pool, template, ErrorClass.STOCKOUT).inc()
    metrics.refusals.labels(pool, ErrorClass.STOCKOUT).inc()
    metrics.calls.labels(pool, "observe").observe(0.1)
    metrics.errors.labels(pool, "create", ErrorClass.QUOTA).inc()
    metrics.lock_wait.observe(0.01)
    metrics.bytes.replace({"intent.json": 100})
    metrics.rejections.labels("token").inc()
    metrics.seconds.replace({pool: 100})
    metrics.per_hour.replace({(): 1})
    metrics.month.replace({(): 1})
    metrics.budget.replace({"hour": 1, "month": 1})

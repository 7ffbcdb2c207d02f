"""The rows of panels that several boards share."""

from __future__ import annotations

from .queries import AGE, increase, label_value, quantile, selector
from .questions import Line, Question, line_question


def machines(by: str, labels: str) -> list[Question]:
    """Return the panels that count machines: wanted, running, pending, and missing with the reason."""
    running = selector("machines", labels, phase="running")
    pending = selector("machines", labels, phase="pending")
    desired = selector("machines_desired", labels)
    return [
        Question(
            "Desired and running",
            f"Machines by {by}. The gap between the two lines is the missing machines.",
            [
                Line(f"sum by ({by}) ({desired})", f"{label_value(by)} desired"),
                Line(f"sum by ({by}) ({running})", f"{label_value(by)} running"),
            ],
            width=12,
        ),
        line_question(
            "Pending",
            f"Machines that were requested and do not run yet, by {by}.",
            f"sum by ({by}) ({pending})",
            label_value(by),
        ),
        line_question(
            "Missing",
            f"Desired minus running, by {by}.",
            f"sum by ({by}) ({desired}) - sum by ({by}) ({running})",
            label_value(by),
        ),
        Question(
            "Held back, by reason",
            "Machines that are wanted and not requested yet, and the holds that operators set.",
            [
                Line(f"sum by (reason) ({selector('machines_deferred', labels)})", label_value("reason")),
                Line(
                    f"sum by (hold, pool) ({selector('hold', labels.replace(' template', ''))})",
                    f"held: {label_value('hold')} {label_value('pool')}",
                ),
            ],
            width=8,
        ),
        Question(
            "Refused by class",
            "Machines that their place refused in five minutes, and machines that wait because of such refusals.",
            [
                Line(
                    increase(selector("refusals_total", labels.replace(" template", "")), "error"), "{{error}} refused"
                ),
                Line(f"sum by (error) ({selector('machines_refused', labels)})", "{{error}} waiting"),
            ],
            width=8,
        ),
        line_question(
            "Machines by phase",
            "Machines as the newest observations show them.",
            f"sum by (phase) ({selector('machines', labels)})",
            "{{phase}}",
            width=8,
        ),
    ]


def pressure(labels: str) -> list[Question]:
    """Return the panels of windows, of the age of observations, and of queued machines."""
    return [
        Question(
            "Pending against window",
            "The window grows while machines start and halves when they fail.",
            [
                Line(f"sum by (pool) ({selector('machines', labels, phase='pending')})", "{{pool}} pending"),
                Line(f"sum by (pool) ({selector('window', labels)})", "{{pool}} window"),
            ],
            width=12,
        ),
        line_question(
            "Age of the last complete observation",
            "No machine is made or deleted in a pool without a fresh observation.",
            AGE.format(by="pool", metric=selector("observation_timestamp_seconds", labels)),
            "{{pool}}",
            "s",
            width=12,
        ),
        line_question(
            "Queued",
            "Machines that their place holds in a queue. They keep their positions until their requests end.",
            f"sum by (pool) ({selector('machines_queued', labels)})",
            "{{pool}}",
            width=12,
        ),
        line_question(
            "Longest wait in a queue",
            "Time since the create of the queued machine that waits longest.",
            f"time() - min by (pool) ({selector('oldest_queued_timestamp_seconds', labels)})",
            "{{pool}}",
            "s",
            12,
        ),
    ]


def churn(labels: str) -> list[Question]:
    """Return the panels of creates, deletes and losses."""
    return [
        line_question(
            "Creates",
            "Machines in five minutes, by pool and result.",
            increase(selector("creates_total", labels), "pool, result"),
            "{{pool}} {{result}}",
            width=8,
        ),
        line_question(
            "Deletes by reason",
            "Machines in five minutes.",
            increase(selector("deletes_total", labels), "reason"),
            "{{reason}}",
            width=8,
        ),
        line_question(
            "Lost by cause",
            "Machines lost in five minutes: gone, or returned by HostFactory because their end was announced.",
            increase(selector("machines_lost_total", labels), "cause"),
            "{{cause}}",
            width=8,
        ),
    ]


def errors(labels: str) -> list[Question]:
    """Return the panels of failures."""
    failed, every = selector("creates_total", labels, result="failed"), selector("creates_total", labels)
    return [
        line_question(
            "Failed slots by class",
            "Slots that failed in five minutes.",
            increase(selector("slots_failed_total", labels), "error"),
            "{{error}}",
            width=8,
        ),
        line_question(
            "Backend errors by class",
            "Observations, creates and deletes that failed, in five minutes.",
            increase(selector("backend_errors_total", labels), "operation, error"),
            "{{operation}} {{error}}",
            width=8,
        ),
        line_question(
            "Share of creates that fail",
            "Failed creates as a fraction of all creates, by pool.",
            f"sum by (pool) (rate({failed}[5m])) / sum by (pool) (rate({every}[5m]))",
            "{{pool}}",
            "percentunit",
            width=8,
        ),
    ]


def speed(labels: str) -> list[Question]:
    """Return the panels that show how long machines take to start and to end, and how long calls take."""
    started = selector("machine_startup_seconds", labels)
    return [
        Question(
            "Machine start",
            "Seconds from the request until the machine runs, by template.",
            [
                Line(quantile(share, started, "template"), f"{label_value('template')} p{share * 100:g}")
                for share in (0.5, 0.95)
            ],
            "s",
            8,
        ),
        line_question(
            "Machine end, p95",
            "Seconds from the return until the machine is gone.",
            quantile(0.95, selector("machine_shutdown_seconds", labels), "pool"),
            "{{pool}}",
            "s",
            8,
        ),
        line_question(
            "Backend calls, p95",
            "Duration of one observation, or of one batch of creates or deletes.",
            quantile(0.95, selector("backend_call_seconds", labels), "pool, operation"),
            "{{pool}} {{operation}}",
            "s",
            8,
        ),
    ]

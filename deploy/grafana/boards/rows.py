"""The rows that stand on more than one board."""

from __future__ import annotations

from .queries import AGE, chosen, each, quantile, rose
from .questions import Line, Question, ask


def machines(by: str, labels: str) -> list[Question]:
    """What is wanted, what is there, and what keeps it."""
    running = chosen("machines", labels, phase="running")
    pending = chosen("machines", labels, phase="pending")
    desired = chosen("machines_desired", labels)
    return [
        Question(
            "Desired and running",
            f"Machines by {by}. The gap is what is still missing.",
            [
                Line(f"sum by ({by}) ({desired})", f"{each(by)} desired"),
                Line(f"sum by ({by}) ({running})", f"{each(by)} running"),
            ],
            width=12,
        ),
        ask(
            "Pending",
            f"Machines that were asked for and do not run yet, by {by}.",
            f"sum by ({by}) ({pending})",
            each(by),
        ),
        ask(
            "Missing",
            f"Desired minus running, by {by}.",
            f"sum by ({by}) ({desired}) - sum by ({by}) ({running})",
            each(by),
        ),
        Question(
            "Held back, by reason",
            "Wanted, missing and not asked for; and the holds that operators set.",
            [
                Line(f"sum by (reason) ({chosen('machines_deferred', labels)})", each("reason")),
                Line(
                    f"sum by (hold, pool) ({chosen('hold', labels.replace(' template', ''))})",
                    f"held: {each('hold')} {each('pool')}",
                ),
            ],
            width=8,
        ),
        Question(
            "Refused by class",
            "Machines that their place refused, in five minutes, and those that wait because of it.",
            [
                Line(rose(chosen("refusals_total", labels.replace(" template", "")), "error"), "{{error}} refused"),
                Line(f"sum by (error) ({chosen('machines_refused', labels)})", "{{error}} waiting"),
            ],
            width=8,
        ),
        ask(
            "Machines by phase", "As observed.", f"sum by (phase) ({chosen('machines', labels)})", "{{phase}}", width=8
        ),
    ]


def pressure(labels: str) -> list[Question]:
    """How much may be asked for, and whether the places are seen."""
    return [
        Question(
            "Pending against window",
            "The window grows while machines start and halves when they fail.",
            [
                Line(f"sum by (pool) ({chosen('machines', labels, phase='pending')})", "{{pool}} pending"),
                Line(f"sum by (pool) ({chosen('window', labels)})", "{{pool}} window"),
            ],
            width=12,
        ),
        ask(
            "Age of the last complete observation",
            "A pool without a fresh observation gets no actions.",
            AGE.format(by="pool", metric=chosen("observation_timestamp_seconds", labels)),
            "{{pool}}",
            "s",
            width=12,
        ),
    ]


def churn(labels: str) -> list[Question]:
    """What is made, and what goes."""
    return [
        ask(
            "Creates",
            "Machines in five minutes, by pool and result.",
            rose(chosen("creates_total", labels), "pool, result"),
            "{{pool}} {{result}}",
            width=8,
        ),
        ask(
            "Deletes by reason",
            "Machines in five minutes.",
            rose(chosen("deletes_total", labels), "reason"),
            "{{reason}}",
            width=8,
        ),
        ask(
            "Lost by cause",
            "Machines that were taken in five minutes: gone, or announced to go when HostFactory gave them back.",
            rose(chosen("machines_lost_total", labels), "cause"),
            "{{cause}}",
            width=8,
        ),
    ]


def errors(labels: str) -> list[Question]:
    """What fails."""
    failed, every = chosen("creates_total", labels, result="failed"), chosen("creates_total", labels)
    return [
        ask(
            "Failed slots by class",
            "Tries that ended failed, in five minutes.",
            rose(chosen("slots_failed_total", labels), "error"),
            "{{error}}",
            width=8,
        ),
        ask(
            "Backend errors by class",
            "Looks, creates and deletes that failed, in five minutes.",
            rose(chosen("backend_errors_total", labels), "operation, error"),
            "{{operation}} {{error}}",
            width=8,
        ),
        ask(
            "Share of creates that fail",
            "By pool.",
            f"sum by (pool) (rate({failed}[5m])) / sum by (pool) (rate({every}[5m]))",
            "{{pool}}",
            "percentunit",
            width=8,
        ),
    ]


def speed(labels: str) -> list[Question]:
    """How long places take."""
    started = chosen("machine_startup_seconds", labels)
    return [
        Question(
            "Machine start",
            "From requested to running, by template.",
            [
                Line(quantile(share, started, "template"), f"{each('template')} p{share * 100:g}")
                for share in (0.5, 0.95)
            ],
            "s",
            8,
        ),
        ask(
            "Machine end, p95",
            "From returned to gone.",
            quantile(0.95, chosen("machine_shutdown_seconds", labels), "pool"),
            "{{pool}}",
            "s",
            8,
        ),
        ask(
            "Backend calls, p95",
            "One observation, or one batch of creates or deletes.",
            quantile(0.95, chosen("backend_call_seconds", labels), "pool, operation"),
            "{{pool}} {{operation}}",
            "s",
            8,
        ),
    ]

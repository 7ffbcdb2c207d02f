"""The dashboard of one provisioner. The first row shows whether the loops run, because operators ask this first."""

from __future__ import annotations

from .queries import AGE, quantile, selector
from .questions import Board, Line, Question, line_question, number_question
from .rows import churn, errors, machines, pressure, speed


def alive(by: str) -> list[Question]:
    """Return the panels that show whether the loops run."""
    last_success = AGE.format(by=by, metric=selector("last_success_timestamp_seconds"))
    return [
        number_question(
            "Last ok cycle",
            "Seconds since a cycle without failure. The number grows while a pool or an action fails in each cycle.",
            f"max({last_success})",
            "s",
            bad_from=300,
        ),
        number_question(
            "Configuration",
            "0 while the loop refuses a new configuration and keeps the previous one, or while HostFactory's scripts "
            "read other files than the loop (provisioner status).",
            f"min({selector('config_ok')}) * (1 - (max({selector('config_differs')}) or vector(0)))",
            bad_below=1,
        ),
        number_question(
            "Brake",
            "More than 0: orphans are not deleted until an operator has checked the state (provisioner recover) and "
            "released the brake (provisioner recover --release-brake).",
            f"sum({selector('brake_engaged')})",
            bad_from=1,
        ),
        number_question(
            "Operator needed",
            "Problems that an operator has to fix; provisioner status shows them at its top.",
            f"sum({selector('operator_needed')}) or vector(0)",
            bad_from=1,
        ),
        number_question(
            "Loops",
            "Processes that run a provisioner's loop. Standbys are not counted.",
            f"sum({selector('active')})",
            bad_below=1,
        ),
        number_question(
            "Slots set aside",
            "Slots for which the program requested a forbidden transition because of a bug; see ERROR in the log.",
            f"sum({selector('slots_set_aside')})",
            bad_from=1,
        ),
        Question(
            "Version",
            "The running version.",
            [Line(f"max by (version) ({selector('build_info')})", "{{version}}")],
            width=4,
            number=True,
        ),
    ]


def process() -> list[Question]:
    """Return the panels of the loop as a process."""
    cycle = selector("cycle_duration_seconds")
    return [
        line_question(
            "Cycles by result",
            "Cycles per second. partial: an action or a pool failed in the cycle.",
            f"sum by (result) (rate({selector('cycles_total')}[5m]))",
            "{{result}}",
            "cps",
            5,
        ),
        Question(
            "Cycle time",
            "Duration of one cycle.",
            [Line(quantile(share, cycle), f"p{share * 100:g}") for share in (0.5, 0.95)],
            "s",
            5,
        ),
        line_question(
            "Wake-ups by cause",
            "Wake-ups per second. A wake-up ends the loop's wait for its next cycle.",
            f"sum by (source) (rate({selector('wakeups_total')}[5m]))",
            "{{source}}",
            "cps",
            5,
        ),
        line_question(
            "Memory",
            "Resident memory.",
            f"max by (instance) ({selector('process_resident_memory_bytes')})",
            "{{instance}}",
            "bytes",
            5,
        ),
        line_question(
            "CPU",
            "Share of one core.",
            f"sum by (instance) (rate({selector('process_cpu_seconds_total')}[5m]))",
            "{{instance}}",
            "percentunit",
            4,
        ),
    ]


def readers() -> list[Question]:
    """Return a panel that counts the requests to the HTTP server that the server refused."""
    return [
        line_question(
            "Refused by the HTTP server",
            "Refusals per second. token: wrong tokens; rate: wrong tokens of clients that sent many before; request: "
            "a body, a long line, a method that is not GET; room: connections closed to make room for others.",
            f"sum by (reason) (rate({selector('server_rejections_total')}[5m]))",
            "{{reason}}",
            "cps",
            24,
        ),
    ]


BOARD = Board(
    "provisioner",
    "HostFactory provisioner",
    "One provisioner, from the question that an operator asks first to the question asked last.",
    ["instance"],
    [
        ("Alive?", alive("instance")),
        ("True?", machines("template", "instance")),
        ("Pressure", pressure("instance")),
        ("Churn", churn("instance")),
        ("Errors", errors("instance")),
        ("Speed", speed("instance")),
        ("Process", process()),
        ("Readers", readers()),
    ],
)

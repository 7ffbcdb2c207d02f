"""One provisioner, from the question that an operator asks first to the one asked last."""

from __future__ import annotations

from .queries import AGE, chosen, quantile
from .questions import Board, Line, Question, ask, say
from .rows import churn, errors, machines, pressure, speed


def alive(by: str) -> list[Question]:
    """Whether the loops run."""
    last_success = AGE.format(by=by, metric=chosen("last_success_timestamp_seconds"))
    return [
        say(
            "Last ok cycle",
            "Seconds since a cycle ended without any failure. Grows while one pool or action fails in each cycle.",
            f"max({last_success})",
            "s",
            bad_from=300,
        ),
        say(
            "Configuration",
            "0 while a bad new configuration is refused and the old one is in force, and while HostFactory's scripts "
            "read other files than the loop (provisioner status).",
            f"min({chosen('config_ok')}) * (1 - (max({chosen('config_differs')}) or vector(0)))",
            bad_below=1,
        ),
        say(
            "Brake",
            "More than 0: orphans are not deleted until somebody has looked (provisioner recover) and ran "
            "provisioner recover --release-brake.",
            f"sum({chosen('brake_engaged')})",
            bad_from=1,
        ),
        say(
            "Loops",
            "Processes that run a provisioner's loop; others stand by.",
            f"sum({chosen('active')})",
            bad_below=1,
        ),
        say(
            "Slots set aside",
            "A forbidden transition was asked of them: a bug; look at the log's ERROR.",
            f"sum({chosen('slots_set_aside')})",
            bad_from=1,
        ),
        Question(
            "Version",
            "What runs.",
            [Line(f"max by (version) ({chosen('build_info')})", "{{version}}")],
            width=4,
            number=True,
        ),
    ]


def process() -> list[Question]:
    """The loop as a process."""
    cycle = chosen("cycle_duration_seconds")
    return [
        ask(
            "Cycles by result",
            "Per second. partial: some action or pool failed.",
            f"sum by (result) (rate({chosen('cycles_total')}[5m]))",
            "{{result}}",
            "cps",
            5,
        ),
        Question(
            "Cycle time",
            "One pass of the loop.",
            [Line(quantile(share, cycle), f"p{share * 100:g}") for share in (0.5, 0.95)],
            "s",
            5,
        ),
        ask(
            "What woke the loop",
            "Per second.",
            f"sum by (source) (rate({chosen('wakeups_total')}[5m]))",
            "{{source}}",
            "cps",
            5,
        ),
        ask(
            "Memory",
            "Resident.",
            f"max by (instance) ({chosen('process_resident_memory_bytes')})",
            "{{instance}}",
            "bytes",
            5,
        ),
        ask(
            "CPU",
            "Share of one core.",
            f"sum by (instance) (rate({chosen('process_cpu_seconds_total')}[5m]))",
            "{{instance}}",
            "percentunit",
            4,
        ),
    ]


def readers() -> list[Question]:
    """The readers of metrics and status page."""
    return [
        ask(
            "Turned away by the HTTP server",
            "Per second. token: wrong tokens; rate: wrong tokens of clients that sent many before; request: a body, "
            "a line that is too long, a method that is not GET; room: connections closed to make room for others.",
            f"sum by (reason) (rate({chosen('server_rejections_total')}[5m]))",
            "{{reason}}",
            "cps",
            24,
        ),
    ]


BOARD = Board(
    "provisioner",
    "HostFactory provisioner",
    "One provisioner, from the question an operator asks first to the one asked last.",
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

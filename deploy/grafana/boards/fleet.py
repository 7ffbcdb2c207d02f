"""The board of all provisioners, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .queries import AGE, selector
from .questions import Board, Question, line_question
from .rows import churn, errors, machines


def fleet() -> Iterator[Question]:
    """Yield the panels that compare the provisioners."""
    by_instance: Sequence[tuple[str, str, str, str]] = (
        (
            "Age of the last ok cycle",
            "Seconds since a cycle without failure. Above 300 s the provisioner needs an operator.",
            AGE,
            "last_success_timestamp_seconds",
        ),
        (
            "Brake",
            "1 if orphans are not deleted until an operator releases the brake.",
            "max by ({by}) ({metric})",
            "brake_engaged",
        ),
        ("Loops", "1 if the process runs the loop; 0 if it is a standby.", "max by ({by}) ({metric})", "active"),
    )
    for title, about, form, metric in by_instance:
        unit = "s" if form is AGE else "short"
        yield line_question(title, about, form.format(by="instance", metric=selector(metric)), "{{instance}}", unit, 8)


BOARD = Board(
    "fleet",
    "HostFactory provisioners",
    "All provisioners side by side, to find those that need an operator.",
    ["instance"],
    [
        ("Alive?", list(fleet())),
        ("Enough machines?", machines("instance", "instance")),
        ("Failures", [*churn("instance"), *errors("instance")]),
    ],
)

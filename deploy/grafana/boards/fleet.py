"""All provisioners side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .queries import AGE, chosen
from .questions import Board, Question, ask
from .rows import churn, errors, machines


def fleet() -> Iterator[Question]:
    """Every provisioner beside the others."""
    by_instance: Sequence[tuple[str, str, str, str]] = (
        ("Age of the last ok cycle", "Above 300 s somebody is called.", AGE, "last_success_timestamp_seconds"),
        (
            "Brake",
            "1 where orphans are not deleted until somebody has looked.",
            "max by ({by}) ({metric})",
            "brake_engaged",
        ),
        ("Loops", "1 where the loop runs; 0 where a process stands by.", "max by ({by}) ({metric})", "active"),
    )
    for title, about, form, metric in by_instance:
        unit = "s" if form is AGE else "short"
        yield ask(title, about, form.format(by="instance", metric=chosen(metric)), "{{instance}}", unit, 8)


BOARD = Board(
    "fleet",
    "HostFactory provisioners",
    "All provisioners side by side: which of them needs somebody.",
    ["instance"],
    [
        ("Alive?", list(fleet())),
        ("Enough machines?", machines("instance", "instance")),
        ("What goes wrong", [*churn("instance"), *errors("instance")]),
    ],
)

"""The edge to HostFactory: requests, answers, and the files between scripts and loop."""

from __future__ import annotations

from .queries import chosen, quantile
from .questions import Board, Question, ask


def requests() -> list[Question]:
    """What HostFactory asked for, and what became of it."""
    unmet = chosen("oldest_unmet_timestamp_seconds", "instance")
    return [
        ask(
            "Open requests",
            "Requests and returns without a terminal answer.",
            f"sum by (kind) ({chosen('requests', status='running')})",
            "{{kind}}",
            width=8,
        ),
        ask(
            "Ended with an error",
            "In the state files; they leave with their retention.",
            f"sum by (kind) ({chosen('requests', status='complete_with_error')})",
            "{{kind}}",
            width=8,
        ),
        ask(
            "Longest wait",
            "Since when the oldest request has been unmet; nothing is drawn for a template without one.",
            f"time() - min by (template) ({unmet})",
            "{{template}}",
            "s",
            8,
        ),
    ]


def leftovers() -> list[Question]:
    """What HostFactory and the places leave for people."""
    return [
        ask(
            "Not in HostFactory's lists",
            "Machines that run and that HostFactory has not listed for 24 hours.",
            f"sum by (pool) ({chosen('machines_unlisted')})",
            "{{pool}}",
            width=8,
        ),
        ask(
            "Down",
            "Machines that HostFactory was told of and that do not run now; provisioner status says why.",
            f"sum by (pool) ({chosen('machines_down')})",
            "{{pool}}",
            width=8,
        ),
        ask(
            "Stuck",
            "Machines that are still there long after the end of their grace period; provisioner status names them.",
            f"sum by (pool) ({chosen('machines_stuck')})",
            "{{pool}}",
            width=8,
        ),
    ]


def files() -> list[Question]:
    """The files that scripts and loop share."""
    return [
        ask(
            "Wait for the lock of intent.json, p95",
            "Scripts give up after 20 s.",
            quantile(0.95, chosen("store_lock_wait_seconds")),
            "",
            "s",
            12,
        ),
        ask("State files", "Size of each.", f"max by (file) ({chosen('store_bytes')})", "{{file}}", "bytes", 12),
    ]


BOARD = Board(
    "edge",
    "HostFactory's edge",
    "What HostFactory asks for and hears, and the files between its scripts and the loop.",
    ["instance"],
    [
        ("Requests", requests()),
        ("What is left for people", leftovers()),
        ("Files", files()),
    ],
)

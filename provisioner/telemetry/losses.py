"""Machines that ended although the loop did not delete them, by pool and cause. The functions are pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from provisioner.model import DAY, DESIRED, HOUR, LONG_AGO, LossCause, Memory, format_utc
from provisioner.names import format_printable
from provisioner.telemetry.pool_windows import Document, format_local_time

MANY, SHARE = 2, 0.1
"""An operator is needed if a pool loses more than ``MANY`` machines within an hour, and more than ``SHARE`` of the
machines that run there."""

CODE = re.compile(r"OOMKilled|exit code \d+")
"""Pattern of the words about the end of a machine's program, in the reason for a loss."""

STEPS = {
    LossCause.EXITED: "the program of the machines ends by itself: read its output (kubectl logs, Cloud Logging)",
    LossCause.DELETED: "see the problems of the pool, and search the audit log for who deletes machines",
    LossCause.UNKNOWN: "search the audit log for who stops machines, and the machines' own logs for a shutdown",
}
"""The next step of an operator, by cause. Causes that pass by themselves have no entry."""


def loss_documents(memory: Memory, now: float) -> list[dict[str, Any]]:
    """Return a document for each pool, cause and exit code. Each document counts the losses of the last day. A document
    is left out if none of its losses happened in the last hour.

    ``machines``: number of these losses. ``since``, ``last``: times of the first and last loss. ``text``: the place's
    reason for the last loss. ``quiet``: True if no operator is needed.
    """
    losses = defaultdict[tuple[str, LossCause, str], list[tuple[float, str]]](list)
    running = Counter[str]()
    for _, slot in memory.slots:
        running[slot.pool] += slot.is_with_hf
        cause, closed = slot.observed.cause, slot.deletion.closed_at or LONG_AGO
        if slot.ran_at is not None and slot.verdict not in DESIRED and cause is not None and closed > now - DAY:
            text = slot.failure.text if slot.failure else ""
            code = CODE.search(text)
            losses[slot.pool, cause, code[0] if code else ""].append((closed, text))
    return [
        {
            "pool": pool,
            "cause": cause,
            "machines": len(ends),
            "since": format_utc(memory.wall_of(min(ends)[0])),
            "last": format_utc(memory.wall_of(max(ends)[0])),
            "text": max(ends)[1],
            "quiet": cause not in STEPS
            or sum(closed > now - HOUR for closed, _ in ends) <= max(MANY, SHARE * running[pool]),
        }
        for (pool, cause, _), ends in sorted(losses.items())
        if max(ends)[0] > now - HOUR
    ]


def loss_lines(losses: Sequence[Document], *, quiet: bool = True) -> Iterator[str]:
    """Yield a sentence for each loss that needs no operator. With ``quiet=False``, yield sentences for the other losses
    instead. These sentences end with the next step for the operator."""
    for one in (one for one in losses if one["quiet"] is quiet):
        since, last = format_local_time(one["since"]), format_local_time(one["last"])
        times = since if since == last else f"{since}, the last at {last}"
        why = ": ".join(filter(None, (one["cause"], format_printable(one["text"]))))
        why = "deleted by others" if one["cause"] == LossCause.DELETED else why
        line = f"{one['machines']} lost in {one['pool']} since {times}: {why}"
        yield line if quiet else f"LOSSES: {line}; {STEPS[one['cause']]}"

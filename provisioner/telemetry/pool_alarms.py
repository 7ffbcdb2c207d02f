"""Problems of pools that an operator has to fix: unseen pools (without a complete and trusted observation), failing
machines, exceeded caps, used-up budgets.

The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from provisioner.model import HOUR, ErrorClass, Limits, Memory, format_utc
from provisioner.telemetry.cost import budget_alarm
from provisioner.telemetry.machine_rows import Row
from provisioner.telemetry.pool_status import PoolStatus
from provisioner.telemetry.pool_windows import Document, Key, PoolFailure, format_count, format_local_time, past_fields

ROW = 3
"""Number of failures in a row, in a pool and template, after which an operator is needed. So many failures do not end
by themselves."""

UNREADY = frozenset({ErrorClass.OTHER, ErrorClass.TIMEOUT})
"""Error classes of machines that were made but did not begin to run."""

FAILING = {
    str(ErrorClass.QUOTA): "QUOTA of pool {0} is used up, raise it or free some of it; no machine of {1}",
    **dict.fromkeys(map(str, UNREADY), "NEVER READY in pool {0} (provisioner explain {0}): machines of {1}"),
}
"""Beginnings of alarms, by error class. {0} is the pool, {1} the template."""


def unseen_documents(pool_status: PoolStatus) -> list[dict[str, Any]]:
    """Return a document for each unseen pool. ``since``: the time since which the pool is unseen; None if unknown.
    ``text``: the reason."""
    began = {pool: format_utc(since) for pool, since in pool_status.unseen_since.items()}
    return [{"pool": pool, "since": began.get(pool), "text": text} for pool, text in pool_status.unseen.items()]


def failing_documents(
    memory: Memory, pool_status: PoolStatus, failures: Mapping[Key, PoolFailure], waiting: Mapping[Key, int], now: float
) -> list[dict[str, Any]]:
    """Return a document for each pool and template whose machines fail until an operator fixes the cause.

    ``error``, ``text`` and ``since`` describe the last failure. A pool without room and a lost Spot machine need no
    operator, so they are left out. ``pool`` is empty if no pool can make a machine of the template.
    """
    refused = {(one.pool, one.template) for one in pool_status.refused}
    lasting = {key: last for key, last in sorted(failures.items()) if not last.is_over and _needs_operator(last)}
    backing_off = {key for key, window in memory.windows.items() if window.backs_off_from}
    return [
        {"pool": key[0], "template": key[1], **last.failure.log_fields, **past_fields(memory, "since", last.since, now)}
        for key, last in lasting.items()
        if key not in refused and (waiting.get(key) or key in backing_off)
    ] + (_impossible_documents(memory, pool_status.limits, now) if pool_status.limits else [])


def _impossible_documents(memory: Memory, limits: Limits, now: float) -> list[dict[str, Any]]:
    """Return a document for each template of which no machine can be made, if a request failed for this reason in the
    last hour."""
    failed: dict[str, float] = {}
    for record in memory.requests.values():
        tried = any(slot.submitted_at is not None for slot in record.slots.values())
        if record.ended_at is not None and record.ended_at > now - HOUR and not tried:
            failed[record.template] = min(record.ended_at, failed.get(record.template, now))
    return [
        {"pool": "", "template": id_, "error": ErrorClass.INVALID, "text": text} | past_fields(memory, "since", at, now)
        for id_, at in sorted(failed.items())
        if (text := limits.template_problem(id_))
    ]


def _needs_operator(last: PoolFailure) -> bool:
    error = last.failure.error
    return error.needs_operator or error is ErrorClass.QUOTA or (error in UNREADY and last.failed_in_a_row >= ROW)


# --- for operators ----------------------------------------------------------------------------------------------------


def pool_alarms(
    unseen: Sequence[Document], failing: Sequence[Document], rows: Iterable[Row], budget: Document | None
) -> Iterator[str]:
    """Yield a sentence with the next step for each problem. ``rows``: the rows of all tables, which show the pools and
    templates that exceed their caps."""
    for one in unseen:
        since = f" since {format_local_time(one['since'])}" if one["since"] else ""
        yield f"UNSEEN pool {one['pool']}{since}, no machine is made or deleted there: {one['text']}"
    for one in failing:
        begin = FAILING.get(one["error"], "FAILING in pool {0} until an operator fixes the cause: machines of {1}")
        begin = begin if one["pool"] else "REQUESTS FAIL: no machine of {1} can be made, and requests end at once"
        yield f"{begin.format(one['pool'], one['template'])} since {format_local_time(one['since'])}: {one['text']}"
    over = {row.name: row for row in rows if row.cap is not None and row.running > row.cap}
    for name, row in over.items():
        effect = (
            "no machine is made there until the cap is raised, or machines are returned (provisioner cancel MACHINE)"
        )
        yield f"OVER CAP {name}: {format_count(row.running, 'machine')} running, and the cap is {row.cap}: {effect}"
    yield from filter(None, [budget_alarm(budget)])

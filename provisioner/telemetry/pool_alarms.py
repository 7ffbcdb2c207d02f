"""Problems of pools that an operator has to fix: unseen pools, failing machines, caps that are exceeded, used-up
budgets.

The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from provisioner.model import ErrorClass, Limits, Memory, format_utc
from provisioner.telemetry.cost import budget_alarm
from provisioner.telemetry.machine_rows import Row
from provisioner.telemetry.pool_status import PoolStatus
from provisioner.telemetry.pool_windows import Document, Key, PoolFailure, format_local_time, past_fields

ROW = 3
"""Number of machines of a pool and template that failed in a row from which the failures will not end without an
operator."""

UNREADY = frozenset({ErrorClass.OTHER, ErrorClass.TIMEOUT})
"""Error classes of machines that were made but did not begin to run."""


class Cap(NamedTuple):
    """A setting that limits machines, and the number of machines that run under it."""

    pool: str
    template: str
    setting: str
    cap: int | None
    running: int


def unseen_documents(pool_status: PoolStatus) -> list[dict[str, Any]]:
    """Return the unseen pools, each with the time ``since`` (None if unknown) and the reason ``text``."""
    return [
        {
            "pool": pool,
            "since": format_utc(since) if (since := pool_status.unseen_since.get(pool)) else None,
            "text": text,
        }
        for pool, text in pool_status.unseen.items()
    ]


def failing_documents(
    memory: Memory, pool_status: PoolStatus, failures: Mapping[Key, PoolFailure], waiting: Mapping[Key, int], now: float
) -> list[dict[str, Any]]:
    """Return the pools and templates whose machines fail until an operator fixes the cause.

    ``error``, ``text`` and ``since``: the last failure. A pool without room and a lost Spot machine need no operator,
    so they are left out.
    """
    refused = {(one.pool, one.template) for one in pool_status.refused}
    return [
        {"pool": key[0], "template": key[1], **last.failure.log_fields, **past_fields(memory, "since", last.since, now)}
        for key, last in sorted(failures.items())
        if key not in refused
        and not last.is_over
        and _needs_operator(last)
        and (waiting.get(key) or _backs_off(memory, key))
    ]


def _needs_operator(last: PoolFailure) -> bool:
    error = last.failure.error
    lasts = error in UNREADY and last.failed_in_a_row >= ROW
    return lasts or error.needs_operator or error is ErrorClass.QUOTA


def _backs_off(memory: Memory, key: Key) -> bool:
    window = memory.windows.get(key)
    return window is not None and window.backs_off_from is not None


def over_cap_documents(limits: Limits, rows: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return the caps that running machines exceed: ``pool`` and ``template`` (or empty), ``setting``, ``cap`` and
    ``running``."""
    caps = [
        Cap(row.pool, row.template, "max_machines", limits.pools[row.pool].max_machines, row.running)
        for row in rows["machines"]
        if row.pool in limits.pools
    ]
    caps += [
        Cap(row.pool, "", "max_machines_total", limits.pools[row.pool].max_machines_total, row.running)
        for row in rows["pools"]
        if row.pool in limits.pools
    ]
    caps += [
        Cap("", row.template, "maxNumber", limits.templates[row.template].max_machines, row.running)
        for row in rows["templates"]
        if row.template in limits.templates
    ]
    return [one._asdict() for one in caps if one.cap is not None and one.running > one.cap]


# --- for operators ----------------------------------------------------------------------------------------------------


def pool_alarms(
    unseen: Sequence[Document], failing: Sequence[Document], over_cap: Sequence[Document], budget: Document | None
) -> Iterator[str]:
    """Yield a sentence with the next step for each problem."""
    for one in unseen:
        since = f" since {format_local_time(one['since'])}" if one["since"] else ""
        yield f"UNSEEN pool {one['pool']}{since}, no machine is made or deleted there: {one['text']}"
    for one in failing:
        yield f"{_format_failing(one)} since {format_local_time(one['since'])}: {one['text']}"
    for one in over_cap:
        subject = " of ".join(filter(None, (one["template"] and f"template {one['template']}", one["pool"])))
        where = subject if one["template"] else f"pool {one['pool']}"
        yield (
            f"OVER CAP {where}: {one['running']} machines run, {one['setting']} is {one['cap']}, so no machine is made "
            f"there; raise {one['setting']}, or have machines returned (provisioner cancel MACHINE)"
        )
    if alarm := budget_alarm(budget):
        yield alarm


def _format_failing(one: Document) -> str:
    where = f"pool {one['pool']}"
    if one["error"] == ErrorClass.QUOTA:
        return f"QUOTA of {where} is used up, raise it or free some of it; no machine of {one['template']}"
    if one["error"] in UNREADY:
        return f"NEVER READY in {where} (provisioner explain {one['pool']}): machines of {one['template']}"
    return f"FAILING in {where} until an operator fixes the cause: machines of {one['template']}"

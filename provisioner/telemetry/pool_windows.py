"""The windows, back-offs and last failures of each pool, as documents and as sentences for operators."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from provisioner.model import DAY, HOUR, Failure, LossCause, Memory, Verdict, format_utc
from provisioner.names import format_printable

Document = Mapping[str, Any]
"""A JSON object of ``status -o json``."""

Key = tuple[str, str]
"""Pool and template."""


class PoolFailure(NamedTuple):
    """The last failure of a template in a pool. Times are loop time."""

    failure: Failure
    at: float
    """The time at which the slot was closed or the back-off began. For a machine that still waits: the time at which
    its create was sent."""
    since: float
    """The time of the first failure with the same error class in the pool since a machine last ran there."""
    is_over: bool = False
    """True if a machine has begun to run in the pool after the failure, no machine waits for room there, and the pool
    does not back off."""
    failed_in_a_row: int = 0
    """Number of machines that failed with the same error class since a machine last ran. Machines that had run, and
    machines that were taken away, do not count."""


TAKEN = frozenset({LossCause.PREEMPTED, LossCause.EVICTED, LossCause.NODE, LossCause.DELETED})
"""Causes of losses for which neither the machine nor its template is to blame, because the machine was taken away."""

_Failed = tuple[float, Failure, bool]
"""The time of a failure, the failure, and True if the failure counts for ``failed_in_a_row``."""


UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
"""Pattern of a time as ``format_utc`` writes it."""


def pool_failures(memory: Memory) -> Mapping[Key, PoolFailure]:
    """Return the last failure of each template in each pool. Search the slots and the windows that back off."""
    failures = defaultdict[Key, list[_Failed]](list)
    ran = defaultdict[Key, float](float)
    lasting = {key for key, window in memory.windows.items() if window.level}
    for record, slot in memory.slots:
        key = (slot.pool, record.template)
        if slot.ran_at is not None and slot.verdict is not Verdict.FAILED:
            ran[key] = max(ran[key], slot.ran_at)
        elif (failure := slot.trouble) is not None and slot.submitted_at is not None:
            at = slot.submitted_at if slot.deletion.closed_at is None else slot.deletion.closed_at
            ended = (slot.verdict, slot.ran_at) == (Verdict.FAILED, None) and slot.observed.cause not in TAKEN
            failures[key].append((at, failure, ended))
            if slot.verdict is Verdict.OPEN and failure.error.has_no_room:
                lasting.add(key)
    for key, window in memory.windows.items():
        if window.backs_off_from is not None:
            failures[key].append((window.blocked_at, window.backs_off_from, False))
    return {key: _last_failure(failed, ran[key], is_over=key not in lasting) for key, failed in failures.items()}


def _last_failure(failed: list[_Failed], ran: float, *, is_over: bool) -> PoolFailure:
    at, failure, _ = max(failed, key=lambda one: one[0])
    series = [(failed_at, ended) for failed_at, one, ended in failed if one.error is failure.error and failed_at > ran]
    began = min([failed_at for failed_at, _ in series], default=at)
    return PoolFailure(failure, at, began, is_over and ran > at, sum(ended for _, ended in series))


def window_documents(
    memory: Memory,
    failures: Mapping[Key, PoolFailure],
    waiting: Mapping[Key, int],
    queues: Mapping[Key, Document],
    now: float,
) -> list[dict[str, Any]]:
    """Return a document for each pool and template. ``queues``: the result of ``find_queues``.

    * ``window``: None if untried.
    * ``why``, ``since``: reason and start of the back-off.
    * ``next_probe``: the time of the next create during the back-off.
    * ``last_error``: see ``last_error``.
    * ``missing``: the number of machines that wait there.
    * ``queue``: the queued machines among them, or None.
    """
    return [
        _window_document(memory, key, failures.get(key), waiting.get(key, 0), now) | {"queue": queues.get(key)}
        for key in sorted(memory.windows.keys() | failures.keys() | waiting.keys())
        if key[0]
    ]


def _window_document(
    memory: Memory, key: Key, last: PoolFailure | None, waiting_machines: int, now: float
) -> dict[str, Any]:
    window = memory.windows.get(key)
    failure = window.failure if window else None
    backs_off = window is not None and window.level > 0
    same = last is not None and failure is not None and last.failure.error is failure.error
    since = (last.since if last and same else window.blocked_at) if window and backs_off else None
    return {
        "pool": key[0],
        "template": key[1],
        "window": window.window if window else None,
        "backing_off": backs_off,
        "why": failure.text if failure else "",
        **past_fields(memory, "since", since, now),
        **coming_fields(memory, "next_probe", window.retry_at if window and backs_off else None, now),
        "last_error": last_error(memory, last, waiting_machines, now),
        "missing": waiting_machines,
    }


def last_error(memory: Memory, last: PoolFailure | None, waiting_machines: int, now: float) -> dict[str, Any] | None:
    """Return a document about the failure ``last``: its class as ``error``, its ``text``, and its time as ``at``.
    Return None if ``last`` is None, or if the failure is over and no machine waits."""
    if last is None or (last.is_over and not waiting_machines):
        return None
    return {**last.failure.log_fields, **past_fields(memory, "at", last.at, now)}


def past_fields(memory: Memory, name: str, at: float | None, now: float) -> dict[str, Any]:
    """Return two fields for a past time ``at`` in loop time: ``<name>`` with the UTC time, and ``<name>_seconds`` with
    the seconds since then. Both fields are None if ``at`` is None."""
    seconds_passed = None if at is None else round(max(0.0, now - at), 1)
    return {name: None if at is None else format_utc(memory.wall_of(at)), f"{name}_seconds": seconds_passed}


def coming_fields(memory: Memory, name: str, at: float | None, now: float) -> dict[str, Any]:
    """Return two fields for a future time ``at`` in loop time: ``<name>`` with the UTC time, and ``<name>_seconds``
    with the seconds until then. Both fields are None if ``at`` is None."""
    seconds_left = None if at is None else round(max(0.0, at - now), 1)
    return {name: None if at is None else format_utc(memory.wall_of(at)), f"{name}_seconds": seconds_left}


# --- for operators ----------------------------------------------------------------------------------------------------


def format_pool_line(pool: Document) -> str:
    """Return the line of a pool and template: window, missing and queued machines, back-off, last error."""
    facts = [f"window {pool['window']}"] if pool["window"] is not None else []
    if pool["missing"]:
        facts.append(f"{pool['missing']} missing")
    if queue := pool["queue"]:
        start = format_expected_start(queue)
        wait = f"the longest for {format_duration(queue['since_seconds'])}: {format_printable(queue['text'])}"
        facts.append(f"{queue['machines']} queued, {wait}{start and f' ({start})'}")
    if pool["backing_off"]:
        seconds_left = pool["next_probe_seconds"]
        probe = f"next probe in {format_duration(seconds_left)}" if seconds_left else "one machine at a time"
        since = f"since {format_local_time(pool['since'])} ({format_duration(pool['since_seconds'])})"
        facts.append(f"backing off {since}, {probe}, cause: {format_printable(pool['why'])}")
    if last := pool["last_error"]:
        ago = f"last error {format_duration(last['at_seconds'])} ago"
        is_shown = pool["backing_off"] and last["text"] == pool["why"]
        facts.append(ago if is_shown else f"{ago}, {last['error']}: {format_printable(last['text'])}")
    return f"  pool {pool['pool']}, {pool['template']}: {', '.join(facts) or 'no state is known'}"


def format_expected_start(one: Document) -> str:
    """Return a sentence part with the expected start of the first queued machine. The place estimates this time. Return
    an empty text if there is no estimate."""
    return f"expected to start at {format_local_time(one['expected_start'])}" if one["expected_start"] else ""


def format_local_time(text: str) -> str:
    """Return a text in which each UTC time is replaced by the local time. A time that is a day or more away has its
    date, too."""
    return UTC_TIME.sub(lambda found: _local_time(found[0]), text)


def _local_time(utc_time: str) -> str:
    try:
        then = datetime.fromisoformat(utc_time).astimezone()
    except (ValueError, OverflowError, OSError):
        return utc_time
    return then.strftime("%H:%M:%S" if abs(time.time() - then.timestamp()) < DAY else "%Y-%m-%d %H:%M:%S")


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun, for example ``3 machines``. The noun is singular for 1."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_duration(seconds: float) -> str:
    """Return a duration as text, in seconds, minutes, hours or days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR:.0f} h" if seconds < 2 * DAY else f"{seconds / DAY:.0f} d"

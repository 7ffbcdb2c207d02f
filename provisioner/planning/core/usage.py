"""Usage: the time for which machines existed, in loop time, by UTC day, template, pool and account.

A machine counts only if an observation has shown it. The machine's time begins with its create. If the machine waits
for room or in a queue, its time begins after this wait. The time ends with the first observation that lacks the
machine.

The plan that finds the machine gone adds the machine's time to the totals. Each machine counts once, because one write
of memory records both the end and the totals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import NamedTuple

from provisioner.model import DAY, Memory, Slot, UsageTotals
from provisioner.planning.core.draft import Draft

Cell = tuple[str, str, str]
"""Template, pool and account."""

Usage = Mapping[str, Mapping[Cell, int]]
"""Milliseconds by day and cell. The numbers are integers, so that their sum does not depend on the order of
additions."""

EARLIER = ""
"""Key in ``Usage`` for the sum of the older days, which memory does not store day by day."""

DAY_MILLISECONDS = round(DAY * 1000)

LONGEST = 3660 * DAY_MILLISECONDS
"""Longest time of one machine, in milliseconds. Only a damaged file has a longer time."""

FIRST = date(1970, 1, 1).toordinal()
LAST = date.max.toordinal()


class Span(NamedTuple):
    """The time for which a machine existed: its start and its end in loop time."""

    begin: float
    end: float

    @property
    def milliseconds(self) -> int:
        """Return the length of the span in milliseconds. The length is negative if the last observation began before
        the machine existed."""
        return round((self.end - self.begin) * 1000)


def find_span(slot: Slot, now: float) -> Span | None:
    """Return the span of a slot's machine until ``now``, or until an observation lacked the machine. Return None if no
    observation has shown the machine, or if the machine still waits."""
    if not slot.observed.was_seen or (slot.life.used_from is None and _is_waiting(slot)):
        return None
    return Span(
        slot.asked_at if slot.life.used_from is None else slot.life.used_from,
        now if slot.observed.absent_since is None else slot.observed.absent_since,
    )


def _is_waiting(slot: Slot) -> bool:
    """Return whether the slot's machine waits for room or in a queue of its place. Such a machine does not exist
    yet."""
    if slot.ran_at is not None:
        return False
    return slot.observed.is_queued or (slot.failure is not None and slot.failure.error.has_no_room)


def split_by_day(usage_span: Span, ahead: float) -> Iterator[tuple[str, int]]:
    """Yield each day of a span with the span's milliseconds on this day. ``ahead``: seconds by which the wall clock is
    ahead of loop time."""
    end = round((usage_span.end + ahead) * 1000)
    begin = end - min(usage_span.milliseconds, LONGEST)
    while begin < end:
        midnight = (begin // DAY_MILLISECONDS + 1) * DAY_MILLISECONDS
        yield day_of(begin // DAY_MILLISECONDS), min(end, midnight) - begin
        begin = midnight


@lru_cache(maxsize=400)
def day_of(number: int) -> str:
    """Return the date of a day, given as days since 1970. For a day outside the calendar, which only a damaged file
    has, return the nearest date."""
    return date.fromordinal(max(1, min(FIRST + number, LAST))).isoformat()


def wall_day(wall: float) -> str:
    """Return the UTC date of a moment of the wall clock (epoch seconds)."""
    return day_of(round(wall * 1000) // DAY_MILLISECONDS)


def count_usage(draft: Draft) -> None:
    """Add to the totals the time of the machines that this plan has found gone. If a machine has stopped waiting,
    record that its time begins now."""
    added = defaultdict[str, Counter[Cell]](Counter)
    for template, _, before, slot in draft.transitions:
        if before is None or not slot.observed.was_seen:
            continue
        if slot.deletion.is_gone and not before.deletion.is_gone:
            cell = (template, slot.pool, draft.requests[slot.request].rc_account)
            usage_span = find_span(slot, draft.now)
            for day, milliseconds in split_by_day(usage_span, draft.ahead) if usage_span else ():
                added[day][cell] += milliseconds
        elif not slot.deletion.is_gone and (before.deletion.is_gone or _has_stopped_waiting(before, slot)):
            draft.put_slots(slot.request, slot.with_life(used_from=draft.now))
    if added:
        since = draft.usage.since_wall
        days = _keep_newest(_add_usage(draft.usage.days, added), draft.limits.usage_days)
        draft.usage = UsageTotals(days, draft.now + draft.ahead if since is None else since)


def _has_stopped_waiting(before: Slot, slot: Slot) -> bool:
    """Return whether the slot's machine has just stopped waiting."""
    return slot.life.used_from is None and _is_waiting(before) and not _is_waiting(slot)


def _add_usage(usage: Usage, added: Mapping[str, Mapping[Cell, int]]) -> Usage:
    """Return the sum of two usages. A day without an addition stays the same object."""
    return {**usage, **{day: Counter(usage.get(day, {})) + Counter(cells) for day, cells in added.items()}}


def _keep_newest(usage: Usage, days: int) -> Usage:
    """Return the newest ``days`` days, and the sum of all older days by pool."""
    newest = {*sorted(usage.keys() - {EARLIER})[-days:]}
    old = {day: cells for day, cells in usage.items() if day not in newest}
    if not old.keys() - {EARLIER}:
        return usage
    earlier = {("", pool, ""): milliseconds for pool, milliseconds in by_pool(old).items()}
    return {EARLIER: earlier, **{day: cells for day, cells in usage.items() if day in newest}}


def find_present_spans(memory: Memory, now: float) -> Iterator[tuple[Cell, Span]]:
    """Yield the cell (template, pool and account) and the span of each existing machine. Leave out machines without a
    span."""
    for record, slot in memory.slots:
        if not slot.deletion.is_gone and (usage_span := find_span(slot, now)) is not None:
            yield (record.template, slot.pool, record.rc_account), usage_span


def get_usage(memory: Memory, now: float, ahead: float) -> Usage:
    """Return the usage until ``now``, including machines that still exist. ``memory`` is not changed."""
    until_now = defaultdict[str, Counter[Cell]](Counter)
    for cell, usage_span in find_present_spans(memory, now):
        for day, milliseconds in split_by_day(usage_span, ahead):
            until_now[day][cell] += milliseconds
    return _add_usage(memory.usage.days, until_now)


def restore_usage(old: Memory, remembered: Memory) -> Memory:
    """Return ``remembered``, a rebuilt memory, with the usage totals of ``old``, an old copy. The time of existing
    machines begins now."""
    days = get_usage(old, old.written.time, old.written.ahead)
    since = remembered.usage.since_wall if old.usage.since_wall is None else old.usage.since_wall
    return replace(remembered, usage=UsageTotals(days, since))


def by_pool(usage: Usage) -> Mapping[str, int]:
    """Return the usage of each pool in milliseconds, summed over all days."""
    pools = Counter[str]()
    for cells in usage.values():
        for (_, pool, _), milliseconds in cells.items():
            pools[pool] += milliseconds
    return pools


def get_month(wall: float) -> tuple[str, float, float]:
    """Return a calendar month (UTC): the first characters of its dates (``2026-11-``), its start and its end.

    ``wall``: a moment in the month. This moment, the start and the end are in epoch seconds.
    """
    today = date.fromisoformat(wall_day(wall)).replace(day=1)
    year, month = divmod(12 * today.year + today.month, 12)
    ends = date(min(year, date.max.year), month + 1, 1)
    begin, end = ((day.toordinal() - FIRST) * DAY for day in (today, ends))
    return today.isoformat()[:8], begin, end

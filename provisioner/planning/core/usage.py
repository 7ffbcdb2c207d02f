"""Usage: for how long machines were there, in loop time, by UTC day, template, pool and account.

A machine that was seen counts from its create, or from when it waited no more for room or at a gate, until the first
look that lacks it; the plan that finds it gone adds that to memory's totals, in the write that says so: hence once.
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
"""Milliseconds by day and cell: whole ones, so that in whatever order they are added the sum is the same."""

EARLIER = ""
"""In the place of a day: all days that are kept no longer."""

DAY_MILLISECONDS = round(DAY * 1000)

LONGEST = 3660 * DAY_MILLISECONDS
"""Of one machine, in milliseconds: what is longer is a damaged file's."""

FIRST = date(1970, 1, 1).toordinal()
LAST = date.max.toordinal()


class Span(NamedTuple):
    """When a machine was there; loop time."""

    begin: float
    end: float

    @property
    def milliseconds(self) -> int:
        """How long it is; below zero where an observation that began before knows of no machine yet."""
        return round((self.end - self.begin) * 1000)


def span(slot: Slot, now: float) -> Span | None:
    """When the machine of a slot was there, until ``now`` or until an observation lacked it; None where none has
    counted."""
    if not slot.observed.seen or (slot.life.used_from is None and _waits(slot)):
        return None
    return Span(
        slot.asked_at if slot.life.used_from is None else slot.life.used_from,
        now if slot.observed.absent is None else slot.observed.absent,
    )


def _waits(slot: Slot) -> bool:
    """The machine does not exist yet: its place has no room for it, or a gate holds it."""
    if slot.ran is not None:
        return False
    return slot.observed.gated or (slot.failure is not None and slot.failure.error.has_no_room)


def by_day(one: Span, ahead: float) -> Iterator[tuple[str, int]]:
    """The days of a span, and the milliseconds of it on each; ``ahead``: seconds from loop time to the wall clock."""
    end = round((one.end + ahead) * 1000)
    begin = end - min(one.milliseconds, LONGEST)
    while begin < end:
        midnight = (begin // DAY_MILLISECONDS + 1) * DAY_MILLISECONDS
        yield day_of(begin // DAY_MILLISECONDS), min(end, midnight) - begin
        begin = midnight


@lru_cache(maxsize=400)
def day_of(number: int) -> str:
    """The date of a day since 1970; the nearest one of a calendar that ends, as of a damaged file."""
    return date.fromordinal(max(1, min(FIRST + number, LAST))).isoformat()


def wall_day(wall: float) -> str:
    """The UTC date of a time of the wall clock."""
    return day_of(round(wall * 1000) // DAY_MILLISECONDS)


def count_usage(draft: Draft) -> None:
    """Add up the machines that this plan has found gone, and note from when on others count."""
    added = defaultdict[str, Counter[Cell]](Counter)
    for template, _, before, slot in draft.transitions:
        if before is None or not slot.observed.seen:
            continue
        if slot.deletion.gone and not before.deletion.gone:
            cell = (template, slot.pool, draft.requests[slot.request].rc_account)
            one = span(slot, draft.now)
            for day, milliseconds in by_day(one, draft.ahead) if one else ():
                added[day][cell] += milliseconds
        elif not slot.deletion.gone and (before.deletion.gone or _begins(before, slot)):
            draft.put(slot.request, slot.with_life(used_from=draft.now))
    if added:
        since = draft.usage.since_wall
        days = _kept(_sum(draft.usage.days, added), draft.limits.usage_days)
        draft.usage = UsageTotals(days, draft.now + draft.ahead if since is None else since)


def _begins(before: Slot, slot: Slot) -> bool:
    """Its machine waits no more."""
    return slot.life.used_from is None and _waits(before) and not _waits(slot)


def _sum(usage: Usage, added: Mapping[str, Mapping[Cell, int]]) -> Usage:
    """Both together; the days to which nothing is added stay the same objects."""
    return {**usage, **{day: Counter(usage.get(day, {})) + Counter(cells) for day, cells in added.items()}}


def _kept(usage: Usage, days: int) -> Usage:
    """So many of the newest days, whatever day it is now, and the sum of the others by pool."""
    old = sorted(usage.keys() - {EARLIER})[:-days]
    if not old:
        return usage
    earlier = Counter(usage.get(EARLIER, {}))
    for day in old:
        for (_, pool, _), milliseconds in usage[day].items():
            earlier["", pool, ""] += milliseconds
    return {EARLIER: earlier, **{day: cells for day, cells in usage.items() if day not in (EARLIER, *old)}}


def there(memory: Memory, now: float) -> Iterator[tuple[Cell, Span]]:
    """The machines that are there and count, each with its cell and since when."""
    for record in memory.requests.values():
        for slot in record.slots.values():
            if not slot.deletion.gone and (one := span(slot, now)) is not None:
                yield (record.template, slot.pool, record.rc_account), one


def used(memory: Memory, now: float, ahead: float) -> Usage:
    """Usage until ``now``, that of machines that are there included. Reads only."""
    until_now = defaultdict[str, Counter[Cell]](Counter)
    for cell, one in there(memory, now):
        for day, milliseconds in by_day(one, ahead):
            until_now[day][cell] += milliseconds
    return _sum(memory.usage.days, until_now)


def with_usage_of(old: Memory, remembered: Memory) -> Memory:
    """A memory made again, with what an old copy has counted until it was written; its machines count from now on."""
    days = used(old, old.written.time, old.written.ahead)
    since = remembered.usage.since_wall if old.usage.since_wall is None else old.usage.since_wall
    return replace(remembered, usage=UsageTotals(days, since))


def by_pool(usage: Usage) -> Mapping[str, int]:
    """Milliseconds by pool, over all days."""
    pools = Counter[str]()
    for cells in usage.values():
        for (_, pool, _), milliseconds in cells.items():
            pools[pool] += milliseconds
    return pools


def month_of(wall: float) -> tuple[str, float, float]:
    """The UTC month of a time: as its days begin (``2026-11-``), and its first and last moment, by the wall clock."""
    today = date.fromisoformat(wall_day(wall)).replace(day=1)
    year, month = divmod(12 * today.year + today.month, 12)
    ends = date(min(year, date.max.year), month + 1, 1)
    begin, end = ((day.toordinal() - FIRST) * DAY for day in (today, ends))
    return today.isoformat()[:8], begin, end

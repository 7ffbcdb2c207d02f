"""Turns: which request of a template asks first, and in which order the creates of templates are sent.

* Templates make their calls to a pool one by one in turn; they share no windows. What is left of the pool's cap over
  all templates goes to the one whose request has waited longest.
* The oldest and the smallest request go first by turns, so neither age nor size can starve one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from provisioner.model import LONG_AGO, NEVER, Create, RequestRecord
from provisioner.planning.core.slots import missing, pending


def turns(records: Iterable[RequestRecord]) -> list[str]:
    """The ids of the requests that have not ended, in the order in which they ask."""
    by_template = defaultdict[str, list[RequestRecord]](list)
    for record in sorted(records, key=lambda record: record.read):
        by_template[record.template].append(record)
    waiting = [(_in_turn(records), _oldest(records)) for records in by_template.values()]
    waiting.sort(key=lambda one: one[1])
    return [record.id for records, _ in waiting for record in records]


def _oldest(records: list[RequestRecord]) -> float:
    """When the oldest of them was read that has not ended."""
    return min([record.read for record in records if record.ended is None], default=NEVER)


def _in_turn(records: list[RequestRecord]) -> list[RequestRecord]:
    """Those that have not ended, by age; by size when the oldest that still waits was the last to be asked for."""
    by_age = [record for record in records if record.ended is None]
    if len(by_age) < 2:
        return by_age
    sizes = {record.id: _unasked(record) for record in by_age}
    oldest = next((record for record in by_age if sizes[record.id]), None)
    if oldest is None or _last_asked(oldest) < max(map(_last_asked, records)):
        return by_age
    return sorted(by_age, key=lambda record: sizes[record.id])


def _unasked(record: RequestRecord) -> int:
    """Machines for which no create was sent yet."""
    return missing(record) + sum(slot.submitted is None for slot in pending(record))


def _last_asked(record: RequestRecord) -> float:
    """When a create of the request was last sent."""
    if record.ended is not None:  # there may be thousands: the newest slot tells enough
        newest = record.slots.get(record.next_slot - 1)
        return LONG_AGO if newest is None else newest.asked_at
    return max((slot.submitted for slot in record.slots.values() if slot.submitted is not None), default=LONG_AGO)


def in_turn(creates: Sequence[Create]) -> tuple[Create, ...]:
    """The same creates, one of each template after the other: what finds no time in this cycle waits for the next."""
    templates = dict.fromkeys([create.template for create in creates])
    if len(templates) < 2:
        return tuple(creates)
    by_template: dict[str, list[Create]] = {template: [] for template in templates}
    for create in creates:
        by_template[create.template].append(create)
    return tuple(create for turn in zip_longest(*by_template.values()) for create in turn if create is not None)

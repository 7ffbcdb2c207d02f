"""Fair order: the order in which the plan serves requests, and the order in which it sends creates.

* Templates take turns to send one create each to a pool. Each template has its own windows. If a pool
  has a cap over all templates, the template whose request has waited longest gets what the cap still allows.
* Within a template, the oldest and the smallest request take turns. Neither age nor size can therefore starve a
  request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from operator import attrgetter

from provisioner.model import LONG_AGO, NEVER, Create, RequestRecord
from provisioner.names import group_by
from provisioner.planning.core.slots import count_missing, pending_slots


def order_requests(records: Iterable[RequestRecord]) -> list[str]:
    """Return the ids of the open requests in the order in which the plan serves them."""
    by_template = group_by(attrgetter("template"), sorted(records, key=attrgetter("read_at")))
    waiting = [(_order_requests(records), _oldest_read_at(records)) for records in by_template.values()]
    waiting.sort(key=lambda one: one[1])
    return [record.id for records, _ in waiting for record in records]


def _oldest_read_at(records: list[RequestRecord]) -> float:
    """Return the moment at which the oldest open request was read; ``NEVER`` if no request is open."""
    return min([record.read_at for record in records if record.ended is None], default=NEVER)


def _order_requests(records: list[RequestRecord]) -> list[RequestRecord]:
    """Return the open requests of one template in the order in which they are served.

    The oldest request comes first, unless the template's last create was for the oldest request that still lacks a
    create. In that case the smallest request comes first, so that both take turns. Before the template's first
    create, the smallest comes first, too.
    """
    by_age = [record for record in records if record.ended is None]
    if len(by_age) < 2:
        return by_age
    sizes = {record.id: _count_unasked(record) for record in by_age}
    oldest = next((record for record in by_age if sizes[record.id]), None)
    if oldest is None or _last_asked_at(oldest) < max(map(_last_asked_at, records)):
        return by_age
    return sorted(by_age, key=lambda record: sizes[record.id])


def _count_unasked(record: RequestRecord) -> int:
    """Return the number of a request's machines for which the loop has not sent a create yet."""
    return count_missing(record) + sum(slot.submitted_at is None for slot in pending_slots(record))


def _last_asked_at(record: RequestRecord) -> float:
    """Return the moment at which the loop last sent a create for the request; ``LONG_AGO`` if it has sent none."""
    if record.ended is not None:  # a request may have thousands of slots; the newest suffices
        newest = record.slots.get(record.next_slot - 1)
        return LONG_AGO if newest is None else newest.asked_at
    return max((slot.submitted_at for slot in record.slots.values() if slot.submitted_at is not None), default=LONG_AGO)


def interleave_templates(creates: Sequence[Create]) -> tuple[Create, ...]:
    """Return the creates in an order in which templates take turns.

    Each template thus gets its share of the creates that fit into this cycle.
    """
    by_template = group_by(attrgetter("template"), creates)
    return tuple(create for turn in zip_longest(*by_template.values()) for create in turn if create is not None)

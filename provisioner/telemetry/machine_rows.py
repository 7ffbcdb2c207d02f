"""Numbers of machines by pool and template. ``status`` and the status page show them as tables. The functions are
pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from provisioner.model import DESIRED, Limits, Memory, PoolLimits, RequestRecord, Slot, TemplateLimits, Verdict
from provisioner.names import group_by
from provisioner.telemetry.pool_windows import Document, Key


@dataclass(frozen=True, slots=True)
class Row:
    """The machines of a pool, of a template, or of one template in one pool."""

    pool: str
    """The pool; empty if the row counts all pools of a template."""
    template: str
    """The template; empty if the row counts all templates of a pool."""
    wanted: int
    """Number of machines that should run: those of open slots, those that HF has, and those that wait for a slot."""
    running: int
    pending: int
    """Number of open slots whose machines do not run yet."""
    failed: int
    """Number of failed slots. Slots of requests that memory no longer has are not counted."""
    lost: int
    """Number of lost slots: machines that ran and vanished, or that HF returned after their end was announced. Slots of
    requests that memory no longer has are not counted."""
    window: int | None
    """Number of machines that may be pending now; None if the loop has not published its limits."""
    cap: int | None
    """Maximum number of machines that the row may count; None if there is no cap."""
    last_error: Document | None
    """The last error: ``error`` (class), ``text``, the time ``at`` of the error, and its age ``at_seconds``; None if
    there is none."""

    @property
    def name(self) -> str:
        """Return the name of the pool or template whose machines this row counts."""
        return self.pool or self.template


class Counts(NamedTuple):
    """Numbers of slots by state: running, pending, failed, lost."""

    running: int = 0
    pending: int = 0
    failed: int = 0
    lost: int = 0


ByPool = Mapping[str, Counts]


def count_slots(record: RequestRecord) -> ByPool:
    """Return the numbers of a request's slots by pool."""
    states = Counter([(slot.pool, _state(slot)) for slot in record.slots.values()])
    pools = dict.fromkeys(pool for pool, _ in states)
    return {pool: Counts(*(states[pool, name] for name in Counts._fields)) for pool in pools}


def _state(slot: Slot) -> str:
    if slot.verdict not in DESIRED:
        return Verdict.LOST if slot.is_lost else slot.verdict
    return "pending" if slot.ran_at is None else "running"


def tables(
    memory: Memory,
    limits: Limits,
    slots: Mapping[str, ByPool],
    waits: Mapping[Key, int],
    errors: Mapping[Key, Document | None],
) -> dict[str, Sequence[Row]]:
    """Return the rows of three tables. ``machines`` has a row for each template in each pool. ``pools`` and
    ``templates`` have the sums.

    A machine that waits, but not for a particular pool, counts only in the sum of its template.
    """
    total = defaultdict[Key, Counts](Counts)
    for id_, pools in slots.items():
        for pool, counts in pools.items():
            key = (pool, memory.requests[id_].template)
            total[key] = Counts(*map(sum, zip(total[key], counts, strict=True)))
    named = [(pool, template.id) for template in limits.templates.values() for pool in template.pools]
    keys = dict.fromkeys([*named, *sorted(total.keys() | waits.keys() | memory.windows.keys())])
    rows = [_pair_row(memory, limits, key, total[key], waits.get(key, 0), errors.get(key)) for key in keys]
    return {
        "machines": [row for row in rows if row.pool],
        "pools": _sum_rows(rows, "pool", limits.pools),
        "templates": _sum_rows(rows, "template", limits.templates),
    }


def _pair_row(memory: Memory, limits: Limits, key: Key, counts: Counts, waits: int, error: Document | None) -> Row:
    pool = limits.pools.get(key[0])
    # a template that was never tried in the pool has its first window
    first_window = min(pool.initial_window, pool.max_pending) if pool else None
    window = memory.windows[key].window if key in memory.windows else first_window
    wanted = counts.running + max(counts.pending, waits)
    caps = [pool.max_machines, pool.max_machines_total] if pool else []
    return Row(*key, wanted, *counts, window, _least(caps), error)


def _sum_rows(rows: Sequence[Row], kind: str, configured: Mapping[str, PoolLimits | TemplateLimits]) -> list[Row]:
    """Return a row for each pool, or for each template, that is configured or still has machines. ``kind``: "pool" or
    "template"."""
    named = group_by(attrgetter(kind), [row for row in rows if getattr(row, kind)])
    parts = {name: named.get(name, []) for name in (*configured, *named)}
    return [sum_row(part, configured.get(name), **{kind: name}) for name, part in parts.items()]


def sum_row(
    rows: Sequence[Row], limits: PoolLimits | TemplateLimits | None = None, *, pool: str = "", template: str = ""
) -> Row:
    """Return the sum of rows, as the row of this pool or template. ``limits``: those of the pool or template."""
    windows = [row.window for row in rows if row.window is not None]
    errors = [row.last_error for row in rows if row.last_error]
    wanted, *counts = (sum(getattr(row, name) for row in rows) for name in ("wanted", *Counts._fields))
    newest = min(errors, key=lambda error: error["at_seconds"], default=None)
    window, cap = sum(windows) if windows else None, limits.max_machines if limits else None
    if isinstance(limits, PoolLimits):
        each = [row.cap for row in rows if row.cap is not None]
        cap = _least([limits.max_machines_total, sum(each) if each and len(each) == len(rows) else None])
    return Row(pool, template, wanted, *Counts(*counts), window, cap, newest)


def _least(caps: Sequence[int | None]) -> int | None:
    return min([cap for cap in caps if cap is not None], default=None)

"""Make and change slots, memories and limits. A caller gives values by their names, and need not know in which nested
part a value is stored."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from provisioner.model import Deletion, Hosts, Life, Limits, Memory, Moment, Observed, Orphans, Places, Slot, Verdict


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else [*kind._fields]


def _places(**parts: Any) -> dict[str, tuple[str, str]]:
    return {name: (part, name) for part, kind in parts.items() for name in _names(kind)}


PLACES = {
    Slot: _places(observed=Observed, life=Life, deletion=Deletion)
    | {
        "delete": ("deletion", "reason"),
        "delete_sent": ("deletion", "sent_at"),
        "delete_begun": ("deletion", "first_sent_at"),
        "tries": ("tries", "failed"),
        "tried": ("tries", "failure"),
    },
    Limits: {
        "orphan_grace": ("orphans", "grace_seconds"),
        "orphan_cap_per_hour": ("orphans", "cap_per_hour"),
        "delete_unlisted_after": ("orphans", "unlisted_after_seconds"),
        "backoff_first": ("backoff", "first_seconds"),
        "backoff_last": ("backoff", "last_seconds"),
    },
    Memory: _places(written=Moment, orphans=Orphans, hosts=Hosts, places=Places)
    | {
        "time_wall": ("written", "wall"),
        "orphans": ("orphans", "since"),
        "orphan_deletes": ("orphans", "deletes"),
        "usage": ("usage", "days"),
        "usage_since_wall": ("usage", "since_wall"),
    },
}
"""For each fact that is not a field of the value itself: the part and the field in which the fact is stored."""


def alter(value: Any, **changes: Any) -> Any:
    """Return the slot, the memory or the limits with these values changed."""
    for name, fact in changes.items():
        part, field = PLACES[type(value)].get(name, ("", name))
        value = _with(value, part, _with(getattr(value, part), field, fact)) if part else _with(value, field, fact)
    return value


def _with(value: Any, field: str, fact: Any) -> Any:
    change = getattr(value, "_replace", None) or partial(replace, value)
    return change(**{field: fact})


def make_slot(name: str, pool: str, verdict: Verdict, opened: float = 0.0, **changes: Any) -> Slot:
    """Return a slot with these values."""
    slot: Slot = alter(Slot(name, pool, verdict, opened), **changes)
    return slot

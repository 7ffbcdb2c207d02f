"""Slots by the plain names of their facts, in whatever part each fact stands."""

from __future__ import annotations

from typing import Any

from provisioner.model import Deletion, Life, Observed, Slot, Verdict

PARTS: dict[str, Any] = {"observed": Observed, "life": Life, "deletion": Deletion}
PLACES = {fact: (part, fact) for part, kind in PARTS.items() for fact in kind._fields} | {
    "delete": ("deletion", "reason"),
    "delete_sent": ("deletion", "sent"),
    "delete_begun": ("deletion", "begun"),
    "tries": ("tries", "failed"),
    "tried": ("tries", "failure"),
}
"""The part and the field of each fact that is not a field of the slot itself."""


def alter(slot: Slot, **facts: Any) -> Slot:
    """Return the slot with other facts."""
    for name, value in facts.items():
        part, field = PLACES.get(name, ("", name))
        if part:
            field, value = part, getattr(slot, part)._replace(**{field: value})
        slot = slot._replace(**{field: value})
    return slot


def make_slot(name: str, pool: str, verdict: Verdict, opened: float = 0.0, **facts: Any) -> Slot:
    """Return a slot with these facts."""
    return alter(Slot(name, pool, verdict, opened), **facts)

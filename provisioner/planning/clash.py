"""An identity clash: another provisioner makes machines under our names, which to us are orphans.

It is found by what keeps appearing: our own files may have lost a request once, but while they are whole no machine
without one appears again and again.
"""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.model import BrakeReason, Contact
from provisioner.planning.draft import Draft

SETTLED = 60.0
"""Seconds after the loop began from which on an orphan is new: the first looks show those that came while none ran."""

REMEMBERED = 3600.0
"""Seconds for which it is remembered that one appeared: whoever makes machines for a grid makes more within an hour."""

LOOKS = 2
"""In so many looks new ones have to appear. One alone may show the late fruit of a single call."""


def check_clash(draft: Draft, contact: Contact, strange: Mapping[str, str]) -> None:
    """Note the orphans that are new, and latch the brake once more of them appear. ``strange``: the pool of each."""
    memory, now = draft.before, draft.now
    appeared = {name: since for name, since in memory.appeared.items() if since > now - REMEMBERED}
    explained = {*appeared, *memory.orphans, *memory.accepted}
    new = sorted(strange.keys() - explained) if now - contact.started > SETTLED else []
    appeared |= dict.fromkeys(new, now)
    if appeared != memory.appeared:
        draft.changes["appeared"] = appeared
    looks = len(set(appeared.values()))
    if new and looks >= LOOKS:
        text = (
            f"{len(appeared)} machines with our names that nobody asked us for have appeared in {looks} looks, the "
            f"last is {new[-1]}: another provisioner may have the same id and name prefix here."
        )
        draft.latch(BrakeReason.IDENTITY_CLASH, text, strange[new[-1]])

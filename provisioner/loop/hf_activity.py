"""HF activity: when HF last called, and for which requests.

The poll markers that the scripts write show this activity.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Set
from dataclasses import replace

from provisioner.model import DAY, HfActivity, Intent
from provisioner.state.errors import StateError
from provisioner.state.protocols import State

log = logging.getLogger(__name__)

HF_AWAY_SECONDS = 300.0
"""Seconds without a call after which HF counts as having been away. HF calls at least every 30 s."""

INVENTORY_SECONDS = 300.0
"""Seconds within which HF's lists are expected to name all its hosts. HF lists every 30 s, and a single list may name
only some hosts."""

LISTED_SECONDS = DAY
"""Seconds for which the loop remembers that a list named a host."""


def _with_list(activity: HfActivity, names: Collection[str], now: float) -> HfActivity:
    """Return the activity with HF's newest list added.

    A single list may name only some hosts. A host that only older lists name therefore stays for a while.
    """
    named = dict.fromkeys(names, now)
    if named.keys() == activity.listed_at.keys() and len(named) == len(activity.inventory):  # the usual case
        return replace(activity, listed_at=named, last_list_at=now)
    listed = {name: at for name, at in {**activity.listed_at, **named}.items() if now - at < LISTED_SECONDS}
    inventory = frozenset(name for name, at in listed.items() if now - at < INVENTORY_SECONDS)
    return replace(activity, listed_at=listed, last_list_at=now, inventory=inventory)


class HfActivityReader:
    """Reader that notices HF's calls by changed poll markers. The reader does not use the time in a marker."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._markers: dict[str, int] | None = None
        self._inventory: tuple[tuple[str, ...], int] = ((), 0)
        self._intent: Intent | None = None
        self.latest = HfActivity()

    def read(self, now: float, intent: Intent) -> HfActivity:
        """Return all of HF's activity so far. If HF has not called since the last read, return the same object. Raises
        StateError."""
        markers = self._state.polls()
        reported = self._state.terminal_answers.ids()
        names, listed = self._read_inventory()
        if self._markers is None:
            started = HfActivity(since=now, last_call_at=now, read_ids=reported, started_at=now)
            self.latest = _with_list(started, names, now) if listed else started
        else:
            polled = {id_ for id_, marker in markers.items() if self._markers.get(id_) != marker}
            new_list = listed != self._inventory[1]
            called = polled or new_list or self._has_new_records(intent)
            if called or reported != self.latest.read_ids:
                times = {id_: at for id_, at in self.latest.polled_at.items() if id_ in markers}
                times |= dict.fromkeys(polled, now)
                active = now if called else self.latest.last_call_at
                # After a silence, HF gets its full time again to ask for each request.
                since = now if active - self.latest.last_call_at > HF_AWAY_SECONDS else self.latest.since
                activity = replace(self.latest, polled_at=times, since=since, last_call_at=active, read_ids=reported)
                self.latest = _with_list(activity, names, now) if new_list else activity
        self._markers, self._inventory, self._intent = markers, (names, listed), intent
        return self.latest

    def add_reported(self, reported: Set[str]) -> HfActivity:
        """Add the ids of terminal answers that were just reported to HF. Return the activity with these ids."""
        self.latest = replace(self.latest, read_ids=self.latest.read_ids | reported)
        return self.latest

    def _has_new_records(self, intent: Intent) -> bool:
        """Return True if HF has recorded a request or return request since the last read. The loop's removals from
        intent do not count."""
        before = self._intent
        if before is None or before is intent:
            return False
        return not (intent.requests.keys() <= before.requests.keys() and intent.returns.keys() <= before.returns.keys())

    def _read_inventory(self) -> tuple[tuple[str, ...], int]:
        """Return the hosts in HF's latest list, and a number that each new list changes. If the file cannot be read,
        return the previous hosts and number, because the list is only a hint."""
        try:
            return self._state.listed_hosts() or ((), 0)
        except StateError as error:
            log.warning("HF's inventory could not be read", extra={"error": str(error)})
            return self._inventory

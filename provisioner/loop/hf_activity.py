"""When HF called last, and about what: told by the marks that its scripts leave."""

from __future__ import annotations

import logging
from collections.abc import Collection, Set
from dataclasses import replace

from provisioner.model import DAY, HfActivity, Intent
from provisioner.state.errors import StateError
from provisioner.state.protocols import State

log = logging.getLogger(__name__)

HF_AWAY = 300.0
"""Seconds without any call of HF after which it counts as having been away: it calls at least every 30 s."""

ONE_LIST = 300.0
"""Seconds within which HF lists all its hosts, though a single list may name only some: it calls every 30 s."""

LISTED_FOR = DAY
"""Seconds for which it is remembered that a list named a host."""


def _with_list(activity: HfActivity, names: Collection[str], now: float) -> HfActivity:
    """The contact after a list of HF. A host that it does not name may stand in the next one."""
    named = dict.fromkeys(names, now)
    if named.keys() == activity.listed.keys() and len(named) == len(activity.inventory):  # usually all are the same
        return replace(activity, listed=named, lists=now)
    listed = {name: at for name, at in {**activity.listed, **named}.items() if now - at < LISTED_FOR}
    inventory = frozenset(name for name, at in listed.items() if now - at < ONE_LIST)
    return replace(activity, listed=listed, lists=now, inventory=inventory)


class HfActivityReader:
    """Notices HF's calls by the marks that scripts leave, which are only compared for change."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._marks: dict[str, int] | None = None
        self._inventory: tuple[tuple[str, ...], int] = ((), 0)
        self._intent: Intent | None = None
        self.latest = HfActivity()

    def read(self, now: float, intent: Intent) -> HfActivity:
        """What is known of HF's calls now; the same object when nothing is new. Raises StateError."""
        marks = self._state.polls()
        reported = self._state.terminal_answers.ids()
        names, listed = self._read_inventory()
        if self._marks is None:
            started = HfActivity(since=now, active=now, reported=reported, started=now)
            self.latest = _with_list(started, names, now) if listed else started
        else:
            polled = {id_ for id_, mark in marks.items() if self._marks.get(id_) != mark}
            new_list = listed != self._inventory[1]
            called = polled or new_list or self._asks(intent)
            if called or reported != self.latest.reported:
                times = {id_: at for id_, at in self.latest.polled.items() if id_ in marks} | dict.fromkeys(polled, now)
                active = now if called else self.latest.active
                # After a silence it was HF that was away: it gets its time to ask for each request anew.
                since = now if active - self.latest.active > HF_AWAY else self.latest.since
                heard = replace(self.latest, polled=times, since=since, active=active, reported=reported)
                self.latest = _with_list(heard, names, now) if new_list else heard
        self._marks, self._inventory, self._intent = marks, (names, listed), intent
        return self.latest

    def hear(self, reported: Set[str]) -> HfActivity:
        """HF was told of these just now; what is known with that."""
        self.latest = replace(self.latest, reported=self.latest.reported | reported)
        return self.latest

    def _asks(self, intent: Intent) -> bool:
        """HF has recorded something since the last observation; what the loop itself removed is no call of HF's."""
        before = self._intent
        if before is None or before is intent:
            return False
        return not (intent.requests.keys() <= before.requests.keys() and intent.returns.keys() <= before.returns.keys())

    def _read_inventory(self) -> tuple[tuple[str, ...], int]:
        """Only a hint: when it cannot be read, what was listed before stands."""
        try:
            return self._state.listed_hosts() or ((), 0)
        except StateError as error:
            log.warning("HF's inventory could not be read", extra={"error": str(error)})
            return self._inventory

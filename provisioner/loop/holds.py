"""The holds in effect, as the loop last read them from holds.json, and how they changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal, NamedTuple

from provisioner.model import NO_HOLDS, Hold, HoldKind, Holds, Limits, format_utc
from provisioner.planning.core.holds import paused_pools
from provisioner.state.errors import StateError
from provisioner.state.protocols import State

log = logging.getLogger(__name__)


class HoldChange(NamedTuple):
    """A change of a hold: an operator set or released it, or the loop found it in effect at the start."""

    word: Literal["in force", "set", "released"]
    hold: Hold


class CurrentHolds:
    """The holds in effect.

    If holds.json cannot be read, all holds stay in force. If the file cannot be read when the loop starts, the loop
    acts as under stop-all.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._signature: object = None
        """Signature of the file as it was last read."""
        self.latest = NO_HOLDS
        self._is_known = False
        """True once ``latest`` is valid: the file was read, or it could not be read and the loop therefore acts as
        under stop-all."""
        self._problem = ""
        """Reason why the file cannot be read, as last logged; empty if the file can be read."""
        self._changes: list[HoldChange] = []
        """Changes that are not logged yet."""
        self._judged: tuple[object, object] = (None, None)
        """Limits and holds from which the paused pools were last computed."""

    def read(self) -> Holds:
        """Return the holds. Read the file again only if its signature has changed or the last read failed."""
        try:
            signature = self._state.holds.signature()
            if not self._is_known or self._problem or signature != self._signature:
                self._update(self._state.holds.read())
                self._signature = signature
                if self._problem:
                    log.warning("Holds can be read again", extra={"holds": len(self.latest.current)})
                    self._problem = ""
        except StateError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("Holds cannot be read, so all current holds stay in force", extra={"error": self._problem})
            if not self._is_known:
                self._update(Holds((Hold(HoldKind.STOP_ALL, who="provisioner", reason=self._problem),)))
        return self.latest

    def _update(self, holds: Holds) -> None:
        self._changes += _changes(self.latest if self._is_known else None, holds)
        self.latest, self._is_known = holds, True

    def changed_pauses(self, limits: Limits) -> frozenset[str] | None:
        """Return the paused pools; None if neither limits nor holds changed since the last call."""
        if self._judged[0] is limits and self._judged[1] is self.latest:
            return None
        self._judged = limits, self.latest
        return paused_pools(limits, self.latest)

    def log_changes(self) -> list[HoldChange]:
        """Log the holds that were set or released since the last call, and return these changes."""
        changes, self._changes = self._changes, []
        for word, hold in changes:
            facts = {"hold": str(hold.kind), "target": hold.target, "who": hold.who, "reason": hold.reason}
            log.warning("Hold %s", word, extra={**facts, "since": format_utc(hold.since)})
        return changes


def _changes(before: Holds | None, after: Holds) -> Iterator[HoldChange]:
    """Yield the changes between two states of the holds.

    The removal of a cancel is not a change. The loop removes a cancel once the cancel has no effect any more.
    """
    former = () if before is None else before.current
    for hold in after.current:
        if hold not in former:
            yield HoldChange("in force" if before is None else "set", hold)
    released = {(hold.kind, hold.target): hold for hold in after.released}
    for hold in former:
        if hold not in after.current and hold.kind is not HoldKind.CANCEL:
            yield HoldChange("released", released.get((hold.kind, hold.target), hold))

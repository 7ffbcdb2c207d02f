"""Holds as the loop last read them, what changed in them, and what holds while they are unknown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal, NamedTuple

from provisioner.model import NO_LEVERS, Lever, LeverKind, Levers, Limits, format_utc
from provisioner.planning.core.levers import paused_pools
from provisioner.state.errors import StateError
from provisioner.state.interfaces import State

log = logging.getLogger(__name__)


class HoldChange(NamedTuple):
    """What became of a hold: set, released, or in force at the start."""

    word: Literal["held", "pulled", "released"]
    hold: Lever


class CurrentHolds:
    """The holds in force. A file that cannot be read changes none; at a start, when none is known, all is stopped."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._signature: object = None
        """That of the file that was read last."""
        self.latest = NO_LEVERS
        self._is_known = False
        """The file was read once, or its failure to be read was taken for a stop of all."""
        self._problem = ""
        """As it was logged last."""
        self._changes: list[HoldChange] = []
        """Those that are not logged yet."""
        self._judged: tuple[object, object] = (None, None)
        """The limits and holds by which pools were last judged as paused."""

    def read(self) -> Levers:
        """As the file has them; asked for again only when its signature has changed, or it could not be read."""
        try:
            signature = self._state.levers_signature()
            if not self._is_known or self._problem or signature != self._signature:
                self._update(self._state.read_levers())
                self._signature = signature
                if self._problem:
                    log.warning("Levers can be read again", extra={"held": len(self.latest.held)})
                    self._problem = ""
        except StateError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("Levers cannot be read: those that were held are held on", extra={"error": self._problem})
            if not self._is_known:
                self._update(Levers((Lever(LeverKind.STOP_ALL, who="provisioner", reason=self._problem),)))
        return self.latest

    def _update(self, holds: Levers) -> None:
        self._changes += _changes(self.latest if self._is_known else None, holds)
        self.latest, self._is_known = holds, True

    def paused(self, limits: Limits) -> frozenset[str] | None:
        """Return the pools that take no machine; None if neither limits nor holds changed since the last call."""
        if self._judged[0] is limits and self._judged[1] is self.latest:
            return None
        self._judged = limits, self.latest
        return paused_pools(limits, self.latest)

    def tell(self) -> list[HoldChange]:
        """Log what was set or released since the last call, and return it."""
        changes, self._changes = self._changes, []
        for word, hold in changes:
            about = {"lever": str(hold.kind), "target": hold.target, "who": hold.who, "reason": hold.reason}
            log.warning("Lever %s", word, extra={**about, "since": format_utc(hold.since)})
        return changes


def _changes(before: Levers | None, after: Levers) -> Iterator[HoldChange]:
    """What became of the holds; a cancel that was forgotten because it is done is left out."""
    former = () if before is None else before.held
    yield from (HoldChange("held" if before is None else "pulled", hold) for hold in after.held if hold not in former)
    by = {(hold.kind, hold.target): hold for hold in after.released}
    for hold in former:
        if hold not in after.held and hold.kind is not LeverKind.CANCEL:
            yield HoldChange("released", by.get((hold.kind, hold.target), hold))

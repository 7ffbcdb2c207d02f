"""Holds as the loop last read them, what changed in them, and what holds while they are unknown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal, NamedTuple

from provisioner.model import NO_HOLDS, Hold, HoldKind, Holds, format_utc
from provisioner.state.errors import StateError
from provisioner.state.protocols import State

log = logging.getLogger(__name__)


class HoldChange(NamedTuple):
    """What became of a hold: set, released, or in force at the start."""

    word: Literal["held", "pulled", "released"]
    hold: Hold


class CurrentHolds:
    """The holds in force. A file that cannot be read changes none; at a start, when none is known, all is stopped."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._signature: object = None
        """That of the file that was read last."""
        self.latest = NO_HOLDS
        self._is_known = False
        """The file was read once, or its failure to be read was taken for a stop of all."""
        self._problem = ""
        """As it was logged last."""
        self._changes: list[HoldChange] = []
        """Those that are not logged yet."""

    def read(self) -> Holds:
        """As the file has them; asked for again only when its signature has changed, or it could not be read."""
        try:
            signature = self._state.holds_signature()
            if not self._is_known or self._problem or signature != self._signature:
                self._update(self._state.read_holds())
                self._signature = signature
                if self._problem:
                    log.warning("Holds can be read again", extra={"held": len(self.latest.current)})
                    self._problem = ""
        except StateError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("Holds cannot be read: those that were held are held on", extra={"error": self._problem})
            if not self._is_known:
                self._update(Holds((Hold(HoldKind.STOP_ALL, who="provisioner", reason=self._problem),)))
        return self.latest

    def _update(self, holds: Holds) -> None:
        self._changes += _changes(self.latest if self._is_known else None, holds)
        self.latest, self._is_known = holds, True

    def tell(self) -> list[HoldChange]:
        """Log what was set or released since the last call, and return it."""
        changes, self._changes = self._changes, []
        for word, hold in changes:
            about = {"hold": str(hold.kind), "target": hold.target, "who": hold.who, "reason": hold.reason}
            log.warning("Hold %s", word, extra={**about, "since": format_utc(hold.since)})
        return changes


def _changes(before: Holds | None, after: Holds) -> Iterator[HoldChange]:
    """What became of the holds; a cancel that was forgotten because it is done is left out."""
    former = () if before is None else before.current
    yield from (
        HoldChange("held" if before is None else "pulled", hold) for hold in after.current if hold not in former
    )
    by = {(hold.kind, hold.target): hold for hold in after.released}
    for hold in former:
        if hold not in after.current and hold.kind is not HoldKind.CANCEL:
            yield HoldChange("released", by.get((hold.kind, hold.target), hold))

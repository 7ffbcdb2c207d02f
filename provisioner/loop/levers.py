"""Levers as the loop last read them: when they change, who is told, and what holds while nobody knows."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from provisioner.loop.repeats import Line
from provisioner.model import Lever, LeverKind, Levers, Limits, format_utc
from provisioner.planning.core.levers import in_force
from provisioner.state.errors import StateError
from provisioner.state.interfaces import State

log = logging.getLogger(__name__)

UNREAD = object()
"""The signature of a file that was not read yet, or could not be."""

SENTENCES = {"held": "Lever held", "pulled": "Lever pulled", "released": "Lever released"}

Fact = tuple[str, Lever]
"""What became of a lever: pulled, released, or held at the start."""


class HeldLevers:
    """The levers in force. A file that cannot be read changes none; at a start, when none is known, all is stopped."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._signature: object = UNREAD
        self._levers: Levers | None = None
        self._problem = ""
        """As it was logged last."""
        self._facts: list[Fact] = []
        """What nobody was told of yet."""
        self._applied: tuple[Limits, Levers, Limits] | None = None

    def on(self, limits: Limits) -> tuple[Limits, Levers]:
        """The limits with pauses of the pools that levers hold, the same object while both are the same; the levers."""
        levers = self._read()
        if self._applied is None or self._applied[0] is not limits or self._applied[1] is not levers:
            self._applied = (limits, levers, in_force(limits, levers) if levers.held else limits)
        return self._applied[2], levers

    def _read(self) -> Levers:
        """As the file has them; asked for again only when its signature has changed, or it could not be read."""
        try:
            signature = self._state.levers_signature()
            if self._levers is None or signature != self._signature:
                self._take(self._state.read_levers())
                self._signature = signature
        except StateError as error:
            self._doubt(str(error))
        assert self._levers is not None
        return self._levers

    def _take(self, levers: Levers) -> None:
        if self._problem:
            log.warning("Levers can be read again", extra={"held": len(levers.held)})
            self._problem = ""
        self._facts += _facts(self._levers, levers)
        self._levers = levers

    def _doubt(self, problem: str) -> None:
        if problem != self._problem:
            log.error("Levers cannot be read: those that were held are held on", extra={"error": problem})
            self._problem = problem
        if self._levers is None:
            stop = Lever(LeverKind.STOP_ALL, who="provisioner", reason=problem)
            self._levers = Levers((stop,))
            self._facts += _facts(None, self._levers)

    def tell(self) -> list[Line]:
        """Say in the log what was pulled or let go; the lines for the journal."""
        facts, self._facts = self._facts, []
        for word, lever in facts:
            about = {"lever": str(lever.kind), "target": lever.target, "who": lever.who, "reason": lever.reason}
            log.warning(SENTENCES[word], extra={**about, "since": format_utc(lever.since)})
        return [_line(word, lever) for word, lever in facts]


def _facts(before: Levers | None, after: Levers) -> Iterator[Fact]:
    """What became of the levers; of a cancel that was forgotten since it is done there is nothing to tell."""
    former = () if before is None else before.held
    yield from ((("held" if before is None else "pulled"), lever) for lever in after.held if lever not in former)
    by = {(lever.kind, lever.target): lever for lever in after.released}
    for lever in former:
        if lever not in after.held and lever.kind is not LeverKind.CANCEL:
            yield "released", by.get((lever.kind, lever.target), lever)


def _line(word: str, lever: Lever) -> Line:
    place = {} if lever.kind is LeverKind.STOP_ALL else {_place(lever): lever.target}
    return {"event": "lever", "lever": lever.kind, "result": word, **place, "who": lever.who, "text": lever.reason}


def _place(lever: Lever) -> str:
    """What the journal calls the lever's target."""
    if lever.kind is not LeverKind.CANCEL:
        return "pool"
    return "machine" if "-" in lever.target else "request"

"""What people should know of the loop and its pools: the loop writes ``pools.json``, commands read it, and nothing is
decided by it. What the other files hold is not repeated, as it can be told without a loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from provisioner.model import (
    Delete,
    Limits,
    Memory,
    PoolLimits,
    Snapshot,
    Unmet,
)
from provisioner.state.codec import RecordError, decode, encode
from provisioner.state.errors import StateError, StateUnreadable
from provisioner.state.interfaces import State
from provisioner.state.markers import UNSEEN

if TYPE_CHECKING:
    from provisioner.loop.actors import Results
    from provisioner.loop.cycle import CycleReport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastingFailure:
    """A failure that lasts, and since when, in epoch seconds of the loop's host."""

    since: float
    text: str


@dataclass(frozen=True, slots=True)
class StandingRefusal:
    """A pool that refuses every call of a kind, until a person mends something."""

    pool: str
    operation: str
    """``create`` or ``delete``."""
    template: str
    """The template of the refused creates; empty for deletes."""
    since: float
    """Since when, as in ``LastingFailure``."""
    text: str
    """The reason in the words of the place."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What the loop has left."""

    pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sentences on each pool's place."""
    problem: LastingFailure | None = None
    """Why nothing is planned."""
    configuration: LastingFailure | None = None
    """Why the configuration in the files is not the one in force."""
    refused: tuple[StandingRefusal, ...] = ()
    """Creates and deletes that are not worth trying until a person mends something; they are tried all the same."""
    paused: tuple[str, ...] = ()
    """Pools in which a person has paused creates."""
    orphans: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The machines without a request, by pool."""
    limits: Limits | None = None
    """The limits that the loop has in force; None if no loop has published them."""
    unmet: Mapping[str, tuple[Unmet, ...]] = field(default_factory=dict)
    """Machines of each open request that do not run: where, why, since when, and when they are tried again."""

    @property
    def pool_limits(self) -> Mapping[str, PoolLimits]:
        """The limits of each pool, as far as they are published."""
        return self.limits.pools if self.limits else {}

    @property
    def unseen(self) -> Mapping[str, str]:
        """The pools whose newest look failed or is in doubt, and why."""
        return {
            pool: sentence.removeprefix(UNSEEN)
            for pool, sentences in self.pools.items()
            for sentence in sentences
            if sentence.startswith(UNSEEN)
        }


def read_notes(state: State) -> Notes:
    """Return the notes of the loop. Raise StateUnreadable."""
    document = state.read_notes()
    try:
        known = {one.name: document[one.name] for one in fields(Notes) if one.name in document}
        notes: Notes = decode(Notes, known)
    except (RecordError, AttributeError) as error:
        raise StateUnreadable(
            f"{state.path}/pools.json: holds what no loop of ours writes: {error}. "
            "The loop writes it again when it starts."
        ) from error
    return notes


class Notebook:
    """Takes in each cycle, in the loop's thread, and writes what people should know when that changes."""

    def __init__(self, state: State, refused: Callable[[], str] = lambda: "") -> None:
        """``refused``: why the configuration in the files is not in force; empty when it is."""
        self._state = state
        self._refused = refused
        self._problem: LastingFailure | None = None
        self._configuration: LastingFailure | None = None
        self._creates: dict[tuple[str, str], LastingFailure] = {}
        """Refused creates, by pool and template."""
        self._deletes: dict[str, dict[str, LastingFailure]] = {}
        """Refused deletes, by pool and machine."""
        self._places: dict[str, str] = {}
        """In which pool each orphan was seen last."""
        self._written: Notes | None = None
        self._refused_write = ""
        """Why they were not, as it was logged last."""

    def take(self, report: CycleReport, limits: Limits, wall: float) -> None:
        """Take in one cycle, which ended at ``wall`` (epoch seconds)."""
        self._problem = _lasting(self._problem, report.problem, wall)
        self._configuration = _lasting(self._configuration, self._refused(), wall)
        refused = refused_creates(report.memory, limits) if report.memory else {}
        self._creates = {
            pair: LastingFailure(self._creates[pair].since if pair in self._creates else wall, text)
            for pair, text in refused.items()
        }
        for done in report.results:
            self._judge_deletes(done, wall)
        self._forget_deletes(report.shown)
        notes = Notes(
            pools={
                **{name: (UNSEEN + failure.text,) for name, failure in report.unseen.items()},
                **{name: problems for name, problems in report.problems.items() if problems},
            },
            problem=self._problem,
            configuration=self._configuration,
            refused=self._refusals(),
            paused=tuple(sorted(name for name, pool in limits.pools.items() if pool.paused)),
            orphans=self._orphans(report.memory, report.shown),
            limits=limits,
            unmet=self._published_unmet() if report.unmet is None else report.unmet,
        )
        if notes == self._written:
            return
        try:
            self._state.write_notes(encode(notes))
            self._written, self._refused_write = notes, ""
        except StateError as error:
            if str(error) != self._refused_write:
                log.warning("Notes for people were not written", extra={"error": str(error)})
            self._refused_write = str(error)

    def _published_unmet(self) -> Mapping[str, tuple[Unmet, ...]]:
        """Return the unmet machines that were published last, if need be by the loop before this one."""
        if self._written is not None:
            return self._written.unmet
        with suppress(StateError):
            return read_notes(self._state).unmet
        return {}

    def _judge_deletes(self, done: Results, wall: float) -> None:
        """A delete that a pool takes ends the refusal of its deletes."""
        deletes = [outcome for outcome in done.outcomes if isinstance(outcome.action, Delete)]
        if any(outcome.failure is None for outcome in deletes):
            self._deletes.pop(done.pool, None)
            return
        held = self._deletes.setdefault(done.pool, {})
        for outcome in deletes:
            if outcome.failure is not None and outcome.failure.error.needs_operator:
                held.setdefault(outcome.action.name, LastingFailure(wall, outcome.failure.text))

    def _forget_deletes(self, shown: Mapping[str, Snapshot]) -> None:
        """The refusals without those of deletes of machines that are gone."""
        for pool, held in self._deletes.items():
            if pool in shown:
                for name in held.keys() - shown[pool].machines.keys():
                    del held[name]

    def _refusals(self) -> tuple[StandingRefusal, ...]:
        refusals = [
            StandingRefusal(pool, "create", template, trouble.since, trouble.text)
            for (pool, template), trouble in self._creates.items()
        ]
        for pool, held in sorted(self._deletes.items()):
            if held:
                first = min(held.values(), key=lambda trouble: trouble.since)
                refusals.append(StandingRefusal(pool, "delete", "", first.since, first.text))
        return tuple(refusals)

    def _orphans(self, memory: Memory | None, shown: Mapping[str, Snapshot]) -> Mapping[str, tuple[str, ...]]:
        """Orphans by pool. The orphans of a pool that cannot be seen are kept where they were seen last."""
        names = memory.orphans.since if memory else {}
        self._places = {name: _place(name, shown) or self._places.get(name, "") for name in names}
        return {
            pool: tuple(sorted(name for name, place in self._places.items() if place == pool))
            for pool in sorted(set(self._places.values()) - {""})
        }


def refused_creates(memory: Memory, limits: Limits) -> Mapping[tuple[str, str], str]:
    """The pools that refuse creates of a template, and why, by the outcome of the last create. Pure."""
    named = {(pool, template.id) for template in limits.templates.values() for pool in template.pools}
    return {
        pair: failure.text
        for pair, window in sorted(memory.pressures.items())
        if pair in named and (failure := window.backs_off_from) and failure.error.needs_operator and not window.boot
    }


def _place(name: str, shown: Mapping[str, Snapshot]) -> str:
    return next((pool for pool, snapshot in shown.items() if name in snapshot.machines), "")


def _lasting(before: LastingFailure | None, text: str, wall: float) -> LastingFailure | None:
    """The trouble with its first time and its newest words; None when it has ended."""
    return LastingFailure(before.since if before else wall, text) if text else None

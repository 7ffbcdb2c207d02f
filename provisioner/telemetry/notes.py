"""What people should know of the loop and its pools: the loop writes ``pools.json``, commands read it, and nothing is
decided by it. What the other files hold is not repeated, as it can be told without a loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import groupby
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
        self._creates: dict[tuple[str, str], StandingRefusal] = {}
        """Refused creates, by pool and template."""
        self._deletes: dict[tuple[str, str], StandingRefusal] = {}
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
        self._take_creates(report.memory or Memory(""), limits, wall)
        self._take_deletes(report, wall)
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

    def _take_creates(self, memory: Memory, limits: Limits, wall: float) -> None:
        """Note the pools that refuse creates of a template, by the outcome of the last create."""
        named = {(pool, template.id) for template in limits.templates.values() for pool in template.pools}
        since = {pair: refusal.since for pair, refusal in self._creates.items()}
        self._creates = {
            pair: StandingRefusal(pair[0], "create", pair[1], since.get(pair, wall), failure.text)
            for pair, window in sorted(memory.pressures.items())
            if pair in named and (failure := window.backs_off_from) and failure.error.needs_operator and not window.boot
        }

    def _take_deletes(self, report: CycleReport, wall: float) -> None:
        """Note refused deletes until their pool takes one, or their machine is gone."""
        for done in report.results:
            failures = {one.action.name: one.failure for one in done.outcomes if isinstance(one.action, Delete)}
            if None in failures.values():
                self._deletes = {key: refusal for key, refusal in self._deletes.items() if key[0] != done.pool}
                continue
            for name, failure in failures.items():
                if failure is not None and failure.error.needs_operator:
                    refusal = StandingRefusal(done.pool, "delete", "", wall, failure.text)
                    self._deletes.setdefault((done.pool, name), refusal)
        self._deletes = {
            (pool, name): refusal
            for (pool, name), refusal in self._deletes.items()
            if pool not in report.shown or name in report.shown[pool].machines
        }

    def _refusals(self) -> tuple[StandingRefusal, ...]:
        """Return the refused creates, and of each pool the first refused delete."""
        first: dict[str, StandingRefusal] = {}
        for refusal in sorted(self._deletes.values(), key=lambda one: (one.pool, one.since)):
            first.setdefault(refusal.pool, refusal)
        return (*self._creates.values(), *first.values())

    def _orphans(self, memory: Memory | None, shown: Mapping[str, Snapshot]) -> Mapping[str, tuple[str, ...]]:
        """Return the orphans by pool. Those of a pool that cannot be seen are kept where they were seen last."""
        names = memory.orphans.since if memory else {}
        now = {name: pool for pool, snapshot in shown.items() for name in names if name in snapshot.machines}
        self._places = {name: pool for name, pool in (self._places | now).items() if name in names}
        places = sorted(self._places.items(), key=lambda one: (one[1], one[0]))
        return {pool: tuple(name for name, _ in some) for pool, some in groupby(places, key=lambda one: one[1])}


def _lasting(before: LastingFailure | None, text: str, wall: float) -> LastingFailure | None:
    """The trouble with its first time and its newest words; None when it has ended."""
    return LastingFailure(before.since if before else wall, text) if text else None

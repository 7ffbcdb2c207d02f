"""The status of the loop and its pools for operators. The loop writes it to ``pools.json``, and commands read it.

Decisions never depend on this file. It does not repeat what the other files contain, because commands can read those
too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import TYPE_CHECKING

from provisioner.model import Delete, Limits, Memory, PoolLimits, Snapshot, Unmet
from provisioner.state.errors import StateError, StateUnreadable
from provisioner.state.marker_files import UNSEEN
from provisioner.state.protocols import State
from provisioner.state.record_format import RecordError, decode, encode

if TYPE_CHECKING:
    from provisioner.loop.cycle_report import CycleReport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastingFailure:
    """A failure that lasts, and when it began in epoch seconds of the loop's host."""

    since: float
    text: str


@dataclass(frozen=True, slots=True)
class StandingRefusal:
    """A pool that refuses all creates of a template, or all deletes, until an operator fixes something."""

    pool: str
    operation: str
    """``create`` or ``delete``."""
    template: str
    """Template of the refused creates; empty for deletes."""
    since: float
    """Begin of the refusal, in epoch seconds of the loop's host."""
    text: str
    """The reason in the words of the place."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The content of ``pools.json``."""

    pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sentences about the place of each pool."""
    problem: LastingFailure | None = None
    """The problem that keeps the loop from planning."""
    configuration: LastingFailure | None = None
    """The mistake that keeps the configuration in the files from taking effect."""
    refused: tuple[StandingRefusal, ...] = ()
    """Creates and deletes that fail until an operator fixes something. The loop keeps trying them."""
    paused: tuple[str, ...] = ()
    """Pools in which an operator has paused creates."""
    orphans: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The machines without a request, by pool."""
    limits: Limits | None = None
    """The limits that the loop uses; None if they were not published."""
    unseen_since: Mapping[str, float] = field(default_factory=dict)
    """Since when each unseen pool has been unseen, in epoch seconds of the loop's host."""
    unmet: Mapping[str, tuple[Unmet, ...]] = field(default_factory=dict)
    """Unmet machines of each open request, with their pools, reasons, beginnings and next tries."""
    note: str = ""
    """Path of the note of the state directories of the loop's configuration."""

    @property
    def pool_limits(self) -> Mapping[str, PoolLimits]:
        """Return the limits of each pool; empty if they were not published."""
        return self.limits.pools if self.limits else {}

    @property
    def unseen(self) -> Mapping[str, str]:
        """Return the pools whose newest observation failed or is distrusted, each with the reason."""
        return {
            pool: sentence.removeprefix(UNSEEN)
            for pool, sentences in self.pools.items()
            for sentence in sentences
            if sentence.startswith(UNSEEN)
        }


def read_pool_status(state: State) -> PoolStatus:
    """Return the pool status that the loop has written. Raise StateUnreadable."""
    document = state.read_pool_status()
    try:
        known = {one.name: document[one.name] for one in fields(PoolStatus) if one.name in document}
        pool_status: PoolStatus = decode(PoolStatus, known)
    except (RecordError, AttributeError) as error:
        raise StateUnreadable(
            f"{state.path}/pools.json: has content that no loop of ours writes: {error}. "
            "The loop writes it again when it starts."
        ) from error
    return pool_status


class PoolStatusWriter:
    """The writer of ``pools.json``. It runs in the loop's thread and writes whenever the pool status changes."""

    def __init__(self, state: State, refused: Callable[[], str] = lambda: "", note: str = "") -> None:
        """``refused`` returns why the configuration in the files has not taken effect; empty if it has."""
        self._state, self._note = state, note
        self._refused = refused
        self._problem: LastingFailure | None = None
        self._configuration: LastingFailure | None = None
        self._unseen_since: dict[str, float] = {}
        self._creates: dict[tuple[str, str], StandingRefusal] = {}
        """Refused creates, by pool and template."""
        self._deletes: dict[tuple[str, str], StandingRefusal] = {}
        """Refused deletes, by pool and machine."""
        self._orphan_pools: dict[str, str] = {}
        """The pool in which each orphan was last seen."""
        self._written: PoolStatus | None = None
        self._write_error = ""
        """Error of the last write if it failed. It is kept so that each error is logged once."""

    def record_cycle(self, report: CycleReport, limits: Limits, wall: float) -> None:
        """Record one cycle, which ended at ``wall`` (epoch seconds). Write the file if its content has changed."""
        self._problem = _update_failure(self._problem, report.problem, wall)
        self._configuration = _update_failure(self._configuration, self._refused(), wall)
        self._update_refused_creates(report.memory or Memory(""), limits, wall)
        self._update_refused_deletes(report, wall)
        self._unseen_since = {name: self._unseen_since.get(name, wall) for name in report.unseen}
        pool_status = PoolStatus(
            pools={
                **{name: (UNSEEN + failure.text,) for name, failure in report.unseen.items()},
                **{name: problems for name, problems in report.problems.items() if problems},
            },
            problem=self._problem,
            configuration=self._configuration,
            refused=self._refusals(),
            paused=tuple(sorted(name for name, pool in limits.pools.items() if pool.is_paused)),
            orphans=self._locate_orphans(report.memory, report.own_snapshots),
            limits=limits,
            unseen_since=self._unseen_since,
            unmet=self._published_unmet() if report.unmet is None else report.unmet,
            note=self._note,
        )
        if pool_status == self._written:
            return
        try:
            self._state.write_pool_status(encode(pool_status))
            self._written, self._write_error = pool_status, ""
        except StateError as error:
            if str(error) != self._write_error:
                log.warning("Pool status was not written", extra={"error": str(error)})
            self._write_error = str(error)

    def _published_unmet(self) -> Mapping[str, tuple[Unmet, ...]]:
        """Return the unmet machines as last published by this loop or the loop before it."""
        if self._written is not None:
            return self._written.unmet
        with suppress(StateError):
            return read_pool_status(self._state).unmet
        return {}

    def _update_refused_creates(self, memory: Memory, limits: Limits, wall: float) -> None:
        """Record the pools that refuse creates of a template, judged by the outcome of the last create."""
        named = {(pool, template.id) for template in limits.templates.values() for pool in template.pools}
        since = {pair: refusal.since for pair, refusal in self._creates.items()}
        self._creates = {
            pair: StandingRefusal(pair[0], "create", pair[1], since.get(pair, wall), failure.text)
            for pair, window in sorted(memory.windows.items())
            if pair in named
            and (failure := window.backs_off_from)
            and failure.error.needs_operator
            and not window.is_boot_failure
        }

    def _update_refused_deletes(self, report: CycleReport, wall: float) -> None:
        """Record refused deletes. Keep each until its pool accepts a later delete or its machine is gone."""
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
            if pool not in report.own_snapshots or name in report.own_snapshots[pool].machines
        }

    def _refusals(self) -> tuple[StandingRefusal, ...]:
        """Return the refused creates, and for each pool its first refused delete."""
        first: dict[str, StandingRefusal] = {}
        for refusal in sorted(self._deletes.values(), key=lambda one: (one.pool, one.since)):
            first.setdefault(refusal.pool, refusal)
        return (*self._creates.values(), *first.values())

    def _locate_orphans(self, memory: Memory | None, shown: Mapping[str, Snapshot]) -> Mapping[str, tuple[str, ...]]:
        """Return the orphans by pool. While its pool cannot be observed, an orphan stays listed there."""
        names = memory.orphans.since if memory else {}
        now = {name: pool for pool, snapshot in shown.items() for name in names if name in snapshot.machines}
        self._orphan_pools = {name: pool for name, pool in (self._orphan_pools | now).items() if name in names}
        places = sorted(self._orphan_pools.items(), key=lambda one: (one[1], one[0]))
        return {pool: tuple(name for name, _ in some) for pool, some in groupby(places, key=lambda one: one[1])}


def _update_failure(before: LastingFailure | None, text: str, wall: float) -> LastingFailure | None:
    """Return the failure with its first time and newest text; None if it has ended."""
    return LastingFailure(before.since if before else wall, text) if text else None

"""The status of the loop and its pools for operators. The loop writes the status to ``pools.json``, and commands read
it.

Decisions never depend on this file. The file does not repeat the content of memory and intent, because commands read
these files, too.
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
    """A failure that lasts. ``since``: when the failure began, in epoch seconds of the loop's host."""

    since: float
    text: str


@dataclass(frozen=True, slots=True)
class StandingRefusal:
    """A pool's refusal that lasts until an operator fixes the cause. The pool refuses all creates of a template, or a
    delete."""

    pool: str
    operation: str
    """``create`` or ``delete``."""
    template: str
    """Template of the refused creates; empty for deletes."""
    since: float
    """The time at which the refusal began, in epoch seconds of the loop's host."""
    text: str
    """The reason in the words of the cloud."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The content of ``pools.json``."""

    pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Problems of the place of each pool, as sentences by pool."""
    problem: LastingFailure | None = None
    """The problem that keeps the loop from planning; None if it can plan."""
    configuration: LastingFailure | None = None
    """The mistake because of which the loop refuses the configuration in the files; None if the configuration is in
    force."""
    refused: tuple[StandingRefusal, ...] = ()
    """Refused creates and deletes that need an operator. The loop keeps trying them."""
    paused: tuple[str, ...] = ()
    """Pools in which an operator has paused creates."""
    orphans: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The orphans, by pool."""
    limits: Limits | None = None
    """The limits that the loop uses; None if the loop has not published them."""
    unseen_since: Mapping[str, float] = field(default_factory=dict)
    """The time since which each unseen pool has been unseen, in epoch seconds of the loop's host, by pool."""
    unmet: Mapping[str, tuple[Unmet, ...]] = field(default_factory=dict)
    """The unmet machines of each open request, by request."""
    note: str = ""
    """Path of the file in which the loops of this configuration record their state directories; empty if unknown."""

    @property
    def pool_limits(self) -> Mapping[str, PoolLimits]:
        """Return the limits of each pool; empty if the loop has not published them."""
        return self.limits.pools if self.limits else {}

    @property
    def unseen(self) -> Mapping[str, str]:
        """Return the reason why each unseen pool is unseen, by pool. A pool is unseen if its newest observation failed
        or is distrusted."""
        return {
            pool: sentence.removeprefix(UNSEEN)
            for pool, sentences in self.pools.items()
            for sentence in sentences
            if sentence.startswith(UNSEEN)
        }


def read_pool_status(state: State) -> PoolStatus:
    """Return the pool status that the loop has written. Raise StateUnreadable if it cannot be read."""
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
    """A writer of ``pools.json``, in the loop's thread. The file is written whenever the pool status changes."""

    def __init__(self, state: State, refused: Callable[[], str] = lambda: "", note: str = "") -> None:
        """Set the inputs. ``refused``: function that returns why the configuration in the files is not in force; empty
        if it is in force. ``note``: see ``PoolStatus.note``."""
        self._state, self._note = state, note
        self._refused = refused
        self._last = PoolStatus()
        """The status of the last cycle, even if it was not written."""
        self._creates: dict[tuple[str, str], StandingRefusal] = {}
        """Refused creates, by pool and template."""
        self._deletes: dict[tuple[str, str], StandingRefusal] = {}
        """Refused deletes, by pool and machine."""
        self._orphan_pools: dict[str, str] = {}
        """The pool in which each orphan was last seen."""
        self._written: PoolStatus | None = None
        self._write_error = ""
        """Error of the last write; empty if the write succeeded. The error is kept so that a repeated error is logged
        only once."""

    def record_cycle(self, report: CycleReport, limits: Limits, wall: float) -> None:
        """Record one cycle, which ended at ``wall`` (epoch seconds). Write the file if the pool status has changed."""
        self._update_refused_creates(report.memory or Memory(""), limits, wall)
        self._update_refused_deletes(report, wall)
        pool_status = self._last = PoolStatus(
            pools={
                **{name: (UNSEEN + failure.text,) for name, failure in report.unseen.items()},
                **{name: problems for name, problems in report.problems.items() if problems},
            },
            problem=_update_failure(self._last.problem, report.problem, wall),
            configuration=_update_failure(self._last.configuration, self._refused(), wall),
            refused=self._refusals(),
            paused=tuple(sorted(name for name, pool in limits.pools.items() if pool.is_paused)),
            orphans=self._locate_orphans(report.memory, report.own_snapshots),
            limits=limits,
            unseen_since={name: self._last.unseen_since.get(name, wall) for name in report.unseen},
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
        """Return the unmet machines that were published last, by this loop or by the loop before it."""
        if self._written is not None:
            return self._written.unmet
        with suppress(StateError):
            return read_pool_status(self._state).unmet
        return {}

    def _update_refused_creates(self, memory: Memory, limits: Limits, wall: float) -> None:
        """Record the pools that refuse creates of a template. Such a pool has failed its last create with an error that
        an operator has to fix."""
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
        """Record refused deletes. Drop a refused delete when its pool accepts a later delete, or when its machine is
        gone."""
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
        """Return the refused creates, and the first refused delete of each pool."""
        first: dict[str, StandingRefusal] = {}
        for refusal in sorted(self._deletes.values(), key=lambda one: (one.pool, one.since)):
            first.setdefault(refusal.pool, refusal)
        return (*self._creates.values(), *first.values())

    def _locate_orphans(self, memory: Memory | None, shown: Mapping[str, Snapshot]) -> Mapping[str, tuple[str, ...]]:
        """Return the orphans by pool. An orphan is listed under the pool in which it was last seen. This pool need not
        be observable now."""
        names = memory.orphans.since if memory else {}
        now = {name: pool for pool, snapshot in shown.items() for name in names if name in snapshot.machines}
        self._orphan_pools = {name: pool for name, pool in (self._orphan_pools | now).items() if name in names}
        places = sorted(self._orphan_pools.items(), key=lambda one: (one[1], one[0]))
        return {pool: tuple(name for name, _ in some) for pool, some in groupby(places, key=lambda one: one[1])}


def _update_failure(before: LastingFailure | None, text: str, wall: float) -> LastingFailure | None:
    """Return a failure with its newest text and the time at which it began; None if ``text`` is empty, which means that
    no failure exists now."""
    return LastingFailure(before.since if before else wall, text) if text else None

"""What the pools of one Google Cloud project share: connections, the budget of calls, and the lists all of them read.

An ``instances.list`` of a zone holds the instances of every group there, so it is read once for all pools that look at
about the same time: the number of calls follows the number of instances, not that of groups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from provisioner.backends import BackendError
from provisioner.backends.google_auth import FollowedCredentials, NoCredentials
from provisioner.backends.mig.api import USUAL_TIMES, ComputeApi, ComputeTimes, Json
from provisioner.backends.mig.call_budget import CallBudget
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.responses import understood
from provisioner.model import Failure
from provisioner.schema.pool import Compute

FRESH = 0.5
"""Part of the pace for which a list serves other pools, too: pools that look out of step cost one more list at most."""


@dataclass(frozen=True, slots=True)
class ListResult:
    """One reading of a list, or why it failed."""

    began: float
    """When the reading began, in loop time."""
    items: Mapping[str, Json]
    """The entries of the list by name."""
    failure: Failure | None = None


class SharedList:
    """A list that several pools need. Whoever asks while it is being read waits for that reading."""

    def __init__(self, read: Callable[[float], Mapping[str, Json]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._newest: ListResult | None = None
        self._began = 0.0
        """When the newest reading began, by the monotonic clock."""
        self._had: dict[str, ListResult] = {}
        """The reading that each pool was given last."""

    def newer(self, pool: str, now: float, *, pace: float, deadline: float) -> ListResult:
        """A reading that ``pool`` has not had yet, complete; BackendError otherwise.

        It begins at ``now``, unless another pool began one less than half a ``pace`` before this call: then that one
        serves, however long it takes.
        """
        asked = time.monotonic()
        with self._lock:
            newest = self._newest
            if newest is None or self._had.get(pool) is newest or asked > self._began + FRESH * pace:
                self._began = time.monotonic()
                newest = self._newest = self._look(now, deadline)
            self._had[pool] = newest
        if newest.failure:
            raise BackendError(newest.failure.error, newest.failure.text)
        return newest

    def _look(self, now: float, deadline: float) -> ListResult:
        """A failure is shared, too: else one pool after the other would wait for a server that does not answer."""
        try:
            with understood():
                return ListResult(now, self._read(deadline))
        except BackendError as error:
            return ListResult(now, {}, error.failure)


class Project:
    """One project, as one set of credentials sees it. Calls nothing by itself."""

    def __init__(self, pool: MigPool, *, prefix: str, budget: CallBudget, times: ComputeTimes) -> None:
        """``pool``: any of the project's pools with these credentials."""
        self.times = times
        self.budget = budget
        self._pool, self._prefix = pool, prefix
        self._lock = threading.Lock()
        self._connected: ComputeApi | None = None
        self._groups: dict[str, SharedList] = {}
        self._instances: dict[str, SharedList] = {}

    @property
    def api(self) -> ComputeApi:
        """The connections, made at first use: missing credentials make pools unobservable, not the loop fail."""
        with self._lock:
            if self._connected is None:
                pool, endpoint = self._pool, self._pool.endpoint or ""
                plain = endpoint.startswith("http://")
                self._connected = ComputeApi(
                    pool.address,
                    pool.project,
                    NoCredentials(endpoint) if plain else FollowedCredentials(pool.credentials),
                    prefix=self._prefix,
                    budget=self.budget,
                    times=self.times,
                )
            return self._connected

    def groups(self, location: str) -> SharedList:
        """The groups of a zone or region (``zones/…``)."""
        return self._shared(self._groups, location, partial(self.api.groups, location))

    def instances(self, zone: str) -> SharedList:
        """The instances of a zone whose names begin with our prefix."""
        return self._shared(self._instances, zone, partial(self.api.instances, zone))

    def close(self) -> None:
        """End what waits; close the connections."""
        self.budget.close()
        with self._lock:
            if self._connected is not None:
                self._connected.close()

    def _shared(
        self, lists: dict[str, SharedList], key: str, read: Callable[[float], Mapping[str, Json]]
    ) -> SharedList:
        with self._lock:
            return lists.setdefault(key, SharedList(read))


class Projects:
    """Every project of one provisioner."""

    def __init__(self, *, prefix: str, settings: Compute | None = None, times: ComputeTimes = USUAL_TIMES) -> None:
        self._prefix, self._settings, self._times = prefix, settings or Compute(), times
        self._projects: dict[tuple[str, ...], Project] = {}
        self._budgets: dict[tuple[str, str], CallBudget] = {}
        """By address and project: Compute counts all of a project's calls, whoever makes them."""

    def of(self, pool: MigPool) -> Project:
        """The project of a pool, the same for all pools that reach it the same way."""
        counted = pool.address, pool.project
        key = (*counted, str(pool.credentials))
        if key not in self._projects:
            if counted not in self._budgets:
                self._budgets[counted] = CallBudget(self._settings.calls_per_minute, self._times.window)
            budget = self._budgets[counted]
            self._projects[key] = Project(pool, prefix=self._prefix, budget=budget, times=self._times)
        return self._projects[key]

"""What the pools of one Google Cloud project share: connections, the budget of calls, and the lists all of them read.

An ``instances.list`` of a zone holds the instances of every group there, so it is read once for all pools that look at
about the same time: the number of calls follows the number of instances, not that of groups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from provisioner.backends import BackendError
from provisioner.backends.google_auth import FollowedCredentials, NoCredentials
from provisioner.backends.mig.api import USUAL_TIMES, ComputeApi, ComputeTimes
from provisioner.backends.mig.call_budget import CallBudget
from provisioner.backends.mig.entries import Json, Member, read_member
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.responses import understood
from provisioner.names import name_pattern
from provisioner.schema.pool import Compute

FRESH = 0.5
"""Part of the pace for which a list serves other pools, too: pools that look out of step cost one more list at most."""


@dataclass(frozen=True, slots=True)
class ListResult:
    """One complete reading of a list."""

    began: float
    """When the reading began, in loop time."""
    items: Mapping[str, Json]
    """The entries of the list by name."""


class SharedList:
    """A list that several pools need. Whoever asks while it is being read waits for that reading."""

    def __init__(self, read: Callable[[float], Mapping[str, Json]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._newest: Future[ListResult] | None = None
        self._began = 0.0
        """When the newest reading began, by the monotonic clock."""
        self._had: dict[str, Future[ListResult]] = {}
        """The reading that each pool was given last."""

    @understood()
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
                newest = Future()
                try:
                    newest.set_result(ListResult(now, self._read(deadline)))
                except Exception as error:  # noqa: BLE001 - shared: else each pool would wait for a server that is silent
                    newest.set_exception(error)
                self._newest = newest
            self._had[pool] = newest
        try:
            return newest.result()
        except BackendError as error:  # without Retry-After, which the budget of calls follows for all pools
            raise BackendError(error.failure.error, error.failure.text) from error


class Project:
    """One project, as one set of credentials sees it, and our names in it. Calls nothing by itself."""

    def __init__(self, pool: MigPool, projects: Projects, budget: CallBudget) -> None:
        """``pool``: any of the project's pools with these credentials."""
        self.prefix, self.adopt_prefixes = projects.prefix, projects.adopt_prefixes
        self._shape = name_pattern(self.prefix)
        self.budget = budget
        endpoint = pool.endpoint or ""
        plain = endpoint.startswith("http://")
        self.api = ComputeApi(
            pool.address,
            pool.project,
            NoCredentials(endpoint) if plain else FollowedCredentials(pool.credentials),
            prefix=self.prefix,
            budget=budget,
            times=projects.times,
        )
        self._lock = threading.Lock()
        self._lists: dict[str, SharedList] = {}

    def is_ours(self, name: str) -> bool:
        """Return True for a name of the shape of our machines' names."""
        return bool(self._shape.fullmatch(name))

    def foreign(self, names: Iterable[str]) -> list[str]:
        """Return the names that are neither ours nor of the provider whose machines we take over."""
        return [name for name in names if not self.is_ours(name) and not name.startswith(self.adopt_prefixes)]

    def groups(self, location: str) -> SharedList:
        """The groups of a zone or region (``zones/…``)."""
        return self._shared(location, self.api.groups)

    def instances(self, zone: str) -> SharedList:
        """The instances of a zone whose names begin with our prefix."""
        return self._shared(zone, self.api.instances)

    @understood()
    def members(self, group: MigPool, deadline: float) -> dict[str, Member]:
        """Return the members of a group by name, or raise BackendError. ``deadline`` is monotonic time."""
        items = self.api.members(group, deadline)
        return {member.name: member for member in (read_member(item, group.zone or "") for item in items)}

    def close(self) -> None:
        """End what waits; close the connections."""
        self.budget.close()
        self.api.close()

    def _shared(self, place: str, read: Callable[[str, float], Mapping[str, Json]]) -> SharedList:
        with self._lock:
            return self._lists.setdefault(place, SharedList(partial(read, place)))


class Projects:
    """Every project of one provisioner."""

    def __init__(
        self,
        prefix: str,
        adopt_prefixes: tuple[str, ...] = (),
        *,
        calls_per_minute: int = Compute().calls_per_minute,
        times: ComputeTimes = USUAL_TIMES,
    ) -> None:
        """Members whose names begin with one of ``adopt_prefixes`` are expected beside ours."""
        self.prefix, self.adopt_prefixes, self.times = prefix, adopt_prefixes, times
        self._calls = calls_per_minute
        self._projects: dict[tuple[str, ...], Project] = {}
        self._budgets: dict[tuple[str, str], CallBudget] = {}
        """By address and project: Compute counts all of a project's calls, whoever makes them."""

    def of(self, pool: MigPool) -> Project:
        """The project of a pool, the same for all pools that reach it the same way."""
        counted = pool.address, pool.project
        key = (*counted, str(pool.credentials))
        if key not in self._projects:
            budget = self._budgets.setdefault(counted, CallBudget(self._calls, self.times.window))
            self._projects[key] = Project(pool, self, budget)
        return self._projects[key]

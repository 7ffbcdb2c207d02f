"""Connections, call budget and lists that one Google Cloud project's pools share.

One ``instances.list`` returns the instances of all groups of a zone. So pools that observe at about the same time share
this list. The number of calls depends on the number of instances, not on the number of groups.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from provisioner.backends.call_budget import CallBudget
from provisioner.backends.google_auth import FollowedCredentials, NoCredentials
from provisioner.backends.mig.api import USUAL_TIMES, ComputeApi, ComputeTimes
from provisioner.backends.mig.compute_fields import Json, Member, read_member
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.responses import translated_errors
from provisioner.backends.shared_list import ListResult, SharedList
from provisioner.names import name_pattern
from provisioner.schema.setting_types import Site

Lists = SharedList[Mapping[str, Json]]
Result = ListResult[Mapping[str, Json]]


class Project:
    """A project: the calls with one set of credentials, and the rule that decides which names are ours. A call is made
    only when a method needs it."""

    def __init__(self, pool: MigPool, projects: Projects, budget: CallBudget) -> None:
        """Prepare the connections. ``pool``: one of the project's pools that use these credentials."""
        self.prefix, self.adopt_prefixes = projects.site.prefix, projects.site.adopt_prefixes
        self._shape = name_pattern(self.prefix)
        self.budget = budget
        endpoint = pool.endpoint or ""
        plain = endpoint.startswith("http://")
        credentials = NoCredentials(endpoint) if plain else FollowedCredentials(pool.credentials)
        self.api = ComputeApi(pool, credentials, self.prefix, budget, projects.times)
        self._lock = threading.Lock()
        self._lists: dict[str, Lists] = {}

    def is_ours(self, name: str) -> bool:
        """Return True if a name has the shape of our machines' names."""
        return bool(self._shape.fullmatch(name))

    def foreign(self, names: Iterable[str]) -> list[str]:
        """Return the names that are not ours and begin with no adopted prefix. An adopted prefix belongs to another
        provider whose machines this provider takes over."""
        return [name for name in names if not self.is_ours(name) and not name.startswith(self.adopt_prefixes)]

    def groups(self, location: str) -> Lists:
        """Return the shared list of the groups of a location (``zones/NAME`` or ``regions/NAME``)."""
        return self._shared(location, self.api.groups)

    def instances(self, zone: str) -> Lists:
        """Return the shared list of a zone's instances whose names begin with our prefix."""
        return self._shared(zone, self.api.instances)

    @translated_errors()
    def members(self, group: MigPool, deadline: float) -> dict[str, Member]:
        """Return all members of a group by name. Raise BackendError if they cannot be read completely. ``deadline`` is
        monotonic time."""
        items = self.api.members(group, deadline)
        return {member.name: member for member in (read_member(item, group.zone or "") for item in items)}

    def close(self) -> None:
        """End all waits, and close the connections."""
        self.budget.close()
        self.api.close()

    def _shared(self, place: str, read: Callable[[str, float], Mapping[str, Json]]) -> Lists:
        with self._lock:
            return self._lists.setdefault(place, SharedList(partial(read, place)))


class Projects:
    """All projects of one provisioner."""

    def __init__(self, site: Site, times: ComputeTimes = USUAL_TIMES) -> None:
        """Store the settings and make no call yet. Members whose names begin with one of the site's ``adopt_prefixes``
        do not count as foreign."""
        self.site, self.times = site, times
        self._projects: dict[tuple[str, ...], Project] = {}
        self._budgets: dict[tuple[str, str], CallBudget] = {}
        """Call budgets by address and project, because Compute counts all calls of a project together."""

    def get_project(self, pool: MigPool) -> Project:
        """Return the project of a pool. Pools with the same address and credentials get the same object."""
        quota_key = pool.address, pool.project
        key = (*quota_key, str(pool.credentials))
        if key not in self._projects:
            budget = CallBudget(self.site.compute.calls_per_minute, self.times.window)
            self._projects[key] = Project(pool, self, self._budgets.setdefault(quota_key, budget))
        return self._projects[key]

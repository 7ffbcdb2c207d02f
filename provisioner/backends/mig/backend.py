"""The mig backend. A pool is one managed instance group. Instances are created, deleted and observed by name.

The backend keeps the promises of the backend protocol as follows:

* An observation lists the location's groups and each zone's instances (one page for 500 instances). All pools of the
  project share these lists. While the group changes, its members are listed too. An observation is complete or raises
  an error (``observer``).
* A create is one call for up to 1,000 names, and usually one wait for the operation. The operation ends when the group
  has *accepted* the names. If the operation does not end soon, observations read it (``undecided_creates``). Only
  observations show that the instances are made, because the group tries to make them for ever.
* The request id of createInstances is made from the content of the request. So Compute recognizes a repetition after a
  crash or a lost response. The request contains only names, because a preservedState would make the group stateful.
* A delete is one list of members, and one call for up to 1,000 members found. Compute deletes by name, so this list
  shows which instance has the name. A delete needs no request id, because a second delete does no harm.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from provisioner.backends import BackendError, MayStart
from provisioner.backends.call_batch import Call, run_calls
from provisioner.backends.mig.compute_fields import Member
from provisioner.backends.mig.errors import AlreadyExists, operation_error, raised
from provisioner.backends.mig.live_check import GroupInspection
from provisioner.backends.mig.observer import GroupObserver
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.backends.mig.undecided_creates import UndecidedCreates
from provisioner.backends.responses import translated_errors
from provisioner.model import Create, Delete, ErrorClass, Failure, Outcome, Snapshot

CHUNK = 1000
"""Largest number of instances that Compute accepts in a request."""

WORKERS = 4
"""Number of concurrent creates and deletes. More calls at once would not help, because a group executes calls one after
the other."""

LEAST_PACE_PART = 1 / 3
"""Minimum time between two observations, as a fraction of the pace. Without this limit, thousands of hints would cause
thousands of lists, and each list costs calls."""

REQUEST_IDS = uuid.UUID("5d3f1f3e-6f43-4c7e-9d2a-0f2f1c1b7a10")
"""Namespace of our request ids. The value is arbitrary but must not change, because Compute could not recognize
repetitions of requests that are under way."""

REMEMBERED_FAILURES = 10_000
"""Number of failed creates that are remembered. Compute also forgets request ids, after an undocumented time."""

T = TypeVar("T")


class MigBackend(GroupInspection):
    """The backend of one managed instance group (``provisioner.backends.Backend``)."""

    def __init__(self, pool: MigPool, projects: Projects) -> None:
        """Store the settings and make no call yet. All pools of the provisioner share ``projects``."""
        super().__init__(pool, projects.get_project(pool))
        self.pool = pool.name
        self.pace = pool.observe_seconds
        self._observer = GroupObserver(pool, self._project, self.check_autoscaler)
        self._admissions = UndecidedCreates(pool.lag_seconds)
        self._ending = threading.Event()
        self._next_observation_at = 0.0
        self._lock = threading.Lock()
        self._failed_creates: dict[uuid.UUID, int] = {}
        """Number of failed operations of each create, by ``request_key``."""

    def start(self, wake: Callable[[], None]) -> None:
        """Do nothing, because a group cannot be watched. Pub/Sub may report changes."""

    @translated_errors()
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return the members with names of our shape, and the sought instances that have left the group.

        If the previous observation began less than ``LEAST_PACE_PART`` of the pace ago, first wait until that time has
        passed.
        """
        self._ending.wait(max(0.0, self._next_observation_at - time.monotonic()))
        self._next_observation_at = time.monotonic() + LEAST_PACE_PART * self.pace
        api, location = self._project.api, self._settings.place
        # All reads of operations share one deadline, so that they do not delay the observation.
        deadline = time.monotonic() + api.times.call
        members = self._observer.members
        self._admissions.read_operations(lambda name: api.operation(location, name, deadline), members)
        return self._observer.observe(now, dict(sought), self._admissions.refused_machines(members))

    def ahead(self) -> float | None:
        """Return the seconds by which Compute Engine's clock is ahead of this host's; None if unknown."""
        return self._project.api.clock.ahead()

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Ask the group to create instances with these names. One call has at most 1,000 names. If the group already
        has a name, its create is a success and the name is not sent."""
        members = self._observer.members
        outcomes = [Outcome(create) for create in creates if create.name in members]
        calls = [
            Call(tuple(chunk), partial(self._create, [create.name for create in chunk]))
            for chunk in _chunks([create for create in creates if create.name not in members])
        ]
        return outcomes + run_calls(calls, workers=WORKERS, may_start=may_start)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Remove the names from the group. The group then deletes their instances and lowers its target size.

        A delete is a success in three cases: the group accepts it, the group lacks the instance, or the group is
        already deleting the instance.
        """
        # Only names of our shape and adopted machines are deleted (law: no machine is deleted by count).
        ours = {delete.name: delete for delete in deletes if delete.is_adopted or self._project.is_ours(delete.name)}
        outcomes = [Outcome(delete) for delete in deletes if delete.name not in ours]
        if not ours or not may_start():
            return outcomes
        self._admissions.forget(ours)
        try:
            members = self._members()
        except BackendError as error:
            return [*outcomes, *(Outcome(delete, error.failure) for delete in ours.values())]
        there = []
        for name, delete in ours.items():
            member, outside = members.get(name), self._observer.outside.get(name)
            if member is not None and _has_instance(member, delete):
                there.append((member.url, delete))
            elif outside is not None and outside.id == delete.uid:
                outcomes.append(Outcome(delete, _strayed_failure(outside)))
            else:
                outcomes.append(Outcome(delete))
        return outcomes + self._delete_members(there, may_start)

    def _delete_members(self, named: Sequence[tuple[str, Delete]], may_start: MayStart) -> list[Outcome]:
        """Send the deletes. A member with a known zone is deleted by its address, and any other member by its name.
        Compute does not accept addresses and names in one request."""
        calls = [
            Call(tuple(delete for _, delete in chunk), partial(self._delete, [url for url, _ in chunk]))
            for addressed in (True, False)
            for chunk in _chunks([(url, delete) for url, delete in named if ("/" in url) is addressed])
        ]
        self._observer.expect_change([delete.name for _, delete in named])
        # The list may have used up the cycle's time. Some calls begin anyway, because every cycle may be as short.
        ready = iter(range(WORKERS))
        return run_calls(calls, workers=WORKERS, may_start=lambda: next(ready, None) is not None or may_start())

    def close(self) -> None:
        """End the wait of an observation, and close the connections."""
        self._ending.set()
        self._observer.close()
        self._project.close()

    def _members(self) -> Mapping[str, Member]:
        return self._project.members(self._settings, time.monotonic() + self._project.api.times.call)

    @translated_errors(ErrorClass.UNAVAILABLE)
    def _create(self, names: Sequence[str]) -> Mapping[str, Failure]:
        """Send one createInstances. A response means that Compute has accepted the request. If the result of the
        request is late, observations read the result."""
        api, key = self._project.api, request_key(self._settings.identity, names)
        self._observer.expect_change()
        try:
            operation = api.create(self._settings, names, self._request_id(key))
            done = operation.get("status") == "DONE"
            ended = operation if done else api.finished(self._settings.place, operation["name"])
            if ended is None:
                self._admissions.expect(operation["name"], names)
            elif error := operation_error(ended):
                self._note_failure(key)
                raise raised(error)
        except AlreadyExists as error:
            return self._find_missing(names, error.failure.text)
        return {}

    def _request_id(self, key: uuid.UUID) -> str:
        """Return the request id of a create. The same create has the same id until Compute reports an error for it."""
        return str(uuid.uuid5(key, str(self._failed_creates.get(key, 0))))

    def _note_failure(self, key: uuid.UUID) -> None:
        """Use another id for the next try of this create. With the old id, Compute would only return the failed
        operation."""
        with self._lock:
            self._failed_creates[key] = self._failed_creates.pop(key, 0) + 1
            if len(self._failed_creates) > REMEMBERED_FAILURES:
                del self._failed_creates[next(iter(self._failed_creates))]

    def _find_missing(self, names: Sequence[str], text: str) -> Mapping[str, Failure]:
        """Return a failure for each name that is not a member. Call this function after Compute has refused all names
        of a create because one of them exists.

        A member is ours, so its name is a success. For any other name, the failure says that the result is unknown. The
        next cycle requests only these names again.
        """
        try:
            members = self._members()
        except BackendError:
            members = {}
        return {name: Failure(ErrorClass.UNAVAILABLE, text) for name in names if name not in members}

    @translated_errors(ErrorClass.UNAVAILABLE)
    def _delete(self, urls: Sequence[str]) -> Mapping[str, Failure]:
        """Send one deleteInstances. The call's operation is not awaited, because the next observations show the effect
        of the call."""
        if error := operation_error(self._project.api.delete(self._settings, urls)):
            raise raised(error)
        return {}


def _strayed_failure(member: Member) -> Failure:
    """Return the failure for an abandoned instance. The loop does not delete the instance, because the right to do so
    would apply to all instances of the project."""
    line = f"gcloud compute instances delete {member.name} --zone {member.zone}"
    return Failure(ErrorClass.DENIED, f"the instance was taken out of its group, and runs on until: {line}")


def _has_instance(member: Member, delete: Delete) -> bool:
    """Return True if the member has the instance that ``delete`` names, and the group is not yet removing the member.

    Also return True for a member without an instance, because the group counts this member and may still make its
    instance.
    """
    is_leaving = member.action in ("DELETING", "ABANDONING")
    return not is_leaving and (not delete.uid or not member.id or delete.uid == member.id)


def _chunks(items: list[T]) -> Iterator[list[T]]:
    yield from (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))


def request_key(group: Sequence[str], names: Sequence[str]) -> uuid.UUID:
    """Return a key of the group and the names. Two requests with the same key get the same request id, so that Compute
    treats them as one request."""
    return uuid.uuid5(REQUEST_IDS, "|".join((*group, *sorted(names))))

"""A managed instance group as a pool: creates and deletes instances by name, and observes them.

The promises of the backend protocol are kept as follows:

* An observation costs a list of the location's groups and a list of each zone's instances (a page per 500). All pools
  of the project share these lists. While the group changes, its members are listed, too. An observation is complete or
  raises (``observer``).
* A create is one call per 1,000 names, and usually one wait for the operation. The operation ends when the group has
  *accepted* the names. Observations ask for an operation that does not end soon (``undecided_creates``). Only
  observations show what becomes of the names, because the group itself would try for ever.
* createInstances has a request id made from its content, so that a repetition after a crash or a lost response is the
  same request for Compute. It has only names, because a preservedState would make the group stateful.
* A delete is one list of members, and one call per 1,000 members found. Compute deletes by name, so the list just
  before shows which instance has the name. A request id is not needed, because a second delete is harmless.
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
"""Creates and deletes under way at once. A group executes them one after the other anyway."""

LEAST_PACE_PART = 1 / 3
"""Least part of the pace between two observations, because hints may come by the thousand and lists cost calls."""

REQUEST_IDS = uuid.UUID("5d3f1f3e-6f43-4c7e-9d2a-0f2f1c1b7a10")
"""Namespace of our request ids. Any fixed value works. A new value only forgets the requests under way."""

REMEMBERED_FAILURES = 10_000
"""Failed creates that are remembered. Compute forgets request ids, too, after an undocumented time."""

T = TypeVar("T")


class MigBackend(GroupInspection):
    """The backend of one managed instance group (``provisioner.backends.Backend``)."""

    def __init__(self, pool: MigPool, projects: Projects) -> None:
        """Make no call yet. All pools of the provisioner share ``projects``."""
        super().__init__(pool, projects.get_project(pool))
        self.pool = pool.name
        self.lag = pool.lag_seconds
        self.pace = pool.observe_seconds
        self._observer = GroupObserver(pool, self._project)
        self._admissions = UndecidedCreates(pool.lag_seconds)
        self._ending = threading.Event()
        self._next_observation_at = 0.0
        self._lock = threading.Lock()
        self._failed_creates: dict[uuid.UUID, int] = {}
        """Number of failed operations by the key of their create."""

    def start(self, wake: Callable[[], None]) -> None:
        """Do nothing, because a group cannot be watched. Pub/Sub may report changes."""

    @translated_errors()
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return the members whose names have our shape, and the sought instances that left the group.

        Wait if the previous observation began less than a part of the pace ago.
        """
        self._ending.wait(max(0.0, self._next_observation_at - time.monotonic()))
        self._next_observation_at = time.monotonic() + LEAST_PACE_PART * self.pace
        api, location = self._project.api, self._settings.place
        # One deadline for all operations together, so that they do not delay the observation.
        deadline = time.monotonic() + api.times.call
        members = self._observer.members
        self._admissions.read_operations(lambda name: api.operation(location, name, deadline), members)
        return self._observer.observe(now, dict(sought), self._admissions.refused_machines(members))

    def ahead(self) -> float | None:
        """Return the seconds by which Compute Engine's clock is ahead."""
        return self._project.api.clock.ahead()

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Ask the group for the names, by the thousand. Names that it already has are a success without a call."""
        members = self._observer.members
        outcomes = [Outcome(create) for create in creates if create.name in members]
        calls = [
            Call(tuple(chunk), partial(self._create, [create.name for create in chunk]))
            for chunk in _chunks([create for create in creates if create.name not in members])
        ]
        return outcomes + run_calls(calls, workers=WORKERS, may_start=may_start)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Remove the names from the group, which deletes their instances and lowers its target size.

        Success means that the group accepted the delete, does not have this instance, or already deletes it.
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
        """Send the deletes, by address or by name of their members, because Compute does not accept both in one
        request."""
        calls = [
            Call(tuple(delete for _, delete in chunk), partial(self._delete, [url for url, _ in chunk]))
            for addressed in (True, False)
            for chunk in _chunks([(url, delete) for url, delete in named if ("/" in url) is addressed])
        ]
        self._observer.expect_change([delete.name for _, delete in named])
        # The list may have used up the cycle's time. Some calls begin all the same, because otherwise none ever would.
        ready = iter(range(WORKERS))
        return run_calls(calls, workers=WORKERS, may_start=lambda: next(ready, None) is not None or may_start())

    def close(self) -> None:
        """End an observation that waits, and close the connections."""
        self._ending.set()
        self._observer.close()
        self._project.close()

    def _members(self) -> Mapping[str, Member]:
        return self._project.members(self._settings, time.monotonic() + self._project.api.times.call)

    @translated_errors(ErrorClass.UNAVAILABLE)
    def _create(self, names: Sequence[str]) -> Mapping[str, Failure]:
        """Send one createInstances. Compute has accepted it once it responds. Observations find late results."""
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
        """Return the request id of a create: the same for the same names until Compute answers it with an error."""
        return str(uuid.uuid5(key, str(self._failed_creates.get(key, 0))))

    def _note_failure(self, key: uuid.UUID) -> None:
        """Use another id for the next try of this create, because the old id would only return the failed operation."""
        with self._lock:
            self._failed_creates[key] = self._failed_creates.pop(key, 0) + 1
            if len(self._failed_creates) > REMEMBERED_FAILURES:
                del self._failed_creates[next(iter(self._failed_creates))]

    def _find_missing(self, names: Sequence[str], text: str) -> Mapping[str, Failure]:
        """Return failures for the names that are no members. Names that are members are ours, and a success.

        Compute reports that a name of the call exists, but not which. The missing names count as unanswered, so that
        the next cycle asks for them without the others.
        """
        try:
            members = self._members()
        except BackendError:
            members = {}
        return {name: Failure(ErrorClass.UNAVAILABLE, text) for name in names if name not in members}

    @translated_errors(ErrorClass.UNAVAILABLE)
    def _delete(self, urls: Sequence[str]) -> Mapping[str, Failure]:
        """Send one deleteInstances. Do not wait for its operation, because the next observations show its effect."""
        if error := operation_error(self._project.api.delete(self._settings, urls)):
            raise raised(error)
        return {}


def _strayed_failure(member: Member) -> Failure:
    """Return the refusal to delete an abandoned instance, because that right would cover all instances of the
    project."""
    line = f"gcloud compute instances delete {member.name} --zone {member.zone}"
    return Failure(ErrorClass.DENIED, f"the instance was taken out of its group, and runs on until: {line}")


def _has_instance(member: Member, delete: Delete) -> bool:
    """Return True if the group has the instance to delete, and does not delete it already.

    A member without an instance (its id is empty) must be deleted as well, because it counts and may get an instance.
    """
    is_leaving = member.action in ("DELETING", "ABANDONING")
    return not is_leaving and (not delete.uid or not member.id or delete.uid == member.id)


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def request_key(group: Sequence[str], names: Sequence[str]) -> uuid.UUID:
    """Return a key of a request's content. Compute takes a second request with the same id for the first."""
    return uuid.uuid5(REQUEST_IDS, "|".join((*group, *sorted(names))))

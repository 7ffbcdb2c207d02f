"""One managed instance group as a pool: creates and deletes instances by name, and sees what became of them.

Promises of the backend protocol, and how they are kept here:

* An observation costs a list of the location's groups and one of each zone's instances (a page per 500), which all
  pools of
  the project share; while the group changes, also a list of its members. It is complete or raises (``observer``).
* A create is one call per 1,000 names plus usually one wait for the operation, which ends when the group has *accepted*
  the names; one that does not end soon is asked for with the observations (``admissions``). What becomes of the names
  is seen
  by looking: the group itself would try for ever.
* createInstances carries a request id made from its content, so that a repeat after a crash or a lost response is the
  same request to Compute. It carries names alone: with a preservedState the group would become stateful.
* A delete is one list of members, then one call per 1,000 of those that are there: Compute deletes by name, so we look
  just before which instance has it. It needs no request id: to delete twice is harmless.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from provisioner.backends import BackendError, MayStart
from provisioner.backends.batch import Call, run_calls
from provisioner.backends.mig.entries import Member
from provisioner.backends.mig.errors import AlreadyExists, operation_error, raised
from provisioner.backends.mig.live_check import GroupInspection
from provisioner.backends.mig.observer import GroupObserver
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.backends.mig.undecided_creates import Admissions
from provisioner.backends.responses import understood
from provisioner.model import Create, Delete, ErrorClass, Failure, Outcome, Snapshot

CHUNK = 1000
"""Compute takes so many instances in a request."""

WORKERS = 4
"""Mutations under way at once. A group works through them one after the other anyway."""

HASTE = 1 / 3
"""Least part of the pace between two observations: hints may come by the thousand, and each observation costs lists."""

REQUEST_IDS = uuid.UUID("5d3f1f3e-6f43-4c7e-9d2a-0f2f1c1b7a10")
"""Namespace of our request ids. Any fixed value does; a new one only forgets requests under way."""

REMEMBERED_FAILURES = 10_000
"""Failed creates that are remembered: Compute forgets request ids, too, after an undocumented time."""

T = TypeVar("T")


class MigBackend(GroupInspection):
    """Implements ``provisioner.backends.Backend`` for one managed instance group."""

    def __init__(self, pool: MigPool, projects: Projects) -> None:
        """Calls nothing yet. ``projects`` are shared by all pools of the provisioner."""
        super().__init__(pool, projects.of(pool))
        self.pool = pool.name
        self.lag = pool.lag_seconds
        self.pace = pool.observe_seconds
        self._observer = GroupObserver(pool, self._project)
        self._admissions = Admissions(pool.lag_seconds)
        self._ending = threading.Event()
        self._next_observation = 0.0
        self._lock = threading.Lock()
        self._failures: dict[uuid.UUID, int] = {}
        """Failed operations by the key of their create."""

    def start(self, wake: Callable[[], None]) -> None:
        """A group cannot be watched; Pub/Sub is what may say that something changed."""

    @understood()
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """The members of the group whose names have our shape, and those sought that the group has let go.

        Waits when the observation before began less than a part of the pace ago.
        """
        self._ending.wait(max(0.0, self._next_observation - time.monotonic()))
        self._next_observation = time.monotonic() + HASTE * self.pace
        api, location = self._project.api, self._settings.place
        deadline = (
            time.monotonic() + api.times.call
        )  # for all operations together: they must not hold up the observation
        members = self._observer.members
        self._admissions.ask(lambda name: api.operation(location, name, deadline), members)
        return self._observer.observe(now, dict(sought), self._admissions.refused(members))

    def ahead(self) -> float | None:
        """By Compute Engine's clock."""
        return self._project.api.clock.ahead()

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Ask the group for the names, by the thousand. Names it already has are a success without a call."""
        members = self._observer.members
        outcomes = [Outcome(create) for create in creates if create.name in members]
        calls = [
            Call(tuple(chunk), partial(self._create, [create.name for create in chunk]))
            for chunk in _chunks([create for create in creates if create.name not in members])
        ]
        return outcomes + run_calls(calls, workers=WORKERS, may_start=may_start)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Take the names out of the group, which deletes their instances and lowers its target size.

        Success means that the group was asked, or that the group does not hold this instance, or already deletes it.
        """
        # Only the shape of our names is touched, and what is adopted (law: nothing is deleted by count).
        ours = {delete.name: delete for delete in deletes if delete.adopted or self._project.is_ours(delete.name)}
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
            if member is not None and _holds(member, delete):
                there.append((member.url, delete))
            elif outside is not None and outside.id == delete.uid:
                outcomes.append(Outcome(delete, _strayed(outside)))
            else:
                outcomes.append(Outcome(delete))
        return outcomes + self._take_out(there, may_start)

    def _take_out(self, named: Sequence[tuple[str, Delete]], may_start: MayStart) -> list[Outcome]:
        """Ask for each delete with the address or name of its member: Compute takes not both in one request."""
        calls = [
            Call(tuple(delete for _, delete in chunk), partial(self._delete, [url for url, _ in chunk]))
            for addressed in (True, False)
            for chunk in _chunks([(url, delete) for url, delete in named if ("/" in url) is addressed])
        ]
        self._observer.expect_change([delete.name for _, delete in named])
        # The list may have taken longer than calls may be begun: some begin all the same, or none ever would.
        ready = iter(range(WORKERS))
        return run_calls(calls, workers=WORKERS, may_start=lambda: next(ready, None) is not None or may_start())

    def close(self) -> None:
        """End an observation that waits; close the connections."""
        self._ending.set()
        self._observer.close()
        self._project.close()

    def _members(self) -> Mapping[str, Member]:
        return self._project.members(self._settings, time.monotonic() + self._project.api.times.call)

    @understood(ErrorClass.UNAVAILABLE)
    def _create(self, names: Sequence[str]) -> Mapping[str, Failure]:
        """One createInstances. Compute has taken it once it is answered; a late result is for the observations."""
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
            return self._observe_again(names, error.failure.text)
        return {}

    def _request_id(self, key: uuid.UUID) -> str:
        """Return the request id of a create: the same for the same names until Compute answers it with an error."""
        return str(uuid.uuid5(key, str(self._failures.get(key, 0))))

    def _note_failure(self, key: uuid.UUID) -> None:
        """Take another id for the next try of a create: the last one would only bring back the failed operation."""
        with self._lock:
            self._failures[key] = self._failures.pop(key, 0) + 1
            if len(self._failures) > REMEMBERED_FAILURES:
                del self._failures[next(iter(self._failures))]

    def _observe_again(self, names: Sequence[str], text: str) -> Mapping[str, Failure]:
        """A name of the call is taken, and Compute does not say which: members with these names are ours, a success.

        The others count as unanswered, so that they are asked for again without the names that are there.
        """
        try:
            members = self._members()
        except BackendError:
            members = {}
        return {name: Failure(ErrorClass.UNAVAILABLE, text) for name in names if name not in members}

    @understood(ErrorClass.UNAVAILABLE)
    def _delete(self, urls: Sequence[str]) -> Mapping[str, Failure]:
        """One deleteInstances. Its operation is not waited for: the next observations show what it did."""
        if error := operation_error(self._project.api.delete(self._settings, urls)):
            raise raised(error)
        return {}


def _strayed(member: Member) -> Failure:
    """Return the refusal to delete an abandoned instance: that right would reach all instances of the project."""
    line = f"gcloud compute instances delete {member.name} --zone {member.zone}"
    return Failure(ErrorClass.DENIED, f"somebody took the instance out of its group, where it runs on until: {line}")


def _holds(member: Member, delete: Delete) -> bool:
    """Whether the group still holds the instance that is meant, and does not delete it already.

    A member without instance (its id is empty) has to be deleted as well: it counts, and the group may fill it.
    """
    is_leaving = member.action in ("DELETING", "ABANDONING")
    return not is_leaving and (not delete.uid or not member.id or delete.uid == member.id)


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def request_key(group: Sequence[str], names: Sequence[str]) -> uuid.UUID:
    """Return the same for the same content: Compute takes the second of two requests with one id for the first."""
    return uuid.uuid5(REQUEST_IDS, "|".join((*group, *sorted(names))))

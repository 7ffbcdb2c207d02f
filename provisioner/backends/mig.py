"""One managed instance group as a pool: creates and deletes instances by name, and sees what became of them.

The only importer of google.cloud.compute, whose import takes a second and 150 MB: import this module only where a
group is configured. Promises of the backend protocol, and how they are kept here:

* A look costs three calls: the group, its members, the instances of each zone with members (a page per 500). It is
  complete or raises. A group without members costs two; a regional one a list per zone, zones in parallel.
* A create is one call per 1,000 names plus usually one wait. The operation ends when the group has *accepted* the
  names: that is all it says. What becomes of them is seen by looking; the group itself would try for ever.
* ``createInstances`` and ``deleteInstances`` carry a request id made from their content, so a repeat after a crash is
  known to Compute as the same request.
* ``ExtendedOperation.result()`` is never used: it asks Google's own address whatever the endpoint is.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from google.api_core.client_options import ClientOptions
from google.cloud import compute_v1

from provisioner.backends import BackendError, MayStart
from provisioner.backends.calls import Call, run_calls
from provisioner.backends.compute_errors import (
    CALL_ERRORS,
    AlreadyExists,
    of_exception,
    operation_error,
    raised,
)
from provisioner.backends.compute_reads import CALL_SECONDS, LOOK_SECONDS, ComputeReads, Place, credentials_for
from provisioner.backends.instances import (
    Instance,
    Member,
    counted,
    group_problems,
    instance_url,
    machine,
    read_instance,
    read_member,
    spec,
)
from provisioner.config import MigPool
from provisioner.model import (
    STOPPING_ERRORS,
    Create,
    Delete,
    ErrorClass,
    Failure,
    Machine,
    Outcome,
    Snapshot,
    name_pattern,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

CHUNK = 1000
"""Compute takes so many instances in a request."""

WORKERS = 4
"""Mutations under way at once. A group works through them one after the other anyway."""

ADMISSION_SECONDS = 20.0
"""How long the result of a create is waited for. Seen in practice: 0 to 4 s."""

REQUEST_IDS = uuid.UUID("5d3f1f3e-6f43-4c7e-9d2a-0f2f1c1b7a10")
"""Namespace of our request ids. Any fixed value does; a new one only forgets requests under way."""

ODD_ANSWERS = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading an answer of another shape than the documented one raises: a failed look, not a crash."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A snapshot, and what actions need to know beside it."""

    snapshot: Snapshot
    members: Mapping[str, Member] = field(default_factory=dict)


class MigBackend:
    """Implements ``provisioner.backends.Backend`` for one managed instance group."""

    def __init__(self, pool: MigPool, *, prefix: str) -> None:
        self.pool = pool.name
        self.lag = pool.lag_seconds
        self.pace = pool.observe_seconds
        self._settings = pool
        self._prefix = prefix
        self._shape = name_pattern(prefix)
        self._place = Place.of(pool)
        self._api: _Api | None = None
        self._connecting = threading.Lock()
        self._look: _Look | None = None
        self._said: frozenset[str] = frozenset()

    def start(self, wake: Callable[[], None]) -> None:
        """A group cannot be watched; Pub/Sub (``provisioner.events``) is what may say that something changed."""

    def observe(self, now: float, strangers: Collection[str]) -> Snapshot:
        """The members of the group whose names have our shape. Instances outside the group are never ours."""
        try:
            self._look = self._observe(self._connect().reads, now, strangers)
        except ODD_ANSWERS as error:
            raise BackendError(ErrorClass.OTHER, f"answer not understood: {type(error).__name__}: {error}") from error
        return self._look.snapshot

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Ask the group for the names, by template and thousand. Names it already has are a success without a call."""
        members = self._members()
        there = [Outcome(create) for create in creates if create.name in members]
        missing = sorted(
            (create for create in creates if create.name not in members), key=lambda c: (c.template, c.name)
        )
        calls = [
            Call(tuple(chunk), partial(self._create, [create.name for create in chunk]))
            for _, alike in groupby(missing, key=lambda create: create.template)
            for chunk in _chunks(list(alike))
        ]
        return there + run_calls(calls, workers=WORKERS, may_start=may_start, stops=STOPPING_ERRORS)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Take the names out of the group, which deletes their instances and lowers its target size.

        Success means that the group was asked; the next looks show it, and the plan asks again if they do not.
        """
        settled: list[Outcome] = []
        urls: list[tuple[str, Delete]] = []
        for delete in deletes:
            url, failure = self._target(delete)
            if url:
                urls.append((url, delete))
            else:
                settled.append(Outcome(delete, failure))
        # Compute takes addresses or bare names, not both in one request.
        urls.sort(key=lambda item: ("/" in item[0], item[0]))
        calls = [
            Call(tuple(delete for _, delete in chunk), partial(self._delete, [url for url, _ in chunk]))
            for _, alike in groupby(urls, key=lambda item: "/" in item[0])
            for chunk in _chunks(list(alike))
        ]
        return settled + run_calls(calls, workers=WORKERS, may_start=may_start)

    def close(self) -> None:
        """Close the connections."""
        if self._api:
            self._api.close()

    def _connect(self) -> _Api:
        """The clients, made at first use: missing credentials make this pool unobservable, not the loop fail."""
        with self._connecting:
            if self._api is None:
                self._api = _Api(self._settings, self._place, self._prefix)
            return self._api

    def _members(self) -> Mapping[str, Member]:
        return self._look.members if self._look else {}

    def _observe(self, reads: ComputeReads, now: float, strangers: Collection[str]) -> _Look:
        deadline = time.monotonic() + LOOK_SECONDS
        group = reads.group(deadline)
        members = {member.name: member for member in self._read_members(reads, deadline)}
        if not members and self._members() and counted(group):
            raise BackendError(ErrorClass.OTHER, f"no members are listed, but the group counts {counted(group)}")
        ours = {name: member for name, member in members.items() if self._shape.fullmatch(name)}
        instances = _read_instances(reads, {member.zone for member in ours.values()} - {""}, deadline)
        self._say(group_problems(group) + self._abandoned(instances, members))
        snapshot = Snapshot(
            pool=self.pool,
            began=now,
            machines=self._machines(ours, instances, now),
            foreign=frozenset(name for name in strangers if name in members and name not in ours),
            spec=spec(group),
        )
        return _Look(snapshot, members)

    def _read_members(self, reads: ComputeReads, deadline: float) -> list[Member]:
        return [read_member(item, self._place.zone) for item in reads.members(deadline)]

    def _machines(
        self, members: Mapping[str, Member], instances: Mapping[str, Instance], now: float
    ) -> Mapping[str, Machine]:
        """By name; the very mapping of the look before when nothing changed."""
        before = self._look.snapshot.machines if self._look else {}
        machines = {
            name: machine(member, instances.get(name), before.get(name), now) for name, member in members.items()
        }
        same = len(machines) == len(before) and all(before.get(name) is made for name, made in machines.items())
        return before if same else machines

    def _abandoned(self, instances: Mapping[str, Instance], members: Mapping[str, Member]) -> tuple[str, ...]:
        """Members that someone took out of the group and that run on: they are no longer ours to delete."""
        left = sorted(
            name
            for name, member in self._members().items()
            if name in instances
            and name not in members
            and instances[name].status == "RUNNING"
            and member.action != "DELETING"
        )
        return (f"{len(left)} members left the group and run on, e.g. {left[0]}.",) if left else ()

    def _say(self, problems: Sequence[str]) -> None:
        """Log what is new among the group's problems."""
        for problem in problems:
            if problem not in self._said:
                log.warning("The group has a problem", extra={"pool": self.pool, "problem": problem})
        self._said = frozenset(problems)

    def _create(self, names: Sequence[str]) -> Mapping[str, Failure]:
        """One createInstances. A result that stays unknown is a TIMEOUT: the next create has the same request id."""
        api = self._connect()
        try:
            operation = api.create(names)
            done = operation.get("status") == "DONE"
            ended = operation if done else api.reads.finished(operation["name"], ADMISSION_SECONDS)
            if ended is None:
                raise BackendError(ErrorClass.TIMEOUT, f"not accepted within {ADMISSION_SECONDS:.0f} s")
            _refuse_failed(ended)
        except AlreadyExists as error:
            return self._look_again(api.reads, names, error.failure.text)
        return {}

    def _look_again(self, reads: ComputeReads, names: Sequence[str], text: str) -> Mapping[str, Failure]:
        """A name of the call is taken; Compute says neither which nor what became of the others.

        Members with these names are ours, for nobody else makes names of our shape: a success. The others count as
        unanswered, so that they are asked for again, by then without the names that are there.
        """
        try:
            present = {member.name for member in self._read_members(reads, time.monotonic() + CALL_SECONDS)}
        except BackendError:
            present = set()
        return {name: Failure(ErrorClass.UNAVAILABLE, text) for name in names if name not in present}

    def _target(self, delete: Delete) -> tuple[str, Failure | None]:
        """How the call names the machine; empty when there is nothing to call for, with the failure if it is one."""
        member = self._members().get(delete.name)
        if member is None:
            unseen = not delete.uid and self._place.zone and self._shape.fullmatch(delete.name)
            return (instance_url(self._place.zone, delete.name), None) if unseen else ("", None)
        if delete.uid and member.id and delete.uid != member.id:
            return "", Failure(ErrorClass.OTHER, f"instance {member.id} now has the name, not {delete.uid}")
        return member.url, None

    def _delete(self, urls: Sequence[str]) -> Mapping[str, Failure]:
        """One deleteInstances. Its id changes with each look, so that one for a machine that stays is not ignored."""
        look = f"{self._look.snapshot.began:.3f}" if self._look else ""
        _refuse_failed(self._connect().delete(urls, look))
        return {}


def _read_instances(reads: ComputeReads, zones: Collection[str], deadline: float) -> dict[str, Instance]:
    """The instances of all zones, by name; the first zone that fails fails them all."""
    if not zones:
        return {}
    with ThreadPoolExecutor(len(zones), thread_name_prefix="zone") as pool:
        lists = list(pool.map(lambda zone: reads.instances(zone, deadline), sorted(zones)))
    return {instance.name: instance for items in lists for instance in map(read_instance, items)}


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def _refuse_failed(operation: Mapping[str, Any]) -> None:
    """Raise what an operation says went wrong."""
    error = operation_error(operation)
    if error:
        raise raised(error)


def request_id(verb: str, group: str, names: Sequence[str], salt: str = "") -> str:
    """The same for the same content: Compute ignores the second of two requests with one id."""
    return str(uuid.uuid5(REQUEST_IDS, "|".join((verb, group, salt, *sorted(names)))))


class _Api:
    """The clients of one group. The typed one is used for mutations; its answers are turned into JSON."""

    def __init__(self, pool: MigPool, place: Place, prefix: str) -> None:
        credentials = credentials_for(pool)
        self.reads = ComputeReads(place, credentials, prefix=prefix)
        self._place = place
        kind = compute_v1.InstanceGroupManagersClient if place.zone else compute_v1.RegionInstanceGroupManagersClient
        self._client = kind(credentials=credentials, client_options=ClientOptions(api_endpoint=place.root))
        self._body = ("" if place.zone else "region_") + "instance_group_managers_{}_instances_request_resource"

    def create(self, names: Sequence[str]) -> Mapping[str, Any]:
        """createInstances; the operation."""
        body = {"instances": [{"name": name} for name in names]}
        return self._send(
            "create", self._client.create_instances_unary, body, request_id("create", self._place.path, names)
        )

    def delete(self, urls: Sequence[str], salt: str) -> Mapping[str, Any]:
        """deleteInstances, of those that are members and not yet on their way out; the operation."""
        body = {"instances": list(urls), "skip_instances_on_validation_error": True}
        id_ = request_id("delete", self._place.path, urls, salt)
        return self._send("delete", self._client.delete_instances_unary, body, id_)

    def _send(self, verb: str, call: Callable[..., Any], body: Mapping[str, Any], id_: str) -> Mapping[str, Any]:
        kind, _, location = self._place.location.partition("s/")
        request = {
            "project": self._place.project,
            kind: location,
            "instance_group_manager": self._place.group,
            "request_id": id_,
            self._body.format(verb): body,
        }
        try:
            operation = call(request=request, timeout=CALL_SECONDS, retry=None)
        except CALL_ERRORS as error:
            raise of_exception(error) from error
        answer: Mapping[str, Any] = json.loads(compute_v1.Operation.to_json(operation, use_integers_for_enums=False))
        return answer

    def close(self) -> None:
        """Close the connections."""
        self.reads.close()
        self._client.transport.close()

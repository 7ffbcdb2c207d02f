"""Makes snapshots of one managed instance group from what its three lists say, and notices what people should know.

A look is the group, its members, and the instances of each zone that has members of ours, zones in parallel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from provisioner.backends import BackendError
from provisioner.backends.compute_reads import ComputeReads
from provisioner.backends.instances import (
    LEAVING_ACTIONS,
    Instance,
    Member,
    counted,
    group_problems,
    machine,
    read_instance,
    read_member,
    spec,
)
from provisioner.backends.resolver import Resolver
from provisioner.model import ErrorClass, Failure, Machine, Phase, Snapshot, name_pattern

log = logging.getLogger(__name__)

UNRESOLVED = Failure(ErrorClass.OTHER, "The instance's name does not resolve yet.")

ODD_ANSWERS = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading an answer of another shape than the documented one raises: a failed look, not a crash."""


class GroupObserver:
    """Looks at one group, and remembers the look before. One look at a time."""

    def __init__(self, pool: str, *, prefix: str, resolver: Resolver | None) -> None:
        """With a ``resolver`` a machine runs only once its name resolves."""
        self._pool = pool
        self._shape = name_pattern(prefix)
        self._resolver = resolver
        self._machines: Mapping[str, Machine] = {}
        self._said: frozenset[str] = frozenset()
        self.members: Mapping[str, Member] = {}
        """Of the last complete look, whatever their names."""

    def look(self, reads: ComputeReads, now: float, strangers: Collection[str]) -> Snapshot:
        """A complete snapshot, begun at ``now``; BackendError otherwise, and then nothing of it is remembered."""
        with _understood():
            return self._look(reads, now, strangers)

    def _look(self, reads: ComputeReads, now: float, strangers: Collection[str]) -> Snapshot:
        deadline = time.monotonic() + reads.times.look
        group = reads.group(deadline)
        members = read_members(reads, deadline)
        if not members and self.members and (count := counted(reads.group(deadline))):
            raise BackendError(ErrorClass.OTHER, f"no members are listed, but the group counts {count}")
        ours = {name: member for name, member in members.items() if self._shape.fullmatch(name)}
        instances = _read_instances(reads, {member.zone for member in ours.values()} - {""}, deadline)
        self._say((*group_problems(group), *self._abandoned(instances, members)))
        self._machines = self._judged(ours, instances, now)
        self.members = members
        return Snapshot(
            pool=self._pool,
            began=now,
            machines=self._machines,
            foreign=frozenset(name for name in strangers if name in members and name not in ours),
            spec=spec(group),
            asked=frozenset(strangers),
        )

    def _judged(
        self, members: Mapping[str, Member], instances: Mapping[str, Instance], now: float
    ) -> Mapping[str, Machine]:
        """Our machines by name; the very mapping of the look before when nothing changed."""
        before = self._machines
        machines = {
            name: self._resolved(machine(member, instances.get(name), before.get(name), now), before.get(name))
            for name, member in members.items()
        }
        if self._resolver:
            for name in before.keys() - machines.keys():
                self._resolver.forget(name)
        same = len(machines) == len(before) and all(before.get(name) is made for name, made in machines.items())
        return before if same else machines

    def _resolved(self, made: Machine, before: Machine | None) -> Machine:
        """The machine, pending while its name has to resolve and does not."""
        if made.phase is not Phase.RUNNING or self._resolver is None or self._resolver.resolves(made.name):
            return made
        waiting = replace(made, phase=Phase.PENDING, failure=UNRESOLVED)
        return before if before == waiting and before is not None else waiting

    def _abandoned(self, instances: Mapping[str, Instance], members: Mapping[str, Member]) -> tuple[str, ...]:
        """Members that someone took out of the group and that run on: they are no longer ours to delete."""
        left = sorted(
            name
            for name, member in self.members.items()
            if name not in members
            and name in instances
            and instances[name].status == "RUNNING"
            and (member.action == "ABANDONING" or member.action not in LEAVING_ACTIONS)
        )
        return (f"{len(left)} members left the group and run on, e.g. {left[0]}.",) if left else ()

    def _say(self, problems: Sequence[str]) -> None:
        """Log what is new among the group's problems."""
        for problem in problems:
            if problem not in self._said:
                log.warning("The group has a problem", extra={"pool": self._pool, "problem": problem})
        self._said = frozenset(problems)


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ODD_ANSWERS as error:
        raise BackendError(ErrorClass.OTHER, f"answer not understood: {type(error).__name__}: {error}") from error


def read_members(reads: ComputeReads, deadline: float) -> dict[str, Member]:
    """The members of the group by name, or BackendError. ``deadline`` is monotonic time."""
    with _understood():
        return {member.name: member for member in (read_member(item, reads.zone) for item in reads.members(deadline))}


def _read_instances(reads: ComputeReads, zones: Collection[str], deadline: float) -> dict[str, Instance]:
    """The instances of all zones by name; the first zone that fails fails them all."""
    if not zones:
        return {}
    with ThreadPoolExecutor(len(zones), thread_name_prefix="zone") as pool:
        lists = list(pool.map(lambda zone: reads.instances(zone, deadline), sorted(zones)))
    return {instance.name: instance for items in lists for instance in map(read_instance, items)}

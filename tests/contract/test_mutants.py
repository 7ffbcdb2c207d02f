"""The suite finds wrong backends. Each mutant is a fake backend with one error, and must fail a test that the fake
backend passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from provisioner.backends import BackendError
from provisioner.lab import fake_backend
from provisioner.lab.fake_backend import Entry, FakeBackend, Mark
from provisioner.lab.skeleton import contract
from provisioner.lab.skeleton.contract import FaultyClient, SkeletonPlace
from provisioner.model import Create, Delete, ErrorClass, Failure, Machine, MachineEnd, Phase, Snapshot
from provisioner.testing.place import How
from provisioner.testing.suite import creates, deletes, lives, observations, others
from tests.contract.memory_place import MemoryPlace
from tests.support.steered_place import steered

Test = Callable[..., None]


class MutantPlace(MemoryPlace):
    """A place in memory whose backends are mutants. Its actions are quick and its waits short, so that a test fails
    soon."""

    patience = 0.5

    def __init__(self, mutant: type[FakeBackend], **settings: object) -> None:
        self._mutant = mutant
        super().__init__(fake_backend.KIND, **settings)

    def another(self) -> FakeBackend:
        backend = super().another()
        backend.__class__ = self._mutant
        return backend


class Altered(FakeBackend):
    """A backend that alters its snapshots."""

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        return self.alter(super().observe(now, sought))

    def alter(self, seen: Snapshot) -> Snapshot:
        machines = {name: self.alter_machine(machine) for name, machine in seen.machines.items()}
        return replace(seen, machines=machines)

    def alter_machine(self, machine: Machine) -> Machine:
        return machine


class ReportsEndedAsRunning(Altered):
    def alter(self, seen: Snapshot) -> Snapshot:
        own = [one for one in self.place.entries().values() if self._is_own(one)]
        return super().alter(replace(seen, machines=self.place.machines(own), ends={}))

    def alter_machine(self, machine: Machine) -> Machine:
        return replace(machine, phase=Phase.RUNNING, cause=None) if machine.phase is Phase.GONE else machine


class CreatesWithoutACheckOfTheName(FakeBackend):
    def _create(self, create: Create) -> Mapping[str, Failure]:
        if create.name in self.place.entries():
            self.place.double(create.name)
            return {}
        return super()._create(create)


class TakesMachinesOfAnotherPool(FakeBackend):
    def _is_own(self, entry: Entry) -> bool:
        return self._is_made_here(entry) and entry.mark is not None and entry.mark.name == entry.name


class TakesMachinesOfAnotherProvisioner(FakeBackend):
    def _is_own(self, entry: Entry) -> bool:
        return entry.mark is not None and entry.mark[1:] == (self.pool, entry.name)


class DropsNoLeftovers(FakeBackend):
    def _delete(self, delete: Delete) -> Mapping[str, Failure]:
        machine = self._machines.get(delete.name)
        return {} if machine is not None and machine.phase is Phase.GONE else super()._delete(delete)


class LeavesRequeueOn(FakeBackend):
    def _create(self, create: Create) -> Mapping[str, Failure]:
        steered(self.place).begins_again = True
        return super()._create(create)


class UidWithoutTheTimeOfSubmission(Altered):
    def alter_machine(self, machine: Machine) -> Machine:
        return replace(machine, fingerprint=machine.fingerprint._replace(uid=number(machine.fingerprint.uid)))

    def _delete(self, delete: Delete) -> Mapping[str, Failure]:
        entry = self.place.entries().get(delete.name)
        is_meant = entry is not None and delete.uid == number(entry.uid)
        return super()._delete(replace(delete, uid=entry.uid) if is_meant else delete)


def number(uid: str) -> str:
    """Return a uid without its suffix ``-submitted-later``. Without the suffix, a later machine of the same name can
    have the same uid."""
    return uid.partition("-submitted-later")[0]


class DeletesByNameAlone(FakeBackend):
    def _delete(self, delete: Delete) -> Mapping[str, Failure]:
        return super()._delete(replace(delete, uid=""))


class CallsAWaitInTheQueueAFailure(Altered):
    def alter_machine(self, machine: Machine) -> Machine:
        failure = Failure(ErrorClass.STOCKOUT, machine.queued.reason) if machine.queued else machine.failure
        return replace(machine, failure=failure)


class SpillsNoMachine(Altered):
    def alter_machine(self, machine: Machine) -> Machine:
        return replace(machine, spills_at_once=False)


class HidesDoubles(Altered):
    def alter(self, seen: Snapshot) -> Snapshot:
        return replace(seen, doubles={})


class ForgetsRecords(Altered):
    def alter(self, seen: Snapshot) -> Snapshot:
        return replace(seen, ends={})


class ReportsEndsOfOthers(Altered):
    def alter(self, seen: Snapshot) -> Snapshot:
        return replace(seen, ends=dict.fromkeys(self.place.records(), MachineEnd(failure=fake_backend.ENDED)))


class TakesAFailureForAnEmptyPlace(FakeBackend):
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        with suppress(BackendError):
            return super().observe(now, sought)
        return Snapshot(self.pool, now, {}, spec="fake")


class IgnoresTheEndOfItsTime(FakeBackend):
    def create(self, creates: Any, may_start: Any) -> Any:
        return super().create(creates, lambda: True)


class TakesAnyMachineOfTheNameForASuccess(FakeBackend):
    def _create(self, create: Create) -> Mapping[str, Failure]:
        if entry := self.place.entries().get(create.name):
            self.place.unmark(entry.name)
            self.place.delete(entry, at_once=True)
            self.place.create(create.name, Mark(self._provisioner, self.pool, create.name))
            return {}
        return super()._create(create)


class ForgetsTheName(FaultyClient):
    def submit(self, name: str, mark: str, environment: Mapping[str, str]) -> None:
        super().submit(name, mark, {})


class SharesAName(FaultyClient):
    def submit(self, name: str, mark: str, environment: Mapping[str, str]) -> None:
        super().submit(name, mark, {"HF_MACHINE_NAME": "the-host"})


ENDED: Test = lives.test_a_machine_that_ended_is_never_seen_as_live_and_leaves_nothing
BELONGS: Test = others.test_machines_of_another_pool_or_provisioner_are_not_ours
SAME_NAME: Test = others.test_a_name_that_a_machine_of_another_pool_or_provisioner_has_is_not_taken_for_ours
QUEUED: Test = lives.test_a_queued_machine_shows_its_wait_and_no_failure_until_the_queue_releases_it
SPILLS: Test = lives.test_a_machine_that_its_place_cannot_make_now_spills_with_the_reason
FAILED: Test = observations.test_a_failed_observation_raises_and_a_later_one_is_complete_again
RECORDS = {"keeps_records": True}

CAUGHT: list[tuple[type[FakeBackend], Mapping[str, object], Test, tuple[object, ...]]] = [
    (ReportsEndedAsRunning, {}, ENDED, (How.EXIT,)),
    (ReportsEndedAsRunning, RECORDS, ENDED, (How.EXIT,)),
    (CreatesWithoutACheckOfTheName, {}, creates.test_created_twice_is_one_machine_and_two_successes, ()),
    (CreatesWithoutACheckOfTheName, {}, creates.test_created_again_by_a_successor_is_one_machine, ()),
    (TakesMachinesOfAnotherPool, {}, BELONGS, ("other_pool",)),
    (TakesMachinesOfAnotherPool, {}, SAME_NAME, ("other_pool",)),
    (TakesMachinesOfAnotherProvisioner, {}, BELONGS, ("other_provisioner",)),
    (DropsNoLeftovers, {}, ENDED, (How.EXIT,)),
    (LeavesRequeueOn, {}, lives.test_a_machine_that_its_place_begins_again_is_gone_or_another, ()),
    (UidWithoutTheTimeOfSubmission, {}, deletes.test_another_machine_of_the_same_name_is_never_deleted, ()),
    (UidWithoutTheTimeOfSubmission, {}, deletes.test_force_ends_only_the_machine_with_the_given_uid, ()),
    (DeletesByNameAlone, {}, deletes.test_another_machine_of_the_same_name_is_never_deleted, ()),
    (CallsAWaitInTheQueueAFailure, {}, QUEUED, ()),
    (SpillsNoMachine, {}, SPILLS, (ErrorClass.STOCKOUT,)),
    (HidesDoubles, {}, lives.test_of_two_objects_of_one_name_each_is_deleted_by_its_uid, ()),
    (ForgetsRecords, RECORDS, ENDED, (How.EXIT,)),
    (ReportsEndsOfOthers, RECORDS, BELONGS, ("other_pool",)),
    (TakesAFailureForAnEmptyPlace, {}, FAILED, ("hang",)),
    (IgnoresTheEndOfItsTime, {}, creates.test_nothing_is_sent_when_the_time_is_over, ()),
    (TakesAnyMachineOfTheNameForASuccess, {}, SAME_NAME, ("other_provisioner",)),
]  # fmt: skip


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("mutant", "settings", "test", "arguments"), CAUGHT, ids=name_of)
def test_a_mutant_fails_a_test_that_the_fake_passes(
    mutant: type[FakeBackend], settings: Mapping[str, object], test: Test, arguments: tuple[object, ...]
) -> None:
    test(MutantPlace(FakeBackend, **settings), *arguments)
    with pytest.raises(AssertionError):
        test(MutantPlace(mutant, **settings), *arguments)


@pytest.mark.parametrize("mutant", [ForgetsTheName, SharesAName])
def test_machines_that_do_not_learn_their_own_names_are_caught(
    mutant: type[FaultyClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    test = creates.test_each_machine_learns_its_own_name_also_beside_another_on_its_host
    test(SkeletonPlace())
    monkeypatch.setattr(contract, "FaultyClient", mutant)
    with pytest.raises(AssertionError):
        test(SkeletonPlace())

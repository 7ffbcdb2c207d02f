"""Places that do not keep names unique: when a name may be created again, and which of two machines stays."""

from __future__ import annotations

import pytest

from provisioner.backends import BackendError
from provisioner.backends.names_not_unique import UncertainCreates, keep_one, list_before
from provisioner.model import Create, ErrorClass, Fingerprint, Machine, Phase

CREATE = Create("hf-abcdefghij-000001", "p", "t", "abcdefghij")
LAG = 30.0


def may(names: UncertainCreates, listed_at: float, create: Create = CREATE) -> bool:
    try:
        names.check(create, listed_at)
    except BackendError as error:
        return error.failure.error is not ErrorClass.TIMEOUT
    return True


def test_a_new_name_may_be_created_at_once() -> None:
    assert may(UncertainCreates(LAG), 0.0)


def test_an_unanswered_create_is_repeated_after_two_lists_that_are_far_enough_apart() -> None:
    names = UncertainCreates(LAG)
    names.note(CREATE.name)
    assert [may(names, at) for at in (100.0, 110.0, 129.0, 130.0)] == [False, False, False, True]
    assert may(names, 131.0), "the name is proven absent"


@pytest.mark.parametrize("lag", [0.0, LAG])
def test_one_list_is_never_enough(lag: float) -> None:
    names = UncertainCreates(lag)
    names.note(CREATE.name)
    assert not may(names, 100.0)
    assert not may(names, 100.0)


def test_a_create_that_another_process_sent_is_as_uncertain() -> None:
    repeated = Create(CREATE.name, "p", "t", "abcdefghij", is_repeated=True)
    names = UncertainCreates(LAG)
    assert [may(names, at, repeated) for at in (100.0, 130.0)] == [False, True]


def test_a_name_that_is_listed_is_certain() -> None:
    names = UncertainCreates(LAG)
    names.note(CREATE.name)
    names.settle(CREATE.name)
    assert may(names, 100.0)


@pytest.mark.parametrize("error", [ErrorClass.TIMEOUT, ErrorClass.OTHER])
def test_if_the_list_fails_nothing_is_sent_and_no_try_is_spent(error: ErrorClass) -> None:
    def fails() -> None:
        raise BackendError(error, "no list")

    listed, (outcome,) = list_before([CREATE], fails, lambda: True)
    assert listed is None
    assert outcome.failure is not None
    assert outcome.failure.error is ErrorClass.UNAVAILABLE, "no machine has failed"


def machine(uid: str, phase: Phase, launched: int = 0) -> Machine:
    return Machine("m", phase, Fingerprint(uid=uid), launched=launched)


@pytest.mark.parametrize(
    ("machines", "kept", "doubles"),
    [
        ([machine("1", Phase.PENDING)], "1", []),
        ([machine("1", Phase.PENDING), machine("2", Phase.PENDING)], "1", ["2"]),
        ([machine("1", Phase.PENDING), machine("2", Phase.RUNNING, 9)], "2", ["1"]),
        ([machine("1", Phase.RUNNING, 8), machine("2", Phase.RUNNING, 7)], "2", ["1"]),
        ([machine("1", Phase.STOPPING), machine("2", Phase.PENDING)], "2", []),
        ([machine("1", Phase.GONE), machine("2", Phase.STOPPING)], "1", []),
    ],
)
def test_the_machine_that_runs_longest_stays_else_the_oldest(
    machines: list[Machine], kept: str, doubles: list[str]
) -> None:
    stays, others = keep_one(machines)
    assert (stays.fingerprint.uid, [one.fingerprint.uid for one in others]) == (kept, doubles)

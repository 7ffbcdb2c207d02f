"""Names and helpers of the suite's tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from provisioner.model import ErrorClass, Machine, Outcome, Phase
from provisioner.testing.place import OTHER_REQUEST, PREFIX, REQUEST, Place
from provisioner.testing.waiting import until

ONE = f"{PREFIX}-{REQUEST}-000001"
TWO = f"{PREFIX}-{REQUEST}-000002"
UNKNOWN = f"{PREFIX}-{OTHER_REQUEST}-000001"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halve the time-out of calls, so that a test whose place hangs does not take long."""
    monkeypatch.setattr(Place, "call", Place.call / 2)


def errors(outcomes: Sequence[Outcome]) -> list[ErrorClass | None]:
    """Return the error class of each outcome; None for a success."""
    return [outcome.failure.error if outcome.failure else None for outcome in outcomes]


def wait_for_other_machine(place: Place, before: Machine) -> Machine:
    """Wait until an observation shows a machine other than ``before`` under the same name. The wait is necessary
    because lists may be late. Return the other machine."""

    def other() -> Machine | None:
        seen = place.observe().machines.get(ONE)
        there = seen is not None and seen.phase is Phase.RUNNING and before.fingerprint.differs(seen.fingerprint)
        return seen if there else None

    snapshot = until(other, place.patience, what="the other machine is seen")
    assert snapshot is not None
    return snapshot

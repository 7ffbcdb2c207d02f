"""The simulated Compute Engine with every behaviour that nobody documents at its hardest, and with some flipped.

What is flipped is the default of all that is simulated meanwhile, in every process: what a test says itself of a switch
stands, and where its expectation depends on one it asks ``Switches()``. The fixture ``switches`` runs a test unflipped
in `make test`, and in `make test-slow` with one half of them flipped, then with the other. ``pytest --flip NAME`` runs
any test with one flipped alone, and `make test-flips` all of them with each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, replace

import pytest

from provisioner.simulator.compute.settings import Duplicate, Switches, UnknownPlace, UnknownProject

PESSIMISTIC = Switches()

FLIPPED = {
    "a taken name is a conflict": replace(PESSIMISTIC, duplicate_name=Duplicate.HTTP_CONFLICT),
    "a taken name is skipped": replace(PESSIMISTIC, duplicate_name=Duplicate.IGNORE),
    "a delete cancels an insert": replace(PESSIMISTIC, cancel_creating=True),
    "a dead member leaves": replace(PESSIMISTIC, dead_member_stays=False),
    "a recreated VM has another id": replace(PESSIMISTIC, recreate_keeps_id=False),
    "the header masks fields": replace(PESSIMISTIC, field_mask_header=True),
    "the address comes early": replace(PESSIMISTIC, ip_before_running=True),
    "request ids are kept for a day": replace(PESSIMISTIC, request_id_seconds=86400.0),
    "an unknown zone is not found": replace(PESSIMISTIC, unknown_place=UnknownPlace.NOT_FOUND),
    "an unknown project is forbidden": replace(PESSIMISTIC, unknown_project=UnknownProject.FORBIDDEN),
}

OF_PLACES = {"an unknown zone is not found", "an unknown project is forbidden"}
"""Only who names a place that is not there meets these: such tests are run with each of the words by themselves."""


def _together(names: Sequence[str]) -> Switches:
    changes = [asdict(FLIPPED[name]).items() - asdict(PESSIMISTIC).items() for name in names]
    return replace(PESSIMISTIC, **dict(change for flip in changes for change in flip))


TRIED = [name for name in FLIPPED if name not in OF_PLACES]
HALVES = {"one half flipped": _together(TRIED[::2]), "the other half flipped": _together(TRIED[1::2])}
"""A taken name has two other outcomes, one in each half."""

FLIPS = [pytest.param(name, id=name, marks=pytest.mark.slow) for name in HALVES]
EACH = [pytest.param("", id="unflipped"), *FLIPS]
"""Parameters of the fixture ``switches``."""

ASSUMED = FLIPPED | HALVES

GIVEN = "SIMULATOR_SWITCHES"
"""Tells a process that a test starts which switches are its defaults, as JSON."""


def assume(switches: Switches, patch: pytest.MonkeyPatch) -> None:
    """As long as the patch holds, these are the defaults of this process and of those that it starts."""
    patch.setattr(Switches.__init__, "__defaults__", astuple(switches))
    patch.setenv(GIVEN, json.dumps(asdict(switches)))


def assume_given() -> None:
    """From now on the switches that this process was given are its defaults."""
    if given := os.environ.get(GIVEN):
        Switches.__init__.__defaults__ = astuple(Switches.parse(json.loads(given)))


if __name__ == "__main__":
    print(*FLIPPED, sep="\n")

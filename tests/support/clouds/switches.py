"""The simulated Compute Engine with every undocumented behaviour at its hardest, and with some flipped.

``FLIPPED`` flips each behaviour alone. ``COMBINATIONS`` flips several at once, so that any two values of two switches
meet.

If such a behaviour can change a test's result, the test uses the fixture ``switches``, or a place ``mig-zonal`` of the
contract suite. `make test` runs the test unflipped. The stage `flips` (marker ``flips``) runs the test with each flip
and each combination. A long test has the parameters ``FLIPS``, two combinations that together flip every behaviour.

A flip changes the defaults of all simulators in every process. A switch that a test sets itself keeps its value. A test
whose expectation depends on a switch asks ``Switches()``. ``pytest --flip NAME`` flips one behaviour in any tests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, replace
from itertools import combinations, product

import pytest
from _pytest.mark import ParameterSet

from provisioner.lab.cloud.compute.settings import Duplicate, Switches, UnknownPlace, UnknownProject

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


Row = tuple[object, ...]
"""A value of each switch, in the order of the fields of ``Switches``."""


def pairs_of(row: Row) -> set[tuple[tuple[int, object], tuple[int, object]]]:
    """Return every pair of two values in the row, each with its position."""
    return set(combinations(enumerate(row), 2))


def pairwise(values: Sequence[Sequence[object]]) -> list[Row]:
    """Return rows in which each pair of values of any two positions occurs at least once.

    The first row has the first value of each position. Each further row has as many of the missing pairs as possible.
    """
    every = [*product(*(choice[::-1] for choice in values))]
    rows = [every[-1]]
    missing = set[object]().union(*map(pairs_of, every)) - pairs_of(rows[0])
    while missing:
        rows.append(max(every, key=lambda row: len(missing & pairs_of(row))))
        missing -= pairs_of(rows[-1])
    return rows


VALUES = [[*dict.fromkeys(choice)] for choice in zip(*map(astuple, [PESSIMISTIC, *FLIPPED.values()]), strict=True)]
"""The possible values of each switch. The hardest value is the first."""

COMBINATIONS = {f"combination {number}": Switches(*row) for number, row in enumerate(pairwise(VALUES)[1:], 1)}
"""Combinations of switches. Together with ``PESSIMISTIC`` they contain every pair of values of two switches."""

ASSUMED = FLIPPED | COMBINATIONS
"""Switches that the fixture ``switches`` can set, by the name of the parameter."""


def _params(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, id=name, marks=pytest.mark.flips) for name in names]


EACH = [pytest.param("", id="unflipped"), *_params(ASSUMED)]
"""Parameters of the fixture ``switches``."""

FLIPS = _params([*COMBINATIONS][:2])
"""Parameters of the fixture ``switches`` for tests that take long: two combinations. At least one of them flips each
behaviour."""

GIVEN = "SIMULATOR_SWITCHES"
"""Environment variable that passes the default switches to a started process, as JSON."""


def assume(switches: Switches, patch: pytest.MonkeyPatch) -> None:
    """Make these switches the defaults of this process and of the processes that it starts. The end of ``patch``
    reverts the change."""
    patch.setattr(Switches.__init__, "__defaults__", astuple(switches))
    patch.setenv(GIVEN, json.dumps(asdict(switches)))


def assume_given() -> None:
    """Read switches from an environment variable, and make them the defaults of this process. Do nothing if the
    variable is not set."""
    if given := os.environ.get(GIVEN):
        Switches.__init__.__defaults__ = astuple(Switches.parse(json.loads(given)))

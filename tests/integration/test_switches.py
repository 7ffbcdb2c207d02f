"""Flipped switches of undocumented behaviours. Each value is flipped, each pair of values occurs in a combination, and
each simulated Compute Engine has the flipped switches."""

from __future__ import annotations

from dataclasses import astuple, fields
from itertools import combinations, product

import pytest
import requests

from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.settings import Switches
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import World
from tests.support.checks.liar import GROUPS, lying_elsewhere
from tests.support.clouds.switches import COMBINATIONS, FLIPPED, FLIPS, PESSIMISTIC, VALUES, assume, pairs_of, pairwise

MASKED = "the header masks fields"


def test_each_value_of_each_switch_is_flipped_alone() -> None:
    flips = [
        set(pairs) - set(enumerate(astuple(PESSIMISTIC))) for pairs in map(enumerate, map(astuple, FLIPPED.values()))
    ]
    assert [len(flip) for flip in flips] == [1] * len(FLIPPED)
    for place, field in enumerate(fields(Switches)):
        kind = type(field.default)
        every = set(kind) if isinstance(kind, type) and issubclass(kind, str) else VALUES[place]
        assert {field.default, *(value for flip in flips for at, value in flip if at == place)} == set(every)
        assert len(VALUES[place]) > 1


def test_each_pair_of_values_of_two_switches_is_in_a_combination() -> None:
    rows = [PESSIMISTIC, *COMBINATIONS.values()]
    covered = set().union(*(pairs_of(astuple(row)) for row in rows))
    for (one, left), (other, right) in combinations(enumerate(VALUES), 2):
        assert {((one, a), (other, b)) for a, b in product(left, right)} <= covered
    assert len(COMBINATIONS) <= 8


def test_two_combinations_flip_every_switch() -> None:
    chosen = [astuple(COMBINATIONS[str(flip.values[0])]) for flip in FLIPS]
    assert all(set(values[1:]) <= set(at) for values, at in zip(VALUES, zip(*chosen, strict=True), strict=True))


@pytest.mark.parametrize(
    "values", [[[1]], [[1, 2]], [[1], [2, 3]], [[1, 2], [3, 4], [5, 6]], [[1, 2, 3], [4, 5, 6, 7]]]
)
def test_pairwise_rows_begin_with_the_first_values_and_hold_every_pair(values: list[list[int]]) -> None:
    rows = pairwise(values)
    assert rows[0] == tuple(choice[0] for choice in values)
    every = set().union(*map(pairs_of, product(*values)))
    assert set().union(*map(pairs_of, rows)) == every


@pytest.mark.parametrize("name", [MASKED, "a taken name is skipped"])
def test_a_flip_is_in_force_in_this_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assume(FLIPPED[name], monkeypatch)
    assert Groups(World(), []).switches == FLIPPED[name]
    with Simulator() as simulator:
        simulator.impose(switches={})
        assert simulator.call(lambda cloud: cloud.groups.switches) == FLIPPED[name]
    assert Switches(dead_member_stays=False) != FLIPPED[name], "a switch that a test sets keeps its value"


def test_a_flip_is_in_force_in_a_process_that_a_test_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assume(FLIPPED[MASKED], monkeypatch)
    with lying_elsewhere({}) as compute:
        group = requests.get(f"{compute}{GROUPS}/g", headers={"X-Goog-FieldMask": "name"}, timeout=30).json()
    assert group == {"name": "g"}

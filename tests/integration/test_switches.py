"""What is flipped is in force in every simulated Compute Engine of the tests, whoever made it, in whatever process."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import requests

from provisioner.simulator.compute.groups import Groups
from provisioner.simulator.compute.settings import Duplicate, Switches, UnknownPlace, UnknownProject
from provisioner.simulator.server import Simulator
from provisioner.simulator.world import World
from tests.support.checks.liar import GROUPS, lying_elsewhere
from tests.support.clouds.switches import FLIPPED, HALVES, OF_PLACES, PESSIMISTIC, assume

MASKED = "the header masks fields"


def test_each_is_flipped_alone_and_none_is_left_out() -> None:
    flips = [asdict(switches).items() - asdict(PESSIMISTIC).items() for switches in FLIPPED.values()]
    assert [len(flip) for flip in flips] == [1] * len(FLIPPED)
    assert {name for flip in flips for name, _ in flip} == asdict(PESSIMISTIC).keys()
    for switch, every in (
        ("duplicate_name", Duplicate),
        ("unknown_place", UnknownPlace),
        ("unknown_project", UnknownProject),
    ):
        ways = {value for flip in flips for name, value in flip if name == switch}
        assert {*ways, getattr(PESSIMISTIC, switch)} == set(every)


def test_each_is_flipped_in_one_of_the_halves() -> None:
    flips = [asdict(switches).items() - asdict(PESSIMISTIC).items() for switches in HALVES.values()]
    alone = [asdict(FLIPPED[name]).items() - asdict(PESSIMISTIC).items() for name in FLIPPED if name not in OF_PLACES]
    assert not set(flips[0]) & set(flips[1])
    assert set(flips[0]) | set(flips[1]) == set().union(*alone)


@pytest.mark.parametrize("switches", FLIPPED, indirect=True)
def test_it_is_in_force_in_this_process(switches: Switches) -> None:
    assert switches in FLIPPED.values()
    assert Groups(World(), []).switches == switches
    with Simulator() as simulator:
        assert simulator.call(lambda cloud: cloud.groups.switches) == switches
        simulator.impose(switches={})
        assert simulator.call(lambda cloud: cloud.groups.switches) == switches


@pytest.mark.parametrize("switches", [pytest.param("", marks=pytest.mark.slow), MASKED], indirect=True)
def test_it_is_in_force_in_a_process_that_a_test_starts(switches: Switches) -> None:
    with lying_elsewhere({}) as compute:
        group = requests.get(f"{compute}{GROUPS}/g", headers={"X-Goog-FieldMask": "name"}, timeout=5).json()
    assert (group == {"name": "g"}) is switches.field_mask_header


def test_what_a_test_says_of_a_switch_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    assume(FLIPPED["a dead member leaves"], monkeypatch)
    said = Switches(dead_member_stays=True)
    assert said == PESSIMISTIC

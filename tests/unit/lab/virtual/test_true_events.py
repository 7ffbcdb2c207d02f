"""The ledger of virtual time: the events that count as a broken law, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.hostfactory import Answer, Loss
from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.hostfactory import Grid
from provisioner.lab.virtual.place import Member, Place
from provisioner.lab.virtual.run import play
from provisioner.lab.virtual.scenario import Scenario, VirtualPool
from provisioner.lab.virtual.scenario_file import scenarios
from provisioner.lab.virtual.state import VirtualState
from provisioner.lab.virtual.true_events import Ledger
from provisioner.model import PoolLimits
from provisioner.planning import plan

TINY: dict[str, Any] = {
    "about": "Two machines are wanted.",
    "hours": 0.1,
    "pools": {"a": {"boot_seconds": 20}},
    "demand": [{"machines": 2}],
}
"""A scenario whose run takes some milliseconds."""

GRACE = 600.0
NAME = "hf-0123456789-000000"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def ledger(world: World) -> Ledger:
    return Ledger(world, {"a": PoolLimits("a", max_machines=1, max_pending=1)}, {"a": 1.0}, GRACE)


@pytest.fixture
def place(world: World, ledger: Ledger) -> Place:
    return Place(VirtualPool(name="a", boot_seconds=10.0), world, ledger)


def test_foreign_machines_are_in_no_book_and_to_delete_one_breaks_a_law(
    place: Place, ledger: Ledger, world: World
) -> None:
    place.add("foreign", "T", ours=False)
    world.advance(60.0)
    assert (ledger.pending, ledger.running, ledger.tally.ran) == (0, set(), 0)
    ledger.close({"a": place.ours()})
    assert not ledger.broken
    place.delete("foreign", "")
    assert ledger.counts == {"killed": 1}


def test_machines_without_a_request_break_no_cap(place: Place, ledger: Ledger) -> None:
    place.add("hf-zz00000001-000000", "")
    place.add("hf-zz00000002-000000", "")
    assert not ledger.broken


@pytest.mark.parametrize(("age", "broken"), [(GRACE - 1, 1), (GRACE + 1, 0)])
def test_they_stay_for_their_grace_period(age: float, broken: int, place: Place, ledger: Ledger, world: World) -> None:
    place.add("hf-zz00000001-000000", "")
    world.advance(age)
    place.delete("hf-zz00000001-000000", "")
    assert ledger.counts["killed"] == broken


def test_one_beyond_a_cap_breaks_both(place: Place, ledger: Ledger) -> None:
    for number in range(2):
        place.create(f"hf-0123456789-00000{number}", "T")
    assert ledger.counts == {"cap": 2}


def test_the_cap_over_all_templates_is_broken_by_whichever_comes_last(world: World) -> None:
    ledger = Ledger(world, {"a": PoolLimits("a", max_machines_total=2)}, {"a": 1.0}, GRACE)
    place = Place(VirtualPool(name="a"), world, ledger)
    place.add("hf-zz00000001-000000", "")
    for number, template in enumerate(("T", "U", "V")):
        assert not ledger.broken
        place.create(f"hf-0123456789-00000{number}", template)
    assert ledger.counts == {"cap": 1}


def test_books_that_do_not_add_up_are_reported_once(ledger: Ledger) -> None:
    ledger.created("a", Member(NAME, "T", "1", 0.0))
    ledger.audit(1)
    assert not ledger.broken
    ledger.audit(0)
    ledger.audit(0)
    assert ledger.counts == {"books": 1}


def wanting(**more: object) -> Scenario:
    body = {"about": "One machine.", "pools": {"a": {}}, "demand": [{"machines": 1}], **more}
    return scenarios({"one": body}, "test")["one"]


def publish_ended(state: VirtualState, name: str) -> None:
    """Publish that every request has ended with this machine."""
    text = f'{{"status": "complete", "message": "", "machines": [{{"name": "{name}", "result": "succeed"}}]}}'
    assert state.intent.current is not None
    state.status.write({id_: Answer(text, True) for id_ in state.intent.current.requests}, {}, {})


def test_a_returned_machine_is_not_reported_again(world: World) -> None:
    state = VirtualState(1)
    grid = Grid(wanting(demand=[{"machines": 1, "for_minutes": 1}, {"machines": 1, "at_minutes": 2}]), state, world)
    for minute in range(4):
        world.advance(60.0 * minute)
        grid.round()
        publish_ended(state, NAME)
    assert grid.broken
    assert "was reported before" in grid.broken[0]


def test_a_request_that_does_not_end_is_reported_once(world: World) -> None:
    scenario = wanting(settings={"request_deadline_minutes": 5.0, "return_deadline_minutes": 5.0})
    grid = Grid(scenario, VirtualState(1), world)
    for minute in (0, 19, 21, 22):
        world.advance(60.0 * minute)
        grid.round()
        assert len(grid.broken) == (minute > 20)


@pytest.mark.parametrize(
    ("more", "within"),
    [
        ({}, 4500.0),
        ({"events": [{"at_minutes": 1, "do": "pause", "for_minutes": 10}]}, 5100.0),
        ({"events": [{"at_minutes": 1, "do": "lose_memory"}]}, 8100.0),
        ({"events": [{"at_minutes": 1, "do": "lose_memory"}], "pools": {"a": {"observations": "failed"}}}, None),
    ],
    ids=["its deadline and a quarter", "and a pause", "anew when memory is lost", "never if that lasts"],
)
def test_how_long_a_request_may_take(more: dict[str, object], within: float | None) -> None:
    assert wanting(**more).ends_within() == within


@pytest.mark.parametrize(
    ("pool", "truly"),
    [
        ({}, True),
        ({"observations": "failed"}, True),
        ({"observations": "empty"}, False),
        ({"appears_seconds": 10, "lag_seconds": 10}, True),
        ({"appears_seconds": 10}, False),
    ],
)
def test_true_and_false_observations(pool: dict[str, object], truly: bool) -> None:
    assert wanting(pools={"a": pool}).is_truthful() is truly
    assert wanting(events=[{"at_minutes": 1, "change": pool}] if pool else []).is_truthful() is (
        truly and "appears_seconds" not in pool
    )


def test_each_memory_that_is_made_again_has_slot_numbers_of_its_own() -> None:
    memory = VirtualState(1).memory
    assert [memory.begin_life(), memory.begin_life()] == [1, 2]


def test_a_running_machine_is_not_reported_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualState, "lost", lambda self, names: dict.fromkeys(names, Loss(0)))
    assert play(wanting(hours=0.07), seed=1).measures["killed"] == 1


def test_what_cannot_be_returned_now_is_returned_later(world: World) -> None:
    state = VirtualState(1)
    grid = Grid(wanting(), state, world)
    grid.round()
    state.intent.readable = False
    grid.return_unknown_machines(2)
    grid.round()
    assert state.intent.current is not None
    assert not state.intent.current.returns
    state.intent.readable = True
    grid.round()
    grid.round()
    assert [len(back.names) for back in state.intent.current.returns.values()] == [2]


def test_an_orphan_that_stays_breaks_a_law_from_the_first_request_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_orphans", lambda *_: None)
    doubles = [{"at_minutes": 1, "do": "doubles", "machines": 1}]
    assert play(wanting(events=doubles, hours=1.0), seed=1).measures["orphan"]
    assert not play(wanting(demand=[{"machines": 0}], events=doubles, hours=1.0), seed=1).broken


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("made", "ran", "ended", "used")),
        st.frozensets(st.sampled_from([f"hf-{number}" for number in range(4)]), min_size=1),
    )
)


@given(STEPS)
def test_usable_are_those_that_run_and_are_used(steps: list[tuple[str, frozenset[str]]]) -> None:
    ledger = Ledger(World(), {"a": PoolLimits("a")}, {"a": 1.0}, orphan_grace=600.0)
    members = {}
    for step, names in steps:
        for name in names if step != "used" else ():
            member = members.setdefault(name, Member(name, "T", "1", 0.0))
            if step == "ran":
                member.ran = 0.0
            {"made": ledger.created, "ran": ledger.ran, "ended": ledger.ended}[step]("a", member)
        if step == "used":
            ledger.use(names)
        assert ledger.usable() == len(ledger.running.intersection(ledger.hosts))

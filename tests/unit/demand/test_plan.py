"""Steps: how many machines are requested, and which are returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_scripts.input_documents import MAX_COUNT
from provisioner.demand.plan import UNDECIDED, Levels, Ours, Step, Wish, plan_step
from provisioner.demand.settings import Demand
from provisioner.demand.sources import Running
from tests.unit.demand.wishes import demand, make_ours

NOW = 10_000.0
FAST = demand(fall_after_seconds=0.0, minimum_age_seconds=0.0, fall_share=1.0)


def wish(wanted: int, *, idle: Mapping[str, float] | None = None, frozen: str = "", template: str = "Small") -> Wish:
    """Return the wish for one template."""
    known = {} if idle is None else {template: idle}
    return Wish({template: wanted}, {template: frozen} if frozen else {}, known)


def machines(number: int, *, since: float = 0.0) -> dict[str, tuple[str, float]]:
    """Return machines, each a second older than the next."""
    return {f"m{index}": ("Small", since + index) for index in range(number)}


def step(wish: Wish, ours: Ours, settings: Demand = FAST, levels: Levels | None = None, now: float = NOW) -> Step:
    return plan_step(wish, ours, {}, settings, levels or {}, now)


@pytest.mark.parametrize(
    ("wanted", "running", "coming", "requested"),
    [
        pytest.param(30, 10, 5, 15, id="what is missing"),
        pytest.param(500, 10, 5, 100, id="at most rise_at_once"),
        pytest.param(15, 10, 5, 0, id="no more than wanted"),
        pytest.param(3, 0, 9, 0, id="an open request cannot be withdrawn"),
    ],
)
def test_requests(wanted: int, running: int, coming: int, requested: int) -> None:
    made = step(wish(wanted), make_ours(machines(running), coming={"Small": coming}))
    assert made.requests.get("Small", 0) == requested


def test_a_step_requests_no_more_than_a_call_of_the_script_may() -> None:
    settings = demand(rise_at_once=2_000_000)
    assert step(wish(500_000), make_ours({}), settings).requests == {"Small": MAX_COUNT}


def test_a_frozen_template_rises_to_its_last_value() -> None:
    assert step(wish(5, frozen="source one failed"), make_ours({})).requests == {"Small": 5}


@pytest.mark.parametrize(
    ("idle", "returned"),
    [
        pytest.param(None, ["m0", "m1", "m2"], id="without a source that knows machines, the oldest first"),
        pytest.param({"m5": 9.0, "m4": 10.0, "m0": 1.0}, ["m4", "m5", "m0"], id="the longest idle first"),
        pytest.param({"m3": 1.0}, ["m3"], id="never one that works"),
        pytest.param({}, [], id="none while all work"),
    ],
)
def test_which_machines_are_returned(idle: dict[str, float] | None, returned: list[str]) -> None:
    assert step(wish(3, idle=idle), make_ours(machines(6))).returns == returned


@pytest.mark.parametrize(
    ("settings", "returned"),
    [
        pytest.param({"fall_share": 0.2}, 2, id="the share"),
        pytest.param({"fall_share": 0.01}, 1, id="at least one"),
        pytest.param({"fall_share": 1.0}, 10, id="all that are too many"),
        pytest.param({"fall_share": 1.0, "minimum_age_seconds": 9_996.0}, 5, id="none that is too young"),
    ],
)
def test_how_many_machines_are_returned(settings: dict[str, float], returned: int) -> None:
    pace = demand(**{"fall_after_seconds": 0.0, "minimum_age_seconds": 0.0, **settings})
    assert len(step(wish(0), make_ours(machines(10)), pace).returns) == returned


def test_machines_are_returned_only_to_the_highest_wish_of_the_last_seconds() -> None:
    pace = demand(fall_after_seconds=300.0, minimum_age_seconds=0.0, fall_share=1.0)
    levels: Levels = {}
    returned = {}
    for now, wanted in [(0, 10), (60, 2), (120, 7), (180, 1), (300, 1), (359, 1), (360, 1), (420, 1), (480, 1)]:
        made = plan_step(wish(wanted), make_ours(machines(10, since=-1000.0)), {}, pace, levels, float(now))
        levels, returned[now] = made.levels, len(made.returns)
    # The machines stay 10 in this test. At 360 the 10 of the start have not counted since 60, at 480 the 7 since 180.
    assert returned == {0: 0, 60: 0, 120: 0, 180: 0, 300: 0, 359: 0, 360: 3, 420: 3, 480: 9}


@pytest.mark.parametrize(
    ("wishes", "returned"),
    [
        pytest.param([(0, 1, ""), (290, 1, "failed"), (330, 1, "")], [0, 0, 2], id="the last number stays in force"),
        pytest.param(
            [(0, 9, ""), (290, 9, "failed"), (310, 1, ""), (589, 1, ""), (611, 1, "")],
            [0, 0, 1, 1, 2],
            id="a lower number after a failure waits",
        ),
        pytest.param([(0, 1, "is new"), (30, 1, ""), (310, 1, ""), (330, 1, "")], [0, 0, 0, 2], id="a start"),
    ],
)
def test_a_start_begins_the_wait_anew_and_a_failed_read_does_not(
    wishes: list[tuple[float, int, str]], returned: list[int]
) -> None:
    """A source that fails every few minutes must not keep idle machines for ever."""
    pace, ours = demand(fall_after_seconds=300.0, minimum_age_seconds=0.0), make_ours(machines(10, since=-1000.0))
    levels: Levels = {}
    for (now, wanted, cause), number in zip(wishes, returned, strict=True):
        made = plan_step(wish(wanted, frozen=cause and f"source one {cause}"), ours, {}, pace, levels, now)
        levels = made.levels
        assert len(made.returns) == number, now
        assert not cause or made.reasons == [f"Small: keeps 10 machines ({wanted} wanted), because source one {cause}"]


@pytest.mark.parametrize(
    ("left", "idle", "returned"),
    [
        pytest.param(0, {}, True, id="a machine that is gone"),
        pytest.param(60, {}, False, id="a machine that works until it has to leave"),
        pytest.param(60, {"m0": 1.0}, True, id="an idle machine that has to leave"),
        pytest.param(60, None, True, id="a machine that no source knows"),
    ],
)
def test_lost_machines_are_returned_and_replaced(left: int, idle: dict[str, float] | None, returned: bool) -> None:
    pace = demand(minimum_age_seconds=1e9)
    made = plan_step(
        wish(2, idle=idle, frozen="source one failed"), make_ours(machines(2)), {"m0": left}, pace, {}, NOW
    )
    assert made.returns == (["m0"] if returned else [])
    assert made.requests == ({"Small": 1} if returned else {})


def test_a_machine_of_an_open_request_is_not_returned() -> None:
    ours = make_ours(machines(2))._replace(settled=frozenset({"m1"}))
    assert step(wish(0), ours).returns == ["m1"]


@pytest.mark.parametrize("idle", [None, {f"m{number}": 1.0 for number in range(10)}])
def test_machines_that_have_to_leave_go_in_shares_and_the_soonest_first(idle: dict[str, float] | None) -> None:
    lost = {f"m{number}": 3600 - number for number in range(10)} | {"m0": 0}
    made = plan_step(wish(10, idle=idle), make_ours(machines(10)), lost, demand(fall_share=0.3), {}, NOW)
    assert made.returns == ["m0", "m9", "m8", "m7"]
    assert made.requests == {"Small": 4}


def test_a_template_about_which_no_source_decides_keeps_its_machines_and_says_so() -> None:
    made = plan_step(Wish({}, {}, {}), make_ours(machines(3)), {}, demand(), {}, NOW)
    assert (made.returns, made.reasons) == ([], [f"Small: keeps 3 machines (0 wanted), because {UNDECIDED}"])


TEMPLATES = ("Small", "Big")
AGES = st.floats(0, 2000)


@st.composite
def fleets(draw: st.DrawFn) -> Ours:
    """Draw running machines of both templates, and requested machines that do not run yet. Some running machines belong
    to requests that have not ended."""
    running = {
        f"m{number}": Running(template, NOW - age)
        for number, (template, age) in enumerate(
            draw(st.lists(st.tuples(st.sampled_from(TEMPLATES), AGES), max_size=12))
        )
    }
    settled = draw(st.sets(st.sampled_from(sorted(running)))) if running else set()
    numbers = Counter(one.template for one in running.values())
    asked = {template: numbers[template] + draw(st.integers(0, 6)) for template in TEMPLATES}
    return Ours(asked, running, settled)


@given(
    ours=fleets(),
    wanted=st.fixed_dictionaries({template: st.integers(0, 15) for template in TEMPLATES}),
    frozen=st.sets(st.sampled_from(TEMPLATES)),
    known=st.sets(st.sampled_from(TEMPLATES)),
    draws=st.data(),
)
def test_what_holds_for_every_step(
    ours: Ours, wanted: dict[str, int], frozen: set[str], known: set[str], draws: st.DataObject
) -> None:
    names = sorted(ours.running)
    some = st.sets(st.sampled_from(names)) if names else st.just(set[str]())
    idle: dict[str, Mapping[str, float]] = {template: dict.fromkeys(draws.draw(some), 1.0) for template in known}
    lost = dict.fromkeys(draws.draw(some), draws.draw(st.sampled_from([0, 60])))
    pace = demand(
        fall_after_seconds=draws.draw(st.sampled_from([0.0, 300.0])),
        fall_share=draws.draw(st.floats(0.01, 1.0)),
        minimum_age_seconds=draws.draw(AGES),
        rise_at_once=draws.draw(st.integers(1, 20)),
    )
    seen = draws.draw(st.lists(st.tuples(st.floats(NOW - 900, NOW), st.integers(0, 20)), max_size=5))
    levels: Levels = {template: sorted(seen) for template in TEMPLATES}
    whole = Wish(wanted, dict.fromkeys(frozen, "a reason"), idle)
    made = plan_step(whole, ours, lost, pace, levels, NOW)

    assert len(set(made.returns)) == len(made.returns)
    for template in TEMPLATES:
        returned = [name for name in made.returns if ours.running[name].template == template]
        surplus = [name for name in returned if name not in lost]
        gone = len(returned) - len(surplus)
        left = ours.asked[template] - len(returned)
        assert not (made.requests.get(template) and surplus), "never both at once"
        assert left + made.requests.get(template, 0) <= max(wanted[template], ours.asked[template])
        assert made.requests.get(template, 0) <= pace.rise_at_once
        assert len(surplus) <= max(0, ours.asked[template] - gone - wanted[template]), "never fewer than wanted"
        running = sum(one.template == template for one in ours.running.values())
        shared = [name for name in returned if lost.get(name) != 0]
        assert len(shared) <= max(1, int(pace.fall_share * running)), "at most the share"
        assert not (template in frozen and surplus), "a failed source freezes"
        assert all(ours.running[name].since <= NOW - pace.minimum_age_seconds for name in surplus)
    for name in made.returns:
        assert name in ours.settled
        works = ours.running[name].template in known and name not in idle[ours.running[name].template]
        assert not works or lost.get(name) == 0, "never one that works"

"""The limit of calls under way at a server: its growth, its fall, and pauses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.backends.concurrency import (
    FIRST,
    HOLD_SECONDS,
    LEAST,
    MOST,
    QUICK_SECONDS,
    SLOW_MULTIPLE,
    USUAL_WAIT_SECONDS,
    Flow,
)

NOW = 1000.0


def round_of(flow: Flow, seconds: float, began: float = NOW, kind: str = "create") -> Flow:
    """Let calls of one kind succeed, as many as the limit allows at once. All began together and took ``seconds``."""
    for _ in range(flow.limit):
        flow.answered(kind, began, began + seconds)
    return flow


def refusing(*refusals: tuple[float, float, float | None]) -> Flow:
    """Return the limit of calls to a server that has refused these calls."""
    flow = Flow()
    for refusal in refusals:
        flow.refused(*refusal)
    return flow


def unloaded(**seconds: float) -> Flow:
    """Return a limit of calls that knows how fast the unloaded server responds, by kind of call."""
    flow = Flow()
    flow._unloaded = seconds
    return flow


def test_it_begins_in_the_middle_and_grows_with_each_round_of_quick_responses_up_to_the_most() -> None:
    flow, limits = Flow(), [FIRST]
    for number in range(6):
        round_of(flow, 0.01, NOW + number)
        limits.append(flow.limit)
    assert limits == [16, 20, 25, 31, 32, 32, 32]


def test_before_a_round_is_over_nothing_changes() -> None:
    flow = Flow()
    for _ in range(flow.limit - 1):
        flow.answered("create", NOW, NOW + 0.01)
    assert flow.limit == FIRST
    flow.answered("create", NOW, NOW + 0.01)
    assert flow.limit > FIRST


@pytest.mark.parametrize(
    ("quickest", "seconds", "slow"),
    [
        pytest.param(0.005, QUICK_SECONDS, False, id="far slower than unloaded, and still quick"),
        pytest.param(0.005, QUICK_SECONDS * 1.1, True, id="not quick, and far slower than unloaded"),
        pytest.param(0.3, 0.3 * SLOW_MULTIPLE * 0.9, False, id="a server that is never quick"),
        pytest.param(0.3, 0.3 * SLOW_MULTIPLE * 1.2, True, id="a server that is never quick, slower still"),
    ],
)
def test_slow_responses_halve_it(quickest: float, seconds: float, slow: bool) -> None:
    flow = round_of(unloaded(create=quickest), seconds)
    assert (flow.limit < FIRST) is slow


def test_a_few_slow_responses_in_a_round_are_no_slow_server() -> None:
    flow = Flow()
    for number in range(flow.limit):
        flow.answered("create", NOW, NOW + (30.0 if number < 7 else 0.01))
    assert flow.limit > FIRST


def test_a_server_that_became_slower_for_good_is_no_overloaded_one_for_ever() -> None:
    flow, limits = unloaded(create=0.01), []
    for number in range(100):
        round_of(flow, 1.0, NOW + 2 * number)
        limits.append(flow.limit)
    assert min(limits) == LEAST
    assert limits[-1] == MOST


def test_calls_that_are_quick_by_nature_make_no_others_slow() -> None:
    flow = Flow()
    for number in range(40):
        round_of(flow, 0.005, NOW + 2 * number, "delete")
        round_of(flow, 0.4, NOW + 2 * number + 1, "create")
    assert flow.limit == MOST


def test_of_calls_of_several_kinds_most_are_slow_when_each_is_by_its_own_kind() -> None:
    flow = unloaded(create=0.4, delete=0.005)
    for number in range(flow.limit):
        flow.answered(*(("create", NOW, NOW + 0.4) if number % 2 else ("delete", NOW, NOW + 0.3)))
    assert flow.limit < FIRST


def test_it_never_falls_below_one() -> None:
    flow = Flow()
    for number in range(20):
        flow.refused(NOW + number, NOW + number, 0.0)
    assert flow.limit == LEAST


def test_it_halves_once_for_all_refusals_of_one_round_of_calls() -> None:
    flow = Flow()
    for number in range(16):
        flow.refused(NOW, NOW + 0.1 + number / 100, 1.0)
    assert flow.limit == FIRST // 2
    flow.refused(NOW + 1, NOW + 2, 1.0)
    assert flow.limit == FIRST // 4


@pytest.mark.parametrize(("later", "limit"), [(HOLD_SECONDS - 1, 8), (HOLD_SECONDS, 10)])
def test_after_a_refusal_it_does_not_grow_for_a_while(later: float, limit: int) -> None:
    flow = refusing((NOW, NOW, None))
    assert round_of(flow, 0.0, NOW + later).limit == limit


def test_responses_to_calls_of_the_round_before_say_nothing_of_this_one() -> None:
    flow = refusing((NOW, NOW + 1, 1.0))
    for _ in range(100):
        flow.answered("create", NOW, NOW + 1.5)
    assert (flow.limit, flow._round_responses) == (FIRST // 2, [])


@pytest.mark.parametrize(("wait", "seconds"), [(7.0, 7.0), (0.0, 0.0), (None, USUAL_WAIT_SECONDS)])
def test_no_call_begins_before_the_server_wants_one(wait: float | None, seconds: float) -> None:
    assert Flow().open(NOW)
    flow = refusing((NOW, NOW, wait))
    assert not flow.open(NOW + seconds - 0.01)
    assert flow.open(NOW + seconds)


def test_the_latest_time_that_the_server_asked_for_counts() -> None:
    flow = refusing((NOW, NOW, 7.0), (NOW, NOW + 1, 1.0))
    assert not flow.open(NOW + 6.9)
    assert not round_of(flow, 0.01, NOW + 1).open(NOW + 6.9)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(["answered", "refused"]), st.floats(0, 60), st.one_of(st.none(), st.floats(0, 300))),
        max_size=30,
    )
)
def test_whatever_a_server_does_the_limit_stays_within_its_bounds(
    events: list[tuple[str, float, float | None]],
) -> None:
    flow, now = Flow(), NOW
    for kind, seconds, wait in events:
        now += 1.0
        if kind == "answered":
            flow.answered("create", now - seconds, now)
        else:
            flow.refused(now - seconds, now, wait)
            assert flow.open(now + 300.0)
        assert LEAST <= flow.room() <= MOST

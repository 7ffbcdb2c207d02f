"""Windows: the limit on requests to a pool, back-off, probes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import ErrorClass, Failure, Window
from provisioner.planning.core import window
from tests.unit.core import BROKEN, NOW, STOCKOUT, limits, pool

LIMITS = limits(backoff_first=5.0, backoff_last=1800.0)
POOL = pool(initial_window=100, max_pending=1000)
PROBING = Window(window=8, spec="s", level=2, probing=True, blocked_at=NOW - 60, retry_at=NOW - 1, failure=STOCKOUT)


def ran(learned: Window, submitted: float = NOW - 10) -> Window:
    return window.after_runs(learned, POOL, submitted, NOW, LIMITS)


def failed(learned: Window, failure: Failure = BROKEN, submitted: float = NOW - 10) -> Window:
    return window.after_failure(learned, failure, submitted, NOW, LIMITS)


# --- the window -------------------------------------------------------------------------------------------------------


def test_a_fresh_window_starts_at_initial_window_and_never_above_max_pending() -> None:
    assert window.get_current(None, pool(initial_window=100, max_pending=1000), "s") == Window(window=100, spec="s")
    assert window.get_current(None, pool(initial_window=100, max_pending=30), "s") == Window(window=30, spec="s")


@pytest.mark.parametrize(
    ("learned", "pending", "probes", "room"),
    [
        pytest.param(Window(window=8), 0, 0, 8, id="an idle pool takes its whole window"),
        pytest.param(Window(window=8), 3, 0, 5, id="what is pending takes its place in the window"),
        pytest.param(Window(window=8), 9, 0, 0, id="a window that shrank below what is pending takes none"),
        pytest.param(Window(window=8, failed=3), 4, 0, 1, id="what failed keeps its room until the round is over"),
        pytest.param(Window(window=8, failed=3, ran=9), 0, 0, 5, id="what ran does not"),
        pytest.param(PROBING, 7, 0, 1, id="a probing pool takes one, whatever was pending before"),
        pytest.param(PROBING, 0, 1, 0, id="a probing pool takes no second probe"),
    ],
)
def test_room(learned: Window, pending: int, probes: int, room: int) -> None:
    assert window.room(learned, pending, probes) == room


def test_a_window_triples_in_a_round_in_which_everything_runs() -> None:
    learned = Window(window=8)
    for _ in range(8):
        learned = ran(learned)
    assert (learned.window, learned.level) == (24, 0)


@pytest.mark.parametrize(
    ("results", "window"),
    [
        pytest.param("xxxxxxx", 8, id="before the round is over nothing is judged"),
        pytest.param("xxxxxxxx", 4, id="all of a round failed: it halves"),
        pytest.param("xxxxx...", 7, id="over half of a round failed: it halves with what the others gained"),
        pytest.param("xxxx....", 16, id="half of a round failed: it keeps what the others gained"),
        pytest.param("........xxxxxxxx", 24, id="the next round is as long as the window is wide then"),
        pytest.param("........" + 24 * "x", 12, id="all of the next round failed"),
    ],
)
def test_the_end_of_a_round(results: str, window: int) -> None:
    learned = Window(window=8)
    for result in results:
        learned = failed(learned) if result == "x" else ran(learned)
    assert learned.window == window


def test_a_wide_window_closes_after_as_many_failures_as_a_round_has_at_most() -> None:
    wide = Window(window=1000)
    for _ in range(window.ROUND - 1):
        wide = failed(wide)
    assert (wide.window, wide.level) == (1000, 0)
    wide = failed(wide)
    assert (wide.window, wide.level, wide.probing) == (500, 1, True)
    assert (wide.ran, wide.failed) == (0, 0)


# --- the back-off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ErrorClass)
def test_one_failure_blocks_only_if_the_next_create_would_meet_it_again(error: ErrorClass) -> None:
    learned = failed(Window(window=8), Failure(error, "text"))
    assert window.is_blocked(learned, NOW) is (error not in (ErrorClass.OTHER, ErrorClass.TIMEOUT))
    assert (learned.failure, learned.failed) == (Failure(error, "text"), not error.has_no_room)


def test_failures_of_one_instant_back_off_once_and_a_failed_probe_blocks_whatever_its_class() -> None:
    once = failed(Window(window=8), STOCKOUT)
    assert failed(once, STOCKOUT).level == once.level == 1
    learned = failed(PROBING, BROKEN)
    assert (learned.level, learned.failure, window.is_blocked(learned, NOW)) == (3, BROKEN, True)
    old = failed(PROBING, STOCKOUT, submitted=PROBING.blocked_at - 1)
    assert (old.level, old.retry_at, old.blocked_at) == (2, PROBING.retry_at, PROBING.blocked_at), "no news"


@pytest.mark.parametrize("boot", [True, False])
def test_what_was_asked_for_before_the_back_off_does_not_change_what_ends_it(boot: bool) -> None:
    silent = Failure(ErrorClass.UNAVAILABLE, "connection refused")
    learned = replace(PROBING, failure=silent)
    learned = window.after_failure(learned, BROKEN, PROBING.blocked_at - 1, NOW, LIMITS, boot=boot)
    assert learned.failure == silent
    assert window.after_create(learned, NOW).level == 0


def test_a_round_of_old_failures_that_ends_while_a_probe_is_under_way_starts_no_other_probe() -> None:
    learned = replace(PROBING, window=2, retry_at=NOW - 1)
    for _ in range(2):
        learned = failed(learned, BROKEN, submitted=PROBING.blocked_at - 1)
    assert (learned.window, learned.failed) == (1, 0)
    assert (learned.level, learned.blocked_at, learned.retry_at) == (PROBING.level, PROBING.blocked_at, NOW - 1)
    assert ran(learned, NOW - 0.5).level == 0, "the probe still ends the back-off"


# --- a pool that says how long it wants to be left alone --------------------------------------------------------------

BUSY = Failure(ErrorClass.THROTTLED, "too many requests (retry after 1 s)")


def test_a_pool_that_throttles_is_left_alone_as_long_as_it_says_and_keeps_its_window() -> None:
    learned = Window(window=64)
    for number in range(20):
        now = NOW + 2 * number
        for _ in range(16):
            learned = window.back_off_for(learned, BUSY, 1.0, now)
        assert (learned.window, learned.failed, learned.probing, learned.level) == (64, 0, False, 1)
        assert learned.retry_at == now + 1.0, "however often it says so"
        assert window.is_pausing(learned)
        assert window.after_create(learned, now - 1) == learned, "what it took before that says nothing"
    learned = window.after_create(learned, now + 1.0)
    assert (learned.window, learned.level, learned.retry_at, learned.failure) == (64, 0, 0.0, None)


def test_a_pool_that_throttles_when_it_has_backed_off_for_long_is_not_new_to_it() -> None:
    learned = Window(window=8, level=3, blocked_at=NOW - 60, retry_at=NOW - 1, failure=BUSY)
    assert window.back_off_for(learned, BUSY, 1.0, NOW).level == 3


@pytest.mark.parametrize("boot", [True, False])
def test_a_pool_that_throttles_is_waited_for_whatever_single_machines_failed_there_before(boot: bool) -> None:
    learned = window.after_failure(Window(window=8), BROKEN, NOW - 10, NOW, LIMITS, boot=boot)
    assert learned.level == 0, "one of a round is no back-off"
    learned = window.back_off_for(learned, BUSY, 1.0, NOW)
    assert (learned.level, learned.retry_at, learned.probing) == (1, NOW + 1.0, False)
    assert window.is_pausing(learned)
    assert window.after_create(learned, NOW + 1.0).level == 0


def test_a_pool_that_throttles_while_it_is_probed_is_probed_on_though_it_says_not_how_long() -> None:
    learned = window.back_off(replace(PROBING, retry_at=NOW - 1), BUSY, NOW, LIMITS)
    assert (learned.probing, learned.level) == (True, PROBING.level + 1)


def test_a_pool_that_throttles_while_it_is_probed_is_probed_on_later() -> None:
    learned = window.back_off_for(replace(PROBING, retry_at=NOW - 1), BUSY, 7.0, NOW)
    assert learned == replace(PROBING, retry_at=NOW + 7.0)
    assert not window.is_pausing(learned)
    assert window.back_off_for(learned, BUSY, 1.0, NOW) == learned, "the longer wait stands"


@pytest.mark.parametrize("error", [ErrorClass.THROTTLED, ErrorClass.STOCKOUT, ErrorClass.DENIED])
def test_after_a_refusal_a_pool_is_probed_unless_it_only_throttles(error: ErrorClass) -> None:
    learned = window.back_off(Window(window=8), Failure(error, "text"), NOW, LIMITS)
    assert (learned.probing, learned.level, learned.blocked_at) == (error is not ErrorClass.THROTTLED, 1, NOW)
    assert window.is_blocked(learned, NOW)
    assert not window.is_blocked(learned, learned.retry_at)


@given(level=st.integers(1, 200), seed=st.text())
def test_a_back_off_is_exponential_with_jitter_within_its_bounds(level: int, seed: str) -> None:
    step = min(1800.0, 5.0 * 2.0 ** min(level - 1, 100))
    assert 0.8 * step <= window.backoff_seconds(level, LIMITS, seed, ErrorClass.OTHER) <= step


@pytest.mark.parametrize("error", [error for error in ErrorClass if error.has_no_room])
def test_a_pool_that_only_has_no_room_is_tried_again_within_minutes(error: ErrorClass) -> None:
    assert window.backoff_seconds(2, LIMITS, "a", error) == window.backoff_seconds(2, LIMITS, "a", ErrorClass.OTHER)
    assert 0.8 * 180.0 <= window.backoff_seconds(50, LIMITS, "a", error) <= 180.0


def test_two_pools_do_not_retry_in_step() -> None:
    seconds = {window.backoff_seconds(4, LIMITS, seed, ErrorClass.OTHER) for seed in ("a", "b", "c")}
    assert len(seconds) == 3
    assert window.backoff_seconds(4, LIMITS, "a", ErrorClass.OTHER) in seconds


@pytest.mark.parametrize("ended", [True, False], ids=["asked for since it began", "asked for before"])
def test_a_machine_that_runs_and_the_back_off(ended: bool) -> None:
    after = ran(PROBING, PROBING.blocked_at - (not ended))
    assert (after.level == 0, not after.probing, after.retry_at == 0.0, after.failure is None) == (ended,) * 4
    assert after.window == PROBING.window + 2


@pytest.mark.parametrize("error", ErrorClass)
def test_a_pool_pauses_only_for_what_is_soon_over(error: ErrorClass) -> None:
    soon_over = error in (ErrorClass.THROTTLED, ErrorClass.TIMEOUT, ErrorClass.UNAVAILABLE)
    assert window.is_pausing(replace(PROBING, failure=Failure(error, "text"))) is soon_over
    assert not window.is_pausing(Window(window=8))


@pytest.mark.parametrize("error", ErrorClass)
def test_an_accepted_create_ends_the_back_off_of_an_error_of_the_call_alone(error: ErrorClass) -> None:
    learned = replace(PROBING, failure=Failure(error, "text"))
    assert (window.after_create(learned, NOW).level == 0) is (error is not ErrorClass.OTHER)
    assert window.after_create(learned, PROBING.blocked_at - 1) is learned, "one from before the back-off does not"


@pytest.mark.parametrize("error", [ErrorClass.INVALID, ErrorClass.TIMEOUT])
@pytest.mark.parametrize("width", [1, 8])
def test_only_a_machine_that_runs_ends_the_back_off_of_machines_that_did_not(error: ErrorClass, width: int) -> None:
    learned = Window(window=width)
    for _ in range(width):
        learned = window.after_failure(learned, Failure(error, "text"), NOW - 10, NOW, LIMITS, boot=True)
    assert (learned.level, learned.probing) == (1, True)
    assert not window.is_pausing(learned)
    assert window.after_create(learned, NOW) is learned
    assert window.after_runs(learned, POOL, NOW, NOW, LIMITS).level == 0


def test_of_what_a_pool_refused_and_what_did_not_run_there_the_later_says_what_ends_the_back_off() -> None:
    boot = window.after_failure(
        Window(window=8), Failure(ErrorClass.INVALID, "image"), NOW - 10, NOW, LIMITS, boot=True
    )
    call = window.back_off(boot, Failure(ErrorClass.UNAVAILABLE, "refused"), boot.retry_at, LIMITS)
    assert window.after_create(call, call.blocked_at).level == 0


# --- machines that are lost in their first minutes --------------------------------------------------------------------

LOST = Failure(ErrorClass.OTHER, "Lost in its first 300 s: exit code 1")
TRIED = Window(
    window=8, level=2, probing=True, blocked_at=NOW - 60, retry_at=NOW - 1, failure=LOST, early_loss=LOST, boot=True
)


def lost(learned: Window, fates: str, submitted: float = NOW - 10, machines: int = 1) -> Window:
    """Return the window after losses. ``fates``: from the newest machine on, ``x`` for one lost early, ``.`` for
    another."""
    dead = [fate == "x" for fate in fates]
    return window.after_early_losses(learned, window.Losses(dead, LOST, submitted, machines), NOW, LIMITS)


@pytest.mark.parametrize(
    ("window", "fates", "after"),
    [
        pytest.param(9, "xxxxx...", 3, id="most of the newest: it closes, half as wide"),
        pytest.param(9, "xxxx....", 7, id="half of the newest: it gives back what it grew"),
        pytest.param(9, "........xxxxx", 7, id="only machines from before the newest"),
        pytest.param(9, "xxxx", 7, id="all, but fewer than most of a window"),
        pytest.param(1, "x", 1, id="the narrowest window: its only machine"),
        pytest.param(1, ".x", 1, id="the narrowest window: not the newest"),
    ],
)
def test_a_window_and_early_losses(window: int, fates: str, after: int) -> None:
    learned = lost(Window(window=window, ran=3, failed=2), fates)
    closed = after < window - 2 or fates == "x"
    assert (learned.window, learned.level, learned.probing) == (after, int(closed), closed)
    assert (learned.failure, learned.early_loss) == ((LOST, LOST) if closed else (None, None))
    assert (learned.ran, learned.failed) == ((0, 0) if closed else (3, 2)), "a round ends when the window closes"


def test_a_window_gives_back_what_it_grew_by_all_machines_that_are_lost_at_once() -> None:
    assert lost(Window(window=40), "xxx" + 40 * ".", machines=3).window == 34
    assert lost(Window(window=2), "..xxx", machines=3).window == 1


@pytest.mark.parametrize("submitted", [NOW - 61, NOW - 10])
def test_a_machine_that_runs_is_no_proof_after_early_losses(submitted: float) -> None:
    learned = ran(TRIED, submitted)
    assert (learned.level, learned.probing, learned.failure, learned.early_loss) == (2, True, LOST, LOST)


@pytest.mark.parametrize("ended", [True, False], ids=["asked for since the window closed", "asked for before"])
def test_a_machine_that_outlives_its_first_minutes_and_the_back_off(ended: bool) -> None:
    after = window.after_outlived(TRIED, TRIED.blocked_at - (not ended))
    assert (after.level == 0, not after.probing, after.failure is None, after.early_loss is None) == (ended,) * 4
    assert after.window == TRIED.window
    assert window.after_outlived(PROBING, NOW) is PROBING, "it says nothing of another back-off"


def test_a_probe_that_is_lost_early_backs_off_for_longer_whatever_ran_before() -> None:
    learned = lost(TRIED, "x" + 40 * ".")
    assert (learned.level, learned.blocked_at, learned.early_loss) == (3, NOW, LOST)
    assert window.is_blocked(learned, NOW)


def test_an_early_loss_from_before_the_back_off_only_gives_back_what_the_window_grew() -> None:
    assert lost(TRIED, "xxxx", submitted=TRIED.blocked_at - 1) == replace(TRIED, window=6)


def test_early_losses_in_a_pool_that_backs_off_for_another_reason_have_to_be_outlived_when_that_is_over() -> None:
    learned = lost(PROBING, 8 * "x", submitted=PROBING.blocked_at - 1)
    assert (learned.level, learned.retry_at, learned.failure) == (2, PROBING.retry_at, STOCKOUT)
    learned = ran(learned)
    assert (learned.level, learned.probing, learned.failure) == (2, True, LOST), "stock is there; what runs has to live"
    assert window.after_outlived(learned, NOW - 10).level == 0


def test_early_losses_in_a_pool_that_is_only_too_busy_are_probed() -> None:
    learned = lost(window.back_off_for(Window(window=8), BUSY, 60.0, NOW), 8 * "x")
    assert (learned.probing, learned.early_loss) == (True, LOST)
    learned = window.after_create(learned, NOW + 60)
    assert (learned.probing, learned.failure, learned.retry_at) == (True, LOST, 0.0)


@pytest.mark.parametrize("error", [ErrorClass.INVALID, ErrorClass.TIMEOUT])
def test_a_create_that_is_taken_is_no_proof_after_early_losses_of_whatever_class(error: ErrorClass) -> None:
    losses = window.Losses([True, True], Failure(error, "text"), NOW - 10)
    learned = window.after_early_losses(Window(window=2), losses, NOW, LIMITS)
    assert not window.is_pausing(learned)
    assert window.after_create(learned, NOW) is learned


def test_what_a_pool_refuses_between_early_losses_does_not_end_what_has_to_be_outlived() -> None:
    learned = window.back_off(TRIED, Failure(ErrorClass.UNAVAILABLE, "connection refused"), NOW, LIMITS)
    learned = window.after_create(learned, NOW + 60)
    assert (learned.level, learned.probing, learned.failure, learned.early_loss) == (3, True, LOST, LOST)
    assert window.after_create(learned, NOW + 61) is learned


# --- a new spec -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learned", "spec", "expected"),
    [
        pytest.param(PROBING, "s", PROBING, id="the same spec: remembered"),
        pytest.param(PROBING, "", PROBING, id="an observation that does not know the spec: remembered"),
        pytest.param(PROBING, "t", Window(window=100, spec="t"), id="another spec: forgotten"),
        pytest.param(replace(TRIED, spec="s"), "t", Window(window=100, spec="t"), id="early losses: forgotten too"),
        pytest.param(Window(window=3), "s", Window(window=3, spec="s"), id="the first spec seen: noted"),
    ],
)
def test_a_spec_and_what_was_learned(learned: Window, spec: str, expected: Window) -> None:
    assert window.get_current(learned, POOL, spec) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ran", "failed", "boot", "refused", "accepted", "lost", "outlived"]),
            st.sampled_from(list(ErrorClass)),
        )
    )
)
def test_whatever_happens_a_window_stays_between_one_and_max_pending(
    events: list[tuple[str, ErrorClass]],
) -> None:
    small, learned, now = (
        pool(initial_window=4, max_pending=9),
        window.get_current(None, pool(initial_window=4), "s"),
        NOW,
    )
    for event, error in events:
        now += 7.0
        failure = Failure(error, "text")
        match event:
            case "ran":
                learned = window.after_runs(learned, small, now - 1, now, LIMITS)
            case "failed":
                learned = window.after_failure(learned, failure, now - 1, now, LIMITS)
            case "boot":
                learned = window.after_failure(learned, failure, now - 1, now, LIMITS, boot=True)
            case "refused":
                learned = window.back_off(learned, failure, now, LIMITS)
            case "lost":
                learned = window.after_early_losses(
                    learned, window.Losses([True] * 9, failure, now - 1, 2), now, LIMITS
                )
            case "outlived":
                learned = window.after_outlived(learned, now - 1)
            case _:
                learned = window.after_create(learned, now - 1)
        assert 1 <= learned.window <= 9
        assert learned.ran + learned.failed < learned.window or learned.window == 1
        assert learned.retry_at <= now + 1800.0
        assert (learned.level == 0) <= (not learned.probing)
        assert (learned.early_loss is not None) <= learned.probing

"""Windows: the limit on requests to a pool, back-off, probes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.model import ErrorClass, Failure, Window
from provisioner.planning.core import window_and_backoff
from tests.unit.core import BROKEN, NOW, STOCKOUT, TEMPLATE, limits, memory, plan, pool, record, snapshot

LIMITS = limits(backoff_first=5.0, backoff_last=1800.0)
POOL = pool(initial_window=100, max_pending=1000)
PROBING = Window(window=8, spec="s", level=2, is_probing=True, blocked_at=NOW - 60, retry_at=NOW - 1, failure=STOCKOUT)


def ran(known_window: Window, submitted: float = NOW - 10) -> Window:
    return window_and_backoff.after_runs(known_window, POOL, submitted, NOW, LIMITS)


def failed(known_window: Window, failure: Failure = BROKEN, submitted: float = NOW - 10) -> Window:
    return window_and_backoff.after_failure(known_window, failure, submitted, NOW, LIMITS)


# --- the window -------------------------------------------------------------------------------------------------------


def test_a_fresh_window_starts_at_initial_window_and_never_above_max_pending() -> None:
    assert window_and_backoff.update(None, pool(initial_window=100, max_pending=1000), "s") == Window(
        window=100, spec="s"
    )
    assert window_and_backoff.update(None, pool(initial_window=100, max_pending=30), "s") == Window(window=30, spec="s")


@pytest.mark.parametrize(
    ("known_window", "pending", "probes", "room"),
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
def test_room(known_window: Window, pending: int, probes: int, room: int) -> None:
    assert window_and_backoff.room(known_window, pending, probes) == room


def test_a_window_triples_in_a_round_in_which_everything_runs() -> None:
    known_window = Window(window=8)
    for _ in range(8):
        known_window = ran(known_window)
    assert (known_window.window, known_window.level) == (24, 0)


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
    known_window = Window(window=8)
    for result in results:
        known_window = failed(known_window) if result == "x" else ran(known_window)
    assert known_window.window == window


def test_a_wide_window_closes_after_as_many_failures_as_a_round_has_at_most() -> None:
    wide = Window(window=1000)
    for _ in range(window_and_backoff.ROUND - 1):
        wide = failed(wide)
    assert (wide.window, wide.level) == (1000, 0)
    wide = failed(wide)
    assert (wide.window, wide.level, wide.is_probing) == (500, 1, True)
    assert (wide.ran, wide.failed) == (0, 0)


# --- the back-off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ErrorClass)
def test_one_failure_blocks_only_if_the_next_create_would_meet_it_again(error: ErrorClass) -> None:
    known_window = failed(Window(window=8), Failure(error, "text"))
    assert window_and_backoff.is_blocked(known_window, NOW) is (error not in (ErrorClass.OTHER, ErrorClass.TIMEOUT))
    assert (known_window.failure, known_window.failed) == (Failure(error, "text"), not error.has_no_room)


def test_failures_of_one_instant_back_off_once_and_a_failed_probe_blocks_whatever_its_class() -> None:
    once = failed(Window(window=8), STOCKOUT)
    assert failed(once, STOCKOUT).level == once.level == 1
    known_window = failed(PROBING, BROKEN)
    assert (known_window.level, known_window.failure, window_and_backoff.is_blocked(known_window, NOW)) == (
        3,
        BROKEN,
        True,
    )
    old = failed(PROBING, STOCKOUT, submitted=PROBING.blocked_at - 1)
    assert (old.level, old.retry_at, old.blocked_at) == (2, PROBING.retry_at, PROBING.blocked_at), "no news"


@pytest.mark.parametrize("boot", [True, False])
def test_what_was_asked_for_before_the_back_off_does_not_change_what_ends_it(boot: bool) -> None:
    silent = Failure(ErrorClass.UNAVAILABLE, "connection refused")
    known_window = replace(PROBING, failure=silent)
    known_window = window_and_backoff.after_failure(
        known_window, BROKEN, PROBING.blocked_at - 1, NOW, LIMITS, boot=boot
    )
    assert known_window.failure == silent
    assert window_and_backoff.after_create(known_window, NOW).level == 0


def test_a_round_of_old_failures_that_ends_while_a_probe_is_under_way_starts_no_other_probe() -> None:
    known_window = replace(PROBING, window=2, retry_at=NOW - 1)
    for _ in range(2):
        known_window = failed(known_window, BROKEN, submitted=PROBING.blocked_at - 1)
    assert (known_window.window, known_window.failed) == (1, 0)
    assert (known_window.level, known_window.blocked_at, known_window.retry_at) == (
        PROBING.level,
        PROBING.blocked_at,
        NOW - 1,
    )
    assert ran(known_window, NOW - 0.5).level == 0, "the probe still ends the back-off"


# --- a pool that says how long it wants to be left alone --------------------------------------------------------------

BUSY = Failure(ErrorClass.THROTTLED, "too many requests (retry after 1 s)")


def test_a_pool_that_throttles_is_left_alone_as_long_as_it_says_and_keeps_its_window() -> None:
    known_window = Window(window=64)
    for number in range(20):
        now = NOW + 2 * number
        for _ in range(16):
            known_window = window_and_backoff.back_off_for(known_window, BUSY, 1.0, now)
        assert (known_window.window, known_window.failed, known_window.is_probing, known_window.level) == (
            64,
            0,
            False,
            1,
        )
        assert known_window.retry_at == now + 1.0, "however often it says so"
        assert window_and_backoff.is_pausing(known_window)
        assert window_and_backoff.after_create(known_window, now - 1) == known_window, (
            "what it took before that says nothing"
        )
    known_window = window_and_backoff.after_create(known_window, now + 1.0)
    assert (known_window.window, known_window.level, known_window.retry_at, known_window.failure) == (64, 0, 0.0, None)


def test_a_pool_that_throttles_when_it_has_backed_off_for_long_is_not_new_to_it() -> None:
    known_window = Window(window=8, level=3, blocked_at=NOW - 60, retry_at=NOW - 1, failure=BUSY)
    assert window_and_backoff.back_off_for(known_window, BUSY, 1.0, NOW).level == 3


@pytest.mark.parametrize("boot", [True, False])
def test_a_pool_that_throttles_is_waited_for_whatever_single_machines_failed_there_before(boot: bool) -> None:
    known_window = window_and_backoff.after_failure(Window(window=8), BROKEN, NOW - 10, NOW, LIMITS, boot=boot)
    assert known_window.level == 0, "one of a round is no back-off"
    known_window = window_and_backoff.back_off_for(known_window, BUSY, 1.0, NOW)
    assert (known_window.level, known_window.retry_at, known_window.is_probing) == (1, NOW + 1.0, False)
    assert window_and_backoff.is_pausing(known_window)
    assert window_and_backoff.after_create(known_window, NOW + 1.0).level == 0


def test_a_pool_that_throttles_while_it_is_probed_is_probed_on_though_it_says_not_how_long() -> None:
    known_window = window_and_backoff.back_off(replace(PROBING, retry_at=NOW - 1), BUSY, NOW, LIMITS)
    assert (known_window.is_probing, known_window.level) == (True, PROBING.level + 1)


def test_a_pool_that_throttles_while_it_is_probed_is_probed_on_later() -> None:
    known_window = window_and_backoff.back_off_for(replace(PROBING, retry_at=NOW - 1), BUSY, 7.0, NOW)
    assert known_window == replace(PROBING, retry_at=NOW + 7.0)
    assert not window_and_backoff.is_pausing(known_window)
    assert window_and_backoff.back_off_for(known_window, BUSY, 1.0, NOW) == known_window, "the longer wait stands"


@pytest.mark.parametrize("error", [ErrorClass.THROTTLED, ErrorClass.STOCKOUT, ErrorClass.DENIED])
def test_after_a_refusal_a_pool_is_probed_unless_it_only_throttles(error: ErrorClass) -> None:
    known_window = window_and_backoff.back_off(Window(window=8), Failure(error, "text"), NOW, LIMITS)
    assert (known_window.is_probing, known_window.level, known_window.blocked_at) == (
        error is not ErrorClass.THROTTLED,
        1,
        NOW,
    )
    assert window_and_backoff.is_blocked(known_window, NOW)
    assert not window_and_backoff.is_blocked(known_window, known_window.retry_at)


@given(level=st.integers(1, 200), seed=st.text())
def test_a_back_off_is_exponential_with_jitter_within_its_bounds(level: int, seed: str) -> None:
    step = min(1800.0, 5.0 * 2.0 ** min(level - 1, 100))
    assert 0.8 * step <= window_and_backoff.backoff_seconds(level, LIMITS, seed, ErrorClass.OTHER) <= step


@pytest.mark.parametrize("error", [error for error in ErrorClass if error.has_no_room])
def test_a_pool_that_only_has_no_room_is_tried_again_within_minutes(error: ErrorClass) -> None:
    assert window_and_backoff.backoff_seconds(2, LIMITS, "a", error) == window_and_backoff.backoff_seconds(
        2, LIMITS, "a", ErrorClass.OTHER
    )
    assert 0.8 * 180.0 <= window_and_backoff.backoff_seconds(50, LIMITS, "a", error) <= 180.0


def test_two_pools_do_not_retry_in_step() -> None:
    seconds = {window_and_backoff.backoff_seconds(4, LIMITS, seed, ErrorClass.OTHER) for seed in ("a", "b", "c")}
    assert len(seconds) == 3
    assert window_and_backoff.backoff_seconds(4, LIMITS, "a", ErrorClass.OTHER) in seconds


@pytest.mark.parametrize("ended", [True, False], ids=["asked for since it began", "asked for before"])
def test_a_machine_that_runs_and_the_back_off(ended: bool) -> None:
    after = ran(PROBING, PROBING.blocked_at - (not ended))
    assert (after.level == 0, not after.is_probing, after.retry_at == 0.0, after.failure is None) == (ended,) * 4
    assert after.window == PROBING.window + 2


@pytest.mark.parametrize("error", ErrorClass)
def test_a_pool_pauses_only_for_what_is_soon_over(error: ErrorClass) -> None:
    soon_over = error in (ErrorClass.THROTTLED, ErrorClass.TIMEOUT, ErrorClass.UNAVAILABLE)
    assert window_and_backoff.is_pausing(replace(PROBING, failure=Failure(error, "text"))) is soon_over
    assert not window_and_backoff.is_pausing(Window(window=8))


@pytest.mark.parametrize("error", ErrorClass)
def test_an_accepted_create_ends_the_back_off_of_an_error_of_the_call_alone(error: ErrorClass) -> None:
    known_window = replace(PROBING, failure=Failure(error, "text"))
    assert (window_and_backoff.after_create(known_window, NOW).level == 0) is (error is not ErrorClass.OTHER)
    assert window_and_backoff.after_create(known_window, PROBING.blocked_at - 1) is known_window, (
        "one from before the back-off does not"
    )


@pytest.mark.parametrize("error", [ErrorClass.INVALID, ErrorClass.TIMEOUT])
@pytest.mark.parametrize("width", [1, 8])
def test_only_a_machine_that_runs_ends_the_back_off_of_machines_that_did_not(error: ErrorClass, width: int) -> None:
    known_window = Window(window=width)
    for _ in range(width):
        known_window = window_and_backoff.after_failure(
            known_window, Failure(error, "text"), NOW - 10, NOW, LIMITS, boot=True
        )
    assert (known_window.level, known_window.is_probing) == (1, True)
    assert not window_and_backoff.is_pausing(known_window)
    assert window_and_backoff.after_create(known_window, NOW) is known_window
    assert window_and_backoff.after_runs(known_window, POOL, NOW, NOW, LIMITS).level == 0


def test_of_what_a_pool_refused_and_what_did_not_run_there_the_later_says_what_ends_the_back_off() -> None:
    boot = window_and_backoff.after_failure(
        Window(window=8), Failure(ErrorClass.INVALID, "image"), NOW - 10, NOW, LIMITS, boot=True
    )
    call = window_and_backoff.back_off(boot, Failure(ErrorClass.UNAVAILABLE, "refused"), boot.retry_at, LIMITS)
    assert window_and_backoff.after_create(call, call.blocked_at).level == 0


# --- machines that are lost in their first minutes --------------------------------------------------------------------

LOST = Failure(ErrorClass.OTHER, "Lost in its first 300 s: exit code 1")
TRIED = Window(
    window=8,
    level=2,
    is_probing=True,
    blocked_at=NOW - 60,
    retry_at=NOW - 1,
    failure=LOST,
    early_loss=LOST,
    is_boot_failure=True,
)


def lost(known_window: Window, fates: str, submitted: float = NOW - 10, machines: int = 1) -> Window:
    """Return the window after losses. ``fates``: a letter for each machine that ran, the newest first; ``x`` was lost
    early, ``.`` was not."""
    dead = [fate == "x" for fate in fates]
    return window_and_backoff.after_early_losses(
        known_window, window_and_backoff.Losses(dead, LOST, submitted, machines), NOW, LIMITS
    )


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
    known_window = lost(Window(window=window, ran=3, failed=2), fates)
    closed = after < window - 2 or fates == "x"
    assert (known_window.window, known_window.level, known_window.is_probing) == (after, int(closed), closed)
    assert (known_window.failure, known_window.early_loss) == ((LOST, LOST) if closed else (None, None))
    assert (known_window.ran, known_window.failed) == ((0, 0) if closed else (3, 2)), (
        "a round ends when the window closes"
    )


def test_a_window_gives_back_what_it_grew_by_all_machines_that_are_lost_at_once() -> None:
    assert lost(Window(window=40), "xxx" + 40 * ".", machines=3).window == 34
    assert lost(Window(window=2), "..xxx", machines=3).window == 1


@pytest.mark.parametrize("submitted", [NOW - 61, NOW - 10])
def test_a_machine_that_runs_is_no_proof_after_early_losses(submitted: float) -> None:
    known_window = ran(TRIED, submitted)
    assert (known_window.level, known_window.is_probing, known_window.failure, known_window.early_loss) == (
        2,
        True,
        LOST,
        LOST,
    )


@pytest.mark.parametrize("ended", [True, False], ids=["asked for since the window closed", "asked for before"])
def test_a_machine_that_outlives_its_first_minutes_and_the_back_off(ended: bool) -> None:
    after = window_and_backoff.after_outlived(TRIED, TRIED.blocked_at - (not ended))
    assert (after.level == 0, not after.is_probing, after.failure is None, after.early_loss is None) == (ended,) * 4
    assert after.window == TRIED.window
    assert window_and_backoff.after_outlived(PROBING, NOW) is PROBING, "it says nothing of another back-off"


def test_a_probe_that_is_lost_early_backs_off_for_longer_whatever_ran_before() -> None:
    known_window = lost(TRIED, "x" + 40 * ".")
    assert (known_window.level, known_window.blocked_at, known_window.early_loss) == (3, NOW, LOST)
    assert window_and_backoff.is_blocked(known_window, NOW)


def test_an_early_loss_from_before_the_back_off_only_gives_back_what_the_window_grew() -> None:
    assert lost(TRIED, "xxxx", submitted=TRIED.blocked_at - 1) == replace(TRIED, window=6)


def test_early_losses_in_a_pool_that_backs_off_for_another_reason_have_to_be_outlived_when_that_is_over() -> None:
    known_window = lost(PROBING, 8 * "x", submitted=PROBING.blocked_at - 1)
    assert (known_window.level, known_window.retry_at, known_window.failure) == (2, PROBING.retry_at, STOCKOUT)
    known_window = ran(known_window)
    assert (known_window.level, known_window.is_probing, known_window.failure) == (2, True, LOST), (
        "stock is there; what runs has to live"
    )
    assert window_and_backoff.after_outlived(known_window, NOW - 10).level == 0


def test_early_losses_in_a_pool_that_is_only_too_busy_are_probed() -> None:
    known_window = lost(window_and_backoff.back_off_for(Window(window=8), BUSY, 60.0, NOW), 8 * "x")
    assert (known_window.is_probing, known_window.early_loss) == (True, LOST)
    known_window = window_and_backoff.after_create(known_window, NOW + 60)
    assert (known_window.is_probing, known_window.failure, known_window.retry_at) == (True, LOST, 0.0)


@pytest.mark.parametrize("error", [ErrorClass.INVALID, ErrorClass.TIMEOUT])
def test_a_create_that_is_taken_is_no_proof_after_early_losses_of_whatever_class(error: ErrorClass) -> None:
    losses = window_and_backoff.Losses([True, True], Failure(error, "text"), NOW - 10)
    known_window = window_and_backoff.after_early_losses(Window(window=2), losses, NOW, LIMITS)
    assert not window_and_backoff.is_pausing(known_window)
    assert window_and_backoff.after_create(known_window, NOW) is known_window


def test_what_a_pool_refuses_between_early_losses_does_not_end_what_has_to_be_outlived() -> None:
    known_window = window_and_backoff.back_off(
        TRIED, Failure(ErrorClass.UNAVAILABLE, "connection refused"), NOW, LIMITS
    )
    known_window = window_and_backoff.after_create(known_window, NOW + 60)
    assert (known_window.level, known_window.is_probing, known_window.failure, known_window.early_loss) == (
        3,
        True,
        LOST,
        LOST,
    )
    assert window_and_backoff.after_create(known_window, NOW + 61) is known_window


# --- a new spec -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known_window", "spec", "expected"),
    [
        pytest.param(PROBING, "s", PROBING, id="the same spec: remembered"),
        pytest.param(PROBING, "", PROBING, id="an observation that does not know the spec: remembered"),
        pytest.param(PROBING, "t", Window(window=100, spec="t"), id="another spec: forgotten"),
        pytest.param(replace(TRIED, spec="s"), "t", Window(window=100, spec="t"), id="early losses: forgotten too"),
        pytest.param(Window(window=3), "s", Window(window=3, spec="s"), id="the first spec seen: noted"),
    ],
)
def test_a_changed_spec_resets_the_window(known_window: Window, spec: str, expected: Window) -> None:
    assert window_and_backoff.update(known_window, POOL, spec) == expected


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
    small, known_window, now = (
        pool(initial_window=4, max_pending=9),
        window_and_backoff.update(None, pool(initial_window=4), "s"),
        NOW,
    )
    for event, error in events:
        now += 7.0
        failure = Failure(error, "text")
        match event:
            case "ran":
                known_window = window_and_backoff.after_runs(known_window, small, now - 1, now, LIMITS)
            case "failed":
                known_window = window_and_backoff.after_failure(known_window, failure, now - 1, now, LIMITS)
            case "boot":
                known_window = window_and_backoff.after_failure(known_window, failure, now - 1, now, LIMITS, boot=True)
            case "refused":
                known_window = window_and_backoff.back_off(known_window, failure, now, LIMITS)
            case "lost":
                known_window = window_and_backoff.after_early_losses(
                    known_window, window_and_backoff.Losses([True] * 9, failure, now - 1, 2), now, LIMITS
                )
            case "outlived":
                known_window = window_and_backoff.after_outlived(known_window, now - 1)
            case _:
                known_window = window_and_backoff.after_create(known_window, now - 1)
        assert 1 <= known_window.window <= 9
        assert known_window.ran + known_window.failed < known_window.window or known_window.window == 1
        assert known_window.retry_at <= now + 1800.0
        assert (known_window.level == 0) <= (not known_window.is_probing)
        assert (known_window.early_loss is not None) <= known_window.is_probing


def test_the_refusals_of_a_former_spec_are_forgotten_although_no_machine_is_wanted() -> None:
    """A changed spec must reset the window at once, because status reports a refusal as long as memory's window has
    it."""
    known = memory(record(count=0), windows={("a", TEMPLATE): PROBING})
    decided = plan(known, snapshot(spec="t"), limits=limits(pool("a", initial_window=100)))
    assert decided.memory.windows["a", TEMPLATE] == Window(window=100, spec="t")

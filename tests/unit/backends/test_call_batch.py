"""Batches of calls: bounded, in order, stopped only by rule, and never sent too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import pytest

from provisioner.backends import BackendError
from provisioner.backends.call_batch import Call, run_calls
from provisioner.backends.concurrency import FIRST, MOST, Flow
from provisioner.model import Create, Delete, DeleteReason, ErrorClass, Failure, Outcome
from tests.support.waiting import PATIENCE

QUOTA = Failure(ErrorClass.QUOTA, "exceeded quota: pods")


def always() -> bool:
    return True


def create(number: int, template: str = "small") -> Create:
    return Create(f"hf-aaaaaaaaaa-{number:06d}", "pool", template, "aaaaaaaaaa")


def call(action: Create | Delete, send: Callable[[], Mapping[str, Failure]]) -> Call:
    return Call((action,), send)


def succeed() -> Mapping[str, Failure]:
    return {}


def fail(error: ErrorClass) -> Callable[[], Mapping[str, Failure]]:
    def send() -> Mapping[str, Failure]:
        raise BackendError(error, "no")

    return send


def errors(outcomes: list[Outcome]) -> list[ErrorClass | None]:
    return [outcome.failure.error if outcome.failure else None for outcome in outcomes]


def test_no_calls_are_no_outcomes() -> None:
    assert run_calls([], workers=4, may_start=always) == []


def test_outcomes_come_in_the_order_of_the_calls_although_they_end_in_another() -> None:
    second_ended = threading.Event()

    def first() -> Mapping[str, Failure]:
        assert second_ended.wait(5 * PATIENCE)
        return {}

    def second() -> Mapping[str, Failure]:
        second_ended.set()
        return {}

    outcomes = run_calls([call(create(1), first), call(create(2), second)], workers=2, may_start=always)
    assert [outcome.action for outcome in outcomes] == [create(1), create(2)]
    assert errors(outcomes) == [None, None]


class Sends:
    """A function that sends a call. It succeeds after ``pause``, and counts the calls that run at once."""

    def __init__(self, pause: Callable[[], object]) -> None:
        self._pause = pause
        self._lock = threading.Lock()
        self._running = self.most = 0

    def __call__(self) -> Mapping[str, Failure]:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        self._pause()
        with self._lock:
            self._running -= 1
        return {}


def test_at_most_workers_calls_run_at_once_and_that_many_do() -> None:
    all_in = threading.Barrier(3)
    sends = Sends(lambda: all_in.wait(5 * PATIENCE))
    outcomes = run_calls([call(create(n), sends) for n in range(9)], workers=3, may_start=always)
    assert len(outcomes) == 9
    assert sends.most == 3


def test_one_failure_never_stops_the_others() -> None:
    sends = [succeed, fail(ErrorClass.UNAVAILABLE), succeed, fail(ErrorClass.TIMEOUT), succeed]
    outcomes = run_calls([call(create(n), send) for n, send in enumerate(sends)], workers=1, may_start=always)
    assert errors(outcomes) == [None, ErrorClass.UNAVAILABLE, None, ErrorClass.TIMEOUT, None]


def test_an_unexpected_exception_is_the_outcome_of_its_call_alone_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> Mapping[str, Failure]:
        raise KeyError("metadata")

    outcomes = run_calls([call(create(1), broken), call(create(2), succeed)], workers=1, may_start=always)
    assert errors(outcomes) == [ErrorClass.OTHER, None]
    assert outcomes[0].failure is not None
    assert outcomes[0].failure.text == "KeyError: 'metadata'"
    assert "Call failed unexpectedly" in caplog.text


def test_a_stopping_error_stops_further_creates_of_its_template_only() -> None:
    calls = [
        call(create(1), fail(ErrorClass.QUOTA)),
        call(create(2), succeed),
        call(create(3, "large"), succeed),
        call(create(4), succeed),
    ]
    outcomes = run_calls(calls, workers=1, may_start=always)
    assert [outcome.action for outcome in outcomes] == [create(1), create(3, "large")]


def test_an_error_that_says_nothing_of_the_next_call_stops_nothing() -> None:
    calls = [call(create(1), fail(ErrorClass.TIMEOUT)), call(create(2), succeed)]
    assert errors(run_calls(calls, workers=1, may_start=always)) == [ErrorClass.TIMEOUT, None]


def test_a_delete_is_never_stopped() -> None:
    deletes = [Delete(f"m{n}", "pool", DeleteReason.RETURNED) for n in range(2)]
    calls = [call(deletes[0], fail(ErrorClass.DENIED)), call(deletes[1], succeed)]
    outcomes = run_calls(calls, workers=1, may_start=always)
    assert errors(outcomes) == [ErrorClass.DENIED, None]


def test_no_call_is_sent_once_may_start_is_false() -> None:
    responses = iter([True, True, False, False])
    outcomes = run_calls([call(create(n), succeed) for n in range(4)], workers=1, may_start=lambda: next(responses))
    assert [outcome.action for outcome in outcomes] == [create(0), create(1)]


def test_a_call_for_several_machines_has_one_outcome_each() -> None:
    several = Call((create(1), create(2)), lambda: {create(2).name: QUOTA})
    outcomes = run_calls([several, call(create(3), succeed)], workers=1, may_start=always)
    assert [(outcome.action, outcome.failure) for outcome in outcomes] == [(create(1), None), (create(2), QUOTA)]


def test_when_a_call_for_several_machines_fails_all_of_them_failed() -> None:
    several = Call((create(1), create(2)), fail(ErrorClass.UNAVAILABLE))
    assert errors(run_calls([several], workers=1, may_start=always)) == [ErrorClass.UNAVAILABLE] * 2


# --- with a flow ------------------------------------------------------------------------------------------------------


def throttle(wait: float | None, error: ErrorClass = ErrorClass.THROTTLED) -> Callable[[], Mapping[str, Failure]]:
    def send() -> Mapping[str, Failure]:
        raise BackendError(error, "too many requests", wait)

    return send


@pytest.mark.parametrize("error", [ErrorClass.THROTTLED, ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT])
def test_once_the_server_asks_for_quiet_nothing_more_is_sent_in_this_batch_nor_the_next(error: ErrorClass) -> None:
    flow = Flow()
    deletes = [Delete(f"m{n}", "pool", DeleteReason.RETURNED) for n in range(3)]
    calls = [call(create(1), succeed), call(create(2), throttle(60, error)), call(create(3), succeed)]
    outcomes = run_calls(calls, workers=1, may_start=always, flow=flow)
    assert errors(outcomes) == [None, error]
    assert [outcome.retry_after for outcome in outcomes] == [None, 60]
    assert run_calls([call(delete, succeed) for delete in deletes], workers=1, may_start=always, flow=flow) == []


def test_a_batch_grows_and_shrinks_with_its_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine delays responses. They must not count as slow, because then the limit falls.
    monkeypatch.setattr("provisioner.backends.concurrency.QUICK_SECONDS", 3600.0)
    flow = Flow()
    sends = Sends(lambda: threading.Event().wait(0.002))
    calls = [call(create(n), sends) for n in range(400)]
    assert errors(run_calls(calls, workers=MOST, may_start=always, flow=flow)) == [None] * 400
    assert flow.room() == MOST
    assert sends.most > FIRST
    sends.most = 0
    for _ in range(3):
        flow.refused(time.monotonic(), time.monotonic(), 0.0)
    assert len(run_calls(calls[:4], workers=MOST, may_start=always, flow=flow)) == 4
    assert sends.most <= 4


def test_batches_that_share_a_flow_share_its_limit_and_each_goes_on() -> None:
    flow = Flow()
    flow.refused(time.monotonic(), time.monotonic(), 0.0)
    sends = Sends(lambda: threading.Event().wait(0.1))
    calls = [call(create(n), sends) for n in range(5)]  # Too few for a second round, and a limit above ten.
    results: list[list[Outcome]] = []
    batches = [
        threading.Thread(target=lambda: results.append(run_calls(calls, workers=MOST, may_start=always, flow=flow)))
        for _ in range(3)
    ]
    for batch in batches:
        batch.start()
    for batch in batches:
        batch.join()
    assert [errors(result) for result in results] == [[None] * 5] * 3
    assert FIRST // 2 <= sends.most <= FIRST // 2 + 2, "one of each batch at least"
    assert flow.room() == FIRST // 2, "no caller counts as under way"


def test_a_call_that_was_not_answered_says_nothing_of_how_fast_the_server_is() -> None:
    flow = Flow()
    calls = [call(create(n), fail(ErrorClass.UNAVAILABLE)) for n in range(40)]
    run_calls(calls, workers=MOST, may_start=always, flow=flow)
    assert flow.room() == FIRST


def test_one_refused_create_that_asks_for_time_holds_up_no_delete() -> None:
    """If the server refuses one create and asks for time, deletes must go on. An admission webhook's denial with
    ``retryAfterSeconds`` is such a refusal."""
    flow = Flow()
    denied = call(create(1), throttle(300, ErrorClass.DENIED))
    delete = Delete("m1", "pool", DeleteReason.RETURNED)
    run_calls([denied], workers=1, may_start=always, flow=flow)
    assert errors(run_calls([call(delete, succeed)], workers=1, may_start=always, flow=flow)) == [None]

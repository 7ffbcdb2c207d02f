"""The forecast of a release of the brake: deleted machines with times, and cancelled requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.model import Delete, HfActivity, Limits, Memory, Snapshot, Verdict
from provisioner.planning.core.slots import CANCELLED_MESSAGE
from provisioner.telemetry.brake_release_forecast import (
    ScriptCalls,
    Waiting,
    count_machines,
    find_forgotten_requests,
    find_waiting_orphans,
)
from tests.support.parts import alter
from tests.unit.core import NOW, OTHER, limits, machine, memory, plan, record, running, slot, snapshot

LIMITS = limits(orphan_grace=600.0, orphan_cap_per_hour=2, cancel_after_seconds=1800.0)


def times(remembered: Memory, limits: Limits | None = LIMITS) -> dict[str, float | None]:
    return {one.name: one.at for one in find_waiting_orphans(remembered, limits, NOW)}


def test_the_oldest_orphan_is_deleted_first_and_only_after_its_grace() -> None:
    remembered = memory(orphans={"late": NOW - 100.0, "early": NOW - 700.0})
    assert list(times(remembered).items()) == [("early", NOW), ("late", NOW + 500.0)]


def test_no_hour_has_more_deletes_than_the_cap_allows() -> None:
    remembered = memory(orphans=dict.fromkeys("abcde", NOW - 700.0), orphan_deletes=(NOW - 4000.0, NOW - 1000.0))
    ends = [NOW, NOW + 2600.0, NOW + 3600.0, NOW + 6200.0, NOW + 7200.0]
    assert times(remembered) == dict(zip("abcde", ends, strict=True)), "one delete was within the last hour"


@pytest.mark.parametrize("limits", [None, *(alter(LIMITS, orphan_cap_per_hour=cap) for cap in (0, -1))])
def test_without_limits_or_with_a_cap_of_zero_no_time_is_given(limits: Limits | None) -> None:
    assert times(memory(orphans={"a": 0.0}), limits) == {"a": None}


def test_unlisted_machines_are_deleted_only_if_that_is_configured() -> None:
    remembered = memory(unlisted={"a": NOW - 100.0})
    assert times(remembered) == {}
    configured = alter(LIMITS, delete_unlisted_after=3600.0)
    assert find_waiting_orphans(remembered, configured, NOW) == (Waiting("a", unlisted=True, at=NOW + 3500.0),)


def test_machines_that_no_loop_has_recorded_yet_have_their_whole_grace() -> None:
    remembered = memory(orphans={"known": NOW - 700.0})
    forecast = find_waiting_orphans(remembered, LIMITS, NOW, {"known", "new"})
    assert forecast == (Waiting("known", at=NOW), Waiting("new", at=NOW + 600.0))


@pytest.mark.parametrize("deleted_at", [(), (NOW - 100.0,)], ids=["a whole cap", "one has gone already"])
def test_the_loop_deletes_as_forecast(deleted_at: tuple[float, ...]) -> None:
    """Plan with the same memory and a released brake: each orphan is deleted at the forecast time, and not before."""
    single = alter(LIMITS, pools={"a": LIMITS.pools["a"]})
    orphans = {machine(number, request=OTHER).name: NOW - 500.0 - 90.0 * number for number in range(3)}
    remembered = memory(orphans=orphans, orphan_deletes=deleted_at, accepted=tuple(orphans))
    forecast = {one.name: one.at for one in find_waiting_orphans(remembered, single, NOW)}
    there = [machine(number, request=OTHER) for number in range(3)]
    gone: dict[str, float] = {}
    for now in sorted({at for at in forecast.values() if at is not None} | {NOW + 1.0, NOW + 99.0, NOW + 2000.0}):
        observation: Snapshot = snapshot(*(one for one in there if one.name not in gone), began=now)
        made = plan(remembered, observation, limits=single, activity=HfActivity(since=now, last_call_at=now), now=now)
        remembered = made.memory
        gone |= {each.name: now for each in made.deletes if isinstance(each, Delete)}
    assert gone == forecast


SILENT = record(running(0, Verdict.SUCCEEDED), running(1, Verdict.LOST), slot(2), read_at=NOW - 2000.0)


def cancelled(calls: ScriptCalls | None = None, **changes: Any) -> bool:
    remembered = memory(replace(SILENT, **changes))
    polled = calls or ScriptCalls({SILENT.id: 5_000.0}, frozenset(), 6_800.0)
    return bool(find_forgotten_requests(remembered, LIMITS, polled, NOW))


def test_a_request_that_hf_does_not_poll_while_it_calls_is_cancelled() -> None:
    assert cancelled()
    assert count_machines(SILENT) == 2


@pytest.mark.parametrize(
    ("calls", "changes"),
    [
        pytest.param(ScriptCalls({SILENT.id: 5_001.0}, frozenset(), 6_800.0), {}, id="it asked within the time"),
        pytest.param(ScriptCalls({SILENT.id: 5_000.0}, frozenset(), 5_000.0), {}, id="it has not called since"),
        pytest.param(ScriptCalls({SILENT.id: 5_000.0}, frozenset({SILENT.id}), 6_800.0), {}, id="it read the answer"),
        pytest.param(None, {"reported_at": NOW - 10.0}, id="HF knows its answer"),
        pytest.param(None, {"message": CANCELLED_MESSAGE}, id="it is cancelled already"),
        pytest.param(None, {"is_trimmed": True}, id="it leaves the files"),
    ],
)
def test_a_request_that_hf_polls_or_that_is_over_is_not_cancelled(
    calls: ScriptCalls | None, changes: dict[str, Any]
) -> None:
    assert not cancelled(calls, **changes)


def test_a_request_that_hf_never_polled_is_silent_since_it_was_read() -> None:
    never = ScriptCalls({}, frozenset(), 0.0)
    assert cancelled(never)
    assert not cancelled(never, read_at=NOW - 1799.0)


def test_without_limits_no_request_is_forgotten() -> None:
    assert find_forgotten_requests(memory(SILENT), None, ScriptCalls({}, frozenset(), 0.0), NOW) == ()

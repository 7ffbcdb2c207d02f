"""What a cycle becomes: numbers for Prometheus, and health."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from provisioner.hostfactory.digest import Digests
from provisioner.loop.actors import Results
from provisioner.loop.cycle import CycleReport
from provisioner.model import (
    Brake,
    BrakeReason,
    Budget,
    Close,
    Create,
    DeferReason,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Limits,
    Look,
    LossCause,
    Machine,
    Memory,
    Notice,
    Outcome,
    Phase,
    PoolLimits,
    RequestRecord,
    RequestStatus,
    ReturnRecord,
    Slot,
    Snapshot,
    TemplateLimits,
    Unobserved,
    Verdict,
    Window,
    evolve,
)
from provisioner.names import machine_name
from provisioner.planning.draft import Draft
from provisioner.planning.usage import count_usage
from provisioner.state.directory import StateDir
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.reporter import Reporter

REQUEST = "abcdefghij"
NOW = 200.0
WALL = 1_000_200.0
"""The epoch time of loop time ``NOW``."""
LIMITS = Limits(
    prefix="hf",
    pools={"pool": PoolLimits("pool"), "spare": PoolLimits("spare")},
    templates={"T": TemplateLimits("T", ("pool", "spare")), "U": TemplateLimits("U", ("pool",))},
)


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics(CollectorRegistry())
    metrics.configure(LIMITS)
    return metrics


@pytest.fixture
def reporter(metrics: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reporter:
    monkeypatch.setattr("time.time", lambda: WALL)
    digests = Digests("0" * 8, "1" * 8)
    return Reporter(metrics, StateDir(tmp_path), limits=LIMITS, digests=lambda: digests)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def machines(metrics: Metrics, phase: str) -> float | None:
    return value(metrics, "hf_provisioner_machines", pool="pool", template="T", phase=phase)


def slot(number: int, verdict: Verdict = Verdict.OPEN, pool: str = "pool") -> Slot:
    return Slot(machine_name("hf", REQUEST, number), number, pool, verdict, opened=100)


def record(*slots: Slot, id_: str = REQUEST, template: str = "T") -> RequestRecord:
    return RequestRecord(id_, template, len(slots), read=100, deadline=999, slots={one.number: one for one in slots})


def memory(*records: RequestRecord) -> Memory:
    return Memory("demo", requests={one.id: one for one in records})


def snapshot(pool: str, machines: Mapping[str, Phase], began: float = 190) -> Snapshot:
    return Snapshot(pool, began, {name: Machine(name, phase) for name, phase in machines.items()})


def report(held: Memory | None, *looks: Look, now: float = NOW) -> CycleReport:
    return CycleReport(
        number=1, now=now, seconds=0.5, looks={look.pool: look for look in looks}, memory=held, plan=None, deferred={}
    )


def test_desired_are_the_slots_that_are_open_or_succeeded(metrics: Metrics, reporter: Reporter) -> None:
    slots = [slot(number, verdict) for number, verdict in enumerate(Verdict)]

    reporter(report(memory(record(*slots, slot(99, pool="spare")))))

    assert value(metrics, "hf_provisioner_machines_desired", pool="pool", template="T") == 2
    assert value(metrics, "hf_provisioner_machines_desired", pool="spare", template="T") == 1


def test_a_pool_counts_a_templates_losses_from_zero_once_it_has_machines_of_it(
    metrics: Metrics, reporter: Reporter
) -> None:
    def lost() -> float | None:
        return value(metrics, "hf_provisioner_machines_lost_total", pool="spare", template="T", cause="node")

    reporter(report(memory(record(slot(1)))))
    before = lost()
    reporter(report(memory(record(slot(1), slot(2, pool="spare")))))

    assert (before, lost()) == (None, 0)


def test_machines_are_counted_by_the_template_of_their_request(metrics: Metrics, reporter: Reporter) -> None:
    names = [machine_name("hf", REQUEST, number) for number in range(3)]
    look = snapshot("pool", {names[0]: Phase.RUNNING, names[1]: Phase.RUNNING, names[2]: Phase.PENDING})

    reporter(report(memory(record()), look))

    assert machines(metrics, "running") == 2
    assert machines(metrics, "pending") == 1


def test_machines_that_were_asked_for_and_not_yet_seen_are_submitted(metrics: Metrics, reporter: Reporter) -> None:
    slots = (slot(1), evolve(slot(2), submitted=110.0), evolve(slot(3), submitted=110.0, seen=True))

    reporter(report(memory(record(*slots))))

    assert machines(metrics, "submitted") == 1


def test_a_series_ends_with_what_it_counted(metrics: Metrics, reporter: Reporter) -> None:
    name = machine_name("hf", REQUEST, 1)
    reporter(report(memory(record()), snapshot("pool", {name: Phase.STOPPING})))
    reporter(report(memory(record()), snapshot("pool", {})))

    assert machines(metrics, "stopping") is None


def test_a_blind_pool_keeps_the_time_of_its_last_look(metrics: Metrics, reporter: Reporter) -> None:
    reporter(report(memory(record()), snapshot("pool", {}, began=190)))
    reporter(report(memory(record()), Unobserved("pool", 259, Failure(ErrorClass.TIMEOUT, "slow")), now=260))

    assert value(metrics, "hf_provisioner_observation_timestamp_seconds", pool="pool") == 1_000_190
    assert value(metrics, "hf_provisioner_cycles_total", result="partial") == 1


def test_a_blind_pool_is_not_an_empty_pool(metrics: Metrics, reporter: Reporter) -> None:
    name = machine_name("hf", REQUEST, 1)
    reporter(report(memory(record()), snapshot("pool", {name: Phase.RUNNING})))
    reporter(report(memory(record()), Unobserved("pool", 250, Failure(ErrorClass.TIMEOUT, "slow")), now=260))

    assert machines(metrics, "running") == 1


def test_a_machine_without_a_known_request_has_a_template_of_its_own(metrics: Metrics, reporter: Reporter) -> None:
    orphan = machine_name("hf", "zzzzzzzzzz", 1)
    reporter(report(memory(), snapshot("pool", {orphan: Phase.RUNNING})))

    assert value(metrics, "hf_provisioner_machines", pool="pool", template="unknown", phase="running") == 1


def test_a_pool_that_was_never_tried_shows_its_initial_window(metrics: Metrics, reporter: Reporter) -> None:
    reporter(report(memory()))

    assert value(metrics, "hf_provisioner_window", pool="spare") == 100
    assert value(metrics, "hf_provisioner_window", pool="pool") == 200


def test_the_longest_wait_is_that_of_the_oldest_request_without_an_answer(metrics: Metrics, reporter: Reporter) -> None:
    met = replace(record(slot(1), id_="aaaaaaaaaa"), ended=RequestStatus.COMPLETE)
    unmet = replace(record(slot(1), id_="bbbbbbbbbb"), read=150.0)
    younger, youngest = (
        replace(record(slot(1), id_=id_ * 10), read=read) for id_, read in (("c", 170.0), ("d", 190.0))
    )

    reporter(report(memory(met, younger, unmet, youngest)))

    assert value(metrics, "hf_provisioner_oldest_unmet_timestamp_seconds", template="T") == 1_000_150
    assert math.isnan(value(metrics, "hf_provisioner_oldest_unmet_timestamp_seconds", template="U") or 0)


def test_the_window_of_a_pool_is_the_sum_over_its_templates(metrics: Metrics, reporter: Reporter) -> None:
    pressures = {("pool", "T"): Window(window=20), ("pool", "U"): Window(window=7)}

    reporter(report(replace(memory(), pressures=pressures)))

    assert value(metrics, "hf_provisioner_window", pool="pool") == 27


def test_requests_and_returns_are_counted_by_status(metrics: Metrics, reporter: Reporter) -> None:
    ended = replace(record(id_="bbbbbbbbbb"), ended=RequestStatus.COMPLETE)
    held = replace(memory(record(), ended), returns={"ret-1": ReturnRecord("ret-1", ("a",), 100, 999)})

    reporter(report(held))

    def count(kind: str, status: str) -> float | None:
        return value(metrics, "hf_provisioner_requests", kind=kind, status=status)

    assert (count("request", "running"), count("request", "complete"), count("return", "running")) == (1, 1, 1)


def test_a_latched_brake_shows_with_its_reason(metrics: Metrics, reporter: Reporter) -> None:
    reporter(report(replace(memory(), brake=Brake(BrakeReason.MEMORY_LOST, 100, "gone"))))

    assert value(metrics, "hf_provisioner_brake_engaged", pool="", reason="memory_lost") == 1
    assert value(metrics, "hf_provisioner_brake_engaged", pool="", reason="intent_lost") == 0


def test_machines_that_hf_no_longer_lists_are_counted_after_a_day(metrics: Metrics, reporter: Reporter) -> None:
    names = [machine_name("hf", REQUEST, number) for number in range(2)]
    held = replace(
        memory(record(slot(0, Verdict.SUCCEEDED), slot(1, Verdict.SUCCEEDED))),
        unlisted={names[0]: NOW - 86400, names[1]: NOW - 86399},
    )
    reporter(report(held))
    assert value(metrics, "hf_provisioner_machines_unlisted", pool="pool") == 1
    reporter(report(held, now=NOW + 1))
    assert value(metrics, "hf_provisioner_machines_unlisted", pool="pool") == 2
    assert value(metrics, "hf_provisioner_machines_unlisted", pool="spare") == 0


def test_slots_set_aside_wait_in_a_gauge(metrics: Metrics, reporter: Reporter) -> None:
    reporter(report(memory(record(slot(1), evolve(slot(2), set_aside=True)))))

    assert value(metrics, "hf_provisioner_slots_set_aside") == 1


def test_a_start_counts_once_from_request_to_running(metrics: Metrics, reporter: Reporter) -> None:
    name = "hf_provisioner_machine_startup_seconds"
    second_try = evolve(slot(1), opened=120.0)
    running = evolve(second_try, ran=142.0)
    for one in (second_try, running, evolve(running, notice=Notice(LossCause.PREEMPTED, 300.0))):
        reporter(report(memory(record(one))))

    assert value(metrics, f"{name}_count", pool="pool", template="T") == 1
    assert value(metrics, f"{name}_sum", pool="pool", template="T") == 42


def test_machines_that_ran_before_this_process_are_no_starts(metrics: Metrics, reporter: Reporter) -> None:
    reporter(report(memory(record(evolve(slot(1), ran=142.0)))))

    assert value(metrics, "hf_provisioner_machine_startup_seconds_count", pool="pool", template="T") is None


def test_a_shutdown_counts_from_return_to_gone(metrics: Metrics, reporter: Reporter) -> None:
    name = "hf_provisioner_machine_shutdown_seconds"
    returned = evolve(slot(1, Verdict.RETURNED), closed=150.0, delete=DeleteReason.RETURNED)
    failed = evolve(slot(2, Verdict.FAILED), closed=150.0, delete=DeleteReason.FAILED)
    reporter(report(memory(record(returned, failed))))
    reporter(report(memory(record(evolve(returned, gone=True), evolve(failed, gone=True)))))
    reporter(report(memory(record(evolve(returned, gone=True, absent=199.0), evolve(failed, gone=True)))))

    assert value(metrics, f"{name}_count", pool="pool") == 1
    assert value(metrics, f"{name}_sum", pool="pool") == 50


def test_what_ended_counts_with_its_class_or_cause(metrics: Metrics, reporter: Reporter) -> None:
    refused = Failure(ErrorClass.STOCKOUT, "no such machines left")
    closes = (
        Close("a", "pool", "T", Verdict.FAILED, failure=refused),
        Close("c", "pool", "T", Verdict.LOST, cause=LossCause.PREEMPTED),
        Close("d", "pool", "T", Verdict.RETURNED),
        Close("e", "pool", "T", Verdict.RETURNED, cause=LossCause.EVICTED),
    )

    reporter(replace(report(memory()), closes=closes))

    def failed(error: str) -> float | None:
        return value(metrics, "hf_provisioner_slots_failed_total", pool="pool", template="T", error=error)

    def lost(cause: str) -> float | None:
        return value(metrics, "hf_provisioner_machines_lost_total", pool="pool", template="T", cause=cause)

    assert (failed("stockout"), failed("quota")) == (1, None)
    assert [lost(cause) for cause in ("preempted", "evicted", "node", "unknown")] == [1, 1, 0, 0]


def test_actions_count_with_their_results(metrics: Metrics, reporter: Reporter) -> None:
    refused = Failure(ErrorClass.QUOTA, "no")
    outcomes = (
        Outcome(Create("a", "pool", "T", REQUEST)),
        Outcome(Create("b", "pool", "T", REQUEST), refused),
        Outcome(Delete("c", "pool", DeleteReason.LOST)),
        Outcome(Delete("d", "pool", DeleteReason.LOST), refused),
    )

    reporter(replace(report(memory()), results=(Results("pool", outcomes, ()),)))

    for result in ("ok", "failed"):
        assert value(metrics, "hf_provisioner_creates_total", pool="pool", result=result) == 1
        assert value(metrics, "hf_provisioner_deletes_total", pool="pool", reason="lost", result=result) == 1
    assert value(metrics, "hf_provisioner_cycles_total", result="partial") == 1


def test_held_back_machines_are_rewritten_each_cycle(metrics: Metrics, reporter: Reporter) -> None:
    held = {("pool", "T", DeferReason.BACKOFF): 4}
    reporter(replace(report(memory()), deferred=held))
    before = value(metrics, "hf_provisioner_machines_deferred", pool="pool", template="T", reason="backoff")
    reporter(report(memory()))

    assert before == 4
    assert value(metrics, "hf_provisioner_machines_deferred", pool="pool", template="T", reason="backoff") == 0


def test_only_a_cycle_that_needed_the_lock_counts_its_wait(metrics: Metrics, reporter: Reporter) -> None:
    for waited in (None, 0.25, 0.0):
        reporter(replace(report(memory()), lock_wait=waited))

    assert value(metrics, "hf_provisioner_store_lock_wait_seconds_count") == 2
    assert value(metrics, "hf_provisioner_store_lock_wait_seconds_sum") == 0.25


def test_a_cycle_without_memory_still_counts(metrics: Metrics, reporter: Reporter) -> None:
    reporter(replace(report(None), problem="intent.json does not parse"))

    assert value(metrics, "hf_provisioner_cycles_total", result="failed") == 1


def test_a_problem_is_logged_when_it_begins_and_not_with_each_cycle(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    broken = replace(report(None), problem="intent.json does not parse")
    for one in (broken, broken, report(memory()), broken):
        reporter(one)

    assert [entry.message for entry in caplog.records if entry.levelname == "ERROR"] == ["Cycle failed"] * 2


# --- health -----------------------------------------------------------------------------------------------------------

LOOK = snapshot("pool", {})
BLIND = Unobserved("spare", 190, Failure(ErrorClass.TIMEOUT, "slow"))
REPORTS = {
    "before any cycle": ([], False),
    "after a cycle that did not see every pool": ([report(memory(), LOOK, BLIND)], False),
    "after a cycle that could not work": ([replace(report(None, LOOK), problem="intent.json does not parse")], False),
    "after a complete cycle": ([report(memory(), LOOK)], True),
    "and it stays when a pool goes blind later": ([report(memory(), LOOK), report(memory(), LOOK, BLIND)], True),
}


@pytest.mark.parametrize(("reports", "ready"), REPORTS.values(), ids=REPORTS)
def test_ready(reporter: Reporter, reports: list[CycleReport], ready: bool) -> None:
    for one in reports:
        reporter(one)

    assert (reporter.health().alive, reporter.health().ready) == (True, ready)


def test_who_cannot_plan_is_alive_and_not_ready_and_says_since_when_and_why(
    reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start would see no more than this one."""
    reporter(report(memory(), LOOK))
    held = replace(report(None, LOOK, BLIND), problem="memory.json is lost. Not seen yet: spare.")
    began = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: began + 10)
    reporter(held)
    monkeypatch.setattr("time.monotonic", lambda: began + 40)
    reporter(held)
    health = reporter.health()
    assert (health.alive, health.ready) == (True, False)
    words = "Nothing has been planned for 30 s: memory.json is lost. Not seen yet: spare."
    assert health.detail == f"{words} Pool spare cannot be seen: slow"
    reporter(report(memory(), LOOK))
    assert reporter.health().ready
    monkeypatch.setattr("time.monotonic", lambda: began + 50)
    reporter(held)
    assert reporter.health().detail.startswith("Nothing has been planned for 0 s: ")


def test_a_brake_is_logged_once_when_it_latches_and_once_when_it_is_released(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    latched = replace(
        memory(),
        brake=Brake(BrakeReason.TOO_MANY_ORPHANS, NOW - 50, "8 of 9 machines have no request.", "pool"),
        orphans={"hf-a": 1.0, "hf-b": 2.0},
    )
    for held in (memory(), latched, replace(latched, orphans={}), memory(), memory(), latched):
        reporter(report(held))
    told = [record for record in caplog.records if "rake" in record.message]
    assert [record.levelname for record in told] == ["ERROR", "INFO", "ERROR"]
    facts = {name: vars(told[0])[name] for name in ("reason", "detail", "pool", "since", "orphans")}
    assert facts == {
        "reason": "too_many_orphans",
        "detail": "8 of 9 machines have no request.",
        "pool": "pool",
        "since": "1970-01-12T13:49:10Z",
        "orphans": 2,
    }
    assert "provisioner recover --release-brake" in told[0].message


def test_a_brake_that_latches_in_a_cycle_that_cannot_plan_is_logged(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    held = replace(memory(), brake=Brake(BrakeReason.INTENT_LOST, NOW, "intent.json is missing."))
    reporter(replace(report(held), problem="intent.json is missing"))
    assert [record for record in caplog.records if record.message.startswith("Brake latched")]


def test_a_loop_that_stands_still_is_not_alive(reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter(report(memory(), LOOK))
    later = time.monotonic() + 61
    monkeypatch.setattr("time.monotonic", lambda: later)

    health = reporter.health()

    assert not health.alive
    assert health.detail == "No cycle has ended for 61 s."


def test_a_stuck_machine_is_counted_until_it_is_gone_and_logged_once(
    metrics: Metrics, reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    closed = slot(0, Verdict.RETURNED)
    stuck = evolve(closed, stuck=True)
    name, counts, warnings = "hf_provisioner_machines_stuck", [], []
    with caplog.at_level("WARNING"):
        for one in (closed, stuck, evolve(stuck, delete_sent=1.0), evolve(stuck, gone=True)):
            reporter(report(memory(record(one))))
            counts.append(value(metrics, name, pool="pool"))
            warnings.append(len(caplog.records))
    assert counts == [0, 1, 1, 0]
    assert warnings == [0, 1, 1, 1]
    assert vars(caplog.records[0])["machine"] == closed.name
    assert value(metrics, name, pool="spare") == 0


# --- usage ------------------------------------------------------------------------------------------------------------


def used(metrics: Metrics) -> float | None:
    return value(metrics, "hf_provisioner_machine_seconds_total", pool="pool")


def began_at(began: float) -> Snapshot:
    return Snapshot("pool", began, {})


def test_machine_seconds_are_those_of_machines_that_are_gone_and_of_those_that_the_last_look_showed(
    metrics: Metrics, reporter: Reporter
) -> None:
    ran = evolve(slot(1), submitted=110.0, seen=True, ran=130.0)
    boots = evolve(slot(2), submitted=110.0, seen=True)
    held = replace(
        memory(record(ran, boots)), usage={"2026-11-01": {("T", "pool", ""): 5000}, "": {("", "pool", ""): 250}}
    )

    reporter(report(held))
    assert used(metrics) is None, "until it has looked, a process cannot tell as much as the one before"
    reporter(report(held, began_at(190.0), now=NOW + 60))
    assert used(metrics) == 5.25 + 80.0
    reporter(report(held, began_at(214.0), now=NOW + 61))
    assert used(metrics) == 5.25 + 80.0, "not summed at every cycle"


def test_a_machine_that_is_found_gone_takes_no_second_back(metrics: Metrics, reporter: Reporter) -> None:
    ran = evolve(slot(1), submitted=110.0001, seen=True, ran=130.0)
    lacked = evolve(ran, absent=191.00049)

    reporter(report(memory(record(ran)), began_at(190.0)))
    assert used(metrics) == 80.0
    reporter(report(memory(record(lacked)), began_at(230.0), now=NOW + 60))
    missed = used(metrics)
    counted = plan_without(lacked)
    reporter(report(counted, began_at(245.0), now=NOW + 120))
    assert used(metrics) == missed == 81.0


def plan_without(lacked: Slot) -> Memory:
    draft = Draft(memory(record(lacked)), {}, LIMITS, NOW)
    draft.put(REQUEST, evolve(lacked, gone=True))
    count_usage(draft)
    return draft.memory()


def test_costs_are_told_where_something_has_a_price(metrics: Metrics, reporter: Reporter) -> None:
    ran = evolve(slot(1), submitted=NOW - 3600.0, seen=True, ran=130.0)
    reporter(report(memory(record(ran))))
    assert value(metrics, "hf_provisioner_cost_per_hour") is None

    pools = {"pool": PoolLimits("pool", price_per_hour=2.0), "spare": PoolLimits("spare")}
    reporter.limits = replace(LIMITS, pools=pools, budget=Budget(per_hour=7.0, per_month=90.0))
    reporter(report(memory(record(ran)), now=NOW + 60))

    assert value(metrics, "hf_provisioner_cost_per_hour") == 2.0
    assert value(metrics, "hf_provisioner_cost_this_month") == pytest.approx(2.0 * 3660 / 3600, abs=1e-3)
    assert value(metrics, "hf_provisioner_budget", per="hour") == 7.0
    assert value(metrics, "hf_provisioner_budget", per="month") == 90.0


def test_what_the_budget_holds_back_is_told_only_while_it_does(metrics: Metrics, reporter: Reporter) -> None:
    def held_back() -> float | None:
        return value(metrics, "hf_provisioner_machines_deferred", pool="pool", template="T", reason="budget")

    assert held_back() is None
    reporter(replace(report(memory(record())), deferred={("pool", "T", DeferReason.BUDGET): 3}))
    assert held_back() == 3
    reporter(report(memory(record())))
    assert held_back() is None

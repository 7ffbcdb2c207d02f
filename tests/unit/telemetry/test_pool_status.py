"""The pool status for operators: beginnings and ends of failures. The file is written only after a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from provisioner.loop.batch_threads import Results
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import (
    Create,
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Memory,
    Observation,
    OrphanLimits,
    Outcome,
    PendingReason,
    Unmet,
    Window,
)
from provisioner.state.directory import StateDir
from provisioner.telemetry.pool_status import LastingFailure, PoolStatus, PoolStatusWriter, read_pool_status
from tests.support.parts import alter
from tests.unit.core import (
    NOW,
    OTHER,
    REQUEST,
    TEMPLATE,
    failed_observation,
    limits,
    machine,
    memory,
    name,
    pool,
    snapshot,
)

LIMITS = limits()
DENIED = Failure(ErrorClass.DENIED, "pods is forbidden")
SEEN = snapshot(machine(0), machine(1))


class Desk:
    """A writer of the pool status, and the file that it writes. The writer runs a cycle each second."""

    def __init__(self, path: Path) -> None:
        self.state = StateDir(path)
        self.refused = ""
        self.limits = LIMITS
        self.wall = 100.0
        self.writer = PoolStatusWriter(self.state, lambda: self.refused)

    def cycle(
        self,
        *observations: Observation,
        remembered: Memory | None = None,
        problem: str = "",
        outcomes: tuple[Outcome, ...] = (),
        batches: tuple[tuple[Outcome, ...], ...] = (),
        unmet: Mapping[str, tuple[Unmet, ...]] | None = MappingProxyType({}),
    ) -> PoolStatus:
        """Return the content of the file after another cycle."""
        results = tuple(Results("a", batch, ()) for batch in (outcomes, *batches) if batch)
        seen = {observation.pool: observation for observation in observations}
        report = CycleReport(1, NOW, 0.1, seen, remembered, None, {}, results, problem=problem, unmet=unmet)
        self.wall += 1.0
        self.writer.record_cycle(report, self.limits, self.wall)
        return read_pool_status(self.state)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def delete(number: int, failure: Failure | None = None) -> Outcome:
    return Outcome(Delete(name(number), "a", DeleteReason.RETURNED), failure)


def create(failure: Failure | None = None) -> Outcome:
    return Outcome(Create(name(0), "a", TEMPLATE, "aaaaaaaaaa"), failure)


def refusing(**changes: object) -> Memory:
    """Return a memory after a refused create."""
    window = replace(Window(window=1, level=1, is_probing=True, failure=DENIED), **changes)  # type: ignore[arg-type]
    return memory(windows={("a", TEMPLATE): window})


def test_problems_of_pools_are_written_once(desk: Desk) -> None:
    troubled = replace(SEEN, problems=("another program shrinks the group",))
    blind = failed_observation("b")
    pool_status = desk.cycle(troubled, blind)
    assert pool_status.pools == {
        "a": ("another program shrinks the group",),
        "b": (f"cannot be seen: {blind.failure.text}",),
    }
    written = Path(desk.state.pool_status.path).stat().st_ino
    desk.cycle(troubled, blind)
    assert Path(desk.state.pool_status.path).stat().st_ino == written, "the file is written only after a change"
    assert desk.cycle(SEEN).pools == {}


def test_a_problem_lasts_until_a_cycle_could_plan_also_in_other_words(desk: Desk) -> None:
    assert desk.cycle().problem is None
    assert desk.cycle(problem="not seen yet: a, b").problem == LastingFailure(102.0, "not seen yet: a, b")
    assert desk.cycle(problem="not seen yet: b").problem == LastingFailure(102.0, "not seen yet: b")
    assert desk.cycle().problem is None
    assert desk.cycle(problem="not seen yet: b").problem == LastingFailure(105.0, "not seen yet: b")


def test_a_refused_configuration_lasts_until_it_is_in_force(desk: Desk) -> None:
    desk.refused = "nonsense: unknown setting"
    assert desk.cycle().configuration == LastingFailure(101.0, "nonsense: unknown setting")
    assert desk.cycle().configuration == LastingFailure(101.0, "nonsense: unknown setting")
    desk.refused = ""
    assert desk.cycle().configuration is None


def test_unmet_machines_are_published_with_each_cycle(desk: Desk) -> None:
    waits = Unmet(
        "a",
        PendingReason.CAP,
        3,
        ErrorClass.QUOTA,
        "full",
        10.0,
        20.0,
        "b",
        30.0,
        "old",
        7,
        {"b": PendingReason.PAUSED},
    )
    unmet = {REQUEST: (waits, Unmet("b", PendingReason.STARTING, 1)), OTHER: (Unmet("a", PendingReason.CAP, 1),)}
    published = desk.cycle(unmet=unmet).unmet
    assert (dict(published), list(published)) == (unmet, [REQUEST, OTHER])
    assert desk.cycle().unmet == {}


def test_unmet_machines_stay_published_until_a_loop_has_planned(desk: Desk) -> None:
    assert desk.cycle(unmet=None).unmet == {}, "no loop has published any"
    unmet = {REQUEST: (Unmet("a", PendingReason.CAP, 1),)}
    desk.cycle(unmet=unmet)
    desk.writer = PoolStatusWriter(desk.state)
    for problem in ("intent.json is missing", "intent.json cannot be read"):
        assert desk.cycle(problem=problem, unmet=None).unmet == unmet
    Path(desk.state.pool_status.path).write_text("{")
    desk.writer = PoolStatusWriter(desk.state)
    assert desk.cycle(unmet=None).unmet == {}, "an unreadable file is written again"
    assert desk.cycle(unmet=unmet).unmet == unmet
    assert desk.cycle().unmet == {}


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(pool_status: PoolStatus) -> list[tuple[str, str, float]]:
    return [(one.operation, one.template, one.since) for one in pool_status.refused]


def test_creates_count_as_refused_while_the_last_one_was(desk: Desk) -> None:
    assert refused(desk.cycle(remembered=refusing())) == [("create", TEMPLATE, 101.0)]
    assert refused(desk.cycle(remembered=refusing(level=2))) == [("create", TEMPLATE, 101.0)]
    assert refused(desk.cycle(remembered=memory())) == []
    desk.limits = limits(pool("b"))
    assert refused(desk.cycle(remembered=refusing())) == [], "no template names the pool any more"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"failure": Failure(ErrorClass.STOCKOUT, "none left")}, id="it passes by itself"),
        pytest.param({"level": 0}, id="a later one was taken"),
        pytest.param({"is_boot_failure": True}, id="the create was taken, and its machine failed"),
    ],
)
def test_a_failure_that_another_try_may_fix_is_no_refusal(desk: Desk, changes: dict[str, object]) -> None:
    assert refused(desk.cycle(remembered=refusing(**changes))) == []


def test_a_pool_refuses_deletes_until_it_accepts_one(desk: Desk) -> None:
    assert refused(desk.cycle(SEEN, outcomes=(delete(0, DENIED),))) == [("delete", "", 101.0)]
    assert refused(desk.cycle(SEEN, outcomes=(delete(0, DENIED),))) == [("delete", "", 101.0)]
    assert refused(desk.cycle(SEEN, outcomes=(delete(1, DENIED),))) == [("delete", "", 101.0)]
    assert refused(desk.cycle(SEEN, outcomes=(create(),))) == [("delete", "", 101.0)], "a create proves no delete"
    assert refused(desk.cycle(SEEN, outcomes=(delete(0, DENIED), delete(1)))) == []


def test_a_delete_ends_only_earlier_refusals(desk: Desk) -> None:
    accepted, denied = (delete(0),), (delete(1, DENIED),)
    assert refused(desk.cycle(SEEN, batches=(accepted, denied))) == [("delete", "", 101.0)]
    assert refused(desk.cycle(SEEN, batches=(accepted, denied))) == [("delete", "", 102.0)]
    assert refused(desk.cycle(SEEN, batches=(denied, accepted))) == []


def test_deletes_of_gone_machines_and_other_failures_are_no_refusals(desk: Desk) -> None:
    assert refused(desk.cycle(SEEN, outcomes=(delete(0, Failure(ErrorClass.TIMEOUT, "slow")),))) == []
    desk.cycle(SEEN, outcomes=(delete(0, DENIED), delete(1, DENIED)))
    assert refused(desk.cycle(failed_observation("a"))), "a failed observation is no empty one"
    assert refused(desk.cycle(snapshot(machine(1))))
    assert refused(desk.cycle(snapshot())) == []


# --- orphans ----------------------------------------------------------------------------------------------------------


def test_orphans_are_written_with_their_pools_also_while_a_pool_cannot_be_seen(desk: Desk) -> None:
    remembered = memory(orphans={name(0): 0.0, name(1): 0.0, name(7): 0.0})
    there = snapshot(machine(1), pool="b")
    assert desk.cycle(snapshot(machine(0)), there, remembered=remembered).orphans == {"a": (name(0),), "b": (name(1),)}
    assert desk.cycle(failed_observation("a"), there, remembered=remembered).orphans == {
        "a": (name(0),),
        "b": (name(1),),
    }
    assert desk.cycle(SEEN, there, remembered=memory()).orphans == {}


def test_limits_are_written(desk: Desk) -> None:
    desk.limits = limits(pool("a", max_machines=7, spill_after_seconds=30.0), pool("b", is_paused=True), maximum=9)
    desk.limits = alter(desk.limits, orphan_cap_per_hour=3, delete_unlisted_after=None)
    pool_status = desk.cycle()
    shown = pool_status.limits
    assert shown is not None
    assert shown.orphans == OrphanLimits(600.0, 3, None)
    assert (shown.pools, shown.templates) == (desk.limits.pools, desk.limits.templates)
    assert pool_status.paused == ("b",)


def test_unseen_pools_have_the_reason_without_the_prefix(desk: Desk) -> None:
    pool_status = desk.cycle(replace(SEEN, problems=("another program shrinks the group",)), failed_observation("b"))
    assert pool_status.unseen == {"b": failed_observation("b").failure.text}


def test_an_unseen_pool_is_unseen_since_its_first_failed_observation(desk: Desk) -> None:
    blind = failed_observation("b")
    assert [desk.cycle(SEEN, blind).unseen_since for _ in range(2)] == [{"b": 101.0}, {"b": 101.0}]
    assert desk.cycle(SEEN).unseen_since == {}
    assert desk.cycle(blind).unseen_since == {"b": 104.0}

"""A pool with a wrong endpoint: it has another identity, or shows new machines of ours and none of the pool's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.lab.fake_backend import Mark
from provisioner.model import (
    NEVER,
    Brake,
    BrakeReason,
    DistrustReason,
    ErrorClass,
    Fingerprint,
    LossCause,
    MachineEnd,
    Memory,
    Phase,
    Plan,
    RequestStatus,
    Snapshot,
    Verdict,
)
from provisioner.planning.cleanup.orphans import release_brake
from provisioner.planning.observe.trust import format_distrust
from tests.support.cycle_bench import Bench
from tests.unit.core import (
    NOW,
    REQUEST,
    SEEN,
    limits,
    machine,
    memory,
    name,
    plan,
    pool,
    record,
    running,
    slot,
    snapshot,
)

ELSEWHERE = "zzzzzzzzzz"
LIMITS = limits(pool("a", early_loss_seconds=0.0), pool("b"))
HOUR = 3600.0


def grid(count: int = 10, **changes: object) -> Memory:
    slots = [running(number, Verdict.SUCCEEDED) for number in range(count)]
    return memory(record(*slots, ended=RequestStatus.COMPLETE, reported_at=NOW), **changes)


def observe(
    ours: Collection[int] = (), others: Collection[int] = (), began: float = SEEN, **changes: object
) -> Snapshot:
    machines = [machine(number) for number in ours] + [machine(number, request=ELSEWHERE) for number in others]
    return snapshot(*machines, began=began, **changes)


def planned(known: Memory, *observations: Snapshot) -> Plan:
    for one in observations:
        last = plan(known, one, snapshot(pool="b", began=one.began_at), limits=LIMITS, now=one.began_at + 1)
        known = last.memory
    return last


def lost(last: Plan) -> int:
    return sum(one.verdict is Verdict.LOST for one in last.memory.requests[REQUEST].slots.values())


def test_another_world_is_never_believed_however_often_it_shows() -> None:
    last = planned(grid(), *(observe(others=range(3), began=SEEN + 100 * times) for times in range(20)))
    assert (lost(last), last.creates, last.deletes) == (0, (), ())
    distrusted = last.distrusted["a"]
    assert distrusted.reason is DistrustReason.WRONG_ENDPOINT
    assert (distrusted.missing, distrusted.expected, distrusted.since) == (10, 10, SEEN + 1)
    assert distrusted.until == NEVER
    assert last.memory.brake is not None
    assert (last.memory.brake.reason, last.memory.brake.pool) == (BrakeReason.WRONG_ENDPOINT, "a")
    assert last.memory.brake.detail == (
        "The pool shows none of its 10 machines, but shows 3 without a request. "
        "If you release the brake, you confirm that its machines are lost."
    )
    ends = {name(number): MachineEnd(LossCause.DELETED) for number in range(10)}
    said = [observe((), [1], SEEN + 3000 + later, ends=ends) for later in (0, 5)]
    assert lost(planned(last.memory, *said)) == 0, "nor what it says of machines that have gone"
    blind = plan(last.memory, snapshot(pool="b"), limits=LIMITS)
    assert blind.memory.places.wrong_since == last.memory.places.wrong_since, (
        "an observation that fails changes nothing"
    )


@pytest.mark.parametrize(
    ("known", "seen", "gone"),
    [
        pytest.param(grid(), observe(), 10, id="nothing at all"),
        pytest.param(grid(), observe([9], range(3)), 9, id="one of its own"),
        pytest.param(grid(5), observe(others=range(3)), 5, id="only a few were there"),
        pytest.param(
            grid(orphans={name(0, ELSEWHERE): SEEN - 60}), observe(others=[0]), 10, id="an orphan that was known"
        ),
    ],
)
def test_what_is_no_other_world(known: Memory, seen: Snapshot, gone: int) -> None:
    last = planned(known, seen)
    assert not last.memory.places.wrong_since
    assert last.memory.brake is None
    assert lost(planned(last.memory, *(replace(seen, began_at=SEEN + later * HOUR) for later in (1, 2)))) == gone


def test_one_of_its_own_machines_brings_it_back() -> None:
    last = planned(grid(), observe(others=range(3)), observe(range(10), began=SEEN + HOUR))
    assert not last.distrusted
    assert not last.memory.places.wrong_since
    assert last.memory.brake is not None, "an operator checks it all the same"
    assert not last.memory.orphans.since


@pytest.mark.parametrize("others", [(), range(3)], ids=["an empty cluster", "machines of ours"])
@pytest.mark.parametrize("count", [1, 10])
def test_another_place_of_the_same_name_is_never_believed(count: int, others: Collection[int]) -> None:
    known = grid(count, endpoints={"a": "one"})
    last = planned(known, *(observe((), others, SEEN + 100 * times, endpoint_identity="two") for times in range(5)))
    assert (lost(last), last.creates, last.deletes) == (0, (), ())
    assert last.memory.places.endpoints == {"a": "one"}
    assert last.memory.brake is not None
    assert last.memory.brake.detail.startswith("The pool is two now, but its machines were made in one. ")
    restored = planned(last.memory, observe(range(count), began=SEEN + HOUR, endpoint_identity="one"))
    assert not restored.distrusted
    assert not restored.memory.places.wrong_since


FOREIGN = Fingerprint(uid="foreign")


@pytest.mark.parametrize("shown", [{"fingerprint": FOREIGN}, {"phase": Phase.GONE}], ids=["other uids", "gone"])
def test_an_observation_from_elsewhere_says_nothing_of_machines_of_the_same_names(shown: dict[str, Any]) -> None:
    known = grid(endpoints={"a": "one"})
    machines = [machine(number, **shown) for number in range(10)]
    last = planned(known, snapshot(*machines, endpoint_identity="two"))
    assert last.distrusted["a"].reason is DistrustReason.WRONG_ENDPOINT
    assert lost(last) == 0
    restored = planned(last.memory, observe(range(10), began=SEEN + 5, endpoint_identity="one"))
    assert (lost(restored), restored.deletes, restored.distrusted) == (0, (), {})


def test_an_observation_from_elsewhere_ends_no_open_request() -> None:
    known = memory(record(*(slot(number, was_seen=True) for number in range(5))), endpoints={"a": "one"})
    last = planned(
        known, snapshot(*(machine(number, fingerprint=FOREIGN) for number in range(5)), endpoint_identity="two")
    )
    assert last.memory.requests == known.requests


def test_a_pool_without_machines_may_move() -> None:
    last = planned(memory(endpoints={"a": "one"}), observe(others=range(3), endpoint_identity="two"))
    assert last.memory.places.endpoints == {"a": "two"}
    assert not last.distrusted


def test_in_the_same_place_strange_machines_prove_no_other_one() -> None:
    """If the endpoint's identity has not changed, the pool's missing machines are a mass loss, and the unknown machines
    are orphans."""
    observations = [observe((), range(3), SEEN + later, endpoint_identity="one") for later in (0, 60, 65)]
    last = planned(grid(endpoints={"a": "one"}), *observations)
    assert (lost(last), last.memory.places.wrong_since) == (10, {})


def test_an_observation_that_does_not_say_its_place_is_judged_by_what_it_shows() -> None:
    known = planned(grid(), observe(range(10), endpoint_identity="one")).memory
    assert known.places.endpoints == {"a": "one"}
    assert not planned(known, observe(range(10), began=SEEN + 1)).distrusted
    assert planned(known, observe(others=range(3), began=SEEN + 1)).memory.places.wrong_since


def test_operators_are_asked_to_check_the_place() -> None:
    distrusted = planned(grid(), observe(others=range(3))).distrusted["a"]
    assert format_distrust("a", distrusted, 1_700_000_000.0 - SEEN - 1) == (
        "pools.a shows none of its 10 machines, but shows 3 without a request: another cluster or project "
        "may answer instead. Restore the settings that lead to the pool's own place and start again; or, if the pool's "
        "machines are gone, run `provisioner recover --release-brake`. Until then the pool's machines do not count as "
        "lost."
    )


def test_an_operator_may_say_that_the_machines_are_gone(tmp_path: Path) -> None:
    """The loop is restarted while another endpoint answers. After the operator's release of the brake, the pool's
    machines are reported as lost, and the other endpoint's machines are orphans."""
    bench = Bench(tmp_path)
    bench.succeed(12)
    bench.place.place._entries = {}
    for number in range(2):
        mark = name(number, ELSEWHERE)
        bench.place.place.create(mark, Mark("demo", "pool", mark))
    bench.restarted()
    bench.cycle(60)
    assert bench.cycle().unseen["pool"].error is ErrorClass.INVALID
    assert not bench.state.status.read_lost()
    bench.state.ask_release()
    bench.cycle(3)
    assert len(bench.state.status.read_lost()) == 12
    known = bench.state.memory.read()
    assert (known.brake, known.places.wrong_since) == (None, {})
    assert len(known.orphans.since) == 2


def test_a_release_for_another_reason_says_nothing_of_machines() -> None:
    """The release of a brake that was latched for another reason or pool does not confirm that machines are gone."""
    recorded = grid(
        brake=Brake(BrakeReason.TOO_MANY_ORPHANS, SEEN - 10, "before"), endpoints={"a": "one", "b": "three"}
    )
    first = planned(recorded, observe(endpoint_identity="two"))
    assert first.memory.brake is recorded.brake
    again = planned(release_brake(first.memory), observe(endpoint_identity="two", began=SEEN + 100))
    assert lost(again) == 0
    assert again.memory.brake is not None
    assert (again.memory.brake.reason, again.memory.brake.pool) == (BrakeReason.WRONG_ENDPOINT, "a")
    free = release_brake(again.memory)
    assert (free.brake, free.places.wrong_since, free.places.endpoints) == (None, {}, {"b": "three"})
    assert lost(planned(free, *(observe(endpoint_identity="two", began=SEEN + later) for later in (200, 205)))) == 10

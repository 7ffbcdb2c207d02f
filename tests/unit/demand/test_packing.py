"""Packing of jobs onto machines: what fits, in which machines, and laws that hold for any jobs and any machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.demand import packing
from provisioner.demand.packing import JOIN_SECONDS, MANY, ClusterSource, Jobs, Member, pack
from provisioner.demand.sources import Fleet, Running, Shape

SHAPES = {
    "Large": Shape(16, 64_000, 0),
    "Small": Shape(4, 16_000, 0),
    "Gpu": Shape(4, 16_000, 2),
}
EMPTY = Fleet(1e6, SHAPES, {})


def wanted(jobs: Sequence[Jobs], members: Mapping[str, Member] | None = None, fleet: Fleet = EMPTY) -> dict[str, int]:
    """Return the wanted machines for these jobs, after a check that each job fits a machine."""
    found = pack(jobs, members or {}, fleet)
    assert not found.unfit
    return dict(found.wanted)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([Jobs(8, 1, 100)], {"Small": 2}),
        ([Jobs(8, 1, 15_000)], {"Small": 8}),
        ([Jobs(8, 5, 100)], {"Large": 3}),
        ([Jobs(5, 1, 100, templates=frozenset({"Large"}))], {"Large": 1}),
        ([Jobs(3, 1, 100, gpus=1)], {"Gpu": 2}),
        ([Jobs(10, 0.1, 0), Jobs(3, 1, 0)], {"Small": 1}),
        ([Jobs(1000, 0, 0)], {"Small": 1}),
        ([Jobs(0, 1, 100)], {}),
        ([Jobs(2, 3, 100), Jobs(2, 1, 100)], {"Small": 2}),
        ([Jobs(1, 10, 100), Jobs(6, 1, 100)], {"Large": 1}),
    ],
    ids=[
        *("by cores", "by memory", "too large for the smallest", "template", "GPUs", "fractions"),
        *("no need", "no jobs", "gaps are filled", "gaps of larger machines are filled"),
    ],
)
def test_jobs_take_the_fewest_machines_of_the_smallest_template_that_fits(
    jobs: Sequence[Jobs], expected: Mapping[str, int]
) -> None:
    assert wanted(jobs) == expected


def test_jobs_that_fit_no_template_are_counted_by_their_need() -> None:
    jobs = [
        Jobs(2, 32, 100),
        Jobs(3, 32, 100),
        Jobs(1, 1, 100, gpus=4),
        Jobs(1, 1, 100, templates=frozenset()),
        Jobs(1, 8, 100, templates=frozenset({"Small"})),
    ]
    found = pack(jobs, {}, EMPTY)
    assert found.wanted == {}
    assert found.unfit == {
        "32 CPUs, 100 MB": 5,
        "1 CPUs, 100 MB, 4 GPUs": 1,
        "1 CPUs, 100 MB, on no template": 1,
        "8 CPUs, 100 MB, on Small": 1,
    }


def test_a_job_without_gpus_takes_no_machine_with_gpus() -> None:
    assert pack([Jobs(1, 1, 100, templates=frozenset({"Gpu"}))], {}, EMPTY).unfit == {"1 CPUs, 100 MB, on Gpu": 1}


def fleet_of(*names: str, age: float = 0.0, template: str = "Small") -> Fleet:
    return EMPTY._replace(running={name: Running(template, EMPTY.now - age) for name in names})


def test_jobs_fill_machines_that_work_before_machines_without_work_before_new_machines() -> None:
    fleet = fleet_of("a", "b")
    members = {"a": Member(2, 8000, 0, works=True), "b": Member(4, 16_000, 0, works=False)}
    assert wanted([], members, fleet) == {"Small": 1}, "the machine that works"
    assert wanted([Jobs(2, 1, 100)], members, fleet) == {"Small": 1}, "its rest suffices"
    assert wanted([Jobs(6, 1, 100)], members, fleet) == {"Small": 2}, "the one without work is used"
    assert wanted([Jobs(7, 1, 100)], members, fleet) == {"Small": 3}


def test_of_equal_jobs_those_with_fewer_templates_are_placed_first() -> None:
    fleet = EMPTY._replace(running={"a": Running("Small", EMPTY.now), "b": Running("Large", EMPTY.now)})
    members = {name: Member(3, 8000, 0, works=True) for name in ("a", "b")}
    queue = [Jobs(3, 1, 0), Jobs(3, 1, 0, templates=frozenset({"Small"}))]
    assert wanted(queue, members, fleet) == wanted(queue[::-1], members, fleet) == {"Small": 1, "Large": 1}


def test_a_machine_that_takes_no_jobs_has_no_capacity() -> None:
    members = {"a": Member(0, 0, 0, works=False), "b": Member(0, 0, 0, works=True)}
    assert wanted([Jobs(1, 1, 100)], members, fleet_of("a", "b")) == {"Small": 2}


def test_a_machine_of_the_wrong_template_takes_no_jobs() -> None:
    members = {"a": Member(16, 64_000, 0, works=False)}
    fleet = fleet_of("a", template="Large")
    assert wanted([Jobs(1, 1, 100, templates=frozenset({"Small"}))], members, fleet) == {"Small": 1}


def test_a_machine_that_has_not_joined_in_time_is_replaced() -> None:
    jobs = [Jobs(1, 1, 100)]
    assert wanted(jobs, {}, fleet_of("a", age=JOIN_SECONDS)) == {"Small": 1}, "it will take the job"
    assert wanted(jobs, {}, fleet_of("a", age=JOIN_SECONDS + 1)) == {"Small": 2}
    joined = {"b": Member(3, 15_900, 0, works=True)}
    assert wanted([], joined, fleet_of("a", "b", age=JOIN_SECONDS + 1)) == {"Small": 1}, "the job runs on the other"


@pytest.mark.parametrize(("jobs", "most"), [(1, 2), (10, 11), (100, 111)])
def test_machines_that_can_never_join_are_not_replaced_again_and_again(jobs: int, most: int) -> None:
    machines = 0
    for _ in range(50):
        lost = fleet_of(*map(str, range(machines)), age=JOIN_SECONDS + 1)
        machines = wanted([Jobs(jobs, 4, 100)], {}, lost)["Small"]
    assert machines == most


class Cluster(ClusterSource):
    """A cluster without jobs that lists the first item of ``listed``."""

    listed: Any

    def ask(self, fleet: Fleet) -> tuple[list[Jobs], Mapping[str, Member]]:
        return [], self.listed[0]


def test_a_machine_that_worked_is_not_idle_as_soon_as_the_cluster_does_not_list_it() -> None:
    """After a restart, HTCondor's collector lists a machine only when the machine reports again, up to five minutes
    later. Its jobs go on meanwhile."""
    listed = [{"a": Member(0, 0, 0, works=True)}]
    cluster, fleet = Cluster(listed=listed), fleet_of("a", age=9999.0)
    assert cluster.read(fleet).idle == {}
    listed[0] = {}
    read = {later: cluster.read(fleet._replace(now=fleet.now + later)).idle for later in range(30, 691, 30)}
    assert read == {later: {} for later in range(30, 661, 30)} | {690: {"a": 30.0}}


@pytest.mark.parametrize(
    "times", [range(900, 1800, 30), [30, *range(900, 1800, 30)], [30, -900, *range(900, 1800, 30)]]
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_time_without_a_read_does_not_make_a_machine_idle(times: Sequence[int], is_restarted: bool) -> None:
    """The collector, or the demand service itself, may have been away for longer than ``JOIN_SECONDS``. The clock may
    have gone back meanwhile."""
    listed = [{"a": Member(0, 0, 0, works=True)}]
    cluster, fleet = Cluster(listed=listed), fleet_of("a", age=9999.0)
    assert cluster.read(fleet).idle == {}
    listed[0] = {}
    if is_restarted:
        cluster = Cluster(listed=listed)
    first = next(time for time in times if cluster.read(fleet._replace(now=fleet.now + time)).idle)
    assert 1300 < first <= 1600, "ten minutes of reads, less one gap at most"


def test_members_that_are_not_ours_do_not_count() -> None:
    assert wanted([Jobs(1, 1, 100)], {"web": Member(4, 16_000, 0, works=True)}) == {"Small": 1}


# --- laws -------------------------------------------------------------------------------------------------------------

any_jobs = st.builds(
    Jobs,
    number=st.integers(1, 300),
    cpus=st.one_of(st.integers(1, 20), st.sampled_from([0.0, 0.1, 0.25, 1.5])),
    memory_mb=st.integers(0, 70_000),
    gpus=st.sampled_from([0, 0, 0, 1, 2, 3]),
    templates=st.sampled_from([None, None, None, frozenset({"Small"}), frozenset({"Small", "Large"})]),
)
any_member = st.builds(
    Member, cpus=st.integers(0, 4), memory_mb=st.integers(0, 16_000), gpus=st.just(0.0), works=st.booleans()
)
queues = st.lists(any_jobs, max_size=8)


def total(machines: Mapping[str, int], part: str) -> float:
    return sum(number * getattr(SHAPES[name], part) for name, number in machines.items())


@given(queues, st.lists(any_member, max_size=5))
def test_machines_hold_all_jobs_that_fit_and_are_never_more_than_the_jobs(
    queue: list[Jobs], found: list[Member]
) -> None:
    members = {f"m{number}": member for number, member in enumerate(found)}
    fleet = fleet_of(*members)
    reading = pack(queue, members, fleet)
    fitting = [jobs for jobs in queue if jobs.format_need() not in reading.unfit]
    assert sum(reading.unfit.values()) == sum(jobs.number for jobs in queue) - sum(jobs.number for jobs in fitting)
    working = sum(member.works for member in found)
    machines = sum(reading.wanted.values())
    assert working <= machines <= working + sum(jobs.number for jobs in fitting)
    for part in ("cpus", "memory_mb", "gpus"):
        taken = sum(getattr(SHAPES["Small"], part) - getattr(member, part) for member in found if member.works)
        needed = taken + sum(jobs.number * getattr(jobs, part) for jobs in fitting)
        assert total(reading.wanted, part) >= needed * (1 - 1e-5), part


@given(queues, st.integers(1, 50))
def test_more_jobs_of_the_last_kind_never_take_fewer_machines(queue: list[Jobs], more: int) -> None:
    """If jobs that are last in the order are added, the number of machines must not fall. Other jobs may break this
    rule, because first-fit-decreasing may need fewer machines after they are added."""
    last = Jobs(1, 0.1, 0)
    queue = [jobs for jobs in queue if jobs.cpus > 0.1 or jobs.gpus]
    before, after = (pack([*queue, last._replace(number=count)], {}, EMPTY).wanted for count in (more, 2 * more))
    assert all(after[name] >= number for name, number in before.items())


@given(any_jobs, st.integers(1, 50))
def test_more_equal_jobs_never_take_fewer_machines(jobs: Jobs, more: int) -> None:
    before, after = (
        pack([jobs._replace(number=count)], {}, EMPTY).wanted for count in (jobs.number, jobs.number + more)
    )
    assert all(after[name] >= number for name, number in before.items())


@given(st.lists(st.integers(1, 16), min_size=1, max_size=60))
def test_all_machines_but_one_are_at_least_half_full(cores: list[int]) -> None:
    fleet = EMPTY._replace(shapes={"Large": SHAPES["Large"]})
    machines = pack([Jobs(1, one, 0) for one in cores], {}, fleet).wanted["Large"]
    assert sum(cores) >= 8 * (machines - 1)


@given(queues)
def test_the_order_of_the_jobs_does_not_matter(queue: list[Jobs]) -> None:
    assert pack(queue, {}, EMPTY) == pack(queue[::-1], {}, EMPTY)


def test_many_different_jobs_are_rounded_up_but_never_above_their_machine() -> None:
    """If there are many different jobs, their needs are rounded up, so that fewer jobs differ. Reason: the time of
    packing grows with the square of the number of different jobs."""
    few, many = ([Jobs(1, 2, 8000 + 2 * number) for number in range(0, MANY * 4, step)] for step in (100, 1))
    fleet = EMPTY._replace(shapes={"Small": Shape(4, 15_999, 0)})
    assert len(packing._sort(few, fleet)[0]) == len(few)
    placed, unfit = packing._sort(many, fleet)
    assert {jobs.memory_mb for jobs, _ in placed} == {*range(63 * 128, 125 * 128, 128), 15_999}
    assert (sum(jobs.number for jobs, _ in placed), not unfit) == (len(many), True)


def test_equal_jobs_are_packed_together() -> None:
    """The number of steps depends on the groups, not on the jobs: ten thousand million jobs are packed at once."""
    assert wanted([Jobs(10**10, 1, 100), Jobs(10**10, 3, 100)]) == {"Small": 10**10}

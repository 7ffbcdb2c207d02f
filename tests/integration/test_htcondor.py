"""The demand source ``htcondor``. Stand-ins replace HTCondor's commands. They behave as HTCondor's documentation
says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.demand.htcondor import HTCondor
from provisioner.demand.packing import JOIN_SECONDS
from provisioner.demand.sources import Fleet, Running, Shape, SourceError
from tests.support.htcondor import DEFAULT_MEMORY, CondorPool, claimed, job, slot

SHAPES = {"Small": Shape(4, 8192, 0), "Large": Shape(16, 65536, 0), "Gpu": Shape(8, 32768, 2)}
NOW = 10_000.0


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CondorPool:
    return CondorPool(tmp_path, monkeypatch)


def fleet(now: float = NOW, **templates: str) -> Fleet:
    """Return a fleet of running machines. ``templates``: machine name → template."""
    return Fleet(now, SHAPES, {name: Running(template, now - 3600) for name, template in templates.items()})


def source(**settings: Any) -> Any:
    return HTCondor(**settings)


def wanted(running: Mapping[str, str] | None = None, **settings: Any) -> dict[str, int]:
    return {name: n for name, n in source(**settings).read(fleet(**running or {})).wanted.items() if n}


def test_idle_jobs_of_all_users_and_schedds_are_packed_by_cores_and_memory(pool: CondorPool) -> None:
    pool.has(ap1=[job(2)] * 6 + [job(status=2)] * 9, ap2=[job(1, 8000), job(1, 8000, Owner="ben")])
    assert wanted() == {"Small": 5}


def test_memory_counts_as_the_slot_that_htcondor_gives(pool: CondorPool) -> None:
    pool.has(ap1=[job(1, 2700)] * 3)  # 3 × 2700 MB would fit 8192 MB, 3 × 2816 MB does not
    assert wanted() == {"Small": 2}


def test_unset_requests_have_htcondors_defaults(pool: CondorPool) -> None:
    pool.has(ap1=[job(memory=DEFAULT_MEMORY)] * 4 + [{**job(), "RequestCpus": None, "RequestMemory": None}] * 4)
    assert wanted() == {"Small": 2}


def test_jobs_that_need_no_slot_do_not_count(pool: CondorPool) -> None:
    pool.has(ap1=[job(JobUniverse=universe) for universe in (7, 9, 12)])
    assert wanted() == {}


def test_only_jobs_that_fulfil_the_additional_requirements_count(pool: CondorPool) -> None:
    pool.has(ap1=[job(4), job(8, gpus=1)])
    assert wanted(additional_requirements="RequestGPUs == 1 || RequestGPUs == 2") == {"Gpu": 1}


def test_a_job_counts_once_whatever_its_user_calls_its_attributes(pool: CondorPool) -> None:
    pool.has(ap1=[job(4, JobCount=1000), job(4, JobCount="x"), job(4, JobCount=0)])
    assert wanted() == {"Small": 3}


def test_a_schedd_that_is_named_twice_counts_once(pool: CondorPool) -> None:
    pool.has(ap1=[job(4)])
    assert wanted(schedds=["ap1", "ap1"]) == {"Small": 1}


def test_jobs_that_fit_no_template_are_named(pool: CondorPool) -> None:
    pool.has(ap1=[job(64)] * 3 + [job(4)])
    reading = source().read(fleet())
    assert (dict(reading.unfit), dict(reading.wanted)) == ({"64 CPUs, 1024 MB": 3}, {"Small": 1})


def test_unclaimed_capacity_is_used_before_new_machines(pool: CondorPool) -> None:
    """A further job fits beside the job that runs on m1, and four jobs fit on the idle m2. Therefore m3 is not
    needed."""
    pool.has([slot("m1", cpus=1), claimed("m1", cpus=3), slot("m2"), slot("m3")], ap1=[job()] * 5)
    assert wanted({"m1": "Small", "m2": "Small", "m3": "Small"}) == {"Small": 2}


def test_a_slot_that_is_claimed_without_a_job_yet_takes_its_job(pool: CondorPool) -> None:
    pool.has([slot("m1", cpus=0, memory=0), claimed("m1", activity="Idle")], ap1=[job(4)])
    read = source().read
    assert dict(read(fleet(m1="Small")).wanted) == {"Small": 1}
    assert read(fleet(NOW + 60, m1="Small")).idle == {}


def test_slots_of_machines_that_are_not_ours_are_ignored(pool: CondorPool) -> None:
    pool.has([slot("other"), {**slot("m1"), "HFMachine": None}], ap1=[job()])
    reading = source().read(fleet())
    assert (dict(reading.wanted), reading.idle) == ({"Small": 1}, {})


def test_a_machine_is_idle_since_the_first_of_successive_reads_that_saw_it_so(pool: CondorPool) -> None:
    """The partitionable slot of a machine is always unclaimed. Therefore a machine with jobs in dynamic slots must not
    count as idle."""
    read = source().read
    pool.has([slot("m1"), slot("m2")])
    assert read(fleet(m1="Small", m2="Small")).idle == {}
    pool.has([slot("m1"), slot("m2", cpus=3), claimed("m2", cpus=1)])
    assert read(fleet(NOW + 60, m1="Small", m2="Small")).idle == {"m1": 60}
    pool.has([slot("m1"), slot("m2")])
    assert read(fleet(NOW + 120, m1="Small", m2="Small")).idle == {"m1": 120}


def test_a_machine_that_has_not_joined_in_time_is_replaced_and_may_be_returned(pool: CondorPool) -> None:
    pool.has([], ap1=[job(4)])
    running = {"late": Running("Small", NOW - JOIN_SECONDS - 1), "new": Running("Small", NOW - JOIN_SECONDS)}
    read = source().read
    assert dict(read(Fleet(NOW, SHAPES, running)).wanted) == {"Small": 2}
    late = {"late": running["late"]}
    idle = [read(Fleet(NOW + later, SHAPES, late)).idle for later in range(60, 721, 60)]
    assert idle == [{}] * (len(idle) - 1) + [{"late": 60}]


@pytest.mark.parametrize("state", ["Owner", "Matched", "Preempting", "Drained"])
def test_only_an_unclaimed_machine_is_idle(pool: CondorPool, state: str) -> None:
    pool.has([slot("m1", State=state), slot("m2", Activity="Benchmarking")])
    read = source().read
    read(fleet(m1="Small", m2="Small"))
    assert read(fleet(NOW + 60, m1="Small", m2="Small")).idle == {}


def test_a_template_counts_as_what_its_machines_really_have(pool: CondorPool) -> None:
    """Real machines may have less memory than HostFactory's file says. A job that fits the file, but no machine, would
    request machines for ever. The size of a machine with a job is ignored, because its slots may have been listed at
    different moments."""
    pool.has([slot("m1", memory=7000), slot("m2", memory=6000)], ap1=[job(1, 8000)])
    assert wanted({"m1": "Small", "m2": "Small"}) == {"Large": 1}
    pool.has([slot("m1", memory=7000), claimed("m1", cpus=1, memory=1)], ap1=[job(1, 8000)])
    assert wanted({"m1": "Small"}) == {"Small": 2}


def test_the_real_size_of_machines_is_known_after_their_return(pool: CondorPool) -> None:
    """The source must remember the real size of returned machines. Otherwise a machine would be requested and returned
    again and again, for a job that the machine cannot run."""
    read = source().read
    pool.has([slot("m1", memory=7000)], ap1=[job(1, 8000)])
    assert dict(read(fleet(m1="Small")).wanted) == {"Large": 1}
    pool.has([], ap1=[job(1, 8000)])
    assert dict(read(fleet(NOW + 60)).wanted) == {"Large": 1}


def test_a_source_with_its_own_templates_counts_no_other_machines(pool: CondorPool) -> None:
    pool.has([claimed("m1"), claimed("m2")], ap1=[job(4)])
    assert wanted({"m1": "Small", "m2": "Large"}, only_templates=["Large"]) == {"Large": 2}


def test_named_schedds_are_asked_one_by_one_at_the_named_central_manager(pool: CondorPool) -> None:
    pool.has(ap1=[job(4)], ap2=[job(4)], ap3=[job(4)])
    assert wanted(schedds=["ap1", "ap3"], pool="cm.example:9618") == {"Small": 2}
    beginnings = [call[1:5] for call in pool.calls()]
    assert beginnings == [
        ["-pool", "cm.example:9618", "-name", "ap1"],
        ["-pool", "cm.example:9618", "-name", "ap3"],
        ["-pool", "cm.example:9618", "-startd", "-constraint"],
    ]


def test_a_pool_without_jobs_wants_only_the_machines_that_work(pool: CondorPool) -> None:
    pool.has([claimed("m1"), slot("m2")], ap1=[], ap2=[])
    assert wanted({"m1": "Small", "m2": "Small"}) == {"Small": 1}


def test_a_schedd_that_does_not_answer_fails_the_read(pool: CondorPool) -> None:
    pool.has(ap1=[job()], ap2=[job()])
    pool.fails("ap1")
    with pytest.raises(SourceError, match=r"Failed to fetch ads from.*ap1"):
        source().read(fleet())


@pytest.mark.parametrize(
    ("settings", "is_silent", "message"),
    [
        ({"schedds": ["ap9"]}, False, "no record of schedd"),
        ({}, True, "Couldn't contact the condor_collector"),
    ],
    ids=["an unknown schedd", "a central manager that does not answer"],
)
def test_a_command_that_fails_fails_the_read(
    pool: CondorPool, settings: dict[str, Any], is_silent: bool, message: str
) -> None:
    pool.has(ap1=[job()])
    pool.fails(is_silent=is_silent)
    with pytest.raises(SourceError, match=message):
        source(**settings).read(fleet())


@pytest.mark.parametrize("other", [{"Cpus": "many"}, {"State": "many words"}])
def test_an_unknown_line_fails_the_read(pool: CondorPool, other: dict[str, str]) -> None:
    pool.has([slot("m1") | other], ap1=[])
    with pytest.raises(SourceError, match="many"):
        source().read(fleet(m1="Small"))


@pytest.mark.parametrize("odd", [job(1, "4 GB"), job(-1), job(1, "inf"), job(1, "NaN"), job(1, -5), job(1, gpus=-1)])
def test_a_user_with_an_odd_request_does_not_hide_the_jobs_of_others(pool: CondorPool, odd: dict[str, Any]) -> None:
    pool.has(ap1=[odd, job(4), odd])
    reading = source().read(fleet())
    assert dict(reading.wanted) == {"Small": 1}
    assert list(reading.unfit.values()) == [2]
    assert next(iter(reading.unfit)).startswith("RequestCpus, RequestMemory, RequestGPUs: ")


def test_a_missing_command_fails_the_read(pool: CondorPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match=r"No such file.*condor_status"):
        source().read(fleet())


def test_without_its_package_the_client_htcondor2_fails_the_read() -> None:
    with pytest.raises(SourceError, match="pip install 'htcondor'"):
        source(client="htcondor2").read(fleet())

"""Jobs as machines: states, reasons, ends and numbers in each form of the API."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.backends.slurm.job_states import Job, number, read_job
from provisioner.model import ErrorClass, Failure, LossCause, MachineEnd, Phase

OLD: dict[str, Any] = {
    "job_id": 7,
    "name": "hf-abcdefghij-000001",
    "user_name": "grid",
    "comment": "hf:desk/hpc/abcdefghij/small",
    "job_state": "RUNNING",
    "state_reason": "None",
    "state_description": "",
    "submit_time": 1_700_000_000,
    "start_time": 1_700_000_060,
    "end_time": 1_700_036_060,
    "batch_host": "n1",
    "restart_cnt": 0,
    "exit_code": 0,
}
"""A job in the form of v0.0.38."""


def struct(value: int) -> dict[str, object]:
    return {"set": True, "infinite": False, "number": value}


def job(state: str = "RUNNING", *flags: str, **fields: object) -> Job:
    """Return a job that was read from the API's new form. If the job has no flags, check that the old form gives the
    same job."""
    old = read_job(OLD | {"job_state": state} | fields)
    new = OLD | {"job_state": [state, *flags], "exit_code": {"return_code": struct(0), "signal": {}}} | fields
    for name in ("submit_time", "start_time", "end_time"):
        new[name] = struct(int(new[name]))
    if isinstance(new["exit_code"], int):
        status = new["exit_code"]
        new["exit_code"] = {"return_code": struct(status >> 8), "signal": {"id": struct(status & 127)}}
    read = read_job(new)
    assert flags or read == old
    return read


def test_a_running_job() -> None:
    seen = job()
    assert (seen.uid, seen.phase, seen.end, seen.failure) == ("7.1700000000", Phase.RUNNING, None, None)
    assert (seen.started, seen.ends, seen.host) == (1_700_000_060, 1_700_036_060, "n1")


@pytest.mark.parametrize(
    ("state", "flags", "phase", "waits"),
    [
        ("PENDING", (), Phase.PENDING, True),
        ("RUNNING", ("CONFIGURING",), Phase.PENDING, False),
        ("RUNNING", ("POWER_UP_NODE",), Phase.PENDING, False),
        ("RUNNING", ("COMPLETING",), Phase.STOPPING, False),
        ("COMPLETED", ("COMPLETING",), Phase.STOPPING, False),
        ("SUSPENDED", (), Phase.RUNNING, False),
        ("RUNNING", ("STOPPED",), Phase.RUNNING, False),
        ("RUNNING", ("A_NEW_FLAG",), Phase.RUNNING, False),
        ("CANCELLED", (), Phase.GONE, False),
        ("PENDING", ("REQUEUED",), Phase.GONE, True),
        ("RUNNING", ("SPECIAL_EXIT",), Phase.GONE, False),
    ],
)
def test_phases(state: str, flags: tuple[str, ...], phase: Phase, waits: bool) -> None:
    seen = job(state, *flags)
    assert (seen.phase, seen.is_waiting) == (phase, waits)


def test_a_number_that_slurm_gives_a_second_time_is_another_machine() -> None:
    """If slurmctld loses its files, it numbers its jobs from the beginning again. A job with a number that was used
    before must count as another machine."""
    assert job().uid != job(submit_time=1_700_000_001).uid


def test_a_job_without_a_host_does_not_run_yet() -> None:
    assert job(batch_host="").phase is Phase.PENDING


def test_a_job_that_was_begun_again_is_another_machine() -> None:
    again = job("PENDING", restart_cnt=1, submit_time=1_700_000_500)
    assert (again.phase, again.is_requeued) == (Phase.GONE, True)
    assert again.uid != job().uid


@pytest.mark.parametrize("state", ["", "BOOTED", "COMPLETING_SOON"])
def test_an_unknown_state_is_no_guess(state: str) -> None:
    with pytest.raises(ValueError, match="unknown state"):
        job(state)


@pytest.mark.parametrize(
    "reason", ["None", "Priority", "Resources", "Dependency", "BeginTime", "ReqNodeNotAvail", "New"]
)
def test_a_wait_for_others_is_no_failure(reason: str) -> None:
    assert job("PENDING", state_reason=reason).failure is None


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("QOSMaxJobsPerUserLimit", ErrorClass.QUOTA),
        ("QOSGrpCpuLimit", ErrorClass.QUOTA),
        ("AssocGrpJobsLimit", ErrorClass.QUOTA),
        ("MaxJobsPerAccount", ErrorClass.QUOTA),
        ("PartitionDown", ErrorClass.STOCKOUT),
        ("PartitionInactive", ErrorClass.STOCKOUT),
        ("InvalidAccount", ErrorClass.DENIED),
        ("InvalidQOS", ErrorClass.DENIED),
        ("QOSNotAllowed", ErrorClass.DENIED),
        ("AccountNotAllowed", ErrorClass.DENIED),
        ("PartitionConfig", ErrorClass.INVALID),
        ("PartitionTimeLimit", ErrorClass.INVALID),
        ("BadConstraints", ErrorClass.INVALID),
    ],
)
def test_reasons_that_another_pool_or_an_operator_ends(reason: str, error: ErrorClass) -> None:
    seen = job("PENDING", state_reason=reason, state_description="see your administrator").failure
    assert seen == Failure(error, f"{reason}: see your administrator")


@pytest.mark.parametrize(
    ("state", "cause", "status", "said"),
    [
        ("COMPLETED", LossCause.EXITED, 0, "COMPLETED"),
        ("FAILED", LossCause.EXITED, 3 << 8, "FAILED, exit code 3"),
        ("FAILED", LossCause.EXITED, 9, "FAILED, signal 9"),
        ("OUT_OF_MEMORY", LossCause.EXITED, 0, "OUT_OF_MEMORY"),
        ("CANCELLED", LossCause.DELETED, 0, "CANCELLED"),
        ("TIMEOUT", LossCause.EXPIRES, 0, "TIMEOUT"),
        ("DEADLINE", LossCause.EXPIRES, 0, "DEADLINE"),
        ("PREEMPTED", LossCause.PREEMPTED, 0, "PREEMPTED"),
        ("NODE_FAIL", LossCause.NODE, 0, "NODE_FAIL"),
        ("BOOT_FAIL", LossCause.NODE, 0, "BOOT_FAIL"),
    ],
)
def test_ends(state: str, cause: LossCause, status: int, said: str) -> None:
    seen = job(state, exit_code=status)
    assert (seen.phase, seen.end) == (Phase.GONE, MachineEnd(cause, Failure(ErrorClass.OTHER, said)))
    assert job(state, "COMPLETING", exit_code=status).end is None, "its processes may still run"


def test_a_job_that_could_never_run_is_a_mistake_of_the_operator() -> None:
    """A job that Slurm lists as failed with ``BadConstraints`` must count as a mistake of the operator. Slurm 22.05
    refuses such a job when it is submitted, but lists it all the same."""
    seen = job("FAILED", state_reason="BadConstraints", exit_code=1 << 8)
    said = "FAILED, BadConstraints, exit code 1"
    assert seen.end == MachineEnd(LossCause.EXITED, Failure(ErrorClass.INVALID, said))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        (struct(5), 5),
        ({"set": False, "number": 5}, 0),
        ({"set": True, "infinite": True, "number": 5}, 0),
        (None, 0),
    ],
)
def test_numbers(value: object, expected: int) -> None:
    assert number(value) == expected


def test_a_record_without_a_name_is_refused() -> None:
    with pytest.raises(KeyError):
        read_job({name: value for name, value in OLD.items() if name != "name"})

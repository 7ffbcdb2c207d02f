"""Behaviour of a real Slurm that the contract suite of all kinds does not cover: limits, ends, tokens, and a slurmctld
that does not respond."""

from __future__ import annotations

import json
import signal
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.backends import BackendError
from provisioner.backends.slurm.backend import SlurmBackend
from provisioner.backends.slurm.cluster import Cluster
from provisioner.backends.slurm.kind import KIND
from provisioner.model import Create, ErrorClass, LossCause, Machine, Phase
from provisioner.names import machine_name
from provisioner.schema.setting_types import Site
from provisioner.testing.place import PREFIX, REQUEST, How, always
from provisioner.testing.waiting import until
from tests.contract.slurm_place import ACCOUNT, SlurmPlace
from tests.support.schedulers.slurm import NO_SLURM, SlurmCluster, is_installed

pytestmark = pytest.mark.schedulers

ONE, TWO = (machine_name(PREFIX, REQUEST, number) for number in (1, 2))


def another(place: SlurmPlace, **settings: object) -> SlurmBackend:
    """Return a backend of the place's pool with other settings."""
    pool = place.settings.model_copy(update=settings)
    return SlurmBackend(pool, Cluster(pool), provisioner="demo", prefix=PREFIX)


def refusal(backend: SlurmBackend, number: int = 1) -> ErrorClass | None:
    (outcome,) = backend.create([Create(machine_name(PREFIX, REQUEST, number), "hpc", "small", REQUEST)], always)
    return outcome.failure.error if outcome.failure else None


def until_pending(place: SlurmPlace, name: str, reason: str) -> Machine:
    """Wait until Slurm gives this reason for the machine's wait, and return the machine."""
    job = place.job_id(name)
    until(lambda: reason in place.cluster.run("squeue", "-h", "-j", job, "-o", "%r"), place.patience, what=reason)
    return place.observe().machines[name]


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "end", "reason"),
    [
        (f"modify user {{}} account={ACCOUNT} set MaxJobs=1", "MaxJobs=-1", "AssocMaxJobsLimit"),
        (f"modify account {ACCOUNT} set GrpJobs=1", "GrpJobs=-1", "AssocGrpJobsLimit"),
        ("modify qos normal set MaxJobsPerUser=1", "MaxJobsPerUser=-1", "QOSMaxJobsPerUserLimit"),
        ("modify qos normal set GrpTRES=cpu=1", "GrpTRES=cpu=-1", "QOSGrpCpuLimit"),
    ],
)
def test_a_job_that_waits_for_a_limit_goes_to_the_next_pool(
    place: SlurmPlace, limit: str, end: str, reason: str
) -> None:
    place.account_limit(limit.format(place.cluster.user), end)
    assert [outcome.failure for outcome in place.create(1)] == [None]
    place.until_seen(ONE)
    assert [outcome.failure for outcome in place.create(2)] == [None], "Slurm accepts it"
    machine = until_pending(place, TWO, reason)
    assert machine.failure is not None
    assert (machine.failure.error, machine.spills_at_once, machine.queued) == (ErrorClass.QUOTA, True, None)


def test_an_account_or_a_quality_that_slurm_does_not_know_is_denied(place: SlurmPlace) -> None:
    assert refusal(another(place, account="unknown")) is ErrorClass.DENIED
    assert refusal(another(place, qos="unknown")) is ErrorClass.DENIED
    assert place.present() == []


def test_a_job_that_fits_no_node_is_refused_and_its_record_says_so(place: SlurmPlace) -> None:
    """Slurm must refuse a job that fits no node. Slurm 22.05 keeps a record of the refused job, so an observation must
    show the machine as ended, with the error."""
    assert refusal(another(place, memory_mb=10_000_000)) is ErrorClass.INVALID
    snapshot = place.observe()
    assert ONE not in snapshot.machines
    assert place.present() == []
    end = snapshot.ends[ONE]
    assert end.failure is not None
    assert end.failure.error is ErrorClass.INVALID


def test_a_job_that_exceeds_its_partition_exists_and_is_a_mistake(place: SlurmPlace) -> None:
    """Slurm accepts a job that its partition can never run: the response has status 200, an error and the job's id. The
    machine must exist, and its failure must be a mistake in the settings."""
    place.partition("MaxTime=1", "MaxTime=INFINITE")
    assert refusal(another(place, time_limit_minutes=600)) is None
    machine = until_pending(place, ONE, "PartitionTimeLimit")
    assert machine.failure is not None
    assert (machine.failure.error, machine.queued) == (ErrorClass.INVALID, None)
    assert place.delete(ONE, machine.fingerprint.uid).failure is None
    place.until_gone(ONE)


def test_a_partition_that_is_down_has_no_room(place: SlurmPlace) -> None:
    place.partition("State=DOWN", "State=UP")
    assert refusal(another(place)) is None
    machine = until_pending(place, ONE, "PartitionDown")
    assert machine.failure is not None
    assert (machine.failure.error, machine.spills_at_once) == (ErrorClass.STOCKOUT, True)


def test_a_job_for_a_drained_node_waits(place: SlurmPlace) -> None:
    """Slurm accepts a job whose only node is drained: the response has status 200, an error and the job's id. The
    machine must wait in the queue without a failure."""
    place.node("State=DRAIN")
    assert refusal(another(place)) is None
    machine = place.until_seen(ONE, Phase.PENDING)
    assert machine.queued is not None
    assert place.observe().machines.keys() == {ONE}


# --- ends -------------------------------------------------------------------------------------------------------------


def until_ended(place: SlurmPlace, name: str) -> tuple[LossCause, str]:
    """Wait until a machine has ended. Return the cause of its end, and the text of its failure, which is empty without
    a failure."""
    end = until(lambda: place.observe().ends.get(name), place.patience, what=f"the end of {name}")
    assert end is not None
    return end.cause, end.failure.text if end.failure else ""


def test_a_job_on_a_node_that_fails_ends_with_its_node(place: SlurmPlace) -> None:
    place.create(1)
    place.until_seen(ONE)
    place.node("State=DOWN")
    assert until_ended(place, ONE) == (LossCause.NODE, "NODE_FAIL, NodeDown")
    assert place.present() == [], "it is not begun again"


def test_a_preempted_job_ends_so(place: SlurmPlace) -> None:
    place.create(1)
    place.until_seen(ONE)
    place.cluster.run("sbatch", "-J", "urgent", f"--account={ACCOUNT}", "-p", "night", "--exclusive", *WRAPPED)
    assert until_ended(place, ONE)[0] is LossCause.PREEMPTED


def test_a_job_that_exits_ends_with_its_code(place: SlurmPlace) -> None:
    place.settings.script_file.write_text("exit 3\n")
    assert refusal(another(place)) is None
    assert until_ended(place, ONE) == (LossCause.EXITED, "FAILED, exit code 3")


def test_the_end_of_the_time_limit_is_known_before(place: SlurmPlace) -> None:
    assert refusal(another(place, time_limit_minutes=60)) is None
    machine = place.until_seen(ONE)
    assert machine.expires_at == machine.launched + 3600


def test_a_requeued_job_is_another_machine_and_is_deleted(place: SlurmPlace) -> None:
    place.create(1)
    before = place.until_seen(ONE)
    job = place.job_id(ONE)
    refused = place.cluster.daemons.run("scontrol", "requeue", job, check=False)
    assert place.observe().machines[ONE].fingerprint == before.fingerprint, f"Slurm may not begin it again: {refused}"
    place.cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    place.cluster.run("scontrol", "requeue", job)
    gone = place.until_seen(ONE, Phase.GONE)
    assert gone.fingerprint.uid != before.fingerprint.uid
    assert gone.cause is LossCause.NODE
    assert place.delete(ONE, gone.fingerprint.uid).failure is None
    until(lambda: not place.present(), place.patience, what="its end")


def test_a_suspended_job_runs_with_a_problem(place: SlurmPlace) -> None:
    place.create(1)
    place.until_seen(ONE)
    place.cluster.run("scontrol", "suspend", place.job_id(ONE))
    snapshot = place.observe()
    assert snapshot.machines[ONE].phase is Phase.RUNNING
    assert any(ONE in problem for problem in snapshot.problems)
    place.cluster.run("scontrol", "resume", place.job_id(ONE))


def test_a_controller_that_lost_its_state_knows_no_job(place: SlurmPlace) -> None:
    place.create(1)
    before = place.until_seen(ONE).fingerprint
    place.cluster.end_controller(signal.SIGKILL)
    place.cluster.start_controller("-c")
    assert not place.observe().machines
    until(lambda: int(time.time()) > int(before.uid.rpartition(".")[2]), place.patience, what="the next second")
    place.create(1)
    assert place.observe().machines[ONE].fingerprint.differs(before)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[SlurmPlace]:
    """Yield a pool of a cluster that forgets ended jobs after two seconds."""
    if not is_installed():
        pytest.skip(NO_SLURM)
    cluster = SlurmCluster(min_job_age=2)
    made = SlurmPlace(cluster, tmp_path)
    made.settings = made.settings.model_copy(update={"account": None})
    made.backend = made.another()
    yield made
    made.proxy.__exit__(None, None, None)
    cluster.stop()


def test_an_end_is_shown_until_slurm_forgets_the_job(forgetful: SlurmPlace) -> None:
    forgetful.create(1, 2)
    forgetful.until_seen(ONE)
    forgetful.end(ONE, How.EXIT)
    assert until_ended(forgetful, ONE)[0] is LossCause.EXITED
    until(lambda: not forgetful.observe().ends, forgetful.patience, every=0.5, what="the purge")
    assert forgetful.until_seen(TWO).name == TWO


# --- failed observations ----------------------------------------------------------------------------------------------


def token(begin: float, end: float) -> str:
    claims = json.dumps({"iat": int(begin), "exp": int(end), "sun": "nobody"}).encode()
    return f"e30.{urlsafe_b64encode(claims).rstrip(b'=').decode()}.c2ln"


def test_an_expired_token_is_named_without_a_call(place: SlurmPlace) -> None:
    place.create(1)
    place.settings.token_file.write_text(token(time.time() - 1800, time.time() - 1))
    calls = len(place.proxy.exchanges)
    with pytest.raises(BackendError, match="the token has ended at") as raised:
        place.observe()
    assert raised.value.failure.error is ErrorClass.DENIED
    assert str(place.settings.token_file) in raised.value.failure.text
    assert refusal(another(place), 2) is ErrorClass.DENIED
    assert len(place.proxy.exchanges) == calls
    place.settings.token_file.write_text(f"SLURM_JWT={place.cluster.token()}\n")
    assert place.until_seen(ONE).name == ONE


def test_a_token_that_slurm_refuses_is_a_failed_observation(place: SlurmPlace) -> None:
    """If Slurm refuses the token, it responds with an empty list, as it does if slurmctld is dead. The list must not be
    taken for an empty pool."""
    place.create(1)
    place.settings.token_file.write_text(token(time.time(), time.time() + 1800))
    with pytest.raises(BackendError):
        place.observe()
    assert refusal(another(place), 2) in (ErrorClass.UNAVAILABLE, ErrorClass.DENIED)


def test_a_token_near_its_end_is_a_problem(place: SlurmPlace) -> None:
    assert place.observe().problems == ()
    place.settings.token_file.write_text(place.cluster.token(10))
    assert place.observe().problems == ()
    until(lambda: place.observe().problems, place.patience, every=0.5, what="the warning")
    assert isinstance(place.backend, SlurmBackend)
    (finding,) = place.backend.check(5.0)
    assert "the token ends at" in finding.text


def test_a_dead_controller_is_a_failed_observation(place: SlurmPlace) -> None:
    """Without slurmctld, slurmrestd responds with an empty list after 9 s. The list must not be taken for an empty
    pool."""
    place.create(1)
    backend = another(place)
    backend.observe(place.now(), {})
    place.cluster.end_controller(signal.SIGKILL)
    with pytest.raises(BackendError) as raised:
        backend.observe(place.now(), {})
    assert raised.value.failure.error is ErrorClass.UNAVAILABLE
    assert [one.status for one in place.proxy.exchanges][-1] == 500
    place.cluster.start_controller()
    assert place.until_seen(ONE).name == ONE


def test_a_controller_that_does_not_answer_is_a_failed_observation(place: SlurmPlace) -> None:
    place.create(1)
    place.observe()
    place.cluster.signal_controller(signal.SIGSTOP)
    try:
        with pytest.raises(BackendError) as raised:
            place.observe()
    finally:
        place.cluster.signal_controller(signal.SIGCONT)
    assert raised.value.failure.error.is_ambiguous
    assert place.until_seen(ONE).name == ONE


# --- calls ------------------------------------------------------------------------------------------------------------


def test_nothing_is_deleted_without_the_id_of_a_job(place: SlurmPlace) -> None:
    place.spawn_foreign("web-1")
    assert place.delete(ONE).failure is None
    assert place.delete("", "").failure is None
    assert place.delete("web-1").failure is None
    assert not [one for one in place.proxy.exchanges if one.method == "DELETE"]
    assert place.present() == ["web-1"]


def test_all_pools_of_a_cluster_share_a_list_and_no_machine(place: SlurmPlace) -> None:
    make = KIND.factory(Site("demo", PREFIX))
    first, second = (make(place.settings.model_copy(update={"name": name, "observe_seconds": 60.0})) for name in "ab")
    refused = first.create([Create(ONE, "a", "small", REQUEST)], always)[0].failure
    assert refused is None
    before = len(place.proxy.exchanges)
    assert first.observe(place.now(), {}).machines.keys() == {ONE}
    other = second.observe(place.now(), {ONE: ""})
    assert (dict(other.machines), other.name_collisions) == ({}, {ONE})
    lists = [one for one in place.proxy.exchanges[before:] if one.path.endswith("/jobs")]
    assert len(lists) == 1


def test_an_older_version_creates_shows_and_deletes(place: SlurmPlace) -> None:
    place.backend = another(place, api_version="v0.0.37", time_limit_minutes=60)
    assert [outcome.failure for outcome in place.create(1)] == [None]
    machine = place.until_seen(ONE)
    assert machine.expires_at == machine.launched + 3600
    assert place.delete(ONE, machine.fingerprint.uid).failure is None
    place.until_gone(ONE)
    assert {one.path.split("/")[2] for one in place.proxy.exchanges} == {"v0.0.37"}


def test_a_quiet_observation_is_one_call(place: SlurmPlace) -> None:
    place.create(1, 2)
    place.until_seen(ONE)
    place.until_seen(TWO)
    before = len(place.proxy.exchanges)
    place.observe()
    assert [one.path.rpartition("/")[2] for one in place.proxy.exchanges[before:]] == ["jobs"]


WRAPPED = ("-D", "/tmp", "-n", "1", "-o", "/dev/null", "--wrap", "exec sleep 1000")

"""Pending jobs of a real Slurm as demand: which jobs count, what they need, and which nodes are idle."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from provisioner.demand.slurm import Slurm
from provisioner.demand.sources import Fleet, Reading, Running, Shape, SourceError
from provisioner.testing.waiting import until
from tests.support.schedulers.slurm import NO_SLURM, SlurmCluster, is_installed

pytestmark = pytest.mark.schedulers

SMALL = {"Small": Shape(4, 64_000, 0)}
WRAPPED = ("-D", "/tmp", "-o", "/dev/null", "--wrap", "exec sleep 1000")


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Yield a cluster whose only node is a machine of ours with four processors."""
    if not is_installed():
        pytest.skip(NO_SLURM)
    cluster = SlurmCluster(cpus=4)
    monkeypatch.setenv("SLURM_CONF", cluster.daemons.environment["SLURM_CONF"])
    yield cluster
    cluster.stop()


def read(**settings: object) -> Reading:
    now = time.time()
    return Slurm.model_validate(settings).read(Fleet(now, SMALL, {"n1": Running("Small", now - 60)}))


def submit(queue: SlurmCluster, *options: str) -> str:
    """Submit a job, and return its id."""
    return queue.run("sbatch", "--parsable", *options, *WRAPPED)


def until_wanted(machines: int, **settings: object) -> Reading:
    """Wait for a reading that wants this number of machines, and return it."""
    return until(
        lambda: reading if (reading := read(**settings)).wanted.get("Small", 0) == machines else None,
        30,
        every=0.3,
        what=f"{machines} wanted machines",
    )  # type: ignore[return-value]


def test_jobs_that_wait_for_resources_want_machines(queue: SlurmCluster) -> None:
    """This cluster does not allocate memory (CR_CPU). So only processors limit the number of jobs on a machine."""
    source, now = Slurm(), time.time()
    for seconds, idle in ((0.0, {}), (30.0, {"n1": 30.0})):
        fleet = Fleet(now + seconds, SMALL, {"n1": Running("Small", now - 60)})
        assert source.read(fleet) == Reading({}, pytest.approx(idle), {})
    submit(queue, "-n", "4")
    assert until_wanted(1).idle == {}, "the node works"
    for number in range(1, 10):
        submit(queue, "-n", str(1 + number % 2))
    assert until_wanted(1 + 4), "15 processors in machines of four"
    assert read(partitions={"night": ["Small"]}).wanted == {"Small": 1}


def test_held_future_dependent_and_limited_jobs_want_nothing(queue: SlurmCluster) -> None:
    first = submit(queue, "-n", "4")
    until_wanted(1)
    submit(queue, "--hold")
    submit(queue, "--begin=now+1hour")
    submit(queue, f"--dependency=afterok:{first}")
    waiting = submit(queue)
    until(lambda: "Resources" in queue.run("squeue", "-h", "-j", waiting, "-o", "%r"), 30, what="its reason")
    assert read().wanted == {"Small": 2}


def test_jobs_count_if_all_nodes_are_down(queue: SlurmCluster) -> None:
    """All nodes are down once all machines were returned. Slurm then gives waiting jobs a reason other than
    ``Resources``, and the jobs must still count."""
    queue.run("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    submit(queue, "-n", "4")
    until_wanted(1)
    assert "DOWN" in queue.run("squeue", "-h", "-o", "%R")


def test_each_element_of_an_array_is_a_job(queue: SlurmCluster) -> None:
    """By default squeue prints an array as one line, and cuts off a long list of its elements. The source must read a
    line for each element."""
    elements = sorted({number * number % 997 for number in range(1, 300)})
    submit(queue, "-n", "4", "--array", ",".join(map(str, elements)))
    assert until_wanted(len(elements)).unfit == {}


def test_a_job_with_its_node_for_itself_wants_a_machine(queue: SlurmCluster) -> None:
    for _ in range(3):
        submit(queue, "--exclusive")
    until_wanted(3)


def test_a_job_that_no_template_holds_is_named(queue: SlurmCluster) -> None:
    large = {"Tiny": Shape(1, 64_000, 0)}
    submit(queue, "-n", "4")
    until_wanted(1)
    submit(queue, "-n", "1", "-c", "2")
    until_wanted(2)
    reading = Slurm().read(Fleet(time.time(), large, {}))
    assert (dict(reading.wanted), reading.unfit) == ({}, {"2 CPUs, 0 MB": 1})


def test_a_controller_that_does_not_answer_is_a_failed_read(queue: SlurmCluster) -> None:
    submit(queue, "-n", "4")
    until_wanted(1)
    queue.signal_controller(signal.SIGSTOP)
    try:
        with pytest.raises(SourceError, match=r"did not end within|Unable to contact|Socket timed out"):
            read(timeout_seconds=3.0)
    finally:
        queue.signal_controller(signal.SIGCONT)
    until_wanted(1)

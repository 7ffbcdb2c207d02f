"""A real slurmctld that requests its nodes from the provisioner. Its jobs run on machines of the embedded cloud, also
after stock-outs and preemptions. Our expansion of hostlists is compared with that of ``scontrol show hostnames``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.hostfactory.slurm_file import expand
from tests.support.schedulers.slurm import NO_SLURM, is_installed
from tests.support.schedulers.slurm_caller import CallingSlurm

pytestmark = [pytest.mark.schedulers, pytest.mark.skipif(not is_installed(), reason=NO_SLURM)]

STOCKOUT = [{"mode": "stockout", "target": "hf-a"}, {"mode": "stockout", "target": "hf-b"}]


def test_a_job_gets_a_machine_and_an_idle_node_gives_it_back() -> None:
    with CallingSlurm(suspend_time=5) as slurm:
        job = slurm.submit("hostname; echo ran on $SLURMD_NODENAME", "-N", "2")
        slurm.until(lambda: slurm.job(job) == "COMPLETED", 240, "the job")
        assert "ran on c1" in (slurm.daemons.directory / f"job-{job}").read_text()
        assert len(slurm.running()) == 2
        off = {"IDLE+CLOUD+POWERED_DOWN"}
        slurm.until(lambda: set(slurm.nodes().values()) == off and not slurm.running(), 240, "the return")
        assert slurm.records.read() == {}
        intent = slurm.state.intent.read()
        assert [(one.template, one.count) for one in intent.requests.values()] == [("GceVm", 2)]


def test_a_stockout_powers_the_node_down_with_the_reason_and_the_job_stays_pending() -> None:
    with CallingSlurm(resume_timeout=600) as slurm:
        slurm.cloud.faults(*STOCKOUT)
        job = slurm.submit("true")
        slurm.until(lambda: "provisioner: stockout" in slurm.reason("c1"), 240, "the reason")
        slurm.until(lambda: "DOWN" not in slurm.nodes()["c1"].replace("POWERED_DOWN", ""), 120, "the end of DOWN")
        assert slurm.job(job) in ("PENDING", "CONFIGURING")
        slurm.cloud.faults()
        slurm.until(lambda: slurm.job(job) == "COMPLETED", 240, "the job, once there is room")


def test_a_preemption_requeues_the_job() -> None:
    with CallingSlurm() as slurm:
        job = slurm.submit("sleep 1000", "--requeue")
        slurm.until(lambda: slurm.job(job) == "RUNNING", 240, "the job")
        (machine,) = slurm.running()
        slurm.cloud.preempt([machine])
        slurm.until(lambda: slurm.job(job, "Restarts") == "1", 120, "the requeue")
        slurm.until(lambda: slurm.job(job) == "RUNNING" and machine not in slurm.running(), 240, "the second start")


def test_a_node_that_never_registers_is_used_again() -> None:
    with CallingSlurm(resume_timeout=20) as slurm:
        slurm._follow_machines = lambda: None  # type: ignore[method-assign]  # no machine starts a slurmd
        slurm.submit("true", "-w", "c1")
        slurm.until(lambda: "not resumed by ResumeTimeout" in slurm.daemons.logs(), 120, "the time-out")
        slurm.until(lambda: not slurm.running() and not slurm.nodes()["c1"].startswith("DOWN"), 120, "the next use")


NAMES = st.text("abx-", min_size=1, max_size=3).filter(lambda name: name[0] != "-")
NUMBERS = st.tuples(st.integers(0, 30), st.integers(0, 4), st.integers(1, 3)).map(
    lambda drawn: f"{drawn[0]:0{drawn[2]}d}-{drawn[0] + drawn[1]}" if drawn[1] else f"{drawn[0]:0{drawn[2]}d}"
)
RANGES = st.lists(NUMBERS, min_size=1, max_size=3).map(lambda ranges: f"[{','.join(ranges)}]")
WORDS = st.one_of(
    NAMES, st.builds("{}{}".format, NAMES, RANGES), st.builds("{}{}{}{}".format, NAMES, RANGES, NAMES, RANGES)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=3).map(",".join))
def test_a_hostlist_has_the_nodes_that_slurm_itself_names(
    tmp_path_factory: pytest.TempPathFactory, hostlist: str
) -> None:
    conf = _slurm_conf(tmp_path_factory.getbasetemp())
    done = subprocess.run(
        ["scontrol", "show", "hostnames", hostlist],
        env={**os.environ, "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(expand(hostlist)) == sorted(set(done.stdout.split()))


def _slurm_conf(directory: Path) -> Path:
    """Return a configuration that scontrol accepts for commands without a controller."""
    conf = directory / "hostlists.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    return conf

"""A partition of a real Slurm cluster with slurmdbd and its limits. A proxy in front of the cluster can fail as
networks do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provisioner.backends.slurm.backend import SlurmBackend
from provisioner.backends.slurm.cluster import Cluster
from provisioner.backends.slurm.settings import SlurmPool
from provisioner.model import ErrorClass
from provisioner.testing.fault_proxy import Fault, FaultProxy
from provisioner.testing.place import PREFIX, How, Place
from provisioner.testing.waiting import until
from tests.support.schedulers.slurm import SlurmCluster

SCRIPT = """#!/bin/sh
file="{0}/env-${{SLURM_JOB_ID:-$JOB_ID}}"
env > "$file.new" && mv "$file.new" "$file"
exec sleep 1000
"""
ACCOUNT = "bank"


def environment(directory: Path, job: str) -> Mapping[str, str]:
    """Return the environment of a job. The job's script writes it into a directory of the scheduler."""
    file = directory / f"env-{job}"
    until(file.exists, 60.0, what=f"{job} has begun")
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


class OnCluster(Place):
    """The actions of other users in the partition, by Slurm's own commands.

    Here, our user also submits the jobs of the other users, because Slurm daemons without root's rights can run jobs
    only as their own user.
    """

    patience = 60.0

    def __init__(self, cluster: SlurmCluster, *rest: Any) -> None:
        """Prepare the place. ``rest``: the arguments of the next base class."""
        self.cluster = cluster
        self._undo: list[tuple[str, ...]] = []
        super().__init__(*rest)

    def undo(self) -> None:
        """Undo all changes of the cluster."""
        for command in self._undo:
            self.cluster.run(*command)
        self._undo.clear()
        self.cluster.resume_node()

    def present(self) -> list[str]:
        return [*self.jobs().values()]

    def jobs(self) -> dict[str, str]:
        """Return a dict of id → name of the jobs that have not ended. Ask Slurm's own command."""
        lines = self.cluster.run("squeue", "-h", "-t", "PD,R,CF,S,CG", "-o", "%A %j").splitlines()
        return dict(line.split(None, 1) for line in lines)  # type: ignore[misc]

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the environment that the job's script has written."""
        return environment(self.cluster.daemons.directory, self.job_id(name))

    def spawn_foreign(self, name: str) -> None:
        self._submit(name, "")

    def copy(self, name: str, as_name: str) -> None:
        self._submit(as_name, self._comment(name))

    def stray(self, name: str) -> None:
        self.cluster.run("scontrol", "update", f"JobId={self.job_id(name)}", "Comment=changed")

    def remove(self, name: str) -> None:
        self.cluster.run("scancel", self.job_id(name))
        self.until_gone(name)

    def recreate(self, name: str) -> None:
        comment = self._comment(name)
        self.remove(name)
        self._submit(name, comment)

    def hold(self) -> bool:
        """Fill the node, so that further jobs stay in the queue."""
        self._submit("fills-the-node", "", "--exclusive")
        self._until_running("fills-the-node")
        return True

    def release(self) -> None:
        self.cluster.run("scancel", self.job_id("fills-the-node"))

    def end(self, name: str, how: How) -> bool:
        """End the job by a signal to its script, or cancel it. Other ways are impossible, because they would end the
        whole node."""
        options = {How.EXIT: ("--full", "--signal=TERM"), How.KILL: ()}
        if how in options:
            self.cluster.run("scancel", *options[how], self.job_id(name))
        return how in options

    def restart(self, name: str) -> bool:
        """Let the node fail and come back. Slurm then restarts each job that does not forbid it."""
        self.node("State=DOWN")
        self.cluster.resume_node()
        return True

    def starve(self, reason: ErrorClass) -> bool:
        if reason is ErrorClass.STOCKOUT:
            self.partition("State=DOWN", "State=UP")
        else:
            self.account_limit(f"modify account {ACCOUNT} set GrpJobs=0", "GrpJobs=-1")
        return True

    def double(self, name: str) -> bool:
        self._submit(name, self._comment(name))
        return True

    def fail_creates(self, error: ErrorClass) -> None:
        user = self.cluster.user
        commands = {
            ErrorClass.QUOTA: (f"modify user {user} set MaxSubmitJobs=0", f"modify user {user} set MaxSubmitJobs=-1"),
            ErrorClass.DENIED: (f"delete user {user} account={ACCOUNT}", f"add user {user} account={ACCOUNT}"),
        }
        if error is ErrorClass.INVALID:
            self.cluster.run("scontrol", "delete", "PartitionName=grid")
            self._undo.append(("scontrol", "create", "PartitionName=grid", "Nodes=ALL"))
        else:
            act, undo = (("sacctmgr", "-i", *command.split()) for command in commands[error])
            self.cluster.run(*act)
            self._undo.append(undo)

    def account_limit(self, limit: str, end: str) -> None:
        """Set a limit by sacctmgr until the place is healed. ``end``: the value without the limit."""
        self.cluster.run("sacctmgr", "-i", *limit.split())
        self._undo.append(("sacctmgr", "-i", *limit.partition(" set ")[0].split(), "set", end))

    def partition(self, change: str, end: str) -> None:
        """Change the partition until the place is healed."""
        self.cluster.run("scontrol", "update", "PartitionName=grid", change)
        self._undo.append(("scontrol", "update", "PartitionName=grid", end))

    def node(self, state: str) -> None:
        """Change the state of the node until the place is healed."""
        self.cluster.run("scontrol", "update", "NodeName=n1", state, "Reason=test")

    def _submit(self, name: str, comment: str, *more: str) -> None:
        options = ("-J", name, f"--comment={comment}", "-p", "grid", f"--account={ACCOUNT}", "-o", "/dev/null", *more)
        self.cluster.run("sbatch", *options, "-D", "/tmp", "-n", "1", "--wrap", "exec sleep 1000")

    def _until_running(self, name: str) -> None:
        until(lambda: self.cluster.run("squeue", "-h", "-n", name, "-t", "R"), self.patience, what=f"{name} runs")

    def job_id(self, name: str) -> str:
        """Return the id of the oldest job of this name."""
        return min((job for job, of in self.jobs().items() if of == name), key=int)

    def _comment(self, name: str) -> str:
        return self.cluster.run("squeue", "-h", "-j", self.job_id(name), "-O", "Comment:200")


class SlurmPlace(OnCluster):
    """A pool of jobs, by slurmrestd."""

    pool = "hpc"

    def __init__(self, cluster: SlurmCluster, directory: Path) -> None:
        super().__init__(cluster)
        self.proxy = FaultProxy(cluster.url)
        self.proxy.__enter__()
        (directory / "token").write_text(cluster.token())
        (directory / "pilot.sh").write_text(SCRIPT.format(cluster.daemons.directory))
        self.settings = SlurmPool(
            name=self.pool,
            endpoint=self.proxy.address,
            user=cluster.user,
            token_file=directory / "token",
            script_file=directory / "pilot.sh",
            partition="grid",
            account=ACCOUNT,
            cpus=1,
            exclusive=False,
            observe_seconds=0.0,
        )
        self.backend = self.another()

    def another(self, provisioner: str = "demo", **settings: object) -> SlurmBackend:
        pool = self.settings.model_copy(update=settings)
        return SlurmBackend(pool, Cluster(pool, self.call), provisioner=provisioner, prefix=PREFIX)

    def other_pool(self) -> SlurmBackend:
        return self.another(name="hpc-other")

    def other_provisioner(self) -> SlurmBackend:
        return self.another("other")

    def close(self) -> None:
        """End all jobs and the proxy."""
        self.heal()
        self.proxy.__exit__(None, None, None)
        self.cluster.forget_jobs()

    def creates(self) -> int:
        return sum(one.path.endswith("/job/submit") for one in self.proxy.exchanges)

    def lose_responses(self) -> None:
        self.proxy.fault = Fault.LOST_ANSWER

    def hang(self) -> None:
        self.proxy.fault = Fault.HANG

    def black_out(self) -> None:
        self.proxy.fault = Fault.REFUSE

    def heal(self) -> None:
        self.proxy.fault = Fault.NONE
        self.undo()

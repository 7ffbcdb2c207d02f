"""A real slurmctld whose CLOUD nodes are machines of the embedded cloud.

slurmctld calls our programs, as HostFactory does. Each running machine of the cloud starts a slurmd, like a site's
start-up script does. All slurmds listen on this host. So the programs' scontrol turns the cloud's addresses (10.…) into
this host's (127.…), and back.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from provisioner.demand.slurm_power import SlurmPower
from provisioner.hostfactory import slurm_file
from provisioner.hostfactory.provider_config import SCRIPTS
from provisioner.lab.playground import CONFIG, Playground
from provisioner.state.directory import SLURM_NODES_FILE, StateDir
from provisioner.state.slurm_nodes import SlurmNodes
from provisioner.testing.waiting import until
from tests.support.ports import free_ports
from tests.support.schedulers.daemons import Daemons

NODES = 3
SLURM_CONF = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/spool/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1,requeue_setup_env_fail
SlurmctldParameters=power_save_interval=1,power_save_min_interval=0
SlurmdParameters=config_overrides
SlurmdTimeout=300
KillWait=1
PrivateData=cloud
DebugFlags=Power
ResumeProgram={directory}/power/slurm_resume
SuspendProgram={directory}/power/slurm_suspend
ResumeFailProgram={directory}/power/slurm_resume_fail
ResumeRate=0
SuspendRate=0
ResumeTimeout={resume_timeout}
SuspendTimeout=3
SuspendTime={suspend_time}
{nodes}
PartitionName=grid Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

CALL = """#!/bin/sh
export {environment}
exec {scripts}/"${{0##*/}}".sh "$@"
"""

SCONTROL = """#!/bin/sh
export SLURM_CONF={directory}/slurm.conf PATH=/usr/bin:/bin
case $1 in
update)
  for word; do
    shift
    case $word in nodeaddr=*) word=$(printf %s "$word" | sed 's/\\([=,]\\)10\\./\\1127./g') ;; esac
    set -- "$@" "$word"
  done
  exec scontrol "$@" ;;
*) scontrol "$@" | sed 's/NodeAddr=127\\./NodeAddr=10./' ;;
esac
"""


class CallingSlurm:
    """Slurm, the embedded cloud, a loop, and the steps of the demand service: ``with CallingSlurm() as slurm``."""

    def __init__(self, *, resume_timeout: int = 300, suspend_time: int = 600) -> None:
        """Write the configuration. Both arguments are Slurm's settings, in seconds."""
        self.daemons = Daemons({})
        self.daemons.user = getpass.getuser()  # slurmctld's programs and the loop share a state directory
        self._conf = Path(tempfile.mkdtemp(prefix="conf-", dir=self.daemons.directory)) / "conf"
        self._write_provider()
        self.cloud = Playground(self._conf)
        directory, (controller, *ports) = self.daemons.directory, free_ports(1 + NODES)
        nodes = "\n".join(
            f"NodeName=c{number} CPUs=1 RealMemory=100 Port={port} State=CLOUD" for number, port in enumerate(ports, 1)
        )
        (directory / "slurm.conf").write_text(
            SLURM_CONF.format(
                directory=directory,
                controller=controller,
                user=self.daemons.user,
                resume_timeout=resume_timeout,
                suspend_time=suspend_time,
                nodes=nodes,
            )
        )
        (directory / "power").mkdir()
        words = {**self.cloud.environment, "HF_PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}
        environment = " ".join(f"{name}={value}" for name, value in words.items())
        for name in ("slurm_resume", "slurm_suspend", "slurm_resume_fail"):
            self._write_program(f"power/{name}", CALL.format(environment=environment, scripts=SCRIPTS))
        self._write_program("scontrol", SCONTROL.format(directory=directory))
        self.daemons.own("state", "spool")
        self.daemons.environment["SLURM_CONF"] = str(directory / "slurm.conf")
        self._path = os.environ["PATH"]
        self._machines: dict[str, str] = {}
        """Node of each machine whose slurmd runs."""

    def __enter__(self) -> Self:
        try:
            self.cloud.__enter__()
            self.daemons.start("slurmctld", "slurmctld", "-D")
            until(lambda: "UP" in self.daemons.run("scontrol", "ping", check=False), 60, what="slurmctld")
        except BaseException:
            self.daemons.stop()
            raise
        self.state = StateDir(self.cloud.state)
        self.records = SlurmNodes(str(self.cloud.state / SLURM_NODES_FILE))
        settings, problems = slurm_file.load(str(self.cloud.config), ["GceVm"])
        assert problems == []
        assert settings is not None
        os.environ["PATH"] = f"{self.daemons.directory}:{self._path}"
        self._power = SlurmPower(settings, self.records, self.cloud.hf, [self.state])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.environ["PATH"] = self._path
        self.cloud.kept = False
        try:
            self.daemons.run("scancel", "--full", "--user", self.daemons.user, check=False)
            self.daemons.stop()
        finally:
            self.cloud.__exit__(kind, error, trace)

    def turn(self) -> None:
        """Start or end slurmds so that each running machine of the cloud has one. Then run one step of the demand
        service."""
        self._follow_machines()
        self._power.step()

    def until(self, condition: object, seconds: float, what: str) -> None:
        """Repeat ``turn`` until ``condition()`` is true."""
        assert callable(condition)

        def holds() -> bool:
            self.turn()
            return bool(condition())

        try:
            until(holds, seconds, every=0.5, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from error

    def submit(self, script: str, *options: str) -> str:
        """Submit a job, and return its id."""
        output = str(self.daemons.directory / "job-%j")
        return self.daemons.run("sbatch", "--parsable", "-o", output, *options, f"--wrap={script}")

    def job(self, id_: str, field: str = "JobState") -> str:
        """Return a field of a job."""
        words = self.daemons.run("scontrol", "--oneliner", "show", "job", id_).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{field}="))

    def nodes(self) -> dict[str, str]:
        """Return the state of each node, as scontrol shows it."""
        lines = self.daemons.run("scontrol", "--oneliner", "show", "nodes").splitlines()
        fields = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
        return {one["NodeName"]: one["State"] for one in fields}

    def reason(self, node: str) -> str:
        """Return the reason of a node; empty if it has none."""
        return self.daemons.run("scontrol", "--oneliner", "show", "node", node).partition(" Reason=")[2]

    def running(self) -> list[str]:
        """Return the names of the cloud's machines that run."""
        return sorted(machine["name"] for machine in self.cloud.cloud() if machine["phase"] == "running")

    def describe(self) -> str:
        """Return a text with the states and logs that explain a failed test."""
        queue = self.daemons.run("squeue", check=False)
        calls = "".join(path.read_text() for path in self.cloud.state.parent.rglob("*-provider.*.log"))
        return f"{self.nodes()}\n{queue}\n{self.records.read()}\n{self.cloud.cloud()}{self.daemons.logs()}\n{calls}"

    def _follow_machines(self) -> None:
        running = self.running()
        for gone in self._machines.keys() - set(running):
            del self._machines[gone]
            self._kill(gone)
        listed = (line.split() for line in self.daemons.run("sinfo", "-h", "-N", "-o", "%n %N").splitlines())
        nodes = {host: node for host, node in listed if host in running}
        for name in nodes.keys() - self._machines.keys():
            self._machines[name] = nodes[name]
            (self.daemons.directory / "spool" / nodes[name]).mkdir(exist_ok=True)
            self.daemons.start(name, "slurmd", "-D", "-b", "-N", nodes[name])

    def _kill(self, machine: str) -> None:
        """End a machine's slurmd and jobs at once. A real machine's end has the same effect."""
        process = self.daemons.running[machine]
        children = self.daemons.run("pgrep", "-P", str(process.pid), check=False).split()
        self.daemons.end(machine, signal.SIGKILL)
        for child in map(int, children):  # slurmstepd has left the group
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def _write_provider(self) -> None:

        shutil.copytree(CONFIG, self._conf)
        settings = yaml.safe_load((self._conf / "provisioner.yaml").read_text())
        settings["request_deadline_minutes"] = 0.25
        (self._conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))
        document = {"nodes": {f"c[1-{NODES}]": "GceVm"}}
        (self._conf / slurm_file.FILE).write_text(json.dumps(document))

    def _write_program(self, name: str, text: str) -> None:
        path = self.daemons.directory / name
        path.write_text(text)
        path.chmod(0o755)

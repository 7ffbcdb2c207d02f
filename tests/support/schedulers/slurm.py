"""A Slurm cluster with one node: slurmctld, slurmd and slurmrestd of Debian, with slurmdbd and MariaDB if asked for."""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path

from provisioner.testing.waiting import until
from tests.support.ports import free_ports
from tests.support.schedulers.daemons import Daemons

PROGRAMS = ("slurmctld", "slurmd", "slurmrestd", "scontrol", "squeue")
PACKAGES = "slurmctld slurmd slurmrestd slurm-client slurm-wlm-jwt-plugin"
NO_SLURM = f"needs Slurm (Debian's packages {PACKAGES})"

CONFIG = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={directory}/jwt.key
CredType=cred/none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
KillWait=1
MinJobAge={min_job_age}
MaxJobCount=20000
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=64000 State=UNKNOWN
PartitionName=grid Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=night Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{more}
"""

ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={accounts}
AccountingStorageEnforce=associations,limits,qos
"""

DATABASE = """
AuthType=auth/none
DbdHost=localhost
DbdPort={accounts}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StoragePort={database}
StorageUser={user}
StorageLoc=slurm_acct_db
PidFile={directory}/slurmdbd.pid
LogFile={directory}/slurmdbd.log
"""


def is_installed() -> bool:
    """Return whether Debian's Slurm is installed, with its plug-in for tokens."""
    plugins = Path("/usr/lib").glob("*/slurm-wlm/auth_jwt.so")
    return all(shutil.which(name, path="/usr/sbin:/usr/bin") for name in PROGRAMS) and any(plugins)


class SlurmCluster:
    """A running cluster of one node. ``grid`` and ``night`` are its partitions."""

    def __init__(self, *, cpus: int = 64, min_job_age: int = 300, accounting: bool = False) -> None:
        """Start the daemons. ``accounting``: with slurmdbd, which knows the account ``bank`` and enforces limits."""
        self.daemons = Daemons({})
        ports = dict(zip(("controller", "node", "rest", "accounts", "database"), free_ports(5), strict=True))
        self._rest = ports["rest"]
        directory, user = self.daemons.directory, self.daemons.user
        facts = {"directory": directory, "user": user, "cpus": cpus, "min_job_age": min_job_age, **ports}
        (directory / "jwt.key").write_bytes(secrets.token_bytes(32))
        (directory / "jwt.key").chmod(0o600)
        more = ACCOUNTING.format(**facts) if accounting else "AccountingStorageType=accounting_storage/none"
        (directory / "slurm.conf").write_text(CONFIG.format(**facts, more=more))
        (directory / "slurmdbd.conf").write_text(DATABASE.format(**facts))
        (directory / "slurmdbd.conf").chmod(0o600)
        self.daemons.own("state", "spool", "data")
        self.daemons.environment["SLURM_CONF"] = str(directory / "slurm.conf")
        try:
            if accounting:
                self._start_accounting(ports["database"])
            self.start_controller()
            self.daemons.start("slurmd", "slurmd", "-D", "-N", "n1")
            until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), 30, what=f"the node{self.daemons.logs()}")
            self._start_rest()
        except BaseException:
            self.daemons.stop()
            raise

    @property
    def url(self) -> str:
        """Return the address of slurmrestd."""
        return f"http://127.0.0.1:{self._rest}"

    @property
    def user(self) -> str:
        """Return the user who owns the jobs."""
        return self.daemons.user

    def token(self, seconds: int = 3600) -> str:
        """Return a new token of the user."""
        return self.run("scontrol", "token", f"lifespan={seconds}").removeprefix("SLURM_JWT=")

    def run(self, *argv: str) -> str:
        """Run a command of Slurm as the user of the daemons. Return its output."""
        return self.daemons.run(*argv)

    def start_controller(self, *options: str) -> None:
        """Start slurmctld, and wait until it answers."""
        self.daemons.start("slurmctld", "slurmctld", "-D", *options)
        until(lambda: "UP" in self.daemons.run("scontrol", "ping", check=False), 30, what="slurmctld")

    def end_controller(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End slurmctld."""
        self.daemons.end("slurmctld", how)

    def forget_jobs(self) -> None:
        """Cancel all jobs, and let slurmctld forget them."""
        self.run("scancel", "--full", "--user", self.user)
        until(lambda: not self.run("squeue", "-h"), 30, what="the end of all jobs")
        self.end_controller(signal.SIGKILL)
        self.start_controller("-c")
        self.daemons.running["slurmd"].send_signal(signal.SIGHUP)  # so that it registers now, not after 4 s
        until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), 30, what="the node")

    def resume_node(self) -> None:
        """If the node takes no jobs, let it take jobs again."""
        self.daemons.run("scontrol", "update", "NodeName=n1", "State=RESUME", check=False)  # fails if it does already

    def signal_controller(self, how: signal.Signals) -> None:
        """Send slurmctld a signal, for example SIGSTOP."""
        self.daemons.running["slurmctld"].send_signal(how)

    def stop(self) -> None:
        """End all jobs first, because jobs outlive slurmd. Then end all daemons."""
        if "slurmctld" in self.daemons.running:
            self.daemons.run("scancel", "--full", "--user", self.user, check=False)
            with suppress(AssertionError):
                until(lambda: not self.daemons.run("squeue", "-h", check=False), 20, what="the end of all jobs")
        self.daemons.stop()

    def _start_rest(self) -> None:
        address = f"127.0.0.1:{self._rest}"
        # Without the plug-ins named, slurmrestd loads those of slurmdbd and ends if there is none.
        versions = "openapi/v0.0.36,openapi/v0.0.37,openapi/v0.0.38"
        options = ("-s", versions, "-a", "rest_auth/jwt")
        self.daemons.start("slurmrestd", "slurmrestd", *options, address, SLURM_JWT="daemon")
        until(lambda: _listens(self._rest), 30, what="slurmrestd")

    def _start_accounting(self, port: int) -> None:
        """Start MariaDB and slurmdbd, with the cluster, an account and the user."""
        data, pipe = self.daemons.directory / "data", str(self.daemons.directory / "mariadb.sock")
        shared = ("--no-defaults", f"--datadir={data}")
        self.daemons.run("mariadb-install-db", *shared, "--auth-root-authentication-method=normal")
        options = (f"--socket={pipe}", f"--port={port}", "--bind-address=127.0.0.1", "--innodb-buffer-pool-size=64M")
        self.daemons.start("mariadbd", "mariadbd", *shared, *options)
        until(lambda: _listens(port), 60, what="MariaDB")
        users = [f"'{self.user}'@'{host}'" for host in ("localhost", "127.0.0.1")]
        rights = [f"CREATE USER {user}; GRANT ALL ON *.* TO {user};" for user in users]
        login = ("--no-defaults", f"--socket={pipe}", "-u", "root")
        self.daemons.run("mariadb", *login, "-e", "".join(rights))
        self.daemons.start("slurmdbd", "slurmdbd", "-D", MYSQL_UNIX_PORT=pipe)
        until(lambda: "test" in self._register(), 60, what=f"slurmdbd{self.daemons.logs()}")
        self.run("sacctmgr", "-i", "add", "account", "bank")
        self.run("sacctmgr", "-i", "add", "user", self.user, "account=bank")

    def _register(self) -> str:
        self.daemons.run("sacctmgr", "-i", "add", "cluster", "test", check=False)
        return self.daemons.run("sacctmgr", "-nP", "list", "cluster", "format=cluster", check=False)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

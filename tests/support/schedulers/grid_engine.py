"""A Grid Engine with one host: sge_qmaster and sge_execd of Debian, which run jobs of their own user only."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from provisioner.testing.waiting import until
from tests.support.ports import free_ports
from tests.support.schedulers.daemons import Daemons

PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qstat", "qdel", "qconf")
NO_GRID_ENGINE = "needs Grid Engine (Debian packages gridengine-master gridengine-exec gridengine-client)"
SHARED, LIBRARIES = Path("/usr/share/gridengine"), "/usr/lib/gridengine"
BOOTSTRAP = """
admin_user        {user}
default_domain    none
ignore_fqdn       false
spooling_method   berkeleydb
spooling_lib      libspoolb
spooling_params   {directory}/jobs
binary_path       /usr/sbin
qmaster_spool_dir {directory}/qmaster
security_mode     none
listener_threads  2
worker_threads    2
scheduler_threads 1
"""
HOST = "hostname localhost\n" + "".join(
    f"{name} NONE\n"
    for name in (
        *("load_scaling", "complex_values", "user_lists", "xuser_lists"),
        *("projects", "xprojects", "usage_scaling", "report_variables"),
    )
)


def is_installed() -> bool:
    """Return whether Debian's Grid Engine is installed."""
    return all(shutil.which(name, path="/usr/sbin:/usr/bin") for name in PROGRAMS)


class GridEngine:
    """A running cell with the queue ``grid`` of 64 slots on one host."""

    def __init__(self) -> None:
        """Start the daemons."""
        ports = free_ports(2)
        environment = {"SGE_CELL": "default", "SGE_ND": "1", "SGE_QMASTER_PORT": f"{ports[0]}"}
        self.daemons = Daemons({**environment, "SGE_EXECD_PORT": f"{ports[1]}"})
        directory = self.daemons.directory
        self.daemons.environment["SGE_ROOT"] = str(directory)
        common = directory / "default" / "common"
        common.mkdir(parents=True)
        (common / "bootstrap").write_text(BOOTSTRAP.format(user=self.user, directory=directory))
        (common / "act_qmaster").write_text("localhost\n")
        (common / "host_aliases").write_text(f"localhost {socket.gethostname()}\n")
        (directory / "util").symlink_to(SHARED / "util")
        (directory / "utilbin").mkdir()
        (directory / "utilbin" / "lx-amd64").symlink_to(LIBRARIES)
        self.daemons.own("jobs", "qmaster", "execd")
        try:
            self._initialise()
            self.daemons.start("sge_qmaster", "sge_qmaster")
            until(lambda: self.daemons.run("qconf", "-sh", check=False), 30, what=f"qmaster{self.daemons.logs()}")
            self._configure()
            self.daemons.start("sge_execd", "sge_execd")
            until(lambda: "lx-" in self.run("qstat", "-f"), 60, what=f"the host{self.daemons.logs()}")
        except BaseException:
            self.daemons.stop()
            raise

    @property
    def user(self) -> str:
        """Return the user who owns the jobs."""
        return self.daemons.user

    def run(self, *argv: str) -> str:
        """Run a command as the user of the daemons. Return its output."""
        return self.daemons.run(*argv)

    def forget_jobs(self) -> None:
        """End all jobs."""
        self.daemons.run("qdel", "-u", self.user, check=False)
        until(lambda: not self.run("qstat"), 60, what="the end of all jobs")

    def stop(self) -> None:
        """End all jobs and daemons."""
        self.forget_jobs()
        self.daemons.stop()

    def _initialise(self) -> None:
        """Make the tables that Debian's init_cluster makes, for a user with any id."""
        text = (SHARED / "default-configuration").read_text()
        text = text.replace("/var/spool/gridengine/execd", str(self.daemons.directory / "execd"))
        configuration = self._file("configuration", text.replace("1000", "0"))
        self.run(f"{LIBRARIES}/spoolinit", "berkeleydb", "libspoolb", str(self.daemons.directory / "jobs"), "init")
        tables = {"configuration": configuration, "managers": self.user}
        resources = SHARED / "util" / "resources"
        for table, content in {**tables, "complexes": resources / "centry", "usersets": resources / "usersets"}.items():
            self.run(f"{LIBRARIES}/spooldefaults", table, str(content))

    def _configure(self) -> None:
        """Make the host and the queue, and schedule each second."""
        self.run("qconf", "-as", "localhost")
        self.run("qconf", "-Ae", self._file("host", HOST))
        queue = {"qname": "grid", "hostlist": "localhost", "pe_list": "NONE", "slots": "64", "load_thresholds": "NONE"}
        self.run("qconf", "-Aq", self._file("queue", _changed(self.run("qconf", "-sq"), queue)))
        quick = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
        self.run("qconf", "-Msconf", self._file("scheduler", _changed(self.run("qconf", "-ssconf"), quick)))

    def _file(self, name: str, text: str) -> str:
        path = self.daemons.directory / name
        path.write_text(f"{text}\n")
        path.chmod(0o644)
        return str(path)


def _changed(text: str, changes: dict[str, str]) -> str:
    """Return a table of Grid Engine with other values."""
    rows = [[*line.split(None, 1), ""][:2] for line in text.replace("\\\n", "").splitlines()]
    return "".join(f"{name} {changes.get(name, value)}\n" for name, value in rows)

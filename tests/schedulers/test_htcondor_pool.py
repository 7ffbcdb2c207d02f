"""The source of HTCondor and the pilot with a real pool, on a machine that has ``condor_master``.

Debian 13 and later have HTCondor in the package condor. Debian 12 does not, so the gate's machines skip this file. The
file has not been run yet.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from provisioner.demand.htcondor import HTCondor
from provisioner.demand.sources import Fleet, Reading, Running, Shape, SourceError
from provisioner.testing.waiting import until
from tests.support.hostfactory.provider import ROOT
from tests.support.ports import free_ports
from tests.support.schedulers.daemons import Daemons

PROGRAMS = ("condor_master", "condor_q", "condor_rm", "condor_status", "condor_submit", "condor_config_val")
MISSING = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin") is None]
pytestmark = [
    pytest.mark.schedulers,
    pytest.mark.skipif(bool(MISSING), reason=f"needs HTCondor (package condor): no {', '.join(MISSING)}"),
]

CONFIG = """
{installed}
LOCAL_DIR = {directory}/{role}
LOG = $(LOCAL_DIR)
SPOOL = $(LOCAL_DIR)
EXECUTE = $(LOCAL_DIR)
LOCK = $(LOCAL_DIR)
RUN = $(LOCAL_DIR)
COLLECTOR_HOST = 127.0.0.1:{port}
CONDOR_HOST = 127.0.0.1
NETWORK_INTERFACE = 127.0.0.1
USE_SHARED_PORT = False
SEC_DEFAULT_AUTHENTICATION = OPTIONAL
SEC_DEFAULT_AUTHENTICATION_METHODS = FS, CLAIMTOBE
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
UPDATE_INTERVAL = 3
"""
MANAGER = "DAEMON_LIST = MASTER, COLLECTOR, NEGOTIATOR, SCHEDD\nSCHEDD_NAME = ap1\n"
JOB = "executable = /bin/sleep\narguments = 1000\nrequest_cpus = 2\nrequest_memory = 1024\n"
SHAPES = {"Small": Shape(4, 8192, 0)}


class Pool:
    """An HTCondor pool: a central manager with a schedd, and our pilots."""

    def __init__(self) -> None:
        self.daemons = Daemons({})
        (self._port,) = free_ports(1)
        names = ("RELEASE_DIR", "LIB", "LIBEXEC", "SBIN", "BIN")
        found = {name: self.daemons.run("condor_config_val", name) for name in names}
        self._installed = "\n".join(f"{name} = {value}" for name, value in found.items())
        self.config = self._write("manager", MANAGER)
        self._write("pilot", (ROOT / "deploy/machine/htcondor/pilot.conf").read_text())
        self.daemons.own("manager", "pilot")
        self.daemons.environment["CONDOR_CONFIG"] = self.config
        self.daemons.start("manager", "condor_master", "-f")
        self.source = HTCondor(timeout_seconds=20.0)

    def _write(self, role: str, more: str) -> str:
        path = self.daemons.directory / f"{role}.conf"
        base = CONFIG.format(installed=self._installed, directory=self.daemons.directory, role=role, port=self._port)
        path.write_text(base + more)
        return str(path)

    def start_pilot(self, name: str) -> None:
        """Start the entry point of a pilot's container, with room for two jobs."""
        settings = {"HF_CONDOR_HOST": f"127.0.0.1:{self._port}", "HF_TOKEN_FILE": "", "HF_MACHINE_NAME": name}
        settings |= {"HF_CPUS": "4", "HF_MEMORY_MB": "8192", "HF_READY_FILE": f"{self.daemons.directory}/ready"}
        settings |= {"CONDOR_CONFIG": f"{self.daemons.directory}/pilot.conf", "HF_POLL_SECONDS": "1"}
        self.daemons.start(name, str(ROOT / "deploy/machine/htcondor/entry.sh"), **settings)

    def submit(self, jobs: int, more: str = "") -> None:
        """Submit equal jobs."""
        path = self.daemons.directory / "job.sub"
        path.write_text(f"{JOB}{more}queue {jobs}\n")
        self.daemons.run("condor_submit", str(path))

    def read(self, *machines: str) -> Reading:
        """Read the source, as if these machines of ours were running, and return the reading."""
        now = time.time()
        return self.source.read(Fleet(now, SHAPES, {name: Running("Small", now - 60) for name in machines}))

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the condition holds. Reads may fail meanwhile, because the pool is starting."""

        def holds() -> bool:
            try:
                return bool(condition())
            except (SourceError, AssertionError, subprocess.SubprocessError):
                return False

        until(holds, 120, every=1.0, what=what)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    made = Pool()
    monkeypatch.setenv("CONDOR_CONFIG", made.config)
    try:
        made.until(lambda: "ap1" in made.daemons.run("condor_status", "-schedd", "-autoformat", "Name"), "the schedd")
        yield made
    finally:
        made.daemons.stop()


def test_jobs_want_machines_and_a_pilot_works_for_them_drains_and_leaves(pool: Pool) -> None:
    pool.submit(5)
    pool.until(lambda: pool.read().wanted == {"Small": 3}, "three machines for ten processors")
    pool.start_pilot("m1")
    pool.until(lambda: pool.read().wanted == {"Small": 2}, "two jobs that run, and three that wait")
    assert pool.read("m1").wanted == {"Small": 3}
    assert pool.read("m1").idle == {}
    pool.daemons.run("condor_rm", "-all")
    pool.until(lambda: "m1" in (pool.read("m1").idle or {}), "the end of the jobs")
    assert pool.read("m1").wanted == {}
    pool.daemons.end("m1")
    listed = ("condor_status", "-startd", "-autoformat", "HFMachine")
    pool.until(lambda: "m1" not in pool.daemons.run(*listed), "the pilot has left")


def test_an_odd_request_is_named_and_an_unknown_schedd_fails_the_read(pool: Pool) -> None:
    pool.submit(1, '+RequestGPUs = "many"\n')
    pool.submit(2)
    pool.until(lambda: pool.read().wanted == {"Small": 1}, "a machine for two jobs")
    assert sum(pool.read().unfit.values()) == 1
    with pytest.raises(SourceError, match="condor_q"):
        HTCondor(schedds=("ap9",)).read(Fleet(time.time(), SHAPES, {}))

"""The machine's own side: it joins EGO under the name HostFactory was told, is ready only then, and leaves in time.

EGO's programs are stand-ins that record how they were called and behave as they are told; the scripts run as they do in
a container and as a start-up script.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ego import put_programs
from tests.support.metadata_server import MetadataServer
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
MACHINE = ROOT / "deploy" / "machine"
NAME = "hf-k3v9x2m7qa-000004"


class Machine:
    """A host with EGO's programs, and what they were asked."""

    def __init__(self, directory: Path) -> None:
        self.ego, self.ready, self.hosts = directory / "ego", directory / "run" / "ready", directory / "hosts"
        self.library = directory / "run" / "lib.sh"
        self.log = directory / "log"
        programs = directory / "bin"
        self.ego.mkdir()
        put_programs(programs)
        self.hosts.write_text("127.0.0.1 localhost\n")
        (self.ego / "calls").touch()
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "EGO": str(self.ego),
            "HF_EGO_MASTER": "master1",
            "HF_READY_FILE": str(self.ready),
            "HF_HOSTS_FILE": str(self.hosts),
            "HF_LIBRARY": str(self.library),
            "HF_MACHINE_ADDRESS": "10.1.2.3",
            "HF_JOIN_SECONDS": "20",
            "HF_LEAVE_SECONDS": "3",
            "HF_POLL_SECONDS": "0.05",
            "HF_WATCH_SECONDS": "0.05",
            "GCE_METADATA_HOST": "127.0.0.1:1",
            "HTTP_PROXY": "http://127.0.0.1:2",
            "http_proxy": "http://127.0.0.1:2",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def behave(self, *ways: str) -> None:
        """EGO's programs do so from now on."""
        for way in ways:
            (self.ego / way).touch()

    @property
    def calls(self) -> list[str]:
        return (self.ego / "calls").read_text().splitlines()

    def start(self, script: str, **environment: str) -> subprocess.Popen[bytes]:
        """Run a script in a session of its own, as a container or a service does."""
        command = [str(MACHINE / script)] if script == "entry.sh" else ["bash", str(MACHINE / script)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env={**self.environment, **environment}, stderr=log, start_new_session=True
            )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()


def ready(machine: Machine) -> None:
    until(machine.ready.exists, 30, what="the machine is ready")


# --- a pod ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["", "grid.bank.example"], ids=["short name", "with domain"])
def test_a_pod_joins_under_the_name_hf_was_told_and_leaves_at_sigterm(machine: Machine, domain: str) -> None:
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_MACHINE_DOMAIN=domain)
    ready(machine)
    name = f"{NAME}.{domain}" if domain else NAME
    assert machine.hosts.read_text().splitlines()[1].split() == ["10.1.2.3", name, *([NAME] if domain else [])]
    assert machine.calls[:2] == ["egoconfig join master1 -f", "egosh ego start"]
    assert f"egosh resource list -o {name}" in machine.calls
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30) == 0
    assert machine.calls[-2:] == [f"egosh resource close {name}", "egosh ego shutdown -f"]
    assert not machine.ready.exists()


def test_it_is_not_ready_before_ego_has_it(machine: Machine) -> None:
    machine.behave("slow")
    machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    until(lambda: sum("resource list" in call for call in machine.calls) > 3, 30, what="EGO is asked again and again")
    assert not machine.ready.exists()
    machine.behave("up")
    ready(machine)


def test_a_refused_join_is_tried_again(machine: Machine) -> None:
    machine.behave("refuses-join")
    machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    ready(machine)
    assert machine.calls.count("egoconfig join master1 -f") == 2


def test_what_never_joins_ends_with_a_failure_and_was_never_ready(machine: Machine) -> None:
    machine.behave("never-joins")
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME, HF_JOIN_SECONDS="1")
    assert pod.wait(timeout=30) == 1
    assert not machine.ready.parent.exists()
    assert f"did not join master1 as {NAME} within 1 s" in machine.log.read_text()


def test_without_a_master_it_says_what_to_name(machine: Machine) -> None:
    assert machine.start("entry.sh", HF_EGO_MASTER="").wait(timeout=30) == 1
    assert "HF_EGO_MASTER is not set" in machine.log.read_text()


def test_told_to_end_while_it_joins_it_leaves(machine: Machine) -> None:
    machine.behave("slow")
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    until(lambda: any("resource list" in call for call in machine.calls), 30, what="it joins")
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30) == 0
    assert machine.calls[-1] == "egosh ego shutdown -f"


def test_a_join_that_hangs_keeps_nobody_from_leaving(machine: Machine) -> None:
    """The programs are given 30 s, more than the pod has."""
    machine.behave("hangs")
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    until(lambda: machine.calls, 30, what="it joins")
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=20) == 0


def test_where_ego_does_not_let_go_it_ends_all_the_same(machine: Machine) -> None:
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    ready(machine)
    machine.behave("refuses-leave")
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30) == 0
    assert f"EGO did not let {NAME} go within 3 s" in machine.log.read_text()


def test_a_pod_that_ego_no_longer_has_fails(machine: Machine) -> None:
    pod = machine.start("entry.sh", HF_MACHINE_NAME=NAME)
    ready(machine)
    (machine.ego / "up").unlink()
    assert pod.wait(timeout=30) == 1
    assert not machine.ready.exists()


# --- an instance of a group -------------------------------------------------------------------------------------------


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    attributes = {"hf-machine-lib": (MACHINE / "lib.sh").read_text(), "hf-ego-master": "master2"}
    values = {f"instance/attributes/{name}": value for name, value in attributes.items()}
    values |= {"instance/name": NAME, "instance/network-interfaces/0/ip": "10.9.8.7", "instance/preempted": "FALSE"}
    with MetadataServer(values) as server:
        yield server


@pytest.mark.parametrize("domain", ["", "c.p.internal"], ids=["short name", "with domain"])
def test_an_instance_joins_under_its_name_and_leaves_when_it_is_preempted(
    machine: Machine, metadata: MetadataServer, domain: str
) -> None:
    if domain:
        metadata.values["instance/attributes/hf-machine-domain"] = domain
    instance = machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    name = f"{NAME}.{domain}" if domain else NAME
    assert machine.calls[0] == "egoconfig join master2 -f"
    assert machine.hosts.read_text().splitlines()[1].split()[:2] == ["10.9.8.7", name]
    assert metadata.waiting.wait(30)
    metadata.change("instance/preempted", "TRUE")
    assert instance.wait(timeout=30) == 0
    assert machine.calls[-2:] == [f"egosh resource close {name}", "egosh ego shutdown -f"]
    asked = len(machine.calls)
    assert machine.start("shutdown.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30) == 0
    assert len(machine.calls) == asked, "it has left already"


def test_with_the_line_of_its_page_setup_makes_templates_whose_instances_join(
    machine: Machine, metadata: MetadataServer
) -> None:
    page = (ROOT / "docs" / "deploy-machine.md").read_text()
    (options,) = re.findall(r"\n( +--startup-script (?:.*\\\n)*.*)\n", page)
    setup = f"deploy/gcp/setup.sh --project=p --region=us-central1 --group=a:us-central1-a {options}"
    printed = subprocess.run(["bash", "-euc", setup], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in printed.splitlines() if "instance-templates create" in line]
    given = {name: pairs.split(",") for name, _, pairs in (word.partition("=") for word in shlex.split(line))}
    attributes = dict(pair.split("=") for pair in given["--metadata"])
    files = dict(pair.split("=") for pair in given["--metadata-from-file"])
    assert files["startup-script"] == "deploy/machine/startup.sh"
    assert files["shutdown-script"] == "deploy/machine/shutdown.sh"
    attributes |= {name: (ROOT / path).read_text() for name, path in files.items()}
    for name in ("hf-machine-lib", "hf-ego-master"):
        del metadata.values[f"instance/attributes/{name}"]
    metadata.values |= {f"instance/attributes/{name}": value for name, value in attributes.items()}
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    assert machine.calls[0] == "egoconfig join master1.bank.example -f"


def test_a_preemption_that_was_announced_before_anybody_listened_is_heard(
    machine: Machine, metadata: MetadataServer
) -> None:
    metadata.values["instance/preempted"] = "TRUE"
    assert machine.start("startup.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30) == 0
    assert machine.calls[-1] == "egosh ego shutdown -f"


def test_the_shutdown_script_leaves(machine: Machine, metadata: MetadataServer) -> None:
    assert machine.start("shutdown.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30) == 0
    assert machine.calls == [], "it never joined"
    machine.start("startup.sh", GCE_METADATA_HOST=metadata.host)
    ready(machine)
    assert machine.start("shutdown.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30) == 0
    assert machine.calls[-2:] == [f"egosh resource close {NAME}", "egosh ego shutdown -f"]


def test_an_instance_whose_template_lacks_its_settings_says_which(machine: Machine, metadata: MetadataServer) -> None:
    for name in ("hf-ego-master", "hf-machine-lib"):
        del metadata.values[f"instance/attributes/{name}"]
        assert machine.start("startup.sh", GCE_METADATA_HOST=metadata.host).wait(timeout=30) == 1
        assert f"the instance template lacks {name}" in machine.log.read_text()


def test_an_instance_that_never_joins_says_so(machine: Machine, metadata: MetadataServer) -> None:
    machine.behave("never-joins")
    instance = machine.start("startup.sh", GCE_METADATA_HOST=metadata.host, HF_JOIN_SECONDS="1")
    assert instance.wait(timeout=30) == 1
    assert not machine.ready.exists()

"""The loop as an EGO service, on two hosts that share a directory. The test runs the service definition of our page as
EGO would run it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from provisioner.lab.cloud.server import Simulator
from provisioner.state.directory import StateDir
from tests.support.broken_libraries import broken_libraries
from tests.support.bundles import shared, unpacked
from tests.support.hostfactory.sites import template
from tests.support.hosts import PYTHON, ROOT
from tests.support.scratch_host import ScratchHost
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: users are made"),
]

PAGE = (ROOT / "docs" / "deploy-host.md").read_text()
EGO = "{http://www.platform.com/ego/2005/05/schema}"
SPACE = "symphony"
LOG = "/var/log/hostfactory/loop.out"


class ManagementHost(ScratchHost):
    """A host with EGO's user and our programs, which install.sh installs as on the page. The hosts share the directory
    ``top``.

    ``libraries``: the directory of libraries that EGO's profile exports.
    """

    def __init__(self, bundle: Path, top: Path, libraries: str) -> None:
        super().__init__()
        self._bundle, self.top, self._libraries = bundle, top, libraries

    def install(self) -> None:
        self.run(f"useradd --create-home egoadmin; {self._bundle}/install.sh --python {PYTHON}")

    def typed(self, line: str) -> str:
        """Run a line of the page as HostFactory's user, from the user's home and with the user's profile. Return the
        output."""
        profile = f"export HF_TOP={self.top}\n"
        return self.run(profile + line, "runuser", "-u", "egoadmin", "--", directory="/home/egoadmin")

    def start_service(self) -> None:
        """Start the command of the service definition as EGO does, with the definition's variables, umask, directory,
        user and groups."""
        (given,) = ElementTree.parse(self.path("/home/egoadmin/HostFactoryProvisioner.xml")).iter(
            f"{EGO}ActivitySpecification"
        )
        definition = {
            name: given.findtext(f"{EGO}{name}", "")
            for name in ("Command", "ExecutionUser", "Umask", "WorkingDirectory")
        }
        variables = [f"{one.get('name')}={one.text}" for one in given.iter(f"{EGO}EnvironmentVariable")]
        variables.append(f"LD_LIBRARY_PATH={self._libraries}")
        user = definition["ExecutionUser"]
        group = f"$(id --group {user})"
        change = f"setpriv --reuid {user} --regid {group} --init-groups env -i {shlex.join(variables)}"
        begin = f"setsid {change} {definition['Command']} </dev/null >/var/ego.out 2>&1 & echo $! >/var/pid"
        self.run(f"umask {definition['Umask']}; {begin}", directory=definition["WorkingDirectory"])

    def kill_service(self) -> None:
        """Kill the loop, as if its host died."""
        file = self.path("/var/pid")
        if file.exists():
            number = int(file.read_text())
            file.unlink()
            with suppress(ProcessLookupError):  # it has ended by itself, which a script's answer shows
                os.kill(number, signal.SIGKILL)
            until(lambda: not Path(f"/proc/{number}/fd").exists(), 30, what="the loop has ended")

    @property
    def log(self) -> str:
        """Return the log of the loop on this host."""
        return self.path(LOG).read_text() if self.path(LOG).exists() else ""

    def call(self, script: str, document: dict[str, Any]) -> dict[str, Any]:
        """Call a script on this host as HostFactory does, and return its answer."""
        place = "providers/gcpinst"
        variables = f"HF_PROVIDER_NAME=gcpinst HF_PROVIDER_CONFDIR={self.top}/conf/{place}"
        variables += f" HF_PROVIDER_WORKDIR={self.top}/work/{place} HF_PROVIDER_LOGDIR={self.top}/log"
        variables += f" LD_LIBRARY_PATH={self._libraries}"
        script = f"/opt/provisioner/hf_scripts/{script}.sh"
        answer: dict[str, Any] = json.loads(self.typed(f"{variables} {script} {shlex.quote(json.dumps(document))}"))
        return answer

    def request(self, count: int) -> str:
        """Request machines, and return the id of the request."""
        return str(self.call("requestMachines", {"template": {"templateId": "T", "machineCount": count}})["requestId"])

    def complete(self, id_: str) -> list[str]:
        """Wait until a request or return request is complete. Return the names of its machines."""

        def entry() -> dict[str, Any]:
            answer: dict[str, Any] = self.call("getRequestStatus", {"requests": [{"requestId": id_}]})["requests"][0]
            return answer

        until(lambda: entry()["status"] == "complete", 60, every=0.3, what=f"{id_} is complete")
        return [machine["name"] for machine in entry()["machines"]]


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE]) as running:
        running.impose(timings={"gke": dict.fromkeys(("schedule", "start", "ready", "stop", "confirm"), 0.05)})
        yield running


@pytest.fixture
def hosts(simulator: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ManagementHost, ...]]:
    """Yield two hosts that share a directory with the instance's files. Both have the service definition from the
    page."""
    with TemporaryDirectory() as directory, ExitStack() as opened:
        shared_place = Path(directory)
        shared_place.chmod(0o755)
        bundle = unpacked(shared(tmp_path_factory), shared_place)
        top = shared_place / "hf"
        libraries = broken_libraries(shared_place / "broken")
        made = [opened.enter_context(ManagementHost(bundle, top, libraries)) for _ in range(2)]
        for host in made:
            host.install()
        number = int(made[0].run("id --user egoadmin"))
        configure(top, simulator)
        for path in (top, *top.rglob("*")):
            os.chown(path, number, number)
        (line,) = re.findall(r"(?m)^ +(sed .*@HF_TOP@.*)$", PAGE)
        for host in made:
            host.typed(line)
            opened.callback(host.kill_service)
        yield tuple(made)


def configure(top: Path, simulator: Simulator) -> None:
    """Write the instance's files. The loop listens on any free port, because both loops of the test run on one real
    host."""
    conf = top / "conf" / "providers" / "gcpinst"
    conf.mkdir(parents=True)
    for place in (top / "work" / "providers" / "gcpinst", top / "log"):
        place.mkdir(parents=True)
    pool = {"kind": "gke", "namespace": SPACE, "pod_spec": "pod.yaml", "kubeconfig": "kubeconfig"}
    settings = {"listen": "127.0.0.1:0", "loop": {"interval_seconds": 1, "floor_seconds": 0.1}, "pools": {"main": pool}}
    (conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))
    (conf / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
    (conf / "gcpinstprov_templates.json").write_text(json.dumps([template("T", pools=["main"])]))
    (conf / "kubeconfig").write_text(simulator.kubeconfig.read_text())


def test_where_the_loop_s_host_dies_another_host_s_loop_goes_on_with_its_requests(
    hosts: tuple[ManagementHost, ...], simulator: Simulator
) -> None:
    first, second = hosts
    state = StateDir(first.top / "work" / "providers" / "gcpinst")
    first.start_service()
    kept = first.complete(first.request(2))
    epoch = state.loop_lock.epoch()
    first.kill_service()
    more, returned = second.request(1), second.call("requestReturnMachines", {"machines": [{"name": kept[0]}]})
    second.start_service()
    second.complete(str(returned["requestId"]))
    left = {kept[1], *second.complete(more)}
    until(lambda: {one["name"] for one in simulator.state()["machines"]} == left, 30, what="exactly these are left")
    assert state.loop_lock.epoch() == epoch + 1
    assert ["Provisioner started" in host.log for host in hosts] == [True, True]
    for host in hosts:
        assert host.run(f"stat --format '%U:%G %a' {LOG}") == "egoadmin:hostfactory 660\n", "logrotate empties it"

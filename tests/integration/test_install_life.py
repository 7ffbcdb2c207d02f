"""The life of an installation of real bundles: it rents machines, is upgraded, rolled back and removed. Other tests use
installations of scripts without a loop."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from provisioner.state.database import SCHEMA
from tests.conformance.stage import TIMINGS, Instance, template
from tests.support.hostfactory.in_process import asking
from tests.support.hostfactory.provider import HostFactory
from tests.support.installs import NEWER, PREFIX, Bundles, both_bundles, done, open_root, versions
from tests.support.waiting import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""The tests are slow because they download packages from a package index."""

SPACE = "grid"
STARTED = '"Provisioner started"'
TOO_NEW = f"has schema version {SCHEMA + 1}, this provisioner knows up to {SCHEMA}"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundles]:
    with both_bundles(tmp_path_factory) as made:
        yield made


@pytest.fixture
def cloud() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE], conditions=Conditions.of(timings=TIMINGS)) as running:
        yield running


def configure(hf: HostFactory) -> None:
    """Write a configuration with a pool of pods and a template for this pool."""
    pool = {"kind": "gke", "namespace": SPACE, "pod_spec": "pod.yaml", "observe_seconds": 0.05}
    loop = {"interval_seconds": 0.1, "floor_seconds": 0.02, "intent_poll_seconds": 0.02}
    (hf.conf / "provisioner.yaml").write_text(json.dumps({"id": "demo", "loop": loop, "pools": {"pool": pool}}))
    (hf.conf / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
    hf.templates_file.write_text(json.dumps([template("T", pools=["pool"])]))


class Installed(HostFactory):
    """A provider instance that uses the scripts, commands and loop installed below a root. A context manager, at whose
    end the loop ends."""

    def __init__(self, directory: Path, root: Path, cloud: Simulator) -> None:
        super().__init__(directory, instance="demo")
        configure(self)
        self.root, self.cloud = root, cloud
        self.scripts = root / PREFIX / "hf_scripts"
        self._loop: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def words(self, *arguments: str) -> list[str]:
        """Return a command line that runs the installed program in the environment of a service."""
        variables = self.environment | {"KUBECONFIG": str(self.cloud.kubeconfig)}
        program = str(self.root / PREFIX / "bin" / "provisioner")
        return ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), program, *arguments]

    def provisioner(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the installed program."""
        return subprocess.run(
            self.words(*arguments), cwd="/", capture_output=True, text=True, check=False, timeout=120 * PATIENCE
        )

    def start(self, version: str) -> None:
        """Start the loop. Check that its program has this version."""
        file = self.work.parent / "loop.log"
        file.touch()
        started = file.read_text().count(STARTED)
        with file.open("ab") as log:
            self._loop = subprocess.Popen(
                self.words("run", "--listen", "127.0.0.1:0"), cwd="/", stdout=log, stderr=subprocess.STDOUT
            )
        until(lambda: file.read_text().count(STARTED) > started, 60, what="the loop runs")
        assert f"/versions/{version}/" in Path(f"/proc/{self._loop.pid}/maps").read_text()

    def stop(self) -> None:
        """End the loop, as ``systemctl stop`` does."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.terminate()
            try:
                assert loop.wait(60 * PATIENCE) == 0
            finally:
                loop.kill()
                loop.wait()

    def terminal_answer(self, id_: str) -> str:
        """Wait until a request or return request is complete. Return the answer that HostFactory gets."""
        asked = self.command("getRequestStatus", asking(id_))

        def text() -> str:
            answer = self.run(asked)
            return answer.out if answer.document["requests"][0]["status"] == "complete" else ""

        return until(text, 60, every=0.2, what=f"{id_} is complete")

    def rent(self) -> tuple[str, str]:
        """Request one machine, and wait for it. Return the ids of the request and the machine."""
        id_ = self.request("T", 1)
        (machine,) = json.loads(self.terminal_answer(id_))["requests"][0]["machines"]
        return id_, machine["name"]

    def machines(self) -> set[str]:
        """Return the machines in the cloud."""
        return {machine["name"] for machine in self.cloud.state()["machines"]}


@pytest.fixture
def root() -> Iterator[Path]:
    with open_root() as made:
        yield made


@pytest.fixture
def installed(bundles: Bundles, cloud: Simulator, root: Path, tmp_path: Path) -> Iterator[Installed]:
    """Install the old version, and yield it with a running loop."""
    printed = done(bundles.old, root=root)
    assert f"Version {bundles.version} runs from now on: scriptPath of HostFactory's plug-in is /opt/provisioner/" in (
        printed
    )
    with Installed(tmp_path, root, cloud) as hf:
        hf.start(bundles.version)
        yield hf


def test_a_version_is_installed_upgraded_taken_back_and_removed_while_machines_are_rented(
    bundles: Bundles, installed: Installed
) -> None:
    hf, root, old = installed, installed.root, bundles.version
    unit = root / "usr/lib/systemd/system/provisioner.service"
    assert "ExecStart=/opt/provisioner/bin/provisioner run" in unit.read_text()
    rotation = root / "etc/logrotate.d/provisioner"
    mine = rotation.read_text() + "# mine\n"
    rotation.write_text(mine)
    assert f"Version {old} is built already" in done(bundles.old, root=root)
    first, machine = hf.rent()
    answer = hf.terminal_answer(first)
    dump = hf.work.parent / "before.tar.gz"
    assert hf.provisioner("dump", str(dump)).returncode == 0

    assert f"{rotation}: left as it is, yours" in done(bundles.new, "upgrade", root=root)
    assert versions(root) == [old, NEWER]
    assert f"rollback goes to {old}" in done(bundles.new, "status", root=root)
    assert hf.terminal_answer(first) == answer, "scripts of the new version, while the old loop runs"
    hf.stop()
    hf.start(NEWER)
    second, kept = hf.rent()
    return_id = hf.return_machines(machine)
    answers = {id_: hf.terminal_answer(id_) for id_ in (first, second, return_id)}

    done(bundles.new, "rollback", root=root)
    assert versions(root) == [old, NEWER]
    hf.stop()
    hf.start(old)
    third, more = hf.rent()
    assert {id_: hf.terminal_answer(id_) for id_ in answers} == answers, "the older one reads what the newer one wrote"
    assert hf.machines() == {kept, more}
    answers[third] = hf.terminal_answer(third)

    hf.stop()
    done(bundles.new, "rollback", root=root)
    another_format(root)
    hf.start(NEWER)
    hf.rent()
    hf.stop()
    refused_until_restored(hf, bundles, dump)
    hf.start(old)
    assert {id_: hf.terminal_answer(id_) for id_ in answers} == answers
    hf.stop()

    state = {path.name: path.read_bytes() for path in hf.work.glob("*.json")}
    done(bundles.new, "uninstall", root=root)
    assert not (root / PREFIX).exists()
    assert not unit.exists()
    assert rotation.read_text() == mine
    assert {path.name: path.read_bytes() for path in hf.work.glob("*.json")} == state


def another_format(root: Path) -> None:
    """Change the installed newer version, so that it stores the state in another format."""
    (file,) = (root / PREFIX / "current").glob("lib/*/site-packages/provisioner/state/database.py")
    text = file.read_text()
    assert text.count(f"SCHEMA = {SCHEMA}\n") == 1
    file.write_text(text.replace(f"SCHEMA = {SCHEMA}\n", f"SCHEMA = {SCHEMA + 1}\n"))


def refused_until_restored(hf: Installed, bundles: Bundles, dump: Path) -> None:
    """Roll back, and check that the older version refuses the state of the newer version. Then restore the earlier
    dump."""
    written = {path: path.read_bytes() for path in hf.work.glob("*.json")}
    done(bundles.new, "rollback", root=hf.root)
    request = {"template": {"templateId": "T", "machineCount": 1}}
    assert TOO_NEW in hf.run(hf.command("requestMachines", request)).refusal
    for command in (("run", "--once", "--listen", "127.0.0.1:0"), ("status",)):
        ended = hf.provisioner(*command)
        assert ended.returncode == 1
        assert TOO_NEW in ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
    assert {path: path.read_bytes() for path in hf.work.glob("*.json")} == written
    restored = hf.provisioner("restore", "--yes", str(dump))
    assert restored.returncode == 0, restored.stdout + restored.stderr


def test_scripts_without_a_loop_work_with_one_of_another_installation(
    bundles: Bundles, cloud: Simulator, root: Path, tmp_path: Path
) -> None:
    """The scripts of an installation without a loop must work with a loop that runs elsewhere, for example in a pod.
    Here, the loop of the clone stands for it."""
    done(bundles.new, "--scripts-only", root=root)
    with Instance(tmp_path, cloud, SPACE, instance="demo") as hf:
        configure(hf)
        hf.scripts = root / PREFIX / "hf_scripts"
        hf.start_loop()
        assert [one["templateId"] for one in hf.call("getAvailableTemplates", {})["templates"]] == ["T"]
        returned, taken = hf.complete(2, "T")
        assert hf.cloud() == sorted([returned, taken])
        assert hf.ended(hf.return_machines(returned))["status"] == "complete"
        cloud.preempt(taken)
        hf.reclaims(taken)
        found = hf.run([str(hf.scripts / "check_install.sh")])
        alone = subprocess.run(
            [root / PREFIX / "bin" / "provisioner", "run"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PATIENCE,
        )

    assert f"fine: {hf.work}: the loop runs\n" in found.out
    assert found.out.count(".sh: answers\n") == 5
    assert (alone.returncode, "Traceback" in alone.stderr) == (2, False)
    assert alone.stderr.endswith("): run the bundle's install.sh without --scripts-only\n")

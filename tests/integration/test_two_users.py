"""HostFactory's user and the loop's are two, and share the state directory by a group.

Neither owns the other's files, and either has a umask that lets nobody in.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.simulator.server import Simulator
from provisioner.tools.playground import SCRIPTS
from tests.support.hostfactory.sites import template
from tests.support.hosts import environment_on
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become two users"),
]

HF_USER, LOOP_USER, GROUP = 65501, 65502, 65500
OWN_GROUP = {HF_USER: 65503, LOOP_USER: 65504}
SPACE = "symphony"


class Sides:
    """HostFactory's scripts as one user, the loop as another."""

    def __init__(self, directory: Path, simulator: Simulator) -> None:
        directory.chmod(0o755)
        self.state, self._log, conf = (directory / name for name in ("state", "log", "conf"))
        for shared in (self.state, self._log):
            shared.mkdir()
            os.chown(shared, 0, GROUP)
            shared.chmod(0o2770)
        conf.mkdir()
        self._python = directory / "python"
        self._python.mkdir()
        program = environment_on(self._python, directory / "environment")
        shutil.copyfile(simulator.kubeconfig, conf / "kubeconfig")
        pool = {"kind": "gke", "namespace": SPACE, "pod_spec": "pod.yaml", "kubeconfig": "kubeconfig"}
        settings = {"id": "demo", "loop": {"interval_seconds": 1, "floor_seconds": 0.1}, "pools": {"gke-main": pool}}
        (conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))
        (conf / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
        (conf / "demoprov_templates.json").write_text(json.dumps([template("T", pools=["gke-main"])]))
        self._environment = {
            "PATH": os.environ["PATH"],
            "HF_PYTHON": str(program),
            "LD_LIBRARY_PATH": str(self._python / "lib"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_PROVIDER_NAME": "demo",
            "HF_PROVIDER_CONFDIR": str(conf),
            "HF_PROVIDER_WORKDIR": str(self.state),
            "HF_PROVIDER_LOGDIR": str(self._log),
        }
        self._loop: subprocess.Popen[bytes] | None = None

    def call(self, script: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """What a script prints that HostFactory's user calls."""
        command = self._as(HF_USER, os.path.join(SCRIPTS, f"{script}.sh"), json.dumps(document))
        done = subprocess.run(
            command, env=self._environment, cwd="/", capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def request(self, count: int) -> str:
        """The id of a request."""
        return str(self.call("requestMachines", {"template": {"templateId": "T", "machineCount": count}})["requestId"])

    def give_back(self, names: list[str]) -> str:
        """The id of a return."""
        return str(self.call("requestReturnMachines", {"machines": [{"name": name} for name in names]})["requestId"])

    def complete(self, id_: str) -> list[str]:
        """The machines of a request or return once it is complete."""

        def entry() -> dict[str, Any]:
            answer: dict[str, Any] = self.call("getRequestStatus", {"requests": [{"requestId": id_}]})["requests"][0]
            return answer

        until(lambda: entry()["status"] == "complete", 60, what=f"{id_} is complete")
        return [machine["name"] for machine in entry()["machines"]]

    def start(self) -> None:
        """The loop, as its own user."""
        python = self._environment["HF_PYTHON"]
        command = self._as(LOOP_USER, python, "-m", "provisioner", "run", "--listen", "127.0.0.1:0")
        self._loop = subprocess.Popen(command, env=self._environment, cwd="/")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the loop."""
        if self._loop is not None:
            self._loop.send_signal(how)
            self._loop.wait(30)

    def _as(self, user: int, *words: str) -> list[str]:
        """The words as a user runs them, with our Python mounted where he can go."""
        mount = f'mount --make-rprivate /; mount --bind {sys.base_prefix} {self._python}; umask 077; exec "$@"'
        change = [f"--reuid={user}", f"--regid={OWN_GROUP[user]}", f"--groups={GROUP}", "--no-new-privs"]
        return ["unshare", "-m", "sh", "-ec", mount, "side", "setpriv", *change, "--", *words]


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE]) as running:
        running.impose(timings={"gke": dict.fromkeys(("schedule", "start", "ready", "stop", "confirm"), 0.05)})
        yield running


@pytest.fixture
def sides(simulator: Simulator) -> Iterator[Sides]:
    with tempfile.TemporaryDirectory() as directory:
        made = Sides(Path(directory), simulator)
        yield made
        made.stop()


def test_two_users_of_a_group_write_one_state_directory(sides: Sides, simulator: Simulator) -> None:
    first = sides.request(2)  # the scripts come first, then the loop does in what they made
    sides.start()
    names = sides.complete(first)
    sides.stop(signal.SIGKILL)
    back, more = sides.give_back(names[:1]), sides.request(1)
    sides.start()
    sides.complete(back)
    kept = {names[1], *sides.complete(more)}
    until(lambda: {one["name"] for one in simulator.state()["machines"]} == kept, 30, what="exactly these are left")
    sides.stop()

    made = [(path, path.stat()) for path in sides.state.rglob("*") if not path.is_symlink()]
    assert {stat.st_uid for _, stat in made} == {HF_USER, LOOP_USER}
    assert {path.name: stat.st_gid for path, stat in made if stat.st_gid != GROUP} == {}
    closed = {path.name: oct(stat.st_mode) for path, stat in made if stat.st_mode & 0o067 != 0o060}
    assert closed == {}

"""Loops whose state is in the API server fail in the middle of a request. The next loop must finish the request.

The pods are real, and calls for pods do not use the proxy. So a loop that is cut off from its state can still reach its
pool.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.state.kube.api_login import from_kubeconfig
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.lease import KubeTurn
from tests.kube.cluster import kubeconfig
from tests.kube.provider_instance import TEMPLATE, Grid
from tests.kube.proxy import Proxy, Trouble
from tests.kube.space import Space
from tests.support.waiting import PATIENCE, until

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("state_kinds")]

MACHINES = 30
FAULTS = ("killed", "stopped", "cut off")


class Replicas:
    """Two loops of one provider instance. The first reaches its state through a proxy."""

    def __init__(self, space: Space, proxy: Proxy, directory: Path) -> None:
        self._proxy = proxy
        token = space.admin.headers["Authorization"].removeprefix("Bearer ")
        ways = [(proxy.address, proxy.ca), (space.admin.server, Path(str(space.admin.ca)))]
        self.grids = [Grid(directory / str(number), space) for number in range(2)]
        for grid, (server, ca) in zip(self.grids, ways, strict=True):
            (grid.conf / "state-kubeconfig").write_text(json.dumps(kubeconfig(server, token, ca=ca)))
            state = {"STATE": f"kubernetes:{space.name}", "STATE_KUBECONFIG": "state-kubeconfig"}
            (grid.conf / "demoprov_config.json").write_text(json.dumps(state))
        self.hf = self.grids[1]
        file = str(self.hf.conf / "state-kubeconfig")
        self._turn = KubeTurn(ApiServer(lambda: from_kubeconfig(file), space.name), "demo")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        grid = self.grids[len(self.processes)]
        with (grid.logs / "loop.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "provisioner", "run", "--listen", "127.0.0.1:0"],
                env={**os.environ, **grid.hf.environment},
                cwd=grid.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def until_leads(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        until(lambda: self._leads(process), seconds, every=0.2, what="the loop leads")

    def _leads(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, self.logs()
        return self._turn.holder().get("pid") == process.pid

    def logs(self) -> str:
        return "\n".join((grid.logs / "loop.log").read_text()[-2000:] for grid in self.grids[: len(self.processes)])

    def fail(self, process: subprocess.Popen[bytes], fault: str) -> None:
        match fault:
            case "killed":
                process.kill()
            case "stopped":
                process.send_signal(signal.SIGSTOP)
            case "cut off":
                self._proxy.trouble = Trouble.HANG
                self._proxy.cut()

    def end_fault(self, process: subprocess.Popen[bytes], fault: str) -> None:
        """End the fault. Check that the first loop ends by itself, because it has lost its Lease, unless the fault
        killed it."""
        self._proxy.trouble = Trouble.NONE
        process.send_signal(signal.SIGCONT)
        assert process.wait(60 * PATIENCE) != 0
        assert fault == "killed" or "lost its lock" in self.logs()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        print(self.logs())


@pytest.fixture
def replicas(space: Space, proxy: Proxy, tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(space, proxy, tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_in_progress_is_finished_by_the_next_loop(replicas: Replicas, space: Space, fault: str) -> None:
    first = replicas.start()
    replicas.until_leads(first, 60.0)
    second = replicas.start()
    until(lambda: "Standing by" in replicas.logs(), 60.0, what="the second loop stands by")
    id_ = replicas.hf.hf.request(TEMPLATE, MACHINES)
    until(lambda: len(space.names()) > 0, 60.0, every=0.01, what="the first machine is made")
    replicas.fail(first, fault)
    replicas.until_leads(second, 20.0)
    answer = replicas.hf.ended(id_, 120)
    replicas.end_fault(first, fault)
    assert answer["status"] == "complete"
    names = {machine["name"] for machine in answer["machines"]}
    assert len(names) == MACHINES
    until(lambda: space.names() == names, 60.0, what="no machine is doubled")
    assert replicas.hf.hf.status(id_) == answer, "a terminal answer stays"
    back = replicas.hf.ended(replicas.hf.hf.return_machines(sorted(names)), 120)
    assert back["status"] == "complete"
    until(lambda: space.names() == set(), 60.0, what="no machine is left")

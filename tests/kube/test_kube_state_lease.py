"""The loop's Lease and the caches on a real API server.

The loops are real processes that are killed, stopped or cut off.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from provisioner.state.kube.api_login import from_kubeconfig
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.lease import KubeTurn
from tests.kube.cluster import Cluster, kubeconfig
from tests.kube.proxy import Proxy, Trouble
from tests.kube.space import Space
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.kube

TAKE_OVER = 20.0
"""Most seconds from the end of a loop to the first act of the next one."""
SUPERSEDED = 3
PROGRAM = f"""
import signal, sys, time
from functools import partial
from provisioner.state.errors import StateError
from provisioner.state.kube.api_login import from_kubeconfig
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.lease import KubeTurn
turn = KubeTurn(ApiServer(partial(from_kubeconfig, sys.argv[1])), "demo")
ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
print("stands by", flush=True)
if turn.acquire(None, lambda: bool(ending)):
    epoch, unknown = turn.raise_epoch(), 0
    print("leads with epoch", epoch, flush=True)
    while not ending:
        try:
            if not turn.keep() or turn.epoch() != epoch:
                sys.exit({SUPERSEDED})
            print("acts" if unknown else "", end="\\n" if unknown else "", flush=True)
            turn.beat()
            unknown = 0
        except StateError as error:
            unknown += 1
            print("does not act:", unknown, error, flush=True)
        time.sleep(0.1)
    turn.sign_off()
    turn.release()
"""


class Loop:
    """A process that waits for the Lease, and then checks again and again whether it still leads."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            arguments = [sys.executable, "-c", PROGRAM, str(kubeconfig)]
            self.process = subprocess.Popen(arguments, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self.until_says("stands by")

    @property
    def said(self) -> str:
        return self._log.read_text()

    def until_says(self, words: str, seconds: float = 30.0) -> None:
        until(lambda: words in self.said, seconds, what=f"the loop says {words!r}; it said {self.said[-500:]!r}")

    def until_leads(self, epoch: int, seconds: float = TAKE_OVER) -> None:
        began = time.monotonic()
        self.until_says(f"leads with epoch {epoch}\n", seconds)
        print(f"epoch {epoch}: took over after {time.monotonic() - began:.1f} s")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def until_ended(self) -> int:
        return self.process.wait(60 * PATIENCE)


class Site:
    """Loops of one provisioner in one namespace."""

    def __init__(self, space: Space, directory: Path) -> None:
        self._space, self._directory = space, directory
        self.loops: list[Loop] = []

    def kubeconfig(self, proxy: Proxy | None = None) -> Path:
        admin, path = self._space.admin, self._directory / f"kubeconfig-{proxy is not None}"
        server, ca = (proxy.address, proxy.ca) if proxy else (admin.server, admin.ca)
        token = admin.headers["Authorization"].removeprefix("Bearer ")
        path.write_text(json.dumps(kubeconfig(server, token, ca=Path(ca) if ca else None, namespace=self._space.name)))
        return path

    def api(self, proxy: Proxy | None = None) -> ApiServer:
        return ApiServer(partial(from_kubeconfig, str(self.kubeconfig(proxy))))

    def start(self, proxy: Proxy | None = None) -> Loop:
        self.loops.append(Loop(self.kubeconfig(proxy), self._directory / f"loop-{len(self.loops)}.log"))
        return self.loops[-1]

    def close(self) -> None:
        for loop in self.loops:
            loop.process.kill()
            loop.process.wait()


@pytest.fixture
def site(space: Space, tmp_path: Path) -> Iterator[Site]:
    made = Site(space, tmp_path)
    yield made
    made.close()


def test_a_killed_loop_is_replaced_and_a_stopped_one_ends_itself(site: Site) -> None:
    first = site.start()
    first.until_leads(1)
    second = site.start()
    first.signal(signal.SIGSTOP)
    second.until_leads(2)
    first.signal(signal.SIGCONT)
    assert first.until_ended() == SUPERSEDED
    third = site.start()
    second.signal(signal.SIGKILL)
    third.until_leads(3)
    assert KubeTurn(site.api(), "demo").life_signs().fate == "holds"


def test_of_loops_that_start_at_once_one_leads_and_its_end_in_order_lets_the_next_follow_at_once(site: Site) -> None:
    loops = [site.start() for _ in range(4)]
    for epoch in (1, 2, 3):
        until(lambda: any("leads" in loop.said for loop in loops), TAKE_OVER, what="a loop leads")
        (leader,) = [loop for loop in loops if "leads" in loop.said]
        leader.until_leads(epoch, 5.0)
        assert KubeTurn(site.api(), "demo").holder()["pid"] == leader.process.pid
        leader.signal(signal.SIGTERM)
        assert leader.until_ended() == 0
        loops.remove(leader)
        until(lambda: any("leads" in loop.said for loop in loops), 5.0, what="the next loop leads at once")


def test_a_loop_that_is_cut_off_stops_to_act_and_ends_when_it_reaches_the_server_again(
    site: Site, proxy: Proxy
) -> None:
    first = site.start(proxy)
    first.until_leads(1)
    second = site.start()
    proxy.trouble = Trouble.HANG
    second.until_leads(2)
    assert "does not act" in first.said
    proxy.trouble = Trouble.NONE
    assert first.until_ended() == SUPERSEDED


def test_a_server_that_is_away_for_longer_than_a_lease_changes_no_loop(cluster: Cluster, site: Site) -> None:
    first = site.start()
    first.until_leads(1)
    second = site.start()
    cluster.stop_server()
    first.until_says("does not act: 180", 120.0)
    cluster.start_server()
    first.until_says("acts\n")
    assert KubeTurn(site.api(), "demo").epoch() == 1
    assert "leads" not in second.said

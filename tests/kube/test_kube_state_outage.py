"""The API server of the state is down, or comes back with older data. The clouds can be reached meanwhile.

In the gate, the outage is longer than a Lease. This command plays an outage of five minutes:

    STATE_OUTAGE_SECONDS=300 make test-kube TESTS=tests/kube/test_kube_state_outage.py PYTEST_ARGS='-k down'
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from provisioner.state.kube.lease import LEASE_SECONDS
from tests.kube.cluster import Cluster
from tests.kube.proxy import Proxy, Trouble
from tests.kube.space import Space
from tests.kube.state_run import StateRun

OUTAGE_SECONDS = float(os.environ.get("STATE_OUTAGE_SECONDS", "25"))
CALL_SECONDS = 12.0
"""Seconds in which a script gives up."""
LOCAL = "getAvailableTemplates"
"""The script whose answer has nothing from the server."""
GRACE_SECONDS = 10.0
"""Twice the grace period of orphans."""

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("state_kinds"), pytest.mark.timeout(OUTAGE_SECONDS + 600)]


@contextmanager
def killed(cluster: Cluster, _: Proxy) -> Iterator[None]:
    """Kill the API server, so that connections are refused."""
    cluster.stop_server()
    try:
        yield
    finally:
        cluster.start_server()


@contextmanager
def cut_off(_: Cluster, proxy: Proxy) -> Iterator[None]:
    """Let all connections hang, as if each packet were lost."""
    proxy.trouble = Trouble.HANG
    proxy.cut()
    yield
    proxy.trouble = Trouble.NONE


@pytest.mark.parametrize("outage", [killed, cut_off])
def test_while_the_server_is_down_no_machine_is_made_and_none_deleted(
    cluster: Cluster, space: Space, proxy: Proxy, outage: Callable[[Cluster, Proxy], AbstractContextManager[None]]
) -> None:
    with StateRun(7, space, proxy if outage is cut_off else None) as run:
        run.until_works(2)
        began = time.time()
        with outage(cluster, proxy):
            run.note("the server is down")
            run.wait_until(began + LEASE_SECONDS)
            run.stage.ledger.taken.update(hosts := sorted(run.ledger.hf.hosts)[:2])
            run.arena.preempt(hosts)
            run.wait_until(began + OUTAGE_SECONDS)
            ended = time.time()
        run.note("the server is back")
        acts = run.arena.acts(began + LEASE_SECONDS, ended)
        assert not [one for one in acts if one["name"] not in run.ledger.taken], run.logs()
        calls = [call for call in run.calls(began + 1.0, ended - CALL_SECONDS) if call.script != LOCAL]
        assert calls, "a script was called meanwhile; each of its calls takes ten seconds if no packet comes through"
        assert all("no usable response" in call.called.refusal for call in calls if call.called)
        run.until_works(2)
        assert not [line for line in run.diary if "operator" in line]
        run.finish()


def test_a_restore_of_etcd_latches_the_brake_and_no_machine_is_made_or_deleted(cluster: Cluster, space: Space) -> None:
    with StateRun(8, space) as run:
        run.until_works()
        copy = cluster.copy_data()
        run.until_works(2)
        run.hf.wants = run.hf.asks_again = False
        run.come_to_rest()
        answers, run.arena.has_operator = [*run.ledger.terminal], False
        began = time.time()
        cluster.restore_data(copy)
        run.note("etcd is restored")
        run.until(run.arena.brake, 60, "the brake is latched")
        latched, shown = time.time(), run.arena.status().stdout
        assert "provisioner recover" in shown, shown
        assert "--release-brake" in shown, shown
        run.wait_until(latched + GRACE_SECONDS)
        assert not run.arena.acts(began, time.time()), run.logs()
        assert run.arena.recover("--apply", "--release-brake")["released"]
        run.until(lambda: not run.arena.brake(), 30, "the brake is released")
        run.hf.call("getRequestStatus", {"requests": [{"requestId": id_} for id_ in answers]})
        run.hf.wants = run.hf.asks_again = run.arena.has_operator = True
        run.until_works(2)
        run.finish()

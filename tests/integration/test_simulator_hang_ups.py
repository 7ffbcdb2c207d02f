"""Callers that hang up on the embedded cloud, at any moment and on any of its APIs. The cloud has no fault and logs no
line."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.hang_ups import forgive
from provisioner.lab.cloud.server import Simulator
from tests.support.clouds.kube_cloud import QUICK, SPACE, manifest
from tests.support.clouds.specs import advised
from tests.support.waiting import until

PODS = f"/api/v1/namespaces/{SPACE}/pods"
GROUP = "/compute/v1/projects/p/zones/us-central1-a/instanceGroupManagers/g"
LARGE = 2000
"""Pods and instances: their lists do not fit into what the kernel holds for a caller that reads nothing."""

RESPONSES = {
    "a list of pods": f"GET {PODS}",
    "a watch": f"GET {PODS}?watch=1&timeoutSeconds=600&allowWatchBookmarks=true",
    "a list of instances": "GET /compute/v1/projects/p/zones/us-central1-a/instances?maxResults=500",
    "a list of members": f"POST {GROUP}/listManagedInstances",
    "the control face": "GET /control/state",
}
CALLS = {
    "a pod": f"POST {PODS}",
    "instances": f"POST {GROUP}/createInstances",
    "a batch": "POST /batch/compute/v1",
    "the control face": "POST /control/preempt",
}


def reset(caller: socket.socket) -> None:
    """Reset the connection, as a killed program does."""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()


def close(caller: socket.socket) -> None:
    """Close the connection, as a program does that has read enough."""
    caller.close()


@pytest.fixture(scope="module")
def full() -> Iterator[Simulator]:
    mig = advised(project="p", name="g", zone="us-central1-a", size_limit=LARGE)
    timings = {"gke": {**QUICK, "bookmark": 0.1}, "mig": {"call": 0, "operation": 0, "schedule": 0, "boot": 3600}}
    with Simulator(namespaces=[SPACE], migs=[mig], conditions=Conditions.of(timings=timings)) as running:
        running.call(lambda cloud: [cloud.cluster.create(SPACE, manifest(f"p{number}")) for number in range(LARGE)])
        group = running.call(lambda cloud: cloud.groups.mig("p", mig.scope, "g"))
        running.call(lambda _: [group.create([f"i{number + half}" for number in range(1000)]) for half in (0, 1000)])
        yield running


@pytest.fixture
def simulator(full: Simulator, caplog: pytest.LogCaptureFixture) -> Iterator[Simulator]:
    """Yield a simulator full of machines, which must still answer after the test, without log lines."""
    full.impose()
    with caplog.at_level(logging.DEBUG):
        yield full
        assert len(requests.get(f"{full.control}state", timeout=30).json()["machines"]) >= 2 * LARGE
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def call(simulator: Simulator, line: str, head: str = "", body: bytes = b"") -> socket.socket:
    """Return the socket of a caller with little room for the response. The caller has sent its request, but has not
    read yet."""
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, _, port = simulator.address.removeprefix("http://").partition(":")
    caller.connect((host, int(port)))
    caller.sendall(f"{line} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body)
    return caller


@pytest.mark.parametrize("line", RESPONSES.values(), ids=RESPONSES)
def test_a_caller_may_hang_up_in_mid_response(simulator: Simulator, line: str) -> None:
    caller = call(simulator, line)
    assert caller.recv(16) == b"HTTP/1.1 200 OK\r"
    reset(caller)


@pytest.mark.parametrize("line", CALLS.values(), ids=CALLS)
def test_a_caller_may_hang_up_in_mid_call(simulator: Simulator, caplog: pytest.LogCaptureFixture, line: str) -> None:
    path = line.partition(" ")[2]
    caller = call(simulator, line, "Content-Length: 100\r\nContent-Type: application/json\r\n", b"{")
    close(caller)
    until(lambda: _hung_up(caplog) == [path], 30)


def test_a_connection_that_fails_elsewhere_is_still_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Only the end of the caller's own connection is ignored. The end of another connection of the simulator is a
    fault."""

    async def fail(_: web.Request) -> web.StreamResponse:
        raise ConnectionResetError("another client hung up")

    async def ask() -> int:
        app = web.Application(middlewares=[forgive])
        app.router.add_get("/", fail)
        async with TestClient(TestServer(app)) as caller:
            return (await caller.get("/")).status

    assert asyncio.run(ask()) == 500
    assert "another client hung up" in caplog.text


def _hung_up(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record.__dict__["path"] for record in caplog.records if record.getMessage() == "Caller hung up"]

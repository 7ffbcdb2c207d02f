"""A server in memory, and what scripts, loop and operators do on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from provisioner.hostfactory import Answer
from provisioner.model import Memory
from provisioner.state.kube.lease import KubeTurn
from provisioner.state.kube.objects import item
from provisioner.state.kube.script_state import KubeScriptState
from provisioner.state.kube.state import KubeState
from provisioner.state.kube.waits import Waits
from tests.support.kube_state_server import MemoryApiServer, ObjectServer

Open = Callable[[], KubeState]


class Site:
    """A server with the state of one script, and of as many other processes as a test needs."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.server = ObjectServer(clock=lambda: self.now)
        self.script = KubeScriptState(MemoryApiServer(self.server), "demo")

    def open(self, directory: str = "") -> KubeState:
        """Return the state for another process of loop or operator."""
        api = MemoryApiServer(self.server)
        state = KubeState(api, "demo", directory)
        state.loop_lock = KubeTurn(api, "demo", Waits(lambda: self.now, lambda *_: None), lambda _: None)
        return state

    def loop(self, epoch: int = 1) -> KubeState:
        """Return the state of a loop that has written its first memory."""
        state = self.open()
        state.memory.write(Memory("demo", epoch))
        return state

    def request(self, count: int = 2) -> str:
        """Record a request as a script does; return its id."""
        return self.script.record_request("demo", "t", count, created_wall=self.now, rc_account="").id

    def give_back(self, *names: str) -> str:
        """Record a return request as a script does; return its id."""
        return self.script.record_return("demo", names, created_wall=self.now).id

    def get(self, resource: str, name: str) -> dict[str, Any]:
        """Return an object."""
        return self.server.answer("GET", item("hf", resource, name))

    def patch(self, resource: str, name: str, change: dict[str, Any], subresource: str = "") -> None:
        """Change an object as an administrator does."""
        self.server.answer("PATCH", item("hf", resource, name, subresource), change, "application/merge-patch+json")

    def calls(self, state: KubeState) -> list[str]:
        """Return the writes of a process since the last call of this function."""
        calls = state._api.calls  # type: ignore[attr-defined]
        written = [
            f"{call.method} {call.path.rpartition('/namespaces/hf/')[2]}" for call in calls if call.method != "GET"
        ]
        calls.clear()
        return written


@pytest.fixture
def site() -> Site:
    return Site()


def answer(id_: str, status: str = "running", *results: str, text: str = "") -> Answer:
    """Return an answer with a machine for each result. ``text``: the message of machines that do not run."""
    machines = [
        {"name": f"hf-{id_}-{number}", "result": result, "message": "" if result == "succeed" else text}
        for number, result in enumerate(results)
    ]
    entry = {"requestId": id_, "status": status, "message": "", "machines": machines}
    return Answer(json.dumps(entry), status != "running")

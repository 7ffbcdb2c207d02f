"""The stores of the state. ``test_stores.py`` checks that they keep the promises of ``state/protocols.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from provisioner.state.directory import StateDir
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.script_state import KubeScriptState
from provisioner.state.kube.state import KubeState
from provisioner.state.protocols import ScriptState, State
from tests.support.kube_state_server import MemoryApiServer, ObjectServer

PROVISIONER = "demo"


class Store(Protocol):
    """A store of the state. Each call opens the store as a new process would."""

    def script(self) -> ScriptState: ...
    def loop(self) -> State: ...
    def copy(self) -> Callable[[], None]:
        """Copy the present memory. Return a function that restores this copy."""

    def lose_memory(self) -> None: ...


class Files:
    """A state directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "state"
        self._path.mkdir()

    def script(self) -> ScriptState:
        return StateDir(self._path)

    def loop(self) -> State:
        return StateDir(self._path)

    def copy(self) -> Callable[[], None]:
        memory = self._path / "memory.json"
        content = memory.read_bytes()
        return lambda: void(memory.write_bytes(content))

    def lose_memory(self) -> None:
        (self._path / "memory.json").unlink()


class Kube:
    """Objects of an API server."""

    def __init__(self, client: Callable[[], Any], directory: Path) -> None:
        self._client, self._directory = client, directory

    def script(self) -> ScriptState:
        return KubeScriptState(self._client(), PROVISIONER, str(self._directory))

    def loop(self) -> State:
        return KubeState(self._client(), PROVISIONER, str(self._directory))

    def _parts(self) -> tuple[ApiServer, str, list[dict[str, Any]]]:
        api = self._client()
        path = f"/apis/provisioner.hostfactory.dev/v1alpha1/namespaces/{api.namespace}/stateparts"
        return api, path, api.call("GET", path).document["items"]

    def copy(self) -> Callable[[], None]:
        api, path, parts = self._parts()

        def put_back() -> None:
            self.lose_memory()
            for part in parts:
                metadata = {"name": part["metadata"]["name"]}
                assert api.call("POST", path, {**part, "metadata": metadata}).status == 201

        return put_back

    def lose_memory(self) -> None:
        api, path, parts = self._parts()
        for part in parts:
            assert api.call("DELETE", f"{path}/{part['metadata']['name']}").status == 200


def in_memory(directory: Path) -> Kube:
    """Return a store on an API server in memory."""
    server = ObjectServer()
    return Kube(lambda: MemoryApiServer(server), directory)


def void(_: object) -> None:
    """Ignore a value, and return None."""

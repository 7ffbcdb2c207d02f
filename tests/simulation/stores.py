"""The stores on which a simulation runs: files, and objects of an API server in memory."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

from provisioner.hostfactory import Polled, Recorded
from provisioner.lab.cloud.world import World
from provisioner.lab.virtual.scenario import PROVISIONER as VIRTUAL
from provisioner.names import RETURN_ID_PREFIX
from provisioner.state import intent_file
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateMissing
from provisioner.state.kube.cache import ListedObjects
from provisioner.state.kube.lease import KubeTurn
from provisioner.state.kube.objects import KINDS, PARTS, collection, item, leases
from provisioner.state.kube.script_state import KubeScriptState
from provisioner.state.kube.state import KubeState
from provisioner.state.kube.waits import Waits
from provisioner.state.protocols import ScriptState, State
from tests.support.kube_state_server import Call, MemoryApiServer, ObjectServer, Refusal

RAM = "/dev/shm"
T = TypeVar("T")

Burn = Callable[[str], None]
"""A function that counts a step of the loop, and may end its process."""


class FileStore:
    """A state directory.

    ``numbers`` counts up. Each poll marker, and the record of HF's hosts, gets the next number as its file's time. So
    two calls never have the same time, even in a fast simulation.
    """

    def __init__(self, world: World, provisioner: str, numbers: Iterator[int]) -> None:
        self._provisioner, self._numbers = provisioner, numbers
        self._directory = tempfile.TemporaryDirectory(dir=RAM if os.path.isdir(RAM) else None, prefix="simulation-")
        self.directory = self._directory.name
        self._no_pauses = patch.object(intent_file, "tries", lambda: [True])
        self._no_pauses.start()
        self.hf: StateDir = StateDir(self.directory)
        self.hf.intent.create(provisioner)

    def init(self) -> None:
        """Run `provisioner init` as an operator."""
        self.hf.intent.create(self._provisioner)

    def close(self) -> None:
        """Remove the files."""
        self._no_pauses.stop()
        self._directory.cleanup()

    def open(self, burn: Burn) -> State:
        """Return the state for a new process of the loop."""
        return StateDir(self.directory)

    def script(self) -> ScriptState:
        """Return the state for a new process of a script."""
        return StateDir(self.directory)

    def marks(self) -> list[object]:
        """Return values that change with each write of a loop."""
        return [store.signature() for store in (self.hf.intent, self.hf.memory, self.hf.status)]

    def polled(self, id_: str) -> None:
        """Give the poll marker of a request a time that no other file has."""
        with suppress(FileNotFoundError):
            self._stamp(os.path.join(self.hf.seen.path, id_))

    def listed(self) -> None:
        """Give the record of HF's last getReturnRequests a time that no other file has."""
        self._stamp(self.hf.inventory.path)

    def _stamp(self, path: str) -> None:
        moment = next(self._numbers) * 1_000_000
        os.utime(path, ns=(moment, moment))


def listing_changes(state: KubeState, server: ObjectServer) -> KubeState:
    """Let the caches of the state read a list again only if the server has changed, which makes a simulation faster.
    Return the state."""
    for cache in state._caches.values():
        vars(cache)["check"] = partial(_check, cache, server, [-1])
    return state


def _check(cache: ListedObjects, server: ObjectServer, seen: list[int]) -> None:
    version = server.version
    if seen != [version]:
        cache.refresh()
        seen[:] = [version]


class FreeTurn(KubeTurn):
    """A Lease that each loop releases as soon as it has its epoch. So the epoch alone decides which loop may write."""

    def __init__(self, api: MemoryApiServer, provisioner: str, world: World, fence: Callable[[int], None]) -> None:
        waits = Waits(lambda: world.now, lambda _event, _seconds: None)
        super().__init__(api, provisioner, waits, lambda thread: None, fence)

    def raise_epoch(self, at_least: int = 1, wait_seconds: float = 0.0) -> int:
        assert self.acquire(0)
        epoch = super().raise_epoch(at_least, wait_seconds)
        self.release()
        return epoch


class KubeStore:
    """The objects of an API server in memory."""

    directory = "/nonexistent"
    lists_always = False
    """True if also a list of what has not changed may fail."""
    local = ""
    """The local directory of the loop, which survives a restore of the server; empty if there is none."""

    def __init__(self, world: World, provisioner: str, numbers: Iterator[int]) -> None:
        self._world, self._provisioner = world, provisioner
        self.server = ObjectServer(clock=world.wall)
        self.hf: Any = listing_changes(KubeState(MemoryApiServer(self.server), provisioner), self.server)

    def init(self) -> None:
        """Do nothing, because the first request creates the state."""

    def close(self) -> None:
        """Do nothing, because no file was made."""

    def open(self, burn: Burn) -> State:
        """Return the state for a new process of the loop. The process may end before or after each of its writes."""
        api = MemoryApiServer(self.server)

        def hook(when: str) -> Callable[[Call], None]:
            return lambda call: burn(f"{when} {call.method} {call.path}") if call.method != "GET" else None

        state = KubeState(api, self._provisioner, self.local)
        state.loop_lock = FreeTurn(api, self._provisioner, self._world, state.memory.fence)
        api.before, api.after = hook("before"), hook("after")
        return state if self.lists_always else listing_changes(state, self.server)

    def script(self) -> ScriptState:
        """Return the state for a new process of a script."""
        return KubeScriptState(MemoryApiServer(self.server), self._provisioner)

    def lose(self, kind: str) -> bool:
        """Lose memory, and return True. For any other part of the state, return False, because an API server does not
        lose it."""
        if kind != "memory":
            return False
        for part in ("log", "memory"):
            with suppress(Refusal):
                self.server.answer("DELETE", item(self.server.namespace, PARTS, f"{self._provisioner}.{part}"))
        return True

    def wipe(self) -> None:
        """Lose every object, as if the namespace was deleted and created again."""
        for resource in KINDS:
            self.server.answer("DELETE", collection(self.server.namespace, resource))
        self.server.answer("DELETE", leases(self.server.namespace))
        self.hf = listing_changes(KubeState(MemoryApiServer(self.server), self._provisioner), self.server)

    def marks(self) -> list[object]:
        """Return a value that changes with each write."""
        return [self.server.version]

    def polled(self, id_: str) -> None:
        """Do nothing, because the server's clock gives each poll its own time."""

    def listed(self) -> None:
        """Do nothing, because each record of getReturnRequests has a number of its own."""


Store = FileStore | KubeStore
STORES: Mapping[str, type[Store]] = {"files": FileStore, "Kubernetes": KubeStore}


class VirtualKubeState:
    """The counterpart of ``VirtualState`` on an API server in memory."""

    def __init__(self, world: World) -> None:
        self._world, self._server = world, ObjectServer(clock=world.wall)
        self._script = KubeScriptState(MemoryApiServer(self._server), VIRTUAL)
        self._ids = map("r{:09d}".format, itertools.count())
        self.watchers: list[Callable[[], None]] = []
        self.lost = self._script.lost
        self.open()

    def open(self) -> None:
        """Begin another process of the loop, which reads the whole state again."""
        api = MemoryApiServer(self._server)
        self._loop = listing_changes(KubeState(api, VIRTUAL), self._server)
        self._loop.loop_lock = FreeTurn(api, VIRTUAL, self._world, self._loop.memory.fence)
        with suppress(StateMissing):
            self._loop.memory.read()

    def __getattr__(self, name: str) -> Any:
        """Return a part of the loop's state."""
        return getattr(self._loop, name)

    def record_request(self, *arguments: Any, **options: Any) -> Recorded:
        return self._woken(self._script.record_request(*arguments, **options, id_=next(self._ids)))

    def record_return(self, *arguments: Any, **options: Any) -> Recorded:
        id_ = RETURN_ID_PREFIX + next(self._ids)
        return self._woken(self._script.record_return(*arguments, **options, id_=id_))

    def poll(self, ids: Iterable[str]) -> Polled:
        return self._woken(self._script.poll(ids))

    def note_hosts(self, names: Mapping[str, object]) -> None:
        self._woken(self._script.note_hosts(names))

    def _woken(self, result: T) -> T:
        for watcher in self.watchers:
            watcher()
        return result

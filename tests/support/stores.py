"""Small helpers for tests of the state directory's modules."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from provisioner.hostfactory import Answer, Loss
from provisioner.model import Memory
from provisioner.names import RETURN_ID_PREFIX
from provisioner.state import atomic, new_ids
from provisioner.state.directory import StateDir
from provisioner.state.locks import LockFile


def add(state: StateDir, template: str = "T1") -> str:
    """Record a request like a script does, and return the request's id."""
    return add_request(state, template, 2, created_wall=5.0, create_for="demo")


def pauses() -> list[float]:
    """Return the seconds between the repeated reads of a file. A cache may serve an old file, so reads are repeated."""
    return [atomic.FIRST_PAUSE * 2**turn for turn in range(atomic.OPEN_AGAIN)]


def add_request(state: StateDir, template: str, count: int, *, created_wall: float, **options: Any) -> str:
    """Record a request, and return its id. ``options``: options of ``IntentStore.add``, and ``rc_account``."""
    document: dict[str, Any] = {"template": template, "count": count, "created_wall": created_wall}
    if account := options.pop("rc_account", ""):
        document["rc_account"] = account
    state.intent.add({"requests": {(id_ := new_ids.new_id()): document}}, **options)
    return id_


def add_return(state: StateDir, names: Iterable[str], *, created_wall: float, **options: Any) -> str:
    """Record a return request, and return its id. ``options``: options of ``IntentStore.add``."""
    id_ = RETURN_ID_PREFIX + new_ids.new_id()
    state.intent.add({"returns": {id_: {"names": list(names), "created_wall": created_wall}}}, **options)
    return id_


def fill(state: StateDir) -> None:
    """Write all three databases, as a running system has them."""
    add(state)
    state.memory.write(Memory("demo"))
    state.status.write({"r1": Answer("{}", False)}, {"host": Loss(30)})


def contents(directory: str | Path) -> dict[str, bytes]:
    """Return the content of every file below a directory, by the path in the directory."""
    top = Path(directory)
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def failing(real: Callable[..., object], error: int, times: int = 1) -> Callable[..., object]:
    """Return a function that fails ``times`` times with ``error`` and then calls ``real``."""
    left = [times]

    def call(*arguments: object, **options: object) -> object:
        if left[0]:
            left[0] -= 1
            raise OSError(error, os.strerror(error))
        return real(*arguments, **options)

    return call


def forgotten(lock: LockFile) -> None:
    """Let the file server lose the lock without informing the holder of the lock."""
    assert lock._descriptor is not None
    fcntl.flock(lock._descriptor, fcntl.LOCK_UN)


def altered(path: str | Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of a database without its lock and without a new generation."""
    document = json.loads(Path(path).read_text())
    change(document)
    Path(path).write_text(json.dumps(document))


def outdate(document: dict[str, Any], versions: int = 1) -> None:
    """Raise the schema version of a database, so that it is newer than ours."""
    document["meta"]["state"]["schema"] += versions

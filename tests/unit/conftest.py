"""Keep the tests of ``tests/unit`` from starting a process or opening a socket, as `make check` promises."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

FORBIDDEN = {
    "os.exec": "start a program",
    "os.fork": "fork",
    "os.forkpty": "fork",
    "os.posix_spawn": "start a process",
    "os.system": "start a process",
    "socket.bind": "open a socket",
    "socket.connect": "open a connection",
    "subprocess.Popen": "start a process",
}
"""Audit events that a unit test must not raise, and what each means."""

_current: list[pytest.Item] = []


def _refuse(event: str, _: tuple[Any, ...]) -> None:
    if _current and event in FORBIDDEN:
        raise RuntimeError(f"a test of tests/unit must not {FORBIDDEN[event]}: {_current[-1].nodeid}")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Refuse processes and sockets while a unit test runs."""
    _current.append(request.node)
    yield
    _current.pop()

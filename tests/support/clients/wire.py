"""A wire between a client and a server. A test can cut, block and fix the wire, and so imitate faults of networks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

CHUNK = 1 << 16


class Wire:
    """A wire to a server: within ``with Wire("http://127.0.0.1:8080") as wire``, ``wire.address`` leads to this
    server."""

    def __init__(self, address: str) -> None:
        target = urlsplit(address)
        self._target = (target.hostname, target.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._refusing = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._threads: list[threading.Thread] = []

    def connections(self) -> int:
        """Return the number of connections that are open now."""
        with self._lock:
            return len(self._open) // 2

    def cut(self) -> None:
        """Break all connections. New connections are possible."""
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def down(self) -> None:
        """Break all connections, and each new connection at once."""
        self._refusing = True
        self.cut()

    def block(self) -> None:
        """Keep connections open, but carry no bytes."""
        self._flowing.clear()

    def fix(self) -> None:
        """Carry bytes again, including the bytes that were held up, and accept connections."""
        self._refusing = False
        self._flowing.set()

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.down()
        self._flowing.set()
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, run: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            if self._refusing:
                near.close()
                continue
            far = socket.create_connection(self._target)
            with self._lock:
                self._open |= {near, far}
            self._spawn(self._carry, near, far)
            self._spawn(self._carry, far, near)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                self._flowing.wait()
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, sink}

"""A server on loopback whose responses are wrong: they do not end, are too large, or are nonsense."""

from __future__ import annotations

import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

MIB = 1 << 20
LARGE = 600
"""Size of a body that has to be refused, in MiB."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, head: bytes = HEAD) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def dripping(begin: bytes, drop: bytes) -> Iterator[bytes]:
    yield begin
    while True:
        time.sleep(0.05)
        yield drop


def _gzip() -> Iterator[bytes]:
    yield CHUNKED + b"Content-Encoding: gzip\r\n\r\n"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    for _ in range(LARGE):
        if piece := packer.compress(b" " * MIB):
            yield chunk(piece)
    yield chunk(packer.compress(b"{}") + packer.flush()) + chunk(b"")


def _body(begin: bytes, piece: bytes, pieces: int) -> Iterator[bytes]:
    yield CHUNKED + b"\r\n" + chunk(begin)
    for _ in range(pieces):
        yield chunk(piece)
    yield chunk(b"")


LISTS = b'{"kind":"PodList","metadata":{"resourceVersion":"1","continue":"t"},"items":[],"nextPageToken":"t"}'
TIMELESS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a head that drips": lambda: dripping(b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    "endless 100 Continue": lambda: dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body that drips": lambda: dripping(HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
    "a chunk size that drips": lambda: dripping(CHUNKED + b"\r\n", b"0"),
    "silence": lambda: dripping(b"", b""),
}
"""Responses that do not end."""
BOUNDLESS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a body of 600 MiB": lambda: _body(b'{"items":"', b"a" * MIB, LARGE),
    "a body that unpacks to 600 MiB": _gzip,
    "a flood of 100 Continue": lambda: iter([b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000] * LARGE),
    "millions of values": lambda: _body(b'{"items":[', b"[]," * (MIB // 3), 8),
}
"""Responses that are too large."""
NONSENSE: dict[str, Callable[[], Iterator[bytes]]] = {
    "lists in lists": lambda: iter([whole(b"[" * 200_000)]),
    "lists in lists in an object": lambda: iter([whole(b'{"items":' + b"[" * 50_000 + b"]" * 50_000 + b"}")]),
    "a list": lambda: iter([whole(b"[1]")]),
    "a number without an end": lambda: iter([whole(b'{"kind":' + b"9" * 5000 + b"}")]),
    "no number": lambda: iter([whole(b'{"kind":NaN}')]),
    "infinity": lambda: iter([whole(b'{"kind":1e999}')]),
    "no text": lambda: iter([whole(b'{"kind":"\xff"}')]),
    "pages without an end": lambda: iter([whole(LISTS)]),
    "strange dates": lambda: iter(
        [whole(b"{}", HEAD + b"Date: Thu, 99 Foo 999999 99:99:99 GMT\r\nRetry-After: " + b"9" * 400 + b"\r\n")]
    ),
    "a refusal of nonsense": lambda: iter([whole(b'{"error":[[]],"message":{},"reason":[]}', b"HTTP/1.1 403 No\r\n")]),
}
"""Responses that end but contain no valid document."""


class HostileCloud:
    """Server that sends the same bytes for every request or, if ``unasked``, for every connection. The object is a
    context manager."""

    def __init__(self, answer: Callable[[], Iterator[bytes]], *, unasked: bool = False) -> None:
        self.asked: list[bytes] = []
        """The first lines of the requests."""
        self._ended = threading.Event()
        cloud = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    while line := b"-" if unasked else self.rfile.readline():
                        cloud.asked.append(line.strip())
                        if not unasked:
                            self._take()
                        for piece in answer():
                            if cloud._ended.is_set():
                                return
                            self.wfile.write(piece)

            def _take(self) -> None:
                length = 0
                while line := self.rfile.readline().strip().lower():
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                self.rfile.read(length)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HostileCloud:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

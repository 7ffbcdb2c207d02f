"""Attackers of an HTTP server on the loopback. ``attacks.py NAME CONNECTIONS PORT [tls]`` attacks until it is ended.

An attacker whose connection is closed connects again. The script prints a line when all attackers have begun.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

HOST = "127.0.0.1"
AGAIN = 0.5
"""Seconds after which an attacker whose connection was closed connects again."""
SLOWLY = 3.0
"""Seconds between two bytes of a slow attacker."""
START = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
MEGABYTE = b"a" * 1_000_000


@dataclass(frozen=True)
class Target:
    """A port, and the client's side of its TLS."""

    port: int
    tls: ssl.SSLContext | None = None

    @contextmanager
    def closed(self, line: Line) -> Iterator[Line]:
        """Yield the connection. At the end, abort it without telling the other side."""
        try:
            yield line
        finally:
            line.writer.transport.abort()

    async def connect(self, *, plain: bool = False, receive: int = 0) -> Line:
        """Return a new connection. ``plain``: use no TLS. ``receive``: the size of the receive buffer in bytes; 0 for
        the usual size."""
        line = socket.socket()
        line.setblocking(False)
        if receive:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        try:
            await asyncio.get_running_loop().sock_connect(line, (HOST, self.port))
            tls = None if plain else self.tls
            return Line(*await asyncio.open_connection(sock=line, ssl=tls, server_hostname=HOST if tls else None))
        except BaseException:
            line.close()
            raise


@dataclass(frozen=True)
class Line:
    """A connection, with the streams of both directions."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send data. Wait if the other side does not read it."""
        self.writer.write(data)
        await self.writer.drain()

    async def trickle(self) -> None:
        """Send a byte now and then until the other side closes."""
        end = asyncio.ensure_future(self.reader.read())
        try:
            while not end.done():
                await self.send(b"a")
                await asyncio.wait([end], timeout=SLOWLY)
        finally:
            end.cancel()


async def slow_head(target: Target) -> None:
    """Send a byte of a header now and then."""
    with target.closed(await target.connect()) as line:
        await line.send(START + b"X: ")
        await line.trickle()


async def big_head(target: Target) -> None:
    """Send 98 headers of 65 kB each, and then a byte now and then."""
    with target.closed(await target.connect()) as line:
        await line.send(START)
        for number in range(98):
            await line.send(b"X%d: " % number + MEGABYTE[:65_000] + b"\r\n")
        await line.trickle()


async def half_handshake(target: Target) -> None:
    """Send only the beginning of a TLS handshake."""
    with target.closed(await target.connect(plain=True)) as line:
        await line.send(b"\x16\x03\x01\x02\x00\x01")
        await line.reader.read()


async def slow_reader(target: Target) -> None:
    """Send many requests for a large response, and read a byte a second."""
    with target.closed(await target.connect(receive=4096)) as line:
        await line.send((START + b"\r\n") * 50)
        while await line.reader.read(1):
            await asyncio.sleep(1)


async def pipelined(target: Target) -> None:
    """Send requests without end, and read no response."""
    with target.closed(await target.connect(receive=4096)) as line:
        while True:
            await line.send((START + b"\r\n") * 1000)
            await asyncio.sleep(0)


async def body_after_get(target: Target) -> None:
    """Send a GET with a body of a gigabyte."""
    with target.closed(await target.connect()) as line:
        await line.send(START + b"Content-Length: 1000000000\r\n\r\n")
        for _ in range(1000):
            await line.send(MEGABYTE)


async def chunks_after_get(target: Target) -> None:
    """Send a GET with a body of a gigabyte, without its length."""
    with target.closed(await target.connect()) as line:
        await line.send(START + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(1000):
            await line.send(b"f4240\r\n" + MEGABYTE + b"\r\n")


ATTACKS: dict[str, Callable[[Target], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (slow_head, big_head, half_handshake, slow_reader, pipelined, body_after_get, chunks_after_get)
}


async def attack(name: str, connections: int, target: Target) -> None:
    """Attack until the end of the process."""
    connected = 0

    async def keep_on() -> None:
        nonlocal connected
        connected += 1
        if connected == connections:
            print("under way", flush=True)
        while True:
            with suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
                await ATTACKS[name](target)
            await asyncio.sleep(AGAIN)

    await asyncio.gather(*(keep_on() for _ in range(connections)))


def main(name: str, connections: str, port: str, *tls: str) -> None:
    """Run the attack that the arguments name."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context = ssl.create_default_context() if tls else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    asyncio.run(attack(name, int(connections), Target(int(port), context)))


if __name__ == "__main__":
    arguments: Sequence[str] = sys.argv[1:]
    main(*arguments)

"""Run a command beside a DNS server in its own network namespace: ``python name_server.py NAME=ADDRESS,… COMMAND…``.

The program enables the loopback, serves DNS on its port 53, and replaces itself with the command.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

IFREQ = struct.Struct("16sh14x")
SET_FLAGS, UP = 0x8914, 1
HOST, INTERNET = 1, 1
UNKNOWN_NAME = 3


def loopback_up() -> None:
    """Enable the loopback, as ``ip link set lo up`` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SET_FLAGS, IFREQ.pack(b"lo", UP))


def answer(query: bytes, names: dict[str, str]) -> bytes:
    """Return the response to a DNS query. The server has only IPv4 addresses."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += length + 1
    kind, _ = struct.unpack_from(">HH", query, at + 1)
    question, address = query[12 : at + 5], names.get(".".join(labels))
    found = address is not None and kind == HOST
    flags = 0x8580 | (UNKNOWN_NAME if address is None else 0)
    header = query[:2] + struct.pack(">HHHHH", flags, 1, int(found), 0, 0)
    record = struct.pack(">HHHIH", 0xC00C, HOST, INTERNET, 60, 4) + socket.inet_aton(address or "0.0.0.0")
    return header + question + (record if found else b"")


def serve(server: socket.socket, names: dict[str, str]) -> None:
    """Respond to queries for ever."""
    while True:
        query, whom = server.recvfrom(512)
        server.sendto(answer(query, names), whom)


if __name__ == "__main__":
    loopback_up()
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind(("127.0.0.1", 53))
    if os.fork() == 0:
        serve(bound, dict(pair.split("=") for pair in sys.argv[1].split(",") if pair))
    os.execvp(sys.argv[2], sys.argv[2:])

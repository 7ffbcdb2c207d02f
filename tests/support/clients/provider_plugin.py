"""A plug-in that Terraform accepts as its Google provider. The plug-in has the provider's schema but makes no resource.

With the plug-in, `terraform validate`, and `terraform test` with mock providers, can check the module on hosts that do
not have the provider. The plug-in implements only the part of protocol version 5 that these commands need.
"""

from __future__ import annotations

import json
import platform
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tests.support.checks.google_provider import VERSION, load

SOURCE = "registry.terraform.io/hashicorp/google"
HANDSHAKE = "1|5|tcp|127.0.0.1:{}|grpc"
LIST = 2
"""The nesting mode of blocks in a list."""


def install(mirror: Path) -> None:
    """Put the plug-in into a directory, as one of Terraform's mirrors of providers."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    program = mirror / SOURCE / VERSION / f"linux_{machine}" / f"terraform-provider-google_v{VERSION}"
    program.parent.mkdir(parents=True)
    root = Path(__file__).parents[3]
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH='{root}' exec '{sys.executable}' -m tests.support.clients.provider_plugin\n"
    )
    program.chmod(0o755)


def field(number: int, value: bytes | str | int) -> bytes:
    """Return one field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a number of a protocol buffer."""
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def attribute(name: str, argument: Mapping[str, Any]) -> bytes:
    """Return a ``Schema.Attribute``. An optional attribute is also marked as computed, because Google may set it."""
    required = argument["required"]
    parts = [field(1, name), field(2, json.dumps(argument["type"]))]
    if required:
        parts.append(field(4, 1))
    elif not argument.get("computed"):
        parts += [field(5, 1), field(6, 1)]
    else:
        parts.append(field(6, 1))
    return b"".join(parts)


def nested(name: str, argument: Mapping[str, Any]) -> bytes:
    """Return a ``Schema.NestedBlock``."""
    least = field(4, 1) if argument["required"] else b""
    most = field(5, 1) if argument["single"] else b""
    return field(1, name) + field(2, block(argument["block"])) + field(3, LIST) + least + most


def block(arguments: Mapping[str, Any]) -> bytes:
    """Return a ``Schema.Block``."""
    attributes = (field(2, attribute(name, one)) for name, one in arguments.items() if "type" in one)
    blocks = (field(3, nested(name, one)) for name, one in arguments.items() if "block" in one and name != "timeouts")
    return b"".join([*attributes, *blocks])


def schemas() -> bytes:
    """Return the response to GetSchema."""
    text = {name: {"required": False, "type": "string"} for name in ("project", "region", "zone")}
    parts = [field(1, field(2, block(text)))]
    for name, described in load().items():
        kind = 3 if name.startswith("data.") else 2
        schema = field(2, block(described["arguments"]))
        parts.append(field(kind, field(1, name.removeprefix("data.")) + field(2, schema)))
    return b"".join(parts)


class Methods(grpc.GenericRpcHandler):
    """The methods that Terraform calls. An empty response reports no mistake."""

    def __init__(self, ended: threading.Event) -> None:
        self._responses = {"GetSchema": schemas(), "Check": field(1, 1)}
        self._ended = ended

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.rpartition("/")[2]
        if name in ("StartStream", "StreamStdio"):
            return None  # methods that a plug-in may lack
        if name == "Shutdown":
            self._ended.set()
        response = self._responses.get(name, b"")
        return grpc.unary_unary_rpc_method_handler(lambda asked, _: response)


def serve() -> None:
    """Respond to calls until Terraform sends Shutdown."""
    ended = threading.Event()
    server = grpc.server(ThreadPoolExecutor(4), handlers=(Methods(ended),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(HANDSHAKE.format(port), flush=True)
    ended.wait()
    server.stop(0.1).wait()


if __name__ == "__main__":
    serve()

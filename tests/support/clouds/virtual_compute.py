"""The simulated Compute API in virtual time. Google's clients and our backends call the HTTP server's code directly.

While a call waits, the world's clock advances. So an hour of faults takes moments, and each run is the same.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from email.utils import formatdate
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch
from urllib.parse import parse_qsl, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from provisioner.lab.cloud.compute import api
from provisioner.lab.cloud.compute.api import METHODS, ComputeHandlers, Dropped, Incoming
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.method_table import PATH, Method

HOST = "compute.virtual"
ENDPOINT = f"http://{HOST}{PATH}"

STEP = 0.05
"""World seconds between two polls of a call that waits for no event of the world."""


class VirtualWire:
    """Wire without a network: within ``with VirtualWire(groups)``, these groups answer the requests to ``ENDPOINT``.
    Several threads may send requests."""

    def __init__(self, groups: Groups) -> None:
        self._handlers = ComputeHandlers(groups, groups.world)
        self._world = groups.world
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._patches: list[Any] = [
            patch.object(HTTPAdapter, "send", self._intercept(HTTPAdapter.send)),
            patch.object(api, "_TICK", 0.0),
        ]

    def __enter__(self) -> Self:
        for one in self._patches:
            one.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._patches:
            one.stop()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def advance(self, seconds: float) -> None:
        """Advance the world's time. Calls are carried out to their end, even if their callers no longer wait for a
        response."""
        with self._lock:
            end = self._world.now + seconds
            while self._world.now < end:
                due = self._world.next_event()
                self._world.advance(min(end, max(self._world.now, end if due is None else due)))
                self._loop.run_until_complete(_turns())

    def _intercept(self, send: Callable[..., requests.Response]) -> Callable[..., requests.Response]:
        def sent(adapter: HTTPAdapter, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            url = urlsplit(str(request.url))
            if url.hostname != HOST:
                return send(adapter, request, **options)
            timeout = options.get("timeout")
            seconds = timeout[1] if isinstance(timeout, tuple) else timeout
            with self._lock:
                return self._loop.run_until_complete(self._respond(request, url.path, url.query, seconds or 600.0))

        return sent

    async def _respond(
        self, request: requests.PreparedRequest, path: str, query: str, seconds: float
    ) -> requests.Response:
        path = path.removeprefix(PATH)
        method, parts = _method(str(request.method), path)
        headers = {name.lower(): str(value) for name, value in request.headers.items()}
        body = request.body or b""
        text = body.decode() if isinstance(body, bytes) else str(body)
        incoming = Incoming(path, parts, dict(parse_qsl(query)), headers, text, ENDPOINT)
        task = self._loop.create_task(self._handlers.reply(method, incoming))
        end = self._world.now + seconds
        await _turns()
        while not task.done():
            if self._world.now >= end:
                raise requests.exceptions.ReadTimeout(f"no answer within {seconds} s", request=request)
            due = self._world.next_event()
            self._world.advance(min(end, self._world.now + STEP, end if due is None else due))
            await _turns()
        try:
            response = _response(request, *task.result())
            response.headers["Date"] = formatdate(self._world.wall(), usegmt=True)
            return response
        except Dropped as error:
            raise requests.exceptions.ConnectionError("the connection was dropped", request=request) from error


async def _turns() -> None:
    """Continue each call until it waits for world time or is done."""
    for _ in range(3):
        await asyncio.sleep(0)


def _method(verb: str, path: str) -> tuple[Method, dict[str, str]]:
    for method in METHODS:
        match = method.pattern.fullmatch(path) if method.verb == verb else None
        if match:
            return method, match.groupdict()
    raise AssertionError(f"the simulator has no method {verb} {path}")


def _response(request: requests.PreparedRequest, status: int, text: str) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response.url = str(request.url)
    response.request = request
    response.headers["Content-Type"] = "application/json; charset=UTF-8"
    response.encoding = "utf-8"
    response.raw = urllib3.HTTPResponse(io.BytesIO(text.encode()), status=status, preload_content=False)
    return response

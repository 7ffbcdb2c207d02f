"""The control API. By this API, a test or an operator changes the embedded cloud without the provisioner.

The API has ``GET state``, ``PUT faults``, ``POST preempt`` and ``POST reset`` under ``/control/``. A mistake gets 400
with ``{"error": …}``.

A web page can make a browser send requests to a loopback address, but such a request names the page's host. Therefore,
at a loopback address, a request that names another host gets 421 without any effect.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from provisioner.lab.cloud.cloud import Cloud, Conditions


def routes(cloud: Cloud) -> Sequence[web.RouteDef]:
    """Return the routes under ``/control/``."""

    async def state(_: web.Request) -> Any:
        return cloud.state()

    async def faults(request: web.Request) -> Any:
        conditions = Conditions.parse(await _body(request))
        cloud.impose(conditions)
        return {"faults": len(conditions.faults)}

    async def preempt(request: web.Request) -> Any:
        preempted, unknown = cloud.preempt(_names(await _body(request)))
        return {"preempted": preempted, "unknown": unknown}

    async def reset(_: web.Request) -> Any:
        cloud.reset()
        return {}

    return [
        web.get("/control/state", _responding(state)),
        web.put("/control/faults", _responding(faults)),
        web.post("/control/preempt", _responding(preempt)),
        web.post("/control/reset", _responding(reset)),
    ]


Act = Callable[[web.Request], Awaitable[Any]]


def _responding(act: Act) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return a request handler.

    The handler responds with the value that ``act`` returns. If ``act`` raises ValueError, the handler responds with
    400 and the error's message.
    """

    async def respond(request: web.Request) -> web.StreamResponse:
        local = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        if ipaddress.ip_address(local).is_loopback and request.url.host not in (local, "localhost"):
            return web.json_response({"error": f"this is {local}, and not {request.url.host}"}, status=421)
        try:
            return web.json_response(await act(request))
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)

    return respond


async def _body(request: web.Request) -> object:
    try:
        return json.loads(await request.read())
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from error


def _names(body: object) -> list[str]:
    names = body.get("names") if isinstance(body, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError('expected {"names": [NAME, …]}')
    return names

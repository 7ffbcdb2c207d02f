"""The handling of callers that hang up before their response or in the middle of their call: no error is reported."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def hung_up(request: web.Request, error: Exception) -> bool:
    """Return True for an error that only means a caller who has gone. An error on a standing connection is a fault."""
    gone = request.transport is None or request.transport.is_closing()
    return gone and isinstance(error, ConnectionError)


@web.middleware
async def forgive(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a call whose caller has gone end without an error. Its response is dropped."""
    try:
        return await handler(request)
    except Exception as error:
        if not hung_up(request, error):
            raise
        log.debug("Caller hung up", extra={"method": request.method, "path": request.path})
        return web.Response()

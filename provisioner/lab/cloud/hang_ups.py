"""Handling of callers that close the connection before they get a response. The cloud reports no error for such
callers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_hung_up(request: web.Request, error: Exception) -> bool:
    """Return True if an error came only because the caller has closed the connection."""
    gone = request.transport is None or request.transport.is_closing()
    return gone and isinstance(error, ConnectionError)


@web.middleware
async def forgive(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Respond to a request. If the caller has closed the connection, log no error and drop the response."""
    try:
        return await handler(request)
    except Exception as error:
        if not is_hung_up(request, error):
            raise
        log.debug("Caller hung up", extra={"method": request.method, "path": request.path})
        return web.Response()

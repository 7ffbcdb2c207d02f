"""Record the calls of our own Pub/Sub clients, as ``callers.py`` records the other calls. This module is separate,
because gRPC is not installed everywhere."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from tests.support.checks.callers import see


class _Interceptor(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Interceptor that records each gRPC call of a channel when the call begins."""

    def _see(self, proceed: Any, details: Any, asked: Any) -> Any:
        see(details.method)
        return proceed(details, asked)

    intercept_unary_unary = intercept_stream_stream = _see


_ours = threading.local()
"""State of a thread. ``made``: True while the thread makes a client of ours, so that calls on the client's channels are
recorded."""


def _seen(make: Any) -> Any:
    """Return a function that makes a channel as ``make`` does. If the channel is for a client of ours, its calls are
    recorded."""

    def channel(*arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        return grpc.intercept_channel(made, _Interceptor()) if getattr(_ours, "made", False) else made

    return channel


for _name in ("insecure_channel", "secure_channel"):
    setattr(grpc, _name, _seen(getattr(grpc, _name)))


def watch_pubsub(module: Any) -> None:
    """Record every call of the Pub/Sub clients that ``module`` makes. Calls of other clients are not recorded."""
    module.pubsub_v1 = _Seeing(module.pubsub_v1)


class _Seeing:
    """The Pub/Sub library, except that its method ``SubscriberClient`` makes clients whose calls are recorded."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def SubscriberClient(self, *arguments: Any, **options: Any) -> Any:
        """Return a client whose calls are recorded."""
        _ours.made = True
        try:
            return self._library.SubscriberClient(*arguments, **options)
        finally:
            _ours.made = False

"""Sees what our own Pub/Sub clients call, as ``callers.py`` sees the rest: apart, as gRPC is not everywhere."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from tests.support.checks.callers import see


class _Interceptor(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Sees each gRPC call of a channel, when it begins."""

    def _see(self, proceed: Any, details: Any, asked: Any) -> Any:
        see(details.method)
        return proceed(details, asked)

    intercept_unary_unary = intercept_stream_stream = _see


_ours = threading.local()
"""``made``: this thread makes a client of ours, whose channels are seen."""


def _seen(make: Any) -> Any:
    """Return a maker of channels that lets those of our clients be seen."""

    def channel(*arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        return grpc.intercept_channel(made, _Interceptor()) if getattr(_ours, "made", False) else made

    return channel


for _name in ("insecure_channel", "secure_channel"):
    setattr(grpc, _name, _seen(getattr(grpc, _name)))


def watch_pubsub(module: Any) -> None:
    """Record every call of the Pub/Sub clients that this module makes; calls of other clients are not recorded."""
    module.pubsub_v1 = _Seeing(module.pubsub_v1)


class _Seeing:
    """The library, whose clients are seen."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def SubscriberClient(self, *arguments: Any, **options: Any) -> Any:
        """Return a client whose channels are seen."""
        _ours.made = True
        try:
            return self._library.SubscriberClient(*arguments, **options)
        finally:
            _ours.made = False

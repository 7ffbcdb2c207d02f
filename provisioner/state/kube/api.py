"""The API server as the state's modules call it. Only type checkers use these interfaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class Reply(Protocol):
    """A response that answers a call: 2xx, 404, 409, 410 or 422."""

    @property
    def status(self) -> int: ...
    @property
    def document(self) -> dict[str, Any]: ...
    @property
    def at(self) -> float:
        """The time of the response by the server's clock, in epoch seconds."""


class Stream(Protocol):
    """The events of a watch. It ends when the server ends it, and raises StateError if it breaks off."""

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def close(self) -> None:
        """End the stream, from any thread."""


class Api(Protocol):
    """An API server, with the namespace of the state."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str:
        """The server's address, for messages."""

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content: str = "application/json",
        partial: bool = False,
        seconds: float = 10.0,
    ) -> Reply:
        """Return the response if it answers the call. Raises StateError otherwise."""

    def watch(self, path: str, seconds: float) -> Stream:
        """Return the events of a watch. ``seconds``: the longest time without any."""

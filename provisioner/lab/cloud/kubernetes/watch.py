"""Watches. A watch is a stream that shows the current objects, then every change, with bookmarks in between.

A watch reads the stored changes at its own speed. If the next change is no longer stored, the stream ends cleanly. A
real server does the same for slow clients.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from aiohttp import web

from provisioner.lab.cloud.kubernetes.errors import ApiError, expired, too_large_version
from provisioner.lab.cloud.kubernetes.form import Form, encode
from provisioner.lab.cloud.kubernetes.lists import ListOptions
from provisioner.lab.cloud.kubernetes.store import Change, Match, Store
from provisioner.lab.cloud.world import World

DEFAULT_TIMEOUT = 1800.0
"""Seconds after which the server ends a watch whose client set no timeout. A real server ends it after 30 to 60
minutes."""

LAST_BOOKMARK = 2.0
"""Seconds between the last bookmark of a watch and the end of the watch. Every watch gets this bookmark."""

AFTER = 0.001
"""Seconds that a watch sleeps beyond the time of an event, so that all events of that time have happened."""

SHORTEST_INTERVAL = 0.05
"""Minimum seconds between bookmarks."""


class Watch:
    """A watch: the lines to write now, and the time of the next bookmark."""

    def __init__(
        self, world: World, store: Store, namespace: str, match: Match | None, form: Form, options: ListOptions
    ) -> None:
        self._world = world
        self._store = store
        self._namespace = namespace
        self._match = match
        self._form = form
        self._bookmarks = options.bookmarks
        self._options = options
        self._position = store.version
        timeout = DEFAULT_TIMEOUT if options.timeout is None else options.timeout
        self.ends = world.now + timeout
        self._last_bookmark_due = self.ends - LAST_BOOKMARK

    def begin(self) -> bytes:
        """Return the first lines of the watch.

        Raise 410 if the requested version is too old. Raise 504 if the version is in the future and the watch begins
        with a list. The caller has to write the raised error into the stream.
        """
        version, initial = self._options.version, self._options.initial_events
        if initial or (initial is None and not version):
            if version and version > self._store.version:
                raise too_large_version(version, self._store.version)
            return self._all()
        if version and self._store.since(version) is None:
            raise expired(f"too old resource version: {version} ({self._store.version})")
        self._position = version or self._store.version
        return b""

    def _all(self) -> bytes:
        objects = self._store.select(self._namespace, self._match)
        lines = [self._form.event("ADDED", stored, self._world.wall()) for stored in objects]
        if self._bookmarks:
            lines.append(self._form.bookmark(self._store.kind, self._store.version, initial_end=True))
        return b"".join(lines)

    def news(self) -> bytes | None:
        """Return lines for the changes since the last call; None if the watch has fallen behind the stored changes."""
        changes = self._store.since(self._position)
        if changes is None:
            return None
        self._position = max(self._position, self._store.version)
        return b"".join([self._line(change) for change in changes])

    def _line(self, change: Change) -> bytes:
        if self._namespace and change.stored.namespace != self._namespace:
            return b""
        match = self._match or _everything
        now = change.type != "DELETED" and match(change.stored)
        before = change.before is not None and match(change.before)
        if not now and not before:
            return b""
        word = ("MODIFIED" if before else "ADDED") if now else "DELETED"
        return self._form.event(word, change.stored, self._world.wall())

    def bookmark(self) -> bytes:
        """Return a bookmark with the watch's version; empty if the client did not ask for bookmarks."""
        return self._form.bookmark(self._store.kind, self._position, initial_end=False) if self._bookmarks else b""

    def next_bookmark(self, interval: float) -> float:
        """Return the simulated time of the next bookmark."""
        usual = self._world.now + max(interval, SHORTEST_INTERVAL)
        if self._world.now < self._last_bookmark_due:
            usual = min(usual, self._last_bookmark_due)
        return usual if self._bookmarks else math.inf

    async def stream(self, request: web.Request, interval: float) -> web.StreamResponse:
        """Write lines until the watch's end, with ``interval`` seconds of simulated time between bookmarks."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        first = self._first_lines()
        await response.prepare(request)
        await response.write(first[0])
        if first[1]:
            await self._go_on(response, interval)
        await response.write_eof()
        return response

    def _first_lines(self) -> tuple[bytes, bool]:
        """Return the first lines of the stream, and True if the watch goes on after these lines.

        If the server refuses the watch, return the refusal and False.
        """
        try:
            return self.begin(), True
        except ApiError as error:
            return error_line(error), False

    async def _go_on(self, response: web.StreamResponse, interval: float) -> None:
        wake = asyncio.Event()
        self._store.listeners.add(wake.set)
        self._ring_at(self.ends, wake.set)
        try:
            due = self._set_alarm(interval, wake.set)
            while self._world.now < self.ends:
                wake.clear()
                lines = self.news()
                if lines is None:
                    return
                if self._world.now >= due:
                    lines += self.bookmark()
                    due = self._set_alarm(interval, wake.set)
                if lines:
                    await response.write(lines)
                else:
                    await wake.wait()
        finally:
            self._store.listeners.discard(wake.set)

    def _set_alarm(self, interval: float, ring: Callable[[], None]) -> float:
        due = self.next_bookmark(interval)
        if due < math.inf:
            self._ring_at(due, ring)
        return due

    def _ring_at(self, due: float, ring: Callable[[], None]) -> None:
        self._world.after(due - self._world.now + AFTER, ring)


def error_line(error: ApiError) -> bytes:
    """Return a refusal as a line of the stream."""
    return encode({"type": "ERROR", "object": error.status}) + b"\n"


def _everything(_: object) -> bool:
    return True

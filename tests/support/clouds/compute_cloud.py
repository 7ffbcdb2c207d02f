"""The simulated Compute Engine on a port of its own, in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from aiohttp import web

from provisioner.lab.cloud.compute.api import routes
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.settings import MigSpec, Switches, Timings
from provisioner.lab.cloud.world import Fault, World

T = TypeVar("T")

QUICK = Timings(
    call=(0.0, 0.0),
    operation=(0.05, 0.1),
    schedule=(0.05, 0.1),
    inserts_per_second=0.0,
    boot=(0.2, 0.4),
    delete=(0.1, 0.2),
    delete_spot=(0.1, 0.2),
    leave=(0.05, 0.1),
    retry_first=0.3,
    retry_last=1.0,
    notice=0.3,
    repair=(0.1, 0.2),
)
"""Timings with which the whole life of a VM takes about a second of world time."""


class ComputeCloud:
    """``with ComputeCloud([advised(…)]) as cloud``: an API at ``cloud.url``."""

    def __init__(
        self,
        migs: Sequence[MigSpec],
        *,
        timings: Timings = QUICK,
        switches: Switches | None = None,
        faults: Sequence[Fault] = (),
        speed: float = 1.0,
    ) -> None:
        """Make the API. World time passes ``speed`` times as fast as real time."""
        self.world = World(seed=1, start_wall=time.time())
        self.world.set_faults(faults)
        self.groups = Groups(self.world, migs, timings, switches)
        self.requests: list[tuple[str, str]] = []
        """Verb and path of every request, in order."""
        self._speed = speed
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._ready = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._runner.run, args=(self._serve(),), daemon=True)
        self.port = 0

    @property
    def host(self) -> str:
        """Return ``http://127.0.0.1:<port>``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Return the endpoint for clients."""
        return f"{self.host}/compute/v1/"

    def do(self, act: Callable[[], T]) -> T:
        """Run ``act`` in the thread that owns the world."""

        async def acted() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(acted(), self._loop).result(10)

    def set_faults(self, *faults: Fault) -> None:
        """Replace all faults."""
        self.do(lambda: self.world.set_faults(faults))

    def state(self) -> dict[str, str]:
        """Return phases by machine name."""
        return {entry["name"]: entry["phase"] for entry in self.do(self.groups.state)}

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the server did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)
        self._runner.close()  # with it what still waits for a caller that has gone

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._noted])
        app.add_routes(routes(self.groups, self.world))
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        began = time.monotonic()
        while not self._ended.is_set():
            self.world.advance((time.monotonic() - began) * self._speed)
            await asyncio.sleep(0.005)
        await runner.cleanup()

    @web.middleware
    async def _noted(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append((request.method, request.path.removeprefix("/compute/v1/")))
        return await handler(request)

"""The embedded cloud as a server: one port for the Kubernetes, Compute and control APIs, one thread, real time."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from wsgiref.handlers import format_date_time

from aiohttp import web

from provisioner.lab.cloud import control_api
from provisioner.lab.cloud.cloud import Cloud, Conditions, contexts_of, migs_of, namespaces_of
from provisioner.lab.cloud.compute import api as compute_api
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.hang_ups import Handler, forgive
from provisioner.lab.cloud.kubernetes import api as kubernetes_api
from provisioner.lab.cloud.kubernetes import kubeconfig as kubeconfigs
from provisioner.lab.cloud.world import Fault, World
from provisioner.process_end import INTERRUPTED, interruptible

if TYPE_CHECKING:
    from provisioner.lab.cloud.pubsub import Sink
    from provisioner.settings.definitions import Settings

log = logging.getLogger(__name__)

TICK = 0.05
"""Maximum real seconds between two checks for due events of the embedded cloud."""

SHORTEST_TICK = 0.001
PATIENCE = 0.02
"""Maximum real seconds that a call waits while due events run, even if thousands of machines start at once."""

SHUTDOWN = 0.2
"""Seconds that responses under way get when the server ends. Watches are ended at once."""

BODY_LIMIT = 16 * 1024 * 1024

T = TypeVar("T")


class Clockwork:
    """A clock that advances a ``World`` by ``speed`` seconds per real second."""

    def __init__(self, world: World, speed: float) -> None:
        self._world = world
        self._speed = speed
        self._began = time.monotonic()

    def advance(self, patience: float = math.inf) -> None:
        """Run the due events for at most ``patience`` real seconds. The remaining due events run at the next call. If
        an event fails, log the error."""
        now = time.monotonic()
        to = (now - self._began) * self._speed
        try:
            while (due := self._world.next_event()) is not None and due <= to:
                self._world.advance(due)
                if time.monotonic() - now > patience:
                    return
            self._world.advance(to)
        except Exception:
            log.exception("An event in the simulated world failed")

    async def run(self) -> None:
        """Run the due events, for ever."""
        while True:
            self.advance(PATIENCE)
            due = self._world.next_event()
            pause = TICK if due is None else min(TICK, (due - self._world.now) / self._speed)
            await asyncio.sleep(max(pause, SHORTEST_TICK))


def application(cloud: Cloud, clockwork: Clockwork) -> web.Application:
    """Return the application with the three APIs. Due events run before each request. A caller that closes its
    connection before the response causes no error."""

    @web.middleware
    async def in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
        clockwork.advance(PATIENCE)
        return await handler(request)

    async def date(_: web.Request, response: web.StreamResponse) -> None:
        if skew := cloud.world.skew():
            response.headers["Date"] = format_date_time(time.time() + skew)

    app = web.Application(middlewares=[forgive, in_time], client_max_size=BODY_LIMIT)
    app.on_response_prepare.append(date)
    app.add_routes(kubernetes_api.routes(cloud.cluster, cloud.world))
    app.add_routes(compute_api.routes(cloud.groups, cloud.world))
    app.add_routes(control_api.routes(cloud))
    return app


@dataclass(frozen=True)
class Serving:
    """The settings of a simulator: its address, the path of the kubeconfig, the receiver of audit log entries, and its
    speed."""

    host: str = "127.0.0.1"
    port: int = 0
    """The port; 0: any free port."""
    kubeconfig: Path | None = None
    """Path of the kubeconfig; None: a path in a directory that is removed when the simulator ends."""
    pubsub: str = ""
    """Address of a Pub/Sub emulator that gets the audit log entries, in the subscription that the configuration names;
    empty: the entries are not sent."""
    seed: int = 0
    speed: float = 1.0
    """Simulated seconds per real second."""


class Simulator:
    """The embedded cloud over HTTP.

    The cloud has the namespaces and MIGs of ``settings``, and those in the arguments ``namespaces`` and ``migs``. A
    simulator is a context manager. Inside the context, a separate thread runs the cloud.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        namespaces: Sequence[str] = (),
        migs: Sequence[MigSpec] = (),
        conditions: Conditions | None = None,
        serving: Serving | None = None,
    ) -> None:
        self._serving = serving = serving or Serving()
        spaces = [*(namespaces_of(settings) if settings else ()), *namespaces]
        groups = [*(migs_of(settings) if settings else ()), *migs]
        self.cloud = Cloud(World(seed=serving.seed, start_wall=time.time()), spaces, groups)
        """The model. Only the simulator's thread may use the model; other threads use :meth:`call`."""
        self.cloud.impose(conditions or Conditions())
        self._sink = _sink(settings, serving.pubsub)
        if self._sink:
            self.cloud.groups.audit.listeners.append(self._sink.put)
        self.address = ""
        """``http://HOST:PORT`` once the simulator is ready; empty before."""
        self.ended_by: signal.Signals | None = None
        """The signal that ended the simulator; None if it runs or ended without a signal."""
        self._contexts = contexts_of(settings) if settings else {}
        self._namespace = spaces[0] if spaces else "default"
        self._scratch = None if serving.kubeconfig else Path(tempfile.gettempdir()) / f"simulator-{os.urandom(6).hex()}"
        self.kubeconfig = serving.kubeconfig or Path(str(self._scratch)) / "kubeconfig"
        """Path of the kubeconfig with which kubectl and the official clients reach the simulator."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    # --- addresses ----------------------------------------------------------------------------------------------------

    @property
    def kubernetes(self) -> str:
        """Address of the Kubernetes API."""
        return self.address

    @property
    def compute(self) -> str:
        """Address of the Compute API, in gcloud's form of an endpoint."""
        return f"{self.address}/compute/v1/"

    @property
    def control(self) -> str:
        """Address of the control API."""
        return f"{self.address}/control/"

    def line(self) -> str:
        """Return the line that ``provisioner simulator`` prints once the simulator is ready."""
        addresses = {"kubernetes": self.kubernetes, "compute": self.compute, "control": self.control}
        return json.dumps({**addresses, "kubeconfig": str(self.kubeconfig)})

    # --- in process ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run_thread, args=(ready,), name="simulator", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server and its thread. Remove the kubeconfig unless the caller chose its path."""
        if self._loop is not None and self._end is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)
        if self._thread is not None:
            self._thread.join()
        if self._sink is not None:
            self._sink.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _run_thread(self, ready: Future[None]) -> None:
        try:
            asyncio.run(self.serve(lambda: ready.set_result(None)))
        except Exception as error:
            if ready.done():
                log.exception("The simulator ended with an error")
            else:
                ready.set_exception(error)

    def call(self, act: Callable[[Cloud], T]) -> T:
        """Run ``act`` in the simulator's thread between two requests, after all due events. Return its result."""
        if self._loop is None:
            raise RuntimeError("the simulator does not run")

        async def run() -> T:
            self._clockwork.advance()
            return act(self.cloud)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def state(self) -> dict[str, Any]:
        """Return the state of the cloud, as ``GET state`` of the control API does."""
        return self.call(Cloud.state)

    def preempt(self, *names: str) -> list[str]:
        """Preempt these machines. Return the names of the preempted machines."""
        return self.call(lambda cloud: cloud.preempt(names)[0])

    def impose(
        self,
        faults: Sequence[Fault] = (),
        timings: Mapping[str, Mapping[str, Any]] | None = None,
        switches: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace all faults and the given sections, as ``PUT faults`` of the control API does."""
        conditions = Conditions.of(faults, timings, switches)
        self.call(lambda cloud: cloud.impose(conditions))

    def reset(self) -> None:
        """Reset the cloud, as ``POST reset`` of the control API does."""
        self.call(Cloud.reset)

    def end_by(self, number: signal.Signals) -> None:
        """End the server because of a signal, even if the server is not ready yet. Call this only in the simulator's
        thread."""
        self.ended_by = number
        if self._end is not None:
            self._end.set()

    # --- the server ---------------------------------------------------------------------------------------------------

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until :meth:`close` or :meth:`end_by` is called. ``ready`` is called once the simulator accepts
        calls."""
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        if self.ended_by is not None:
            return
        if self._sink is not None:
            self._sink.start()
        self._clockwork = Clockwork(self.cloud.world, self._serving.speed)
        runner = web.AppRunner(application(self.cloud, self._clockwork), access_log=None, shutdown_timeout=SHUTDOWN)
        await runner.setup()
        driver = asyncio.create_task(self._clockwork.run())
        try:
            await web.TCPSite(runner, self._serving.host, self._serving.port, backlog=1024).start()
            self.address = _address(runner.addresses[0])
            if self._scratch is not None:
                self._scratch.mkdir(mode=0o700)
            kubeconfigs.write(self.kubeconfig, kubeconfigs.kubeconfig(self.address, self._namespace, self._contexts))
            ready()
            await self._end.wait()
        finally:
            driver.cancel()
            await runner.cleanup()


def _sink(settings: Settings | None, pubsub: str) -> Sink | None:
    if settings is None or settings.events is None or not pubsub:
        return None
    from provisioner.lab.cloud.pubsub import Sink

    return Sink(pubsub, settings.events.project, settings.events.subscription)


def _address(bound: Sequence[Any]) -> str:
    host, port = bound[0], bound[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_reach(host: str) -> None:
    """Raise ValueError if other machines could reach a server that listens on ``host``."""
    try:
        entries = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ValueError(f"--listen {host}: {error.strerror}") from error
    addresses = sorted({str(entry[4][0]) for entry in entries})
    outside = [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
    if outside:
        raise ValueError(
            f"--listen {host!r} ({', '.join(outside)}): other machines can reach it, and the control API, which makes"
            " faults and preempts machines, has no authentication. Listen on 127.0.0.1, or add --unsafe-listen if every"
            " program that can reach it may do so."
        )


def serve(settings: Settings, serving: Serving, *, unsafe_listen: bool = False, faults_file: Path | None = None) -> int:
    """Run ``provisioner simulator``, and return the exit code.

    Raises ValueError for a mistake in a file. Raises OSError for a port or path that cannot be used. Raises ValueError
    for a ``host`` that other machines can reach, unless ``unsafe_listen`` is true.
    """
    if not unsafe_listen:
        check_reach(serving.host)
    conditions = Conditions.read(faults_file) if faults_file else None
    return run_until_signal(Simulator(settings, conditions=conditions, serving=serving))


def run_until_signal(simulator: Simulator) -> int:
    """Print the simulator's line once it is ready. Run until SIGTERM or SIGINT, end cleanly, and return the exit
    code."""

    def ready() -> None:
        print(simulator.line(), flush=True)
        log.info("Simulator answers", extra={"address": simulator.address})

    with interruptible(simulator.close):
        with asyncio.Runner() as runner:
            # before the loop runs, because a KeyboardInterrupt inside it may drop a callback that a caller waits for
            for number in (signal.SIGTERM, signal.SIGINT):
                runner.get_loop().add_signal_handler(number, simulator.end_by, number)
            runner.run(simulator.serve(ready))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the simulator is already ending
    return INTERRUPTED if simulator.ended_by is signal.SIGINT else 0

"""An embedded cloud and a loop as separate processes. Calls of the shell scripts replace HostFactory."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

from provisioner.backends.proxies_and_authorities import prepare
from provisioner.hostfactory.script_calls import CALL_SECONDS, HostFactory
from provisioner.lab import deferred_interrupts
from provisioner.process_end import interruptible

CLONE = Path(__file__).parents[2]
CONFIG = CLONE / "config" / "demoinst"
INSTANCE = "demoinst"
START_SECONDS = 90.0
"""Maximum seconds for a start of the loop. A start takes about three seconds, but up to a minute on a busy machine."""

STARTED = '"Provisioner started"'


class PlaygroundError(Exception):
    """Raised if the cloud or the loop did not start or did not answer. The text says what failed, and names the log if
    a log exists."""


class Playground:
    """A directory with configuration and state, the embedded cloud, and the loop.

    A playground is a context manager. At the end of the context, the playground ends the cloud and the loop.
    """

    def __init__(self, config: Path | None = None, instance: str = INSTANCE) -> None:
        """Set the paths. ``config``: the directory of the configuration to copy; None for config/demoinst."""
        self._sample = config or CONFIG
        if not self._sample.is_dir():
            raise PlaygroundError(f"{self._sample} is missing: the demonstration runs from a clone of the repository.")
        self.directory = Path(tempfile.gettempdir()) / f"hostfactory-demo-{os.urandom(6).hex()}"
        """Directory of the playground, which is removed at the end unless ``kept`` is True."""
        self.kept = False
        """True to keep the directory with logs and state at the end."""
        self.config = self.directory / "conf"
        self.state = self.directory / "work"
        self.logs = self.directory / "log"
        self.addresses: dict[str, str] = {}
        self.url = ""
        """The URL of the loop that was started last; empty before."""
        self._processes: list[subprocess.Popen[str]] = []
        self.environment = {
            "HF_PROVIDER_NAME": instance,
            "HF_PROVIDER_CONFDIR": str(self.config),
            "HF_PROVIDER_WORKDIR": str(self.state),
            "HF_PROVIDER_LOGDIR": str(self.logs),
            "HF_PYTHON": sys.executable,
        }
        self.hf = HostFactory(self.environment)
        self._end = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(interruptible(self.close))
            try:
                self._begin()
            except Exception:
                self.kept = True
                raise
            self._end = stack.pop_all()
        return self

    def _begin(self) -> None:
        prepare(None)  # the cloud and the loop are local and need no proxy
        self.directory.mkdir(mode=0o700)
        shutil.copytree(self._sample, self.config)
        self.state.mkdir()
        self.logs.mkdir()
        self._start_simulator()
        self.start_loop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()

    def close(self) -> None:
        """End the loop, then the cloud. Remove the directory, unless ``kept`` is True. A second call has no effect."""
        self._end_processes()
        if not self.kept:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end_processes(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def cloud(self) -> list[dict[str, Any]]:
        """Return every machine in the cloud, as the cloud itself reports it."""
        return list(self.cloud_state()["machines"])

    def cloud_state(self) -> dict[str, Any]:
        """Return the state that the cloud itself reports: its machines and the number of API calls."""
        response = requests.get(self.addresses["control"] + "state", timeout=CALL_SECONDS)
        response.raise_for_status()
        state: dict[str, Any] = response.json()
        return state

    def faults(self, *faults: Mapping[str, Any]) -> None:
        """Replace all faults of the cloud by these faults."""
        body = {"faults": list(faults)}
        requests.put(self.addresses["control"] + "faults", json=body, timeout=CALL_SECONDS).raise_for_status()

    def preempt(self, names: Sequence[str]) -> list[str]:
        """Let the cloud preempt these machines. Return the names of the preempted machines."""
        response = requests.post(
            self.addresses["control"] + "preempt", json={"names": list(names)}, timeout=CALL_SECONDS
        )
        response.raise_for_status()
        return list(response.json()["preempted"])

    def exports(self) -> str:
        """Return shell lines that set the environment of a second terminal for this cloud and loop."""
        variables = {
            **self.environment,
            "KUBECONFIG": self.addresses["kubeconfig"],
            "PROVISIONER_COMPUTE_ENDPOINT": self.addresses["compute"],
            "CLOUDSDK_CONFIG": str(self.directory / "gcloud"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": self.addresses["compute"],
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_PROJECT": "demo-project",
            "SIMULATOR": self.addresses["control"].rstrip("/"),
            **{name: os.environ[name] for name in ("NO_PROXY", "no_proxy") if os.environ.get(name)},
        }
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        return "\n".join([f"cd {shlex.quote(str(CLONE))}", *lines])

    def _start_simulator(self) -> None:
        process = self._start("simulator", "--faults", str(self.config / "cloud.json"), out=subprocess.PIPE)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise PlaygroundError(f"The embedded cloud did not start; see {self.logs}/simulator.log")
        self.addresses = json.loads(line)

    def start_loop(self) -> subprocess.Popen[str]:
        """Start a loop, wait until its health page answers, and return the loop's process. Raises PlaygroundError if
        the loop ends, or if the page does not answer within ``START_SECONDS``."""
        log = self.logs / "run.log"
        log.touch()
        before = log.stat().st_size
        process = self.begin_loop()
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            self.url = self._url_of(process)
            if self.url and self.loop_answers():
                return process
            time.sleep(0.1)
        code = process.poll()
        if code is None:
            process.send_signal(signal.SIGABRT)  # Python's fault handler logs the stack of each thread
            process.wait()
        why = f"did not answer within {START_SECONDS:.0f} s" if code is None else f"ended with {code}"
        words = log.read_bytes()[before:].decode()
        raise PlaygroundError(f"The loop {why}; {log} says:\n{words}")

    def begin_loop(self) -> subprocess.Popen[str]:
        """Start a loop. Do not wait until the loop runs, because it may have to stand by."""
        # The loop chooses its port. If the port were chosen here, another process might use it before the loop listens.
        return self._start("run", "--listen", "127.0.0.1:0")

    def loop_answers(self, page: str = "healthz") -> bool:
        """Return True if this page of the loop answers with a success status."""
        try:
            return requests.get(f"{self.url}/{page}", timeout=CALL_SECONDS).ok
        except requests.ConnectionError:
            return False

    def _url_of(self, process: subprocess.Popen[str]) -> str:
        """Return the URL that the loop of this process has logged; empty if the loop has not logged the URL yet."""
        for line in (self.logs / "run.log").read_text().splitlines():
            if STARTED in line and (entry := json.loads(line)).get("pid") == process.pid:
                return str(entry["metrics"]).removesuffix("/metrics")
        return ""

    def _start(self, command: str, *arguments: str, out: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        endpoints = (
            {
                "KUBECONFIG": self.addresses["kubeconfig"],
                "PROVISIONER_COMPUTE_ENDPOINT": self.addresses["compute"],
            }
            if self.addresses
            else {}
        )
        with (self.logs / f"{command}.log").open("a") as log, deferred_interrupts():
            process = subprocess.Popen(
                [sys.executable, "-m", "provisioner", command, *arguments],
                env={**os.environ, **self.environment, **endpoints, "PYTHONFAULTHANDLER": "1"},
                stdout=out,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            self._processes.append(process)
        return process

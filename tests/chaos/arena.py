"""The surroundings of HostFactory in one run: the loops, their operator, and the embedded cloud, which writes a
chronicle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from provisioner.hostfactory.script_calls import CALL_SECONDS
from provisioner.lab import deferred_interrupts
from provisioner.lab.playground import CONFIG, INSTANCE, Playground
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from tests.chaos.answer_checks import PREFIX, PROVISIONER

ROOT = Path(__file__).parents[2]
NAMESPACE, GROUP, ZONE, PROJECT = "symphony", "hf-a", "us-central1-a", "demo-project"
CAPS = {NAMESPACE: 8, GROUP: 8}
"""The largest number of machines of one template, by namespace or group."""

POOL: dict[str, Any] = {
    "max_machines": 8,
    "initial_window": 4,
    "boot_deadline_seconds": 12,
    "spill_after_seconds": 3,
    "early_loss_seconds": 3,
    "mass_loss_seconds": 3,
    "observe_seconds": 0.5,
}
SETTINGS: dict[str, Any] = {
    "id": PROVISIONER,
    "name_prefix": PREFIX,
    "request_deadline_minutes": 20 / 60,
    "return_deadline_minutes": 20 / 60,
    "orphan_grace_minutes": 5 / 60,
    "orphan_cap_per_hour": 1000,
    "cancel_after_minutes": 12 / 60,
    "loop": {"interval_seconds": 1, "floor_seconds": 0.2},
    "backoff": {"first_seconds": 1, "last_seconds": 4, "no_room_seconds": 3},
    "pools": {
        "pods": {"kind": "gke", "namespace": NAMESPACE, "pod_spec": "pod-specs/standard.yaml", **POOL},
        "vms": {"kind": "mig", "project": PROJECT, "zone": ZONE, "group": GROUP, "lag_seconds": 2, **POOL},
    },
}
"""Settings with the shortest possible deadlines and grace periods, so that a minute of the test shows what takes a day
elsewhere."""

TEMPLATES = {"Pods": ["pods"], "Vms": ["vms"], "Both": ["pods", "vms"]}
ATTRIBUTES = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "4"], "nram": ["Numeric", "8192"]}
TIMINGS = {
    "gke": {
        "schedule": [0.2, 0.5],
        "start": [0.4, 1.5],
        "ready": [0.1, 0.4],
        "stop": [0.3, 1.0],
        "confirm": [0.1, 0.4],
        "reschedule": 1,
        "preempt_grace": 2,
        "backoff_first": 1,
        "backoff_last": 4,
    },
    "mig": {
        "call": [0.01, 0.05],
        "operation": [0.1, 0.4],
        "schedule": [0.2, 0.5],
        "boot": [0.6, 2.0],
        "delete": [0.6, 1.5],
        "leave": [0.1, 0.5],
        "notice": 2,
        "retry_first": 1,
        "retry_last": 4,
        "repair": [0.5, 2.0],
    },
}


class Arena(Playground):
    """The configuration, the cloud and the loops of one run. ``program``: the module, with its arguments, that is run
    as a loop."""

    settings: dict[str, Any] = SETTINGS
    replicas = 1
    """A supervisor starts a loop if fewer loops than this run."""

    def __init__(self, seed: int, program: tuple[str, ...] = ("provisioner",)) -> None:
        super().__init__()
        self.seed = seed
        self._program = program
        self.chronicle = self.directory / "chronicle.jsonl"
        self.loops: list[subprocess.Popen[str]] = []
        self._changing = threading.Lock()

    def _begin(self) -> None:
        self._configure()
        self.chronicle.touch()
        self._start_simulator()
        self.start_loop()

    def _configure(self) -> None:
        self.directory.mkdir(mode=0o700)
        shutil.copytree(CONFIG, self.config)
        for place in (self.state, self.logs):
            place.mkdir()
        templates = [
            {"templateId": name, "maxNumber": 12, "attributes": ATTRIBUTES, "pools": pools}
            for name, pools in TEMPLATES.items()
        ]
        (self.config / "provisioner.yaml").write_text(json.dumps(self.settings))
        (self.config / f"{INSTANCE}prov_templates.json").write_text(json.dumps({"templates": templates}))
        (self.config / "cloud.json").write_text(json.dumps({"timings": TIMINGS}))

    def _start_simulator(self) -> None:
        faults = str(self.config / "cloud.json")
        command = [sys.executable, "-m", "tests.chaos.cloud", str(self.chronicle), "simulator", "--faults", faults]
        with (self.logs / "simulator.log").open("a") as log, deferred_interrupts():
            process = subprocess.Popen(
                [*command, "--seed", str(self.seed % 2**31)],
                env={**os.environ, **self.environment},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            self._processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the embedded cloud did not start; see {self.logs}/simulator.log"
        self.addresses = json.loads(line)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", *self._program, *arguments]

    def surroundings(self) -> dict[str, str]:
        """Return the environment variables of each process that calls the cloud."""
        endpoints = {
            "KUBECONFIG": self.addresses["kubeconfig"],
            "PROVISIONER_COMPUTE_ENDPOINT": self.addresses["compute"],
        }
        return {**os.environ, **self.environment, **endpoints, "PYTHONFAULTHANDLER": "1"}

    # --- loops --------------------------------------------------------------------------------------------------------

    def begin_loop(self) -> subprocess.Popen[str]:
        """Start a loop without waiting for it."""
        with (self.logs / "run.log").open("a") as log, self._changing:
            process = subprocess.Popen(
                self.command("run", "--listen", "127.0.0.1:0"),
                env=self.surroundings(),
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            self._processes.append(process)
            self.loops.append(process)
        return process

    def living(self) -> list[subprocess.Popen[str]]:
        """Return the loops that have not ended, oldest first."""
        with self._changing:
            self.loops = [loop for loop in self.loops if loop.poll() is None]
            return [*self.loops]

    def signal_loop(self, loop: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send a signal to a loop, unless it has ended."""
        with suppress(ProcessLookupError):
            loop.send_signal(number)

    def wake(self) -> None:
        """Let every loop continue that was stopped by SIGSTOP."""
        for loop in self.living():
            self.signal_loop(loop, signal.SIGCONT)

    def close(self) -> None:
        """End the loops and the cloud by SIGTERM. Before that, let loops continue that were stopped by SIGSTOP, because
        a stopped process does not react to SIGTERM."""
        self.wake()
        super().close()

    def recorded(self) -> tuple[dict[str, tuple[str, int]], list[str]]:
        """Return the template and the number of machines of each request in intent, and the ids of the return requests.
        Raises StateError."""
        intent = StateDir(self.state).intent.read()
        return {id_: (one.template, one.count) for id_, one in intent.requests.items()}, [*intent.returns]

    # --- the operator -------------------------------------------------------------------------------------------------

    def act_as_operator(self, note: Callable[[str], None]) -> None:
        """Act as an operator if the brake is latched, or if memory is lost or cannot be read. The operator then runs
        `provisioner recover`."""
        if not self.needs_an_operator():
            return
        shown = self.recover()
        if shown.get("writes"):
            note(f"operator applies: {shown['writes']}")
            shown = self.recover("--apply")
        if self.brake():
            note(f"operator releases: {self.brake()}")
            self.recover("--release-brake")

    def needs_an_operator(self) -> bool:
        """Return True while the brake is latched, or while memory is lost or cannot be read."""
        try:
            return StateDir(self.state).memory.read().brake is not None
        except StateError:
            return True

    def brake(self) -> str:
        """Return the reason why the brake is latched. Return an empty text if the brake is released or memory cannot be
        read."""
        with suppress(StateError):
            brake = StateDir(self.state).memory.read().brake
            return f"{brake.reason} {brake.detail}" if brake else ""
        return ""

    def recover(self, *arguments: str) -> dict[str, Any]:
        """Run `provisioner recover`. Return its output; empty if the command refuses."""
        done = subprocess.run(
            [sys.executable, "-m", "provisioner", "recover", "-o", "json", *arguments],
            env=self.surroundings(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        shown: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        return shown

    # --- the cloud, past the provisioner ------------------------------------------------------------------------------

    def phases(self) -> dict[str, str]:
        """Return the phase of each machine in the namespace and the group."""
        return {one["name"]: one["phase"] for one in self.cloud() if one["pool"] in (NAMESPACE, GROUP)}

    def pods(self, method: str, name: str = "", document: object = None) -> None:
        """Call the Kubernetes API of the cloud, for the pod ``name`` or for all pods of the namespace."""
        self._call(method, f"api/v1/namespaces/{NAMESPACE}/pods/{name}".rstrip("/"), document)

    def compute(self, method: str, path: str, document: object = None) -> None:
        """Call the Compute API of the cloud. ``path``: the path below the group's zone."""
        self._call(method, f"compute/v1/projects/{PROJECT}/zones/{ZONE}/{path}", document)

    def _call(self, method: str, path: str, document: object) -> None:
        """Make a call, and ignore an error. A fault may strike the call, and the call's effect is then unknown."""
        base = self.addresses["control"].removesuffix("control/")
        with suppress(requests.RequestException):
            requests.request(method, base + path, json=document, timeout=CALL_SECONDS)

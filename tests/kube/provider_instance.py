"""The whole path on a real cluster: a provider instance's files, the loop as a process, and HostFactory's part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from provisioner.hostfactory.script_calls import HostFactory
from tests.kube.proxy import Proxy
from tests.kube.space import Space
from tests.support.waiting import PATIENCE, until

TEMPLATE = "GkePod"
POOL = "gke-main"
POD = {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "busybox"}]}
ATTRIBUTES = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "4"], "nram": ["Numeric", "8192"]}
END_SECONDS = 60.0
START_SECONDS = 90.0


class Grid:
    """A provider instance with a pool in a namespace of a real cluster. As a context manager, it ends the loop at the
    end."""

    def __init__(
        self,
        directory: Path,
        space: Space,
        *,
        id_: str = "demo",
        proxy: Proxy | None = None,
        pod: Mapping[str, Any] | None = None,
        pool: Mapping[str, Any] | None = None,
        more: Mapping[str, Mapping[str, Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
        others: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write the configuration of an instance with its pools.

        ``pod``: the pod's spec or manifest. ``pool``, ``settings``: further settings for the pool and for
        provisioner.yaml. ``more``: settings of further pools, by pool name. The template's machines spill over to these
        pools in this order. ``others``: settings of pools that have a template each, by name.
        """
        self.conf, self.work, self.logs = (directory / name for name in ("conf", "work", "log"))
        for place in (self.conf, self.work, self.logs):
            place.mkdir(parents=True)
        self._space = space
        space.write_kubeconfig(self.conf / "kubeconfig", proxy)
        own = {
            "kind": "gke",
            "namespace": space.name,
            "pod_spec": "pod.yaml",
            "kubeconfig": "kubeconfig",
            "max_pending": 1000,
            "initial_window": 1000,
        }
        pools = {POOL: own | dict(pool or {})} | {name: own | dict(body) for name, body in (more or {}).items()}
        loop = {"interval_seconds": 2, "floor_seconds": 0.3}
        templates = {TEMPLATE: [*pools]} | {name: [name] for name in others or ()}
        pools |= {name: dict(body) for name, body in (others or {}).items()}
        self._write("provisioner.yaml", yaml.safe_dump({"id": id_, "loop": loop, "pools": pools, **(settings or {})}))
        self._write("pod.yaml", yaml.safe_dump(dict(pod or POD)))
        self._write(f"{id_}prov_config.json", "{}")
        templates_of_hf = [
            {"templateId": name, "maxNumber": 10_000, "attributes": ATTRIBUTES, "pools": places}
            for name, places in templates.items()
        ]
        self._write(f"{id_}prov_templates.json", json.dumps({"templates": templates_of_hf}))
        self._environment = {
            "HF_PROVIDER_NAME": id_,
            "HF_PROVIDER_CONFDIR": str(self.conf),
            "HF_PROVIDER_WORKDIR": str(self.work),
            "HF_PROVIDER_LOGDIR": str(self.logs),
            "HF_PYTHON": sys.executable,
        }
        self.hf = HostFactory(self._environment)
        self._loop: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._tell()
        finally:
            self.stop()

    def start(self) -> Self:
        """Begin the loop. Return once it has written a heartbeat."""
        with (self.logs / "loop.log").open("ab") as log:
            self._loop = loop = subprocess.Popen(
                [sys.executable, "-m", "provisioner", "run", "--listen", "127.0.0.1:0"],
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(lambda: (self.work / "heartbeat").exists() or loop.poll() is not None, START_SECONDS)
        assert loop.poll() is None, (self.logs / "loop.log").read_text()
        return self

    @property
    def pid(self) -> int:
        """Return the process id of the loop."""
        assert self._loop is not None
        return self._loop.pid

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the loop."""
        if self._loop is not None:
            self._loop.send_signal(how)
            try:
                self._loop.wait(30 * PATIENCE)
            finally:
                self._loop.kill()
                self._loop.wait()
            self._loop = None

    def ended(self, id_: str, seconds: float = END_SECONDS) -> dict[str, Any]:
        """Wait until the request or return request has a terminal answer, and return this answer."""

        def entry() -> dict[str, Any] | None:
            answer = self.hf.status(id_)
            return answer if answer["status"] != "running" else None

        terminal = until(entry, seconds, every=0.3, what=f"{id_} ends")
        assert terminal is not None
        return terminal

    def complete(self, count: int, seconds: float = END_SECONDS) -> list[str]:
        """Request machines. Return their names once all of them run."""
        answer = self.ended(self.hf.request(TEMPLATE, count), seconds)
        assert answer["status"] == "complete", answer
        assert len(answer["machines"]) == count
        return [machine["name"] for machine in answer["machines"]]

    def journal(self) -> list[dict[str, Any]]:
        """Return each action with its outcome, the oldest first."""
        file = self.work / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def until_seen(self, moment: float) -> None:
        """Wait until the loop has begun a cycle later than ``moment``, which is a time of the wall clock."""
        beat = self.work / "heartbeat"
        seconds = max(moment - time.time(), 0) + END_SECONDS
        until(lambda: beat.stat().st_mtime > moment, seconds, what="a cycle begins after that moment")

    def _tell(self) -> None:
        """Print the objects that the server holds, and the loop's actions and messages."""
        for pod in self._space.pods():
            metadata, phase = pod["metadata"], pod["status"].get("phase")
            facts = {key: metadata.get(key) for key in ("resourceVersion", "creationTimestamp", "deletionTimestamp")}
            print(f"{metadata['name']}: {phase}", facts, "on", pod["spec"].get("nodeName"))
        for file in (self.work / "journal.jsonl", self.logs / "loop.log"):
            print(file.read_text(errors="replace")[-5000:] if file.exists() else f"no {file.name}")

    def _write(self, name: str, text: str) -> None:
        (self.conf / name).write_text(text)

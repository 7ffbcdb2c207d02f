"""A provider instance of a drill: three pools on an embedded cloud of its own, a loop, and HostFactory's calls."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from provisioner.commands.cli import run
from provisioner.commands.loop_service import Service
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from tests.conformance.stage import PROJECT, TIMINGS, ZONE, Instance
from tests.support.clouds.specs import advised
from tests.support.hostfactory.provider import TEMPLATES
from tests.support.waiting import PATIENCE, until

FIRST_SCREEN = 40
"""Lines of the first screen."""

ORDER: Mapping[str, tuple[str, ...]] = {"Pod": ("gke-main",), "Vm": ("mig-b",), "Either": ("gke-main", "mig-b")}
"""Templates, each with its pools."""

SPEC = {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never"}
Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by metric and labels, as a scrape returns them."""


class Site(Instance):
    """A provider instance for one test, as a context manager. At the end of the context, its loop, its cloud and its
    processes end."""

    def __init__(self, directory: Path, *, settings: Mapping[str, Any], pools: Mapping[str, Mapping[str, Any]]) -> None:
        self._end = ExitStack()
        group = advised(project=PROJECT, zone=ZONE, name="vms", autoscaler_mode=pools.get("cloud", {}).get("mode", ""))
        cloud = self._end.enter_context(Simulator(namespaces=["grid", "other"], migs=[group]))
        cloud.impose(timings=TIMINGS)
        super().__init__(directory, cloud, "grid")
        self.write_pod(SPEC)
        self.write_templates(
            *(
                TEMPLATES["templates"][0] | {"templateId": id_, "maxNumber": 400, "pools": list(names)}
                for id_, names in ORDER.items()
            )
        )
        gke = {"kind": "gke", "namespace": "grid", "pod_spec": "pod.yaml", "observe_seconds": 0.05}
        mig = {"kind": "mig", "project": PROJECT, "zone": ZONE, "group": "vms", "observe_seconds": 0.2}
        own = {"gke-main": gke, "mig-b": mig | {"lag_seconds": 0.2}}
        self.settings = {
            "id": "demo",
            "loop": {"interval_seconds": 0.1, "floor_seconds": 0.02, "intent_poll_seconds": 0.02},
            "pools": {name: body | pools.get(name, {}) for name, body in own.items()},
            **settings,
        }
        self.configure()
        self.last_scrapes: tuple[Samples, Samples] | None = None
        """The newest two scrapes of the loop."""

    def __exit__(self, *error: Any) -> None:
        super().stop_loop()
        self._end.close()

    # --- files --------------------------------------------------------------------------------------------------------

    def configure(self, **settings: object) -> None:
        """Replace provisioner.yaml in one step. Its content is the site's settings, changed by ``settings``."""
        aside = self.conf / "provisioner.new"
        aside.write_text(yaml.safe_dump(self.settings | settings))
        aside.replace(self.conf / "provisioner.yaml")

    def configure_pool(self, pool: str, **settings: object) -> None:
        """Replace settings of one pool."""
        bodies: Mapping[str, Any] = self.settings["pools"]  # type: ignore[assignment]
        self.configure(pools={**bodies, pool: {**bodies[pool], **settings}})

    def write_pod(self, spec: Mapping[str, Any]) -> None:
        """Replace the pod spec in one step."""
        aside = self.conf / "pod.new"
        aside.write_text(yaml.safe_dump(spec))
        aside.replace(self.conf / "pod.yaml")

    # --- what happens -------------------------------------------------------------------------------------------------

    def strike(self, *faults: Fault) -> None:
        """Replace all faults by these."""
        self.simulator.impose(faults)

    def kubernetes(self, verb: str, path: str = "", **body: Any) -> Any:
        """Call the API server about the namespace's pods, as another program would."""
        url = f"{self.simulator.kubernetes}/api/v1/namespaces/grid/pods{path}"
        response = requests.request(verb, url, json=body or None, timeout=10 * PATIENCE)
        response.raise_for_status()
        return response.json()

    def process(self, code: str) -> subprocess.Popen[str]:
        """Start a Python process, and wait until it prints a line. The process is killed when the site ends."""
        made = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._end.callback(made.wait)
        self._end.callback(made.kill)
        assert made.stdout is not None
        assert made.stdout.readline()
        return made

    @property
    def endpoints(self) -> dict[str, str]:
        """Return the environment variables with which a loop uses this cloud."""
        return {"KUBECONFIG": str(self.simulator.kubeconfig), "PROVISIONER_COMPUTE_ENDPOINT": self.simulator.compute}

    def run_service(self, service: Service) -> None:
        """Run this service as the site's loop. Call this only after the previous loop has ended."""
        self._service = service
        self._thread = threading.Thread(target=service.run, name="loop")
        self._thread.start()

    def pods(self) -> list[str]:
        """Return the names of the pods that run."""
        return sorted(
            one["name"]
            for one in self.simulator.state()["machines"]
            if one["kind"] == "gke" and one["phase"] == "running"
        )

    def _scraped(self) -> str:
        try:
            return requests.get(f"{self.url}/metrics", timeout=10 * PATIENCE).text
        except (RuntimeError, requests.ConnectionError):  # the loop starts
            return ""

    def during(self, context: Any) -> Any:
        """Enter a context. The context is left when the site ends."""
        return self._end.enter_context(context)

    # --- what operators see -------------------------------------------------------------------------------------------

    def operator_status(self, *options: str) -> tuple[int, str]:
        """Return exit code and text of ``provisioner status``."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = run(["status", "--state-dir", str(self.work), *options])
        return code, out.getvalue()

    def first_screen(self) -> tuple[int, str]:
        """Return exit code and first screen of ``provisioner status``."""
        code, text = self.operator_status()
        screen = "\n".join(text.splitlines()[:FIRST_SCREEN])
        return code, re.sub(r"\n {6,}", " ", screen)  # a long line goes on further to the right

    def scrape(self) -> Samples:
        """Return the metrics as Prometheus would scrape them now. Return no metrics if no loop runs."""
        if self._service is None:
            return {}
        text = until(self._scraped, 20, what="the loop's server answers")
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("hf_")
        }

"""A Symphony that Google's Cluster Toolkit has installed with Google's connector. Our programs are in its tree.

The files follow docs/hostfactory.md and docs/from-googles-connector.md. They are for GCE, for GKE, and for both merged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from tests.conformance.stage import PROJECT, TIMINGS, ZONE, Instance, names
from tests.support.broken_libraries import broken_libraries
from tests.support.clouds.specs import advised
from tests.support.hostfactory.provider import ROOT, SCRIPTS
from tests.support.hostfactory.symphony import installed, profile_of
from tests.support.waiting import PATIENCE

NAMESPACE, GROUP = "gcp-symphony", "sym-mig-c2-4"
OURS = "gcpinst"


def template(name: str, most: int, megabytes: int, **place: str) -> dict[str, Any]:
    """Return a template of the toolkit. Its ``ncpus`` and ``ncores`` are both the number of cores, so Symphony computes
    too many slots from their product."""
    numbers = {"ncpus": "4", "ncores": "4", "nram": str(megabytes)}
    attributes = {"type": ["String", "X86_64"]} | {key: ["Numeric", value] for key, value in numbers.items()}
    return {"templateId": name, "maxNumber": most, "attributes": attributes, **place}


TEMPLATES = {
    "gcpgceinst": template("sym-mig-c2-4", 10, 32768, gcp_zone=ZONE, gcp_instance_group=GROUP),
    "gcpgkeinst": template("sym-pod-c2-4", 100, 16384, podSpecYaml="pod-specs/pod-spec.yaml"),
}
POD_SPEC = """
containers:
  - name: symphony
    image: us-central1-docker.pkg.dev/my-grid-project/symphony/sym-compute:latest
    stdin: true
    tty: true
    securityContext: {privileged: true}
    env:
      - {name: MASTER_HOST, value: 10.0.0.2}
      - name: MASTER_ALIAS
        value: grid-master-0
        resources: {requests: {cpu: "4", memory: 16Gi}}
"""
"""Its resources stand inside a variable, so the pod has none."""

FOUND = {
    "gcpgceinst": [
        "template sym-mig-c2-4: ncores 4 and ncpus 4 are both above 1; Symphony counts 16 slots. Set one of them to 1."
    ],
    "gcpgkeinst": [
        "spec.containers[0].env[1].resources: no pod has such a field",
        "template sym-pod-c2-4: ncores 4 and ncpus 4 are both above 1; Symphony counts 16 slots. Set one of them to 1.",
        "template sym-pod-c2-4: ncores x ncpus promises 16 cores, but the request of",
        "template sym-pod-c2-4: nram promises 16384 MB, but the request of",
    ],
}
"""The warnings of ``provisioner check``, by instance of the toolkit."""


class Site(Instance):
    """HF_TOP with Google's two instances as root's start-up scripts leave them, and with ours beside them."""

    def __init__(self, top: Path, cloud: Simulator) -> None:
        super().__init__(top / "unused", cloud, NAMESPACE, instance=OURS)
        self.as_processes = True
        self._profile = profile_of(str(top), "/usr/bin:/bin", broken_libraries(top.parent / "libraries"))
        hf = installed(top)
        self.providers = hf / "conf" / "providers"
        self.requestors = hf / "conf" / "requestors" / "hostRequestors.json"
        self.conf, self.work, self.logs = self.providers / OURS, hf / "work" / "providers" / OURS, hf / "log"
        configs = {
            "gcpgceinst": {"GCP_PROJECT_ID": PROJECT, "PUBSUB_TOPIC": "hf-gce-vm-events", "PUBSUB_AUTOLAUNCH": True},
            "gcpgkeinst": {
                "GKE_KUBECONFIG": str(self.providers / "gcpgkeinst" / "kubeconfig"),
                "GKE_CRD_NAMESPACE": NAMESPACE,
            },
        }
        for name, config in configs.items():
            directory = self.providers / name
            directory.mkdir()
            (directory / f"{name}prov_config.json").write_text(json.dumps(config | {"LOG_LEVEL": "DEBUG"}, indent=4))
            listed = {"templates": [TEMPLATES[name]]}
            (directory / f"{name}prov_templates.json").write_text(json.dumps(listed, indent=4))
        (self.providers / "gcpgkeinst" / "pod-specs").mkdir()
        (self.providers / "gcpgkeinst" / "pod-specs" / "pod-spec.yaml").write_text(POD_SPEC)
        (self.providers / "gcpgkeinst" / "kubeconfig").write_bytes(cloud.kubeconfig.read_bytes())

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a script: HF's profile, and the instance's name."""
        return self._profile | {"HF_PROVIDER_NAME": self.instance, "EGOSC_INSTANCE_HOST": "grid-master-0"}

    def provisioner(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as HostFactory's user."""
        clouds = {"PROVISIONER_COMPUTE_ENDPOINT": self.simulator.compute, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-m", "provisioner", *words],
            env={
                **os.environ,
                **self.environment,
                **clouds,
                "LD_LIBRARY_PATH": "",
            },  # as the launcher of the bundle starts it
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )

    def check_install(self) -> list[str]:
        """Run check_install.sh, and return the lines of its output that do not begin with "fine:"."""
        done = subprocess.run(
            [str(SCRIPTS / "check_install.sh")],
            env=self.environment | {"HF_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )
        return [line for line in done.stdout.splitlines() if not line.startswith("fine: ")]


@pytest.fixture
def cloud() -> Iterator[Simulator]:
    with Simulator(
        namespaces=[NAMESPACE],
        migs=[advised(project=PROJECT, zone=ZONE, name=GROUP)],
        conditions=Conditions.of(timings=TIMINGS),
    ) as simulator:
        yield simulator


@pytest.fixture
def site(tmp_path: Path, cloud: Simulator) -> Iterator[Site]:
    with Site(tmp_path / "spectrumcomputing", cloud) as site:
        yield site


def settings(tmp_path: Path, site: Site, sources: list[str], **values: Any) -> Path:
    """Return the settings file that merges these instances into ours."""
    group = {
        "kind": "mig",
        "project": PROJECT,
        "zone": ZONE,
        "group": GROUP,
        "observe_seconds": 0.2,
        "lag_seconds": 0.2,
    }
    loop = {"interval_seconds": 0.2, "floor_seconds": 0.02, "intent_poll_seconds": 0.02}
    document = {
        "instance": OURS,
        "scripts": f"{SCRIPTS}/",
        "merge": [str(site.providers / name) for name in sources],
        "pools": {"sym-mig-c2-4": group} if "gcpgceinst" in sources else {},
        "provisioner": {"name_prefix": "hf", "loop": loop},
    }
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(document | values))
    return file


@pytest.mark.parametrize("sources", [["gcpgceinst"], ["gcpgkeinst"], ["gcpgceinst", "gcpgkeinst"]], ids="+".join)
def test_machines_come_and_go_on_a_site_of_the_toolkit(tmp_path: Path, site: Site, sources: list[str]) -> None:
    looked = site.provisioner("render-hf", str(settings(tmp_path, site, sources)), "--dry-run")
    assert (looked.returncode, looked.stderr) == (1, "")
    assert (
        f"Requestor symAinst is disabled in {site.requestors}: HostFactory requests no machine of gcpinst"
        in looked.stdout
    )
    enabled = {"symAinst": {"enabled": True, "providers": [OURS]}, "admin": "REST_MANUAL"}
    done = site.provisioner("render-hf", str(settings(tmp_path, site, sources, requestors=enabled)))
    assert (done.returncode, "disabled" in done.stdout) == (0, False)
    entries = json.loads(site.requestors.read_text())["requestors"]
    assert [(entry["enabled"], entry["providers"]) for entry in entries] == [(1, [OURS]), (1, ["awsinst", OURS])]
    (site.providers / "gcpgkeinst" / "kubeconfig").unlink()  # ours has a copy

    checked = site.provisioner("check")
    found = [text for name in sources for text in FOUND[name]]
    words = f"{len(found)} warning{'s' * (len(found) > 1)}"
    assert (checked.returncode, checked.stdout.split(":")[0]) == (0, words)
    assert [text for text in found if text not in checked.stdout] == []
    assert [line for line in site.check_install() if "no such directory: create it" in line] == [
        f"fix: {site.work}: no such directory: create it, with a group that holds the scripts' and the loop's user"
    ]
    site.work.mkdir(parents=True)
    assert [line for line in site.check_install() if "EGO_DYNAMIC_HOST_TIMEOUT is missing" in line] != []
    with (site.requestors.parents[3] / "kernel" / "conf" / "ego.conf").open("a") as file:
        file.write("EGO_DYNAMIC_HOST_TIMEOUT=10m\n")
    (result,) = site.check_install()
    assert result.startswith(f"fix: {site.work}: no loop has run here yet: start `provisioner run`")

    site.start_loop()
    site.cycles()
    assert site.check_install() == []
    listed = site.run([str(SCRIPTS / "getAvailableTemplates.sh")]).document["templates"]
    assert [entry["templateId"] for entry in listed] == [TEMPLATES[name]["templateId"] for name in sources]
    for entry in listed:
        asked = {"template": {"templateId": entry["templateId"], "machineCount": 2}}
        came = site.ended(site.call("requestMachines", asked)["requestId"])
        assert (came["status"], len(names(came, "succeed"))) == ("complete", 2)
        given = {"machines": [{"name": name} for name in names(came)]}
        assert site.ended(site.call("requestReturnMachines", given)["requestId"])["status"] == "complete"
    assert [machine for machine in site.simulator.state()["machines"] if machine["name"].startswith("hf-")] == []

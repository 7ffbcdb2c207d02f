"""A site moves from Google's connector to us. Its files, its environment and its command lines stay the same, and its
machines keep running."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from tests.conformance.stage import PROJECT, TIMINGS, ZONE, Instance, names
from tests.support.clouds.specs import advised
from tests.support.clouds.switches import FLIPS
from tests.support.hostfactory.provider import ROOT, SCRIPTS
from tests.support.hostfactory.schemas import check_output
from tests.support.waiting import PATIENCE, until

NAMESPACE, GROUP = "gcp-symphony", "symphony-group"
ATTRIBUTES = {"type": ["String", "X86_64"], "ncpus": ["Numeric", "1"], "nram": ["Numeric", "1024"]}
COMMON = {"LOG_LEVEL": "INFO", "LOG_MAX_FILE_SIZE": 10, "LOG_MAX_ROTATE": 5}
GKE_CONFIG = COMMON | {
    "GKE_KUBECONFIG": "kubeconfig",
    "GKE_CRD_NAMESPACE": NAMESPACE,
    "GKE_CRD_GROUP": "accenture.com",
    "GKE_CRD_KIND": "GCPSymphonyResource",
    "GKE_REQUEST_TIMEOUT": 300,
    "GKE_POLLING_INTERVAL": 1,
}
GCE_CONFIG = COMMON | {
    "HF_DBDIR": "/opt/symphony/hostfactory/db",
    "HF_TEMPLATES_FILENAME": "gcpgceinstprov_templates.json",
    "GCP_PROJECT_ID": PROJECT,
    "GCP_INSTANCE_PREFIX": "Sym-",
    "PUBSUB_TOPIC": "hf-gce-vm-events",
    "PUBSUB_AUTOLAUNCH": "false",
    "RETURNED_VM_TTL": 30,
}
GKE_TEMPLATE = {"templateId": "template-gke-01", "maxNumber": 10, "attributes": ATTRIBUTES}
GKE_TEMPLATE |= {"podSpecYaml": "pod-specs/pod-spec.yaml"}
GCE_TEMPLATE = {"templateId": "template-gcp-01", "maxNumber": 10, "attributes": ATTRIBUTES}
GCE_TEMPLATE |= {"gcp_zone": ZONE, "gcp_instance_group": GROUP}
POD_SPEC = "nodeSelector: {cloud.google.com/compute-class: default}\ncontainers: [{name: compute, image: example}]\n"

QUICK = {"observe_seconds": 0.2, "lag_seconds": 0.2}
PAGE = (ROOT / "docs" / "from-googles-connector.md").read_text()
SHOWN = re.findall(r"(?ms)^   ```yaml\n   # (\w+)/provisioner.yaml\n(.*?)^   ```", PAGE)
OURS = {instance: yaml.safe_load(lines) for instance, lines in SHOWN}
"""The page's provisioner.yaml for each instance. It is the only added file, and it is needed only to take over machines
that run."""
LOOP = {"interval_seconds": 0.2, "floor_seconds": 0.02, "intent_poll_seconds": 0.02}


class Moved(Instance):
    """A provider instance of a site that used Google's connector. Its directories are where Google's installer makes
    them below HF_TOP."""

    def __init__(self, top: Path, cloud: Simulator, place: str, instance: str, files: dict[str, Any]) -> None:
        super().__init__(top / "unused", cloud, place, instance=instance)
        self.as_processes = True
        self.top = top
        self.conf, self.work = (top / kind / "providers" / instance for kind in ("conf", "work"))
        self.logs = top / "log"
        for directory in (self.conf / "pod-specs", self.work, self.logs):
            directory.mkdir(parents=True, exist_ok=True)
        for name, document in files.items():
            (self.conf / f"{instance}prov_{name}.json").write_text(json.dumps(document, indent=4))

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that HF gives Google's scripts. The work directory is not among them."""
        return {
            "HF_TOP": str(self.top),
            "HF_VERSION": "1.2",
            "HF_PROVIDER_NAME": self.instance,
            "HF_PROVIDER_CONFDIR": str(self.conf),
            "HF_PROVIDER_LOGDIR": str(self.logs),
            "HF_DBDIR": str(self.top / "db"),
            "EGOSC_INSTANCE_HOST": "master1",
        }

    def positional(self, name: str, document: object) -> Any:
        """Call a script with the JSON text as its argument, as HF calls Google's scripts."""
        answer = self.run([str(SCRIPTS / f"{name}.sh"), json.dumps(document)]).document
        check_output(name, answer)
        return answer

    def provisioner(self, *words: str) -> str:
        """Run a command of ``provisioner`` as an operator of the site, and return its output."""
        clouds = {"KUBECONFIG": str(self.simulator.kubeconfig), "PROVISIONER_COMPUTE_ENDPOINT": self.simulator.compute}
        environment = {**os.environ, **self.environment, **clouds, "PYTHONPATH": str(ROOT)}
        done = self.run([sys.executable, "-m", "provisioner", *words], environment=environment)
        assert done.code == 0, done
        return done.out

    def take_over(self, **settings: object) -> None:
        """Add our provisioner.yaml, and start our loop in the place of Google's connector."""
        (self.conf / "provisioner.yaml").write_text(yaml.safe_dump(OURS[self.instance] | {"loop": LOOP} | settings))
        self.start_loop()


@pytest.fixture
def cloud() -> Iterator[Simulator]:
    with Simulator(
        namespaces=[NAMESPACE],
        migs=[advised(project=PROJECT, zone=ZONE, name=GROUP)],
        conditions=Conditions.of(timings=TIMINGS),
    ) as simulator:
        yield simulator


@pytest.fixture
def gke(tmp_path: Path, cloud: Simulator) -> Iterator[Moved]:
    files = {"config": GKE_CONFIG, "templates": {"templates": [GKE_TEMPLATE]}}
    with Moved(tmp_path, cloud, NAMESPACE, "gcpgkeinst", files) as instance:
        (instance.conf / "pod-specs" / "pod-spec.yaml").write_text(POD_SPEC)
        shutil.copy(cloud.kubeconfig, instance.conf / "kubeconfig")
        yield instance


@pytest.fixture
def gce(tmp_path: Path, cloud: Simulator) -> Iterator[Moved]:
    files = {"config": GCE_CONFIG, "templates": {"templates": [GCE_TEMPLATE]}}
    with Moved(tmp_path, cloud, GROUP, "gcpgceinst", files) as instance:
        yield instance


def drained(hf: Moved, theirs: Mapping[str, str], template: str) -> list[str]:
    """As HF, request new machines from our provisioner, and return the machines of Google's connector to it. Return the
    names of our machines.

    ``theirs``: machine name → id, as HF knows the connector's machines.
    """
    ours = names(hf.ended(hf.positional("requestMachines", _requesting(template))["requestId"]))
    assert hf.cloud() == sorted([*theirs, *ours])
    assert hf.reclaimed(*theirs, *ours) == {}, "theirs are not ours to lose"
    given = [{"name": name, "machineId": machine} for name, machine in theirs.items()]
    returned = hf.positional("requestReturnMachines", {"machines": given})
    entry = hf.ended(returned["requestId"])
    assert (entry["status"], sorted(names(entry, "succeed"))) == ("complete", sorted(theirs))
    assert hf.cloud("running") == sorted(ours)
    return ours


def _requesting(template: str) -> dict[str, object]:
    return {"template": {"templateId": template, "machineCount": 2}}


def test_pods_of_google_s_connector_drain_into_ours(gke: Moved, cloud: Simulator) -> None:
    theirs = {}
    for name in (f"g1c733ee2-1b4b-41ca-bab4-d8a23b52ade8-8s2rw-pod-{number}" for number in range(2)):
        pod = {"metadata": {"name": name, "labels": {"app": name}}, "spec": yaml.safe_load(POD_SPEC)}
        made = requests.post(f"{cloud.kubernetes}/api/v1/namespaces/{NAMESPACE}/pods", json=pod, timeout=10 * PATIENCE)
        made.raise_for_status()
        theirs[name] = made.json()["metadata"]["uid"]  # what their scripts print as machineId
    [shown] = gke.positional("getAvailableTemplates", {})["templates"]
    assert shown == GKE_TEMPLATE | {"attributes": ATTRIBUTES | {"ncores": ["Numeric", "1"]}}
    gke.take_over()
    drained(gke, theirs, "template-gke-01")
    assert [file.name for file in gke.logs.iterdir()] == ["gcpgkeinst-provider.master1.log"]
    [unused] = [line["keys"] for line in gke.log if "keys" in line]
    assert unused == ["GKE_CRD_GROUP", "GKE_CRD_KIND", "GKE_REQUEST_TIMEOUT", "GKE_POLLING_INTERVAL"]


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("switches", ["", *FLIPS], indirect=True)
def test_instances_of_google_s_connector_drain_into_ours(gce: Moved, cloud: Simulator) -> None:
    theirs = ["sym-0a1b2c3d-1", "sym-0a1b2c3d-2"]
    labels = {"metadata": {"symphony-request": "0a1b2c3d"}}
    body = {"instances": [{"name": name, "preservedState": labels} for name in theirs]}
    requests.post(f"{_group(cloud)}/createInstances", json=body, timeout=10 * PATIENCE).raise_for_status()
    gce.until_cloud(lambda machines: len(machines) == 2, "running")
    assert _preserved(cloud) == dict.fromkeys(theirs, labels)
    pool = {"kind": "mig", "project": PROJECT, "zone": ZONE, "group": GROUP} | QUICK
    gce.take_over(pools={"group": pool})
    ours = drained(gce, {name: name for name in theirs}, "template-gcp-01")
    assert all(name.startswith("hf-") for name in ours), "not as theirs, so that they cannot be confused"
    until(lambda: _preserved(cloud) == dict.fromkeys(ours), 30, what="nothing of theirs, and nothing of ours, is kept")
    assert requests.get(_group(cloud), timeout=10 * PATIENCE).json()["status"]["stateful"]["isStateful"] is False


def _group(cloud: Simulator) -> str:
    return f"{cloud.compute}projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers/{GROUP}"


def _preserved(cloud: Simulator) -> dict[str, object]:
    """Return the preserved state of each instance of the group, by name."""
    listed = requests.post(f"{_group(cloud)}/listPerInstanceConfigs", timeout=10 * PATIENCE).json()
    return {config["name"]: config.get("preservedState") for config in listed.get("items", [])}


THEIR_SCRIPT = """#!/bin/sh
printf '%s\\n' '{"requests": [], "message": "theirs"}'
"""


def point_at(plugins: Path, scripts: Path) -> None:
    """Set the plug-in's scriptPath to other scripts, as the guide describes. No other key changes."""
    entry = {"name": "gcpgce", "enabled": 1, "scriptPath": f"{scripts}/"}
    plugins.write_text(json.dumps({"version": 2, "providerplugins": [entry]}))


def through(hf: Moved, plugins: Path, name: str, document: object) -> Any:
    """Call a script from the directory that the plug-in's scriptPath names. Return its answer."""
    [plugin] = json.loads(plugins.read_text())["providerplugins"]
    hf.input.parent.mkdir(exist_ok=True)
    hf.input.write_text(json.dumps(document))
    return hf.run([f"{plugin['scriptPath']}{name}.sh", "-f", str(hf.input)]).document


@pytest.mark.slow
def test_the_way_there_and_back_by_the_guide(gce: Moved, cloud: Simulator, tmp_path: Path) -> None:
    """Follow the steps of docs/from-googles-connector.md in their order. HostFactory calls the scripts to which
    scriptPath points."""
    plugins, theirs = tmp_path / "conf" / "hostProviderPlugins.json", tmp_path / "theirs"
    for directory in (theirs, tmp_path / "db"):
        directory.mkdir()
    (theirs / "getReturnRequests.sh").write_text(THEIR_SCRIPT)
    (theirs / "getReturnRequests.sh").chmod(0o755)
    with closing(sqlite3.connect(tmp_path / "db" / "hf_gce.db")) as database:
        database.execute("create table requests (id text)")
        database.execute("insert into requests values ('0a1b2c3d')")
        database.commit()
    point_at(plugins, theirs)
    body = {"instances": [{"name": "sym-0a1b2c3d-1"}]}
    requests.post(f"{_group(cloud)}/createInstances", json=body, timeout=10 * PATIENCE).raise_for_status()
    gce.until_cloud(lambda machines: len(machines) == 1, "running")
    before = files(gce.conf, tmp_path / "db")
    assert through(gce, plugins, "getReturnRequests", {"machines": []})["message"] == "theirs"
    assert "ERROR" not in gce.provisioner("check", "--live")
    plan = json.loads(gce.provisioner("run", "--dry-run", "--once"))
    assert (plan["creates"], plan["deletes"]) == ([], [])
    assert files(gce.conf, tmp_path / "db", gce.work) == before, "nothing is written beside the other"
    pool = {"kind": "mig", "project": PROJECT, "zone": ZONE, "group": GROUP} | QUICK
    point_at(plugins, SCRIPTS)
    gce.take_over(pools={"group": pool})
    # An id that only their database knows is answered, so that HostFactory asks no more for it.
    [unknown] = through(gce, plugins, "getRequestStatus", {"requests": [{"requestId": "0a1b2c3d"}]})["requests"]
    assert (unknown["status"], unknown["machines"]) == ("complete_with_error", [])
    id_ = through(gce, plugins, "requestMachines", _requesting("template-gcp-01"))["requestId"]
    ours = names(gce.ended(id_))
    return_id = through(gce, plugins, "requestReturnMachines", {"machines": [{"name": "sym-0a1b2c3d-1"}]})["requestId"]
    assert gce.ended(return_id)["status"] == "complete"
    assert gce.cloud("running") == sorted(ours)
    gce.provisioner("drain", "group", "--reason", "we go back")
    gce.reclaims(*ours)
    given = {"machines": [{"name": name} for name in ours]}
    return_id = through(gce, plugins, "requestReturnMachines", given)["requestId"]
    assert gce.ended(return_id)["status"] == "complete"
    assert gce.cloud() == [], "what is ours goes before the loop does"
    point_at(plugins, theirs)
    gce.stop_loop()
    (gce.conf / "provisioner.yaml").unlink()
    (gce.conf / ".gcpgceinst.state-directories").unlink()
    assert through(gce, plugins, "getReturnRequests", {"machines": []})["message"] == "theirs"
    assert files(gce.conf, tmp_path / "db") == before


def files(*directories: Path) -> dict[Path, bytes]:
    """Return the content of every file below these directories."""
    return {file: file.read_bytes() for one in directories for file in one.rglob("*") if file.is_file()}

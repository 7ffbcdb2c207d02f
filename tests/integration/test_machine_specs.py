"""Every pod spec and instance template of the kit makes a machine that the scripts of ``deploy/machine`` let in.

A spec is every document of a YAML file or of a page that has containers of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

from tests.support.checks.attributes import OPTIONAL, attributes_read
from tests.support.checks.terraform import plain
from tests.support.clients.terraform import EXAMPLE, TERRAFORM
from tests.support.machine import MACHINE, NAME, Machine
from tests.support.manifests import CONFIGURED, Build, built, name_of, write_configuration
from tests.support.metadata_server import MetadataServer
from tests.support.passing import pools_of
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
IDLE = "deploy/kustomize/overlays/kind/config/pod-spec.yaml"
"""A machine that is in no grid: for a laptop."""
SPOT_POD_SECONDS = 15
"""What a Spot node of GKE leaves its pods, whatever they ask for (cloud.google.com, "Spot VMs in GKE")."""
SPOT_VM_SECONDS = 30
KILL_SECONDS = 2
"""What HF_LEAVE_SECONDS may be exceeded by: a second until a program is killed, and the clock's whole seconds."""


def spec_in(document: object) -> dict[str, Any] | None:
    """The pod's spec, where a document is a pod's or only its spec."""
    spec = document.get("spec", document) if isinstance(document, dict) else None
    return spec if isinstance(spec, dict) and "containers" in spec else None


def shipped() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every spec by where it stands."""
    files = sorted(path for folder in ("config", "deploy") for path in (ROOT / folder).rglob("*.yaml"))
    pages = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    texts = [(path, path.read_text()) for path in files]
    texts += [(path, text) for path in pages for text in re.findall(r"(?ms)^```yaml\n(.*?)^```", path.read_text())]
    for path, text in texts:
        where = str(path.relative_to(ROOT))
        yield from ((where, spec) for one in yaml.safe_load_all(text) if where != IDLE and (spec := spec_in(one)))


SPECS = list(shipped())
each_spec = pytest.mark.parametrize("spec", [spec for _, spec in SPECS], ids=[where for where, _ in SPECS])


def settings(**environment: str) -> dict[str, str]:
    """The settings of the machine's scripts, as a shell reads them from the library in an environment."""
    read = '. "$0"; for name in ${!HF_@}; do printf "%s=%s\\n" "$name" "${!name}"; done'
    given = {"PATH": os.environ["PATH"], **environment}
    words = ["bash", "-c", read, str(MACHINE / "lib.sh")]
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def environment(spec: dict[str, Any]) -> dict[str, str]:
    """What a spec gives its one container."""
    (container,) = spec["containers"]
    return {entry["name"]: entry["value"] for entry in container.get("env", ())}


# --- pods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", CONFIGURED, ids=name_of)
def test_the_pools_that_kustomize_configures_have_specs_that_are_looked_at_here(build: Build, tmp_path: Path) -> None:
    overlay, components = build
    write_configuration(built(overlay, *components), tmp_path)
    found = [spec_in(yaml.safe_load(pool.pod_spec.read_text())) for pool in pools_of(tmp_path)]
    known = [spec for _, spec in SPECS] + [yaml.safe_load((ROOT / IDLE).read_text())]
    assert found
    assert [spec for spec in found if spec not in known] == []


@each_spec
def test_a_pod_of_it_becomes_ready_under_its_own_name(spec: dict[str, Any], machine: Machine) -> None:
    """The entry point runs with the spec's environment, then its probe; their file is in a directory of ours."""
    (container,) = spec["containers"]
    (*words, probed) = container["readinessProbe"]["exec"]["command"]
    made = settings(**environment(spec))["HF_READY_FILE"]
    root = machine.ready.parent
    del machine.environment["HF_EGO_MASTER"]
    given = environment(spec) | {"HF_READY_FILE": f"{root}{made}", "HOSTNAME": NAME}
    with MetadataServer({"instance/name": "gke-node-1"}) as server:
        machine.start("entry.sh", GCE_METADATA_HOST=server.host, **given)
        until((root / made.lstrip("/")).exists, 30, what="it is ready")
    assert subprocess.run([*words, f"{root}{probed}"], check=False).returncode == 0
    assert machine.calls[0] == f"egoconfig join {environment(spec)['HF_EGO_MASTER']} -f"


@each_spec
def test_the_image_has_a_place_for_the_ready_file(spec: dict[str, Any]) -> None:
    made = Path(settings(**environment(spec))["HF_READY_FILE"])
    (place,) = re.findall(r"(?m)^RUN install -d -o \$\{EGO_UID\} (\S+)$", (MACHINE / "Dockerfile").read_text())
    assert str(made.parent) == place


@each_spec
def test_a_pod_has_left_before_it_is_killed(spec: dict[str, Any]) -> None:
    leaving = int(settings(**environment(spec))["HF_LEAVE_SECONDS"])
    grace = spec["terminationGracePeriodSeconds"]
    assert leaving + KILL_SECONDS < grace
    assert leaving + KILL_SECONDS < SPOT_POD_SECONDS
    if "spot" in str(spec.get("nodeSelector")):
        assert grace == SPOT_POD_SECONDS, "more would promise what is not kept"


def test_the_page_s_pod_drains_with_the_secret_that_the_page_makes(machine: Machine) -> None:
    """The Secret's file is where the kubelet mounts it, in a directory of ours."""
    (spec,) = [spec for _, spec in SPECS if "HF_EGO_USER" in environment(spec)]
    page = (ROOT / "docs" / "deploy-machine.md").read_text()
    ((name, key),) = re.findall(r"create secret generic (\S+) --from-file=(\w+)=", page)
    (volume,) = spec["volumes"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert (volume["name"], volume["secret"]["secretName"]) == (mount["name"], name)
    given = environment(spec)
    root = machine.ready.parent
    file = Path(f"{root}{mount['mountPath']}", key)
    file.parent.mkdir(parents=True)
    file.write_text("secret\n")
    (machine.ego / "account").write_text(f"{given['HF_EGO_USER']} secret")
    given["HF_EGO_PASSWORD_FILE"] = f"{root}{given['HF_EGO_PASSWORD_FILE']}"
    pod = machine.start("entry.sh", HOSTNAME=NAME, **given)
    until(machine.ready.exists, 30, what="it is ready")
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30) == 0
    assert (machine.ego / "closed").read_text() == f"{NAME}\n"


# --- instances --------------------------------------------------------------------------------------------------------


def test_an_instance_of_spot_has_left_before_it_is_stopped() -> None:
    assert int(settings()["HF_LEAVE_SECONDS"]) + KILL_SECONDS < SPOT_VM_SECONDS


def test_each_group_of_the_example_gives_its_instances_what_their_scripts_read() -> None:
    groups = hcl2.loads(EXAMPLE.read_text())["groups"]
    assert len(groups) == 2
    for group in groups.values():
        files = {plain(name): TERRAFORM / plain(path) for name, path in group["metadata_from_file"].items()}
        given = {plain(name) for name in group["metadata"]} | {*files}
        scripts = [files[f"{when}-script"].resolve() for when in ("startup", "shutdown")]
        assert scripts == [MACHINE / "startup.sh", MACHINE / "shutdown.sh"]
        assert files["hf-machine-lib"].resolve() == MACHINE / "lib.sh"
        assert attributes_read(*scripts) - OPTIONAL == {name for name in given if name.startswith("hf-")}

"""The scripts of ``deploy/machine`` accept the machines made from every pod spec and instance template of the kit. A
pod spec is a YAML document with ``containers``, in a file or on a page."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

from tests.support.checks.attributes import OPTIONAL, attributes_read
from tests.support.checks.terraform import plain
from tests.support.clients.terraform import EXAMPLE, TERRAFORM
from tests.support.machine import MACHINE, NAME, Machine, environment_of, settings
from tests.support.manifests import CONFIGURED, Build, built, name_of, write_configuration
from tests.support.passing import pools_of
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
OTHERS = ("config/places/ray-worker-pod.yaml", "deploy/machine/htcondor/pod-spec.yaml")
"""The pod specs of machines that join Ray or HTCondor, and no grid of Symphony."""
IDLE = "deploy/kustomize/overlays/kind/config/pod-spec.yaml"
"""A machine that is in no grid: for a laptop."""
SPOT_POD_SECONDS = 15
"""Seconds that a Spot node of GKE gives its pods, whatever they request (cloud.google.com, "Spot VMs in GKE")."""
SPOT_VM_SECONDS = 30
KILL_SECONDS = 2
"""Seconds beyond HF_LEAVE_SECONDS: one until a program is killed, and one because the clock has whole seconds."""


def spec_in(document: object) -> dict[str, Any] | None:
    """Return the spec of a pod. The document may be the pod or only its spec. For any other document, return None."""
    spec = document.get("spec", document) if isinstance(document, dict) else None
    return spec if isinstance(spec, dict) and "containers" in spec else None


def shipped() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every pod spec, each with the path of the file or page that has it."""
    files = sorted(path for folder in ("config", "deploy") for path in (ROOT / folder).rglob("*.yaml"))
    pages = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    texts = [(path, path.read_text()) for path in files]
    texts += [(path, text) for path in pages for text in re.findall(r"(?ms)^```yaml\n(.*?)^```", path.read_text())]
    for path, text in texts:
        where = str(path.relative_to(ROOT))
        if where not in (IDLE, *OTHERS):
            yield from ((where, spec) for one in yaml.safe_load_all(text) if (spec := spec_in(one)))


SPECS = list(shipped())
STARTS = {
    repr((environment_of(spec), spec["containers"][0].get("readinessProbe"))): (where, spec) for where, spec in SPECS
}
"""A pod spec for each different start."""
each_spec = pytest.mark.parametrize("spec", [spec for _, spec in SPECS], ids=[where for where, _ in SPECS])


# --- pods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", CONFIGURED, ids=name_of)
def test_the_pools_that_kustomize_configures_have_specs_that_are_looked_at_here(build: Build, tmp_path: Path) -> None:
    overlay, components = build
    write_configuration(built(overlay, *components), tmp_path)
    found = [spec_in(yaml.safe_load(pool.pod_spec.read_text())) for pool in pools_of(tmp_path)]
    known = [spec for _, spec in SPECS] + [yaml.safe_load((ROOT / IDLE).read_text())]
    assert found
    assert [spec for spec in found if spec not in known] == []


@pytest.mark.parametrize("spec", [spec for _, spec in STARTS.values()], ids=[where for where, _ in STARTS.values()])
def test_a_pod_of_it_becomes_ready_under_its_own_name(spec: dict[str, Any], machine: Machine) -> None:
    assert machine.is_ready_as(spec)
    assert machine.calls[0] == f"egoconfig join {environment_of(spec)['HF_EGO_MASTER']} -f"


@each_spec
def test_the_image_has_a_place_for_the_ready_file(spec: dict[str, Any]) -> None:
    made = Path(settings(**environment_of(spec))["HF_READY_FILE"])
    (place,) = re.findall(r"(?m)^RUN install -d -o \$\{EGO_UID\} (\S+)$", (MACHINE / "Dockerfile").read_text())
    assert str(made.parent) == place


@each_spec
def test_a_pod_has_left_before_it_is_killed(spec: dict[str, Any]) -> None:
    leaving = int(settings(**environment_of(spec))["HF_LEAVE_SECONDS"])
    grace = spec["terminationGracePeriodSeconds"]
    assert leaving + KILL_SECONDS < grace
    assert leaving + KILL_SECONDS < SPOT_POD_SECONDS
    if "spot" in str(spec.get("nodeSelector")):
        assert grace == SPOT_POD_SECONDS, "more would promise what is not kept"


def test_the_page_s_pod_drains_with_the_secret_that_the_page_makes(machine: Machine) -> None:
    """The Secret's file has the path at which the kubelet would mount it, but below a directory of the test."""
    (spec,) = [spec for _, spec in SPECS if "HF_EGO_USER" in environment_of(spec)]
    page = (ROOT / "docs" / "deploy-machine.md").read_text()
    ((name, key),) = re.findall(r"create secret generic (\S+) --from-file=(\w+)=", page)
    (volume,) = spec["volumes"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert (volume["name"], volume["secret"]["secretName"]) == (mount["name"], name)
    given = environment_of(spec)
    root = machine.ready.parent
    file = Path(f"{root}{mount['mountPath']}", key)
    file.parent.mkdir(parents=True)
    file.write_text("secret\n")
    (machine.ego / "account").write_text(f"{given['HF_EGO_USER']} secret")
    given["HF_EGO_PASSWORD_FILE"] = f"{root}{given['HF_EGO_PASSWORD_FILE']}"
    pod = machine.start("entry.sh", HOSTNAME=NAME, **given)
    until(machine.ready.exists, 30, what="it is ready")
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=30 * PATIENCE) == 0
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

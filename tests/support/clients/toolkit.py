"""Cluster Toolkit with ``deploy/cluster-toolkit``. Its Terraform modules use a provider that makes no resources.

``python -m tests.support.clients.toolkit CLONE`` builds the toolkit's program gcluster from a clone of its repository,
once per machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.build import cache, once
from tests.support.clients.terraform import terraform, whole
from tests.support.waiting import PATIENCE

TOOLKIT = Path(__file__).parents[3] / "deploy" / "cluster-toolkit"
MODULES = tuple(sorted(file.parent for file in TOOLKIT.glob("community/modules/*/*/main.tf")))
BLUEPRINTS = tuple(sorted(TOOLKIT.glob("examples/*.yaml")))
PROVISIONER = TOOLKIT / "community" / "modules" / "scheduler" / "hostfactory-provisioner"
GO_PROGRAMS = {
    "terraform-docs": ("github.com/terraform-docs/terraform-docs", "v0.22.0"),
    "tflint": ("github.com/terraform-linters/tflint", "v0.55.1"),
}
"""Programs that Go builds, by name: the package, which is a module too, and its version."""
ASKS_GOOGLE = (
    "test_project_exists",
    "test_apis_enabled",
    "test_region_exists",
    "test_zone_exists",
    "test_zone_in_region",
    "test_machine_type_in_zone",
    "test_disk_type_in_zone",
)
"""The validators of gcluster that ask Google."""
NO_ACCELERATORS = json.dumps({"gpus": {}, "tpus": {}, "cpus": {}})
"""Text that gcluster accepts as Google's answer about a machine type; its own tests set the same."""
NOTHING_MADE = 'mock_provider "google" {}\nrun "made" {\n  command = apply\n}\n'


def copied(directory: Path) -> Path:
    """Return a copy of the folder ``deploy`` as gcluster needs it: links are replaced by the files that they lead
    to."""
    ignored = shutil.ignore_patterns(".terraform*")
    return shutil.copytree(TOOLKIT.parent, directory / "deploy", ignore=ignored)


def go_program(name: str) -> Path:
    """Return a program that Go builds, once per machine. Skip the test if Go is missing."""
    package, version = GO_PROGRAMS[name]

    def build(aside: Path) -> None:
        (aside / "go.mod").write_text(f"module build\n\ngo 1.24\n\nrequire {package} {version}\n")
        _go_build(aside, aside / name, "-mod=mod", package)

    if shutil.which("go") is None:
        pytest.skip(f"needs Go 1.24 or newer to build {name}")
    directory = cache(os.environ) / f"{name}-{version}"
    once(directory, build)
    return directory / name


def gcluster() -> Path:
    """Return the program gcluster: from the variable GCLUSTER, from the PATH, or built before. Skip the test if there
    is none."""
    built = cache(os.environ) / "gcluster" / "gcluster"
    found = os.environ.get("GCLUSTER") or shutil.which("gcluster") or (str(built) if built.is_file() else None)
    if found is None:
        pytest.skip(f"needs gcluster: python -m {__name__} CLONE builds it from a clone of the toolkit")
    return Path(found)


def build_gcluster(clone: Path) -> Path:
    """Build the toolkit's program, once per machine, from a clone of its repository."""
    directory = cache(os.environ) / "gcluster"
    once(directory, lambda aside: _go_build(clone.resolve(), aside / "gcluster", "gcluster.go"))
    return directory / "gcluster"


def _go_build(directory: Path, target: Path, *words: str) -> None:
    subprocess.run(["go", "build", "-ldflags=-s -w", "-o", str(target), *words], cwd=directory, check=True)


def deployment(blueprint: Path, out: Path) -> Path:
    """Return the folder that gcluster makes from a blueprint. gcluster runs in the folder of the blueprint."""
    words = ["create", blueprint.name, "--out", str(out), "--skip-validators", ",".join(ASKS_GOOGLE)]
    done = subprocess.run(
        [gcluster(), *words, "--download-dependencies=false"],
        cwd=blueprint.parent,
        env=os.environ | {"GHPC_MOCK_MACHINE_CONFIG": NO_ACCELERATORS, "TF_CLI_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
        timeout=120 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (path.parent for path in out.glob("*/instructions.txt"))
    return made


def outputs(module: Path, variables: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the outputs of a module for these variables, with a provider that makes nothing."""
    copy, settings = whole(directory, module)
    (copy / "made.tftest.hcl").write_text(NOTHING_MADE)
    (copy / "given.json").write_text(json.dumps(variables))
    words = ("test", "-json", "-verbose", "-filter=made.tftest.hcl", "-var-file=given.json")
    done = terraform(*words, directory=copy, settings=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    (state,) = (line["test_state"] for line in map(json.loads, done.stdout.splitlines()) if "test_state" in line)
    return {name: output["value"] for name, output in state["outputs"].items()}


def settings_of(blueprint: Path, source: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a blueprint gives to its module with this source.

    ``known``: values of the outputs of other modules.
    """
    document = yaml.safe_load(blueprint.read_text())
    variables = {f"$(vars.{name})": value for name, value in document["vars"].items()} | dict(known)
    (settings,) = (
        module["settings"]
        for group in document["deployment_groups"]
        for module in group["modules"]
        if module["source"].endswith(f"/{source}")
    )
    given: dict[str, Any] = resolved(settings, variables)
    return given


def resolved(value: Any, known: Mapping[str, Any]) -> Any:
    """Return a setting with its expressions replaced by the values in ``known``."""
    if isinstance(value, dict):
        return {name: resolved(inner, known) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolved(inner, known) for inner in value]
    if isinstance(value, str) and value not in known:
        return re.sub(r"\$\([^()]*\)", lambda found: str(known[found[0]]), value)
    return known[value] if isinstance(value, str) else value


if __name__ == "__main__":
    print(build_gcluster(Path(sys.argv[1])))

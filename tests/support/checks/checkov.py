"""Run checkov on the files that we deploy (``make checkov``). Each failed check needs a reason in
``deploy/checkov.yaml``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.manifests import GKE, OPTIONAL, OVERLAYS, ROOT, built_text

REASONED = ROOT / "deploy" / "checkov.yaml"
POLICIES = "overlays/gke-workload-identity", "overlays/mixed"
"""Overlays that have network policies."""
SPOILT = {
    "kubernetes": ("manifests.yaml", "allowPrivilegeEscalation: false", "privileged: true", "CKV_K8S_16"),
    "dockerfile": ("loop/Dockerfile", "USER 10001:10001", "USER root", "CKV_DOCKER_8"),
    "terraform": ("cluster.tf", "auto_repair  = true", "auto_repair = false", "CKV_GCP_9"),
}
"""Faults that checkov has to find, one for each kind of file. A fault has the file, the replaced text, the new text,
and the check that has to fail."""

Failures = set[tuple[str, str]]
"""The checks that fail, each with its description and its resource."""


def failures(program: str, framework: str, directory: Path) -> Failures:
    """Return the failed checks of a directory. Exit with an error if checkov has checked nothing."""
    command = [program, "--directory", str(directory), "--framework", framework, "--skip-download", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    result: dict[str, Any] = json.loads(done.stdout).get("results", {})
    if not result.get("passed_checks"):
        sys.exit(f"checkov has checked nothing: {done.stdout[-500:]} {done.stderr[-500:]}")
    return {(one["check_id"], f"{one['check_name']}: {one['resource']}") for one in result["failed_checks"]}


def read(directory: Path) -> Iterator[tuple[tuple[str, ...], str, Path]]:
    """Copy the files that we deploy into directories, one for each sort of files. Yield for each directory: the
    sections of ``deploy/checkov.yaml`` that have its accepted reasons, checkov's name for the sort, and the
    directory."""
    for overlay in OVERLAYS:
        parts = ("manifests",) if overlay in POLICIES else ("manifests", "manifests without network policy")
        components = OPTIONAL if overlay == GKE else ()
        place = directory / overlay
        place.mkdir(parents=True)
        (place / "manifests.yaml").write_text(built_text(overlay, *components))
        yield parts, "kubernetes", place
    images = directory / "images"
    for name, source in (("loop", "docker"), ("worker", "machine"), ("pilot", "machine/htcondor")):
        (images / name).mkdir(parents=True)
        shutil.copy(ROOT / "deploy" / source / "Dockerfile", images / name)
    yield ("images",), "dockerfile", images
    module = directory / "terraform"
    shutil.copytree(ROOT / "deploy" / "terraform", module, ignore=shutil.ignore_patterns(".terraform*"))
    shutil.copytree(ROOT / "deploy" / "cluster-toolkit" / "community", module / "cluster-toolkit")
    yield ("terraform",), "terraform", module


def finds(program: str, framework: str, directory: Path) -> bool:
    """Put a fault into the directory's files, and return True if checkov finds it. ``framework``: checkov's name for
    the sort of files, which decides the fault."""
    name, right, wrong, check = SPOILT[framework]
    text = (directory / name).read_text()
    if right not in text:
        sys.exit(f"{name}: has no {right!r} to spoil: give SPOILT another fault")
    (directory / name).write_text(text.replace(right, wrong))
    return check in {id_ for id_, _ in failures(program, framework, directory)}


def main(program: str) -> int:
    """Run checkov, print the problems, and return the exit code.

    A problem is a failed check without a reason, a reason that no failed check needs, or an undetected fault.
    """
    reasoned: Mapping[str, Mapping[str, str]] = yaml.safe_load(REASONED.read_text())
    needed: set[tuple[str, str]] = set()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as own:
        places: dict[str, Path] = {}
        for parts, framework, place in read(Path(own)):
            places[framework] = place
            for check, words in sorted(failures(program, framework, place)):
                part = next((part for part in parts if check in reasoned[part]), None)
                if part is None:
                    problems.append(f"{place.relative_to(own)}: {check}: {words}")
                else:
                    needed.add((part, check))
        problems += [
            f"checkov no longer finds {check} in {framework}: its other words are worth nothing"
            for framework, (*_, check) in SPOILT.items()
            if not finds(program, framework, places[framework])
        ]
    for part, checks in reasoned.items():
        unneeded = sorted({(part, check) for check in checks} - needed)
        problems += [f"{REASONED}: {part}: {check}: nothing fails it" for _, check in unneeded]
    for problem in problems:
        print(problem)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

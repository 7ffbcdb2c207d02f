"""checkov on the built manifests, by ``make checkov``: fails on what has no reason in ``deploy/checkov.yaml``."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.manifests import GKE, OPTIONAL, ROOT, Manifest, built, only

REASONED = ROOT / "deploy" / "checkov.yaml"


def failures(program: str, manifests: Sequence[Manifest]) -> set[tuple[str, str]]:
    """The checks that fail, each with its resource. A run that checked nothing is a failure of the tool."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "manifests.yaml").write_text(yaml.safe_dump_all(manifests))
        command = [program, "--directory", directory, "--framework", "kubernetes", "--skip-download", "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    result: dict[str, Any] = json.loads(done.stdout)["results"]
    if not result["passed_checks"]:
        sys.exit(f"checkov has checked nothing: {done.stdout[-500:]} {done.stderr[-500:]}")
    return {(one["check_id"], f"{one['check_name']}: {one['resource']}") for one in result["failed_checks"]}


def main(program: str) -> int:
    """Print what fails and has no reason, and reasons that nothing needs. A laptop's build has no network policy."""
    reasoned = set(yaml.safe_load(REASONED.read_text())["skip-check"])
    needed: set[str] = set()
    code = 0
    for check, words in sorted(failures(program, built(GKE, *OPTIONAL))):
        needed.add(check)
        if check not in reasoned:
            print(f"{check}: {words}")
            code = 1
    for check in sorted(reasoned - needed):
        print(f"{REASONED}: {check}: nothing fails it any more: take the line out")
        code = 1
    rogue = copy.deepcopy(only(built("base"), "Deployment"))
    rogue["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = True
    if "CKV_K8S_16" not in {check for check, _ in failures(program, [rogue])}:
        print("checkov no longer finds a privileged container: its other words are worth nothing")
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

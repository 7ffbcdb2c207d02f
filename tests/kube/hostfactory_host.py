"""HostFactory's host beside a pod. Both have their state directory in the same export, and the host's user is in the
export's group."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provisioner.hostfactory.provider_config import SCRIPTS
from provisioner.hostfactory.script_calls import HostFactory
from tests.kube.kit import Inside, LoopPod
from tests.support.hosts import environment_on
from tests.support.waiting import PATIENCE

USER, OWN, GROUP = 65501, 65503, 65500
"""HostFactory's user, his own group, and the one whose number the export's files have."""
PLACES = {
    "conf": "/etc/hostfactory",
    "state": "/var/lib/hostfactory",
    "log": "/var/log/hostfactory",
    "python": "/opt/provisioner",
}


class Host(HostFactory):
    """A host whose scripts run as HostFactory's user. No other user may read the files of this user."""

    def __init__(self, pod: LoopPod, directory: Path) -> None:
        log = directory / "host-log"
        log.mkdir()
        os.chown(log, USER, OWN)
        program = environment_on(Path("/mnt/python"), directory / "python").relative_to(directory / "python")
        python = directory / "python" / "python"  # its library lies where this user may not go
        python.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH=/mnt/python/lib exec {PLACES["python"]}/{program} "$@"\n')
        python.chmod(0o755)
        names = {"HF_PROVIDER_CONFDIR": "conf", "HF_PROVIDER_WORKDIR": "state", "HF_PROVIDER_LOGDIR": "log"}
        variables = {
            "HF_PROVIDER_NAME": pod.hf.environment["HF_PROVIDER_NAME"],
            "HF_PYTHON": f"{PLACES['python']}/python",
            **{variable: PLACES[name] for variable, name in names.items()},
        }
        one = {
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "volumeMounts": [{"name": name, "mountPath": path} for name, path in PLACES.items()],
            "securityContext": {"readOnlyRootFilesystem": False},
        }
        who = {"runAsUser": USER, "runAsGroup": OWN, "supplementalGroups": [GROUP]}
        volumes = {"conf": pod.host, "state": pod.state, "log": log, "python": directory / "python"}
        self._inside = Inside({"securityContext": who, "containers": [one]}, volumes)
        super().__init__(self._inside.environment())

    def run(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of ``hf_scripts`` to its end."""
        command = ("sh", "-c", 'umask 077; exec "$@"', "sh", os.path.join(SCRIPTS, f"{script}.sh"), *words)
        return subprocess.run(
            self._inside.command(*command),
            env=self.environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PATIENCE,
        )

    def call(self, script: str, document: Mapping[str, Any]) -> dict[str, Any]:
        done = self.run(script, json.dumps(document))
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

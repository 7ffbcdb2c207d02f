"""A simulated Compute API that gives responses which Google's API cannot give. The checks of responses have to find
these responses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import requests

from provisioner.lab.cloud.compute import method_table
from provisioner.lab.cloud.compute.resource_documents import mig_document
from provisioner.lab.cloud.server import Simulator, run_until_signal
from tests.support.clouds.specs import advised

SPEC = advised(project="p", zone="z-a", name="g")
GROUPS = "projects/p/zones/z-a/instanceGroupManagers"


def ask(compute: str, path: str = f"{GROUPS}/g") -> None:
    """Make a call that the API accepts."""
    requests.get(f"{compute}{path}", timeout=5).raise_for_status()


def lie(wrong: dict[str, Any]) -> AbstractContextManager[object]:
    """Add the fields ``wrong`` to the document of every group in this process, until the context ends."""
    return patch.object(method_table, "mig_document", lambda mig: mig_document(mig) | wrong)


@contextmanager
def lying_here(wrong: dict[str, Any]) -> Iterator[str]:
    """Run a simulator in this process whose group's document has the fields ``wrong``. Yield the simulator's
    address."""
    with lie(wrong), Simulator(migs=[SPEC]) as simulator:
        yield simulator.compute


@contextmanager
def lying_elsewhere(wrong: dict[str, Any]) -> Iterator[str]:
    """Run a simulator in another process whose group's document has the fields ``wrong``. Yield the simulator's
    address."""
    command = [sys.executable, "-m", "tests.support.checks.liar", json.dumps(wrong)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["compute"]
        finally:
            process.terminate()


if __name__ == "__main__":
    with lie(json.loads(sys.argv[1])):
        sys.exit(run_until_signal(Simulator(migs=[SPEC])))

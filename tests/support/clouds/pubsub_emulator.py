"""Google's own Pub/Sub emulator: found, started in its own process group, and ended."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.waiting import until

PROGRAM = "platform/pubsub-emulator/bin/cloud-pubsub-emulator"
NO_EMULATOR = "needs the Pub/Sub emulator: a Cloud SDK that has it, and Java; or PUBSUB_EMULATOR_HOST"


def program() -> Path | None:
    """Return the emulator of the Cloud SDK; None if it is not installed.

    The SDK may be in CLOUDSDK_ROOT_DIR, beside the gcloud of the PATH, or where packages install it.
    """
    if shutil.which("java") is None:
        return None
    gcloud = shutil.which("gcloud")
    roots = [
        *([Path(given)] if (given := os.environ.get("CLOUDSDK_ROOT_DIR")) else []),
        *([Path(gcloud).resolve().parents[1]] if gcloud else []),
        *(Path(place) for place in ("/usr/lib/google-cloud-sdk", "/opt/google-cloud-sdk")),
        Path.home() / "google-cloud-sdk",
    ]
    return next((root / PROGRAM for root in roots if (root / PROGRAM).exists()), None)


@contextmanager
def running(emulator: Path, log: Path) -> Iterator[str]:
    """Start an emulator, and yield its address."""
    (port,) = free_ports(1)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(emulator), "--host=127.0.0.1", f"--port={port}"],
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "JAVA_OPTS": "-Xmx256m"},
        )
        try:
            until(lambda: _answers(port), 30, what="the emulator's port")
            yield f"127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0

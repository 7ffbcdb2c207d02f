"""The head of a Ray cluster of one node, which a test can start again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3

from provisioner.testing.waiting import PATIENCE, until
from tests.support.ports import free_ports

START = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"
JOBS = "/api/jobs/"
CPUS = 2
"""CPUs of the node, which are also the most workers that Ray starts at a time."""
START_SECONDS = int(60 * PATIENCE)
"""Time after which Ray fails a job that has not started. A stop of a job that waits takes effect then."""
SETTLE_SECONDS = 3.0
"""Least time from the end of a job to the delete of its record. More jobs need more."""
ENDED = ("STOPPED", "SUCCEEDED", "FAILED")


class Head:
    """A head with ``CPUS`` processors: ``with Head(python) as head``. All processes of Ray descend from one process."""

    def __init__(self, python: Path) -> None:
        """Choose ports and a directory with a short path, because the path of a socket in it must not be long."""
        self._python = python
        self._directory = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._http = urllib3.PoolManager(retries=False, timeout=60.0)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"http://127.0.0.1:{self._ports['dashboard-port']}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._directory.cleanup()

    def start(self) -> None:
        """Start the head, and wait until it takes jobs."""
        directory = Path(self._directory.name)
        given = {**self._ports, "min-worker-port": 0, "max-worker-port": 0, "num-cpus": CPUS, "temp-dir": directory}
        options = ["--head", "--block", "--disable-usage-stats", *(f"--{name}={given[name]}" for name in given)]
        with (directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, "-c", START, "start", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_surroundings(),
            )
        until(self._takes_jobs, 120.0, every=0.2, what="Ray's dashboard answers")

    def stop(self) -> None:
        """Kill the head and all its processes, because Ray takes half a minute to end by itself."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def call(self, method: str, path: str, body: object = None) -> bytes:
        """Call the Jobs API, and return the content of its response. A missing job is no error."""
        address = f"{self.address}{JOBS}{path}"
        more = {} if body is None else {"json": body}
        reply = self._http.request(method, address, **more)
        assert reply.status in (200, 404), reply.data
        return reply.data

    def jobs(self) -> list[dict[str, Any]]:
        """Return the submitted jobs."""
        return [job for job in json.loads(self.call("GET", "")) if job["submission_id"]]

    def clear(self, name: str = "") -> None:
        """Stop the job of this name, or all jobs, and delete their records, so that the names can be used again.

        Repeat the stop, because it has no effect before the job's supervisor exists. Delete a record some seconds after
        the job's end, because Ray could otherwise fail the next job of the name.
        """
        until(lambda: self._is_cleared(name), 120.0, every=0.2, what="no job is left")

    def _is_cleared(self, name: str) -> bool:
        jobs = [job for job in self.jobs() if name in ("", job["submission_id"])]
        settled = time.time() - SETTLE_SECONDS - len(jobs) / 5
        supervisors = self._supervisors()
        for job in jobs:
            own = job["submission_id"]
            if job["status"] not in ENDED:
                self.call("POST", f"{own}/stop")
            elif (job["end_time"] or 0) / 1000 < settled and f"_ray_internal_job_actor_{own}" not in supervisors:
                self.call("DELETE", own)
        return not jobs

    def _supervisors(self) -> set[str]:
        """Return the names of the actors that supervise jobs and have not ended."""
        answer = self._http.request("GET", f"{self.address}/api/v0/actors?limit=10000&detail=false").json()
        return {actor["name"] for actor in answer["data"]["result"]["result"] if actor["state"] != "DEAD"}

    def program(self, name: str) -> int:
        """Wait for the program of a job that a backend has submitted. Return the program's process id.

        Ray shows the job as RUNNING before the program has begun.
        """
        own = f"HF_MACHINE_NAME={name}".encode()
        return until(
            lambda: next((one for one, line, has in _processes() if line.startswith(b"sleep") and own in has), 0),
            60.0,
            what=f"the program of {name}",
        )

    def _takes_jobs(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            log = (Path(self._directory.name) / "log").read_text(errors="replace")
            raise AssertionError(f"Ray ended with {self._process.returncode}:\n{log[-2000:]}")
        try:
            return self._http.request("GET", f"{self.address}{JOBS}", timeout=5.0).status == 200
        except urllib3.exceptions.HTTPError:
            return False


def _surroundings() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY_"))}
    return {**kept, "RAY_JOB_START_TIMEOUT_SECONDS": str(START_SECONDS)}


def _processes() -> Iterator[tuple[int, bytes, list[bytes]]]:
    """Yield the id of each process, its command line and its environment."""
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            has = (directory / "environ").read_bytes().split(b"\0")
            yield int(directory.name), (directory / "cmdline").read_bytes(), has

"""A pool of jobs on a real Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from provisioner.backends.ray.api import JOBS, RayApi
from provisioner.backends.ray.backend import RayBackend
from provisioner.backends.ray.settings import RayPool
from provisioner.model import ErrorClass, Outcome
from provisioner.testing.fault_proxy import Answer, Fault, FaultProxy, _send
from provisioner.testing.place import PREFIX, How, Place
from provisioner.testing.waiting import until
from tests.ray.head import CPUS, ENDED, Head

SLOWNESS = 5
"""The time-out of calls is multiplied by this number, because the first submission after a start of the head takes many
seconds."""
FILLS = "fills-the-node"
REFUSALS = {ErrorClass.DENIED: 403, ErrorClass.INVALID: 400}


class RayProxy(FaultProxy):
    """A fault proxy that can also refuse submissions, like a proxy in front of Ray's dashboard."""

    refusal = 0
    """Status of the responses to submissions; 0 if submissions are not refused."""

    def _pass_on(self, handler: BaseHTTPRequestHandler, body: bytes, fault: Fault) -> None:
        if self.refusal and handler.command == "POST" and handler.path == JOBS:
            _send(handler, Answer(self.refusal, {}, b"the submission is refused"))
        else:
            super()._pass_on(handler, body, fault)


class RayPlace(Place):
    """A pool of a cluster that other tests have used. The constructor deletes the jobs of the other tests."""

    pool = "ray"
    patience = 150.0

    def __init__(self, head: Head, proxy: RayProxy) -> None:
        super().__init__()
        self._head, self._proxy = head, proxy
        self._deleted: dict[str, Callable[[], Outcome]] = {}
        self.close()
        times = {"lag_seconds": 0.0, "observe_seconds": 0.1}
        small = {"num_cpus": 0.001, "entrypoint": "exec sleep 600"}
        self._settings = RayPool.model_validate({"name": self.pool, "endpoint": proxy.address, **small, **times})
        self.backend = self.another()

    def delete(self, name: str, uid: str = "", *, force: bool = False, adopted: bool = False) -> Outcome:
        self._deleted[name] = partial(super().delete, name, uid, force=force, adopted=adopted)
        return self._deleted[name]()

    def until_gone(self, name: str) -> None:
        """Wait until an observation no longer shows the machine. Repeat the delete, as the loop does.

        The first delete stops the job, and a later one deletes its record.
        """

        def gone() -> bool:
            if name not in self.observe().machines:
                return True
            if name in self._deleted:
                self._deleted[name]()
            return False

        until(gone, self.patience, every=0.5, what=f"{name} is gone")

    def another(self) -> RayBackend:
        return self._made("demo", self.pool)

    def other_pool(self) -> RayBackend:
        return self._made("demo", "ray-other")

    def other_provisioner(self) -> RayBackend:
        return self._made("other", self.pool)

    def close(self) -> None:
        """Delete all jobs."""
        self.heal()
        self._head.clear()

    def present(self) -> list[str]:
        return [job["submission_id"] for job in self._head.jobs() if job["status"] not in ENDED]

    def creates(self) -> int:
        return sum(one.method == "POST" and one.path == JOBS for one in self._proxy.exchanges)

    def spawn_foreign(self, name: str) -> None:
        self._submit(name, {})

    def copy(self, name: str, as_name: str) -> None:
        self._submit(as_name, self._job(name)["metadata"])

    def remove(self, name: str) -> None:
        self._head.clear(name)

    def recreate(self, name: str) -> None:
        metadata = self._job(name)["metadata"]
        self.remove(name)
        self._submit(name, metadata)

    def hold(self) -> bool:
        """Submit a job that takes all CPUs, so that further jobs wait."""
        self._submit(FILLS, {}, entrypoint_num_cpus=CPUS)
        until(lambda: self._job(FILLS)["status"] == "RUNNING", self.patience, what=f"{FILLS} runs")
        return True

    def release(self) -> None:
        self._head.call("POST", f"{FILLS}/stop")

    def end(self, name: str, how: How) -> bool:
        """Let the job's program end by a signal, or stop the job. Other ways are impossible, because they would end the
        only node."""
        if how is How.EXIT:
            os.kill(self._head.program(name), signal.SIGTERM)
        elif how is How.KILL:
            self._head.call("POST", f"{name}/stop")
        return how in (How.EXIT, How.KILL)

    def lose_responses(self) -> None:
        self._proxy.fault = Fault.LOST_ANSWER

    def hang(self) -> None:
        self._proxy.fault = Fault.HANG

    def black_out(self) -> None:
        self._proxy.fault = Fault.REFUSE

    def heal(self) -> None:
        self._proxy.fault, self._proxy.refusal = Fault.NONE, 0

    def fail_creates(self, error: ErrorClass) -> None:
        if error is ErrorClass.QUOTA:
            pytest.skip("the place has no quota, because a job without resources waits")
        self._proxy.refusal = REFUSALS[error]

    def stray(self, name: str) -> None:
        pytest.skip(f"the place keeps the metadata with which {name} was submitted")

    def _made(self, provisioner: str, pool: str) -> RayBackend:
        settings = self._settings.model_copy(update={"name": pool})
        return RayBackend(settings, RayApi(settings, SLOWNESS * self.call), provisioner=provisioner, prefix=PREFIX)

    def _job(self, name: str) -> dict[str, Any]:
        return next(job for job in self._head.jobs() if job["submission_id"] == name)

    def _submit(self, name: str, metadata: Mapping[str, str], **more: object) -> None:
        body = {"entrypoint": "exec sleep 600", "submission_id": name, "metadata": dict(metadata), **more}
        self._head.call("POST", "", body)

"""The contract of all kinds, tested with ``skeleton``. REPLACE THE PLACE when you replace the client. The tests stay
the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from provisioner.backends import BackendError
from provisioner.lab.skeleton.backend import Client, Job, SkeletonBackend
from provisioner.lab.skeleton.settings import SkeletonPool
from provisioner.model import ErrorClass
from provisioner.testing.place import How, Place
from provisioner.testing.suite import *

WORDS = {
    How.EXIT: "exit code 1",
    How.KILL: "killed",
    How.TIME_LIMIT: "time limit",
    How.PREEMPTION: "preempted",
    How.HOST: "host failed",
}


class FaultyClient(Client):
    """The client of the place in memory, with faults that the tests set. If your place has an HTTP API, use
    ``provisioner.testing.fault_proxy`` instead."""

    submits = 0
    refusal: ErrorClass | None = None
    """Error with which each create is refused; None: creates are accepted."""
    silence: ErrorClass | None = None
    """Error of each call. A call with this error has no effect. None: calls get responses."""
    loss: ErrorClass | None = None
    """Error that creates and deletes report although they take effect, as if the response was lost. None: responses
    arrive."""
    state, words = "running", ""
    """State and words of new jobs."""

    def __init__(self) -> None:
        """Make an empty place."""
        super().__init__()
        self.environments: dict[str, Mapping[str, str]] = {}
        """Environment of the last job of each name."""

    def jobs(self) -> list[Job]:
        """Return all jobs."""
        _meet(self.silence)
        return super().jobs()

    def submit(self, name: str, mark: str, environment: Mapping[str, str]) -> None:
        """Submit a job."""
        _meet(self.silence)
        self.submits += 1
        _meet(self.refusal)
        super().submit(name, mark, environment)
        self.environments[name] = environment
        number = max(self.all)
        self.all[number] = replace(self.all[number], state=self.state, words=self.words)
        _meet(self.loss)

    def cancel(self, job: Job) -> None:
        """End a job."""
        _meet(self.silence)
        super().cancel(job)
        _meet(self.loss)


def _meet(error: ErrorClass | None) -> None:
    if error is not None:
        raise BackendError(error, "The call met the test's own fault.")


class SkeletonPlace(Place):
    """A pool of jobs."""

    pool = "main"

    def __init__(self) -> None:
        super().__init__()
        self.client = FaultyClient()
        self.backend = self.another()

    def another(self) -> SkeletonBackend:
        return self._backend_of(self.pool, "demo")

    def other_pool(self) -> SkeletonBackend:
        return self._backend_of("other", "demo")

    def other_provisioner(self) -> SkeletonBackend:
        return self._backend_of(self.pool, "other")

    def _backend_of(self, pool: str, provisioner: str) -> SkeletonBackend:
        settings = SkeletonPool(name=pool, lag_seconds=0.0)
        return SkeletonBackend(settings, self.client, provisioner=provisioner)

    def present(self) -> list[str]:
        return [job.name for job in self.client.all.values() if job.state != "ended"]

    def creates(self) -> int:
        return self.client.submits

    def environment(self, name: str) -> Mapping[str, str]:
        return self.client.environments[name]

    def spawn_foreign(self, name: str) -> None:
        Client.submit(self.client, name, "", {})

    def copy(self, name: str, as_name: str) -> None:
        Client.submit(self.client, as_name, self._job(name).mark, {})

    def stray(self, name: str) -> None:
        self._change(name, mark="")

    def remove(self, name: str) -> None:
        Client.cancel(self.client, self._job(name))

    def recreate(self, name: str) -> None:
        self._change(name, submitted=self._job(name).submitted + 1)

    def end(self, name: str, how: How) -> bool:
        self._change(name, state="ended", words=WORDS[how])
        return True

    def restart(self, name: str) -> bool:
        return False  # The client forbids a restart. If your place restarts jobs all the same, do so here.

    def double(self, name: str) -> bool:
        Client.submit(self.client, name, self._job(name).mark, {})
        return True

    def hold(self) -> bool:
        self.client.state, self.client.words = "pending", "priority"
        return True

    def release(self) -> None:
        for job in list(self.client.all.values()):
            self.client.all[job.number] = replace(job, state="running", words="")

    def starve(self, reason: ErrorClass) -> bool:
        words = {ErrorClass.STOCKOUT: "no room", ErrorClass.QUOTA: "limit"}
        self.client.state, self.client.words = "pending", words[reason]
        return True

    def fail_creates(self, error: ErrorClass) -> None:
        self.client.refusal = error

    def lose_responses(self) -> None:
        self.client.loss = ErrorClass.TIMEOUT

    def hang(self) -> None:
        self.client.silence = ErrorClass.TIMEOUT

    def black_out(self) -> None:
        self.client.silence = ErrorClass.UNAVAILABLE

    def heal(self) -> None:
        self.client.refusal = self.client.silence = self.client.loss = None

    def _job(self, name: str) -> Job:
        return next(job for job in self.client.all.values() if job.name == name and job.state != "ended")

    def _change(self, name: str, **fields: Any) -> None:
        job = self._job(name)
        self.client.all[job.number] = replace(job, **fields)


@pytest.fixture
def place() -> Iterator[SkeletonPlace]:
    """Yield an empty place."""
    made = SkeletonPlace()
    yield made
    made.backend.close()

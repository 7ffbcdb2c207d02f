"""The backend of the kind ``skeleton``. The machines of a pool are jobs. The place does not keep the names of jobs
unique."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from provisioner.backends import BackendError, MayStart
from provisioner.backends.call_batch import Call, run_calls
from provisioner.backends.names_not_unique import UncertainCreates, divide, list_before
from provisioner.lab.skeleton.settings import SkeletonPool
from provisioner.model import (
    Create,
    Delete,
    ErrorClass,
    Failure,
    Fingerprint,
    LossCause,
    Machine,
    MachineEnd,
    Outcome,
    Phase,
    Queued,
    Snapshot,
)

PHASES = {"pending": Phase.PENDING, "starting": Phase.PENDING, "running": Phase.RUNNING}
"""Phase of each state of a job that has not ended. A state that is not in the table fails the observation."""

REFUSALS = {"no room": ErrorClass.STOCKOUT, "limit": ErrorClass.QUOTA}
"""Error class of each reason for which a pending job will not start soon. Another pool then makes the machine. Any
other reason of a pending job is a normal wait."""

CAUSES = {"preempted": LossCause.PREEMPTED, "host failed": LossCause.NODE, "time limit": LossCause.EXPIRES}
"""Cause of a job's end, by the place's words for the end. If the words are not in the table, the job counts as
exited."""


@dataclass(frozen=True)
class Job:
    """A job as the place lists it."""

    number: int
    name: str
    mark: str
    """A text that only we write, e.g. into the job's comment, and that makes the job ours."""
    submitted: int
    """Time of the submission in epoch seconds. The place may give the number of an old job to a new job. So the number
    alone does not identify a job."""
    state: str = "running"
    words: str = ""
    """The place's reason why the job waits or has ended."""
    address: str = ""

    @property
    def uid(self) -> str:
        """Return the identity of the job."""
        return f"{self.number}.{self.submitted}"


class Client:
    """The client of the place. REPLACE THE BODIES of the methods: as written, the place is in memory.

    A call that fails raises BackendError with the class of the error. The class is TIMEOUT if no response came in time.
    A response that cannot be read completely is an error and never an empty list.
    """

    def __init__(self) -> None:
        """Make an empty place."""
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.all: dict[int, Job] = {}

    def jobs(self) -> list[Job]:
        """Return all jobs, the oldest first. Include the jobs of other users if other users can make jobs with our
        names."""
        with self._lock:
            return sorted(self.all.values(), key=lambda job: job.submitted)

    def submit(self, name: str, mark: str, environment: Mapping[str, str]) -> None:
        """Submit a job that the place must not start again by itself (requeue off)."""
        with self._lock:
            number = next(self._numbers)
            self.all[number] = Job(number, name, mark, int(time.time()), address=f"10.0.0.{number % 250 + 1}")

    def cancel(self, job: Job) -> None:
        """End a job. If the job is gone, this is a success."""
        with self._lock:
            self.all.pop(job.number, None)

    def close(self) -> None:
        """Close connections."""


class SkeletonBackend:
    """A ``provisioner.backends.Backend``. The backend lists jobs before it creates or deletes, because names are not
    unique."""

    def __init__(self, pool: SkeletonPool, client: Client, *, provisioner: str) -> None:
        """Prepare the backend. ``provisioner``: the id of the configuration, which is part of the mark."""
        self.pool, self.pace = pool.name, pool.observe_seconds
        self._settings, self._client = pool, client
        self._mark = f"{provisioner}/{pool.name}"
        self._uncertain = UncertainCreates(pool.lag_seconds)
        self._machines: Mapping[str, Machine] = {}

    def start(self, wake: Callable[[], None]) -> None:
        """Do nothing, because the place cannot be watched."""

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a snapshot that is made from one list of the place's jobs."""
        divided = divide(self._jobs_by_name(), sought, self)
        if divided.machines != self._machines:
            self._machines = divided.machines
        return Snapshot(
            pool=self.pool,
            began_at=now,
            machines=self._machines,
            foreign=frozenset(divided.others),
            spec=self._settings.queue,
            asked=frozenset(sought),
            ends=divided.ends,
            doubles=divided.doubles,
        )

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """Submit a job for each name that the list lacks."""
        began = time.monotonic()
        listed, outcomes = list_before(creates, self._jobs_by_name, may_start)
        if listed is None:
            return outcomes
        calls = [Call((create,), partial(self._create, create, listed, began)) for create in creates]
        return run_calls(calls, workers=4, may_start=may_start)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """Cancel the job of each machine that is to be deleted."""
        listed, outcomes = list_before(deletes, self._jobs_by_name, may_start)
        if listed is None:
            return outcomes
        calls = [Call((delete,), partial(self._delete, delete, listed)) for delete in deletes]
        return run_calls(calls, workers=4, may_start=may_start)

    def is_shown(self, job: Job, sought: Mapping[str, str]) -> bool:
        """Return True if the observation shows the job as ours. Either the job has our mark, or ``sought`` contains its
        name and uid, because the job was ours before it lost the mark."""
        return self._is_own(job) or sought.get(job.name) == job.uid

    def end(self, job: Job) -> MachineEnd | None:
        """Return the end of a job; None if the job has not ended. The place keeps only a record of an ended job."""
        failure = Failure(ErrorClass.OTHER, job.words or "the job has ended")
        return MachineEnd(CAUSES.get(job.words, LossCause.EXITED), failure) if job.state == "ended" else None

    def machine(self, job: Job) -> Machine:
        """Return a job that has not ended in the form of a ``Machine``."""
        if job.state not in PHASES:
            raise BackendError(ErrorClass.OTHER, f"the state {job.state!r} of {job.name} is unknown")
        is_pending = job.state == "pending"
        refusal = REFUSALS.get(job.words) if is_pending else None
        return Machine(
            job.name,
            PHASES[job.state],
            Fingerprint(uid=job.uid, ip=job.address),
            job.address,
            launched=job.submitted,
            failure=Failure(refusal, job.words) if refusal else None,
            queued=Queued(job.submitted, job.words) if is_pending and not refusal else None,
            spills_at_once=refusal is not None,
            is_strayed=not self._is_own(job),
        )

    def _jobs_by_name(self) -> dict[str, list[Job]]:
        found: dict[str, list[Job]] = {}
        for job in self._client.jobs():
            found.setdefault(job.name, []).append(job)
        return found

    def _create(self, create: Create, listed: Mapping[str, Sequence[Job]], listed_at: float) -> Mapping[str, Failure]:
        if jobs := listed.get(create.name):
            if not any(map(self._is_own, jobs)):
                raise BackendError(ErrorClass.OTHER, f"the name is taken: {create.name} exists and is not ours")
            self._uncertain.settle(create.name)
            return {}
        self._uncertain.check(create, listed_at)
        try:
            self._client.submit(create.name, f"{self._mark}/{create.name}", {"HF_MACHINE_NAME": create.name})
        except BackendError as error:
            if error.failure.error.is_ambiguous:
                self._uncertain.note(create.name)
            raise
        return {}

    def _delete(self, delete: Delete, listed: Mapping[str, Sequence[Job]]) -> Mapping[str, Failure]:
        for job in listed.get(delete.name, ()):
            is_meant = job.uid == delete.uid if delete.uid else delete.is_adopted or self._is_own(job)
            if is_meant and job.state != "ended":
                self._client.cancel(job)
        return {}

    def _is_own(self, job: Job) -> bool:
        return job.mark == f"{self._mark}/{job.name}"

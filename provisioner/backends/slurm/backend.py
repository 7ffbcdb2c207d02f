"""The slurm backend. A pool consists of one user's jobs in one partition, all made from one script.

Slurm accepts several jobs with the same name. Therefore the backend lists the jobs before a batch of creates, and
submits no job under a name that is in the list. If the list has several jobs of a name, all but one job are reported as
doubles.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from provisioner.backends import BackendError, Finding, Measure, Severity
from provisioner.backends.call_batch import Call
from provisioner.backends.http import Document
from provisioner.backends.names_not_unique import ListingBackend, divide
from provisioner.backends.proxies_and_authorities import signature
from provisioner.backends.responses import translated_errors
from provisioner.backends.slurm.api import CANCELS_A_CALL, MANY_CANCELLED
from provisioner.backends.slurm.cluster import Cluster, JobsByName
from provisioner.backends.slurm.job_states import Job, read_jobs
from provisioner.backends.slurm.settings import SlurmPool
from provisioner.backends.slurm.submission import Identity, submission
from provisioner.model import (
    Create,
    Delete,
    ErrorClass,
    Failure,
    Fingerprint,
    LossCause,
    Machine,
    MachineEnd,
    Phase,
    Queued,
    Snapshot,
)

SUSPENDED_WORDS = frozenset({"SUSPENDED", "STOPPED"})


class SlurmBackend(ListingBackend[Document]):
    """The backend of a pool of jobs."""

    def __init__(self, pool: SlurmPool, cluster: Cluster, *, provisioner: str, prefix: str) -> None:
        """Read the script. Raise BackendError if the script is unreadable."""
        super().__init__(pool, prefix, pool.lag_seconds)
        self._settings, self._cluster, self.flow = pool, cluster, cluster.api.flow
        self._owner = Identity(provisioner, pool.name)
        self._script_signature: object = None
        self._script, self._digest = "", ""
        self._read_script()

    @translated_errors()
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a snapshot of our jobs. The list may have been made for another pool of the cluster."""
        problems = [*filter(None, (self._read_script(), self._cluster.api.token.problem()))]
        listed = self._cluster.list.newer(self.pool, now, pace=self.pace, deadline=0.0)
        named = {name for name in listed.items if name in sought or self._shape.fullmatch(name)}
        divided = divide({name: read_jobs(listed.items[name]) for name in named}, sought, self)
        problems += self._cluster.api.clock.slowness()
        return self._snapshot(divided, sought, began_at=listed.began, wall=time.time(), problems=tuple(problems))

    @translated_errors()
    def check(self, seconds: float) -> list[Finding]:
        """Return the problems of the token and of the version of the API. Raise BackendError if slurmrestd does not
        respond."""
        self._cluster.api.version()
        problem = self._cluster.api.token.problem()
        return [Finding(self.pool, Severity.WARNING, problem)] if problem else []

    def measures(self) -> list[Measure]:
        """Return the expiry of the token, so that an alert can warn before it."""
        end = self._cluster.api.token.end()
        meaning = "End of the token in the pool's token_file."
        return [] if end is None else [Measure("token_end_timestamp_seconds", meaning, end)]

    def _read_list(self) -> JobsByName:
        return self._cluster.read_list()

    def _has_own(self, jobs: Sequence[Document]) -> bool:
        return any(map(self._is_own, read_jobs(jobs)))

    def _submit(self, create: Create) -> None:
        identity = self._owner._replace(request=create.request, template=create.template)
        api = self._cluster.api
        api.submit(submission(self._settings, create, identity, self._script, api.version()))

    def _deletions(self, deletes: Sequence[Delete], listed: JobsByName) -> list[Call]:
        if self._cluster.api.version() < MANY_CANCELLED:
            return super()._deletions(deletes, listed)
        parts = [tuple(deletes[at : at + CANCELS_A_CALL]) for at in range(0, len(deletes), CANCELS_A_CALL)]
        return [Call(part, partial(self._cancel_together, part, listed)) for part in parts]

    def _jobs_to_cancel(self, delete: Delete, listed: JobsByName) -> Iterator[int]:
        """Yield the ids of the jobs to cancel: jobs that belong to the machine to delete and have not ended."""
        for job in read_jobs(listed.get(delete.name, ())):
            meant = job.uid == delete.uid if delete.uid else delete.is_adopted or self._is_own(job)
            if meant and job.end is None:
                yield job.id

    def _delete(self, delete: Delete, listed: JobsByName) -> Mapping[str, Failure]:
        for job in self._jobs_to_cancel(delete, listed):
            self._cluster.api.cancel(job)
        return {}

    @translated_errors(ErrorClass.UNAVAILABLE)
    def _cancel_together(self, deletes: Sequence[Delete], listed: JobsByName) -> Mapping[str, Failure]:
        """Cancel the jobs of several deletes with one call. Return the failures by machine."""
        names = {job: delete.name for delete in deletes for job in self._jobs_to_cancel(delete, listed)}
        errors = self._cluster.api.cancel_many([*names]) if names else {}
        return {names[job]: error.failure for job, error in errors.items() if job in names}

    def _read_script(self) -> str:
        """Read the script again if its file has changed. Return the reason if the file cannot be read; else an empty
        text."""
        file = self._settings.script_file
        if (changed := signature([file])) == self._script_signature:
            return ""
        try:
            self._script = file.read_text()
        except (OSError, ValueError) as error:
            text = f"pools.{self.pool}.script_file {file} cannot be read: {getattr(error, 'strerror', None) or error}"
            if not self._script:
                raise BackendError(ErrorClass.INVALID, text) from error
            return f"{text}; the earlier script stays in force"
        self._script_signature = changed
        settings = self._settings.model_dump_json(exclude={"token_file"})
        self._digest = hashlib.sha256(f"{settings}{self._script}".encode()).hexdigest()[:16]
        return ""

    def _is_own(self, job: Job) -> bool:
        """Return True if the job is a machine of this pool."""
        owner = job.identity
        of_pool = job.user == self._settings.user and owner is not None and owner[:2] == self._owner[:2]
        return of_pool and owner is not None and f"-{owner.request}-" in job.name

    def _is_of_provisioner(self, job: Job) -> bool:
        return job.identity is not None and job.identity.provisioner == self._owner.provisioner

    def is_shown(self, job: Job, sought: Mapping[str, str]) -> bool:
        """Return True if the comment of the job says that the job is a machine of this pool. Also return True for any
        other job of our user with the uid that ``sought`` has for the job's name."""
        return self._is_own(job) or (job.user == self._settings.user and job.uid == sought.get(job.name))

    def end(self, job: Job) -> MachineEnd | None:
        """Return how a job has ended if only Slurm's record of it is left; None for any other job."""
        return job.end

    def machine(self, job: Job) -> Machine:
        """Return the machine of a job. If Slurm has requeued the job, the first machine is gone, because the requeued
        job is another machine."""
        runs = job.phase is Phase.RUNNING
        before = self._machines.get(job.name)
        known_ip = before.ip if before is not None and before.fingerprint.uid == job.uid else ""
        wait = Queued(job.submitted, job.explanation or job.reason, job.started)
        failure = Failure(ErrorClass.OTHER, "Slurm has requeued the job") if job.is_requeued else job.failure
        machine = Machine(
            job.name,
            job.phase,
            Fingerprint(uid=job.uid),
            launched=job.started if runs else 0,
            failure=failure,
            cause=LossCause.NODE if job.is_requeued else None,
            queued=wait if job.is_waiting and failure is None else None,
            spills_at_once=failure is not None and failure.error.has_no_room,
            is_strayed=not self._is_own(job),
            state="suspended" if job.words & SUSPENDED_WORDS else "",
            expires_at=float(job.ends) if runs and job.ends > job.started else None,
        )
        return self._cluster.addresses.locate(machine, job.host, known_ip) if runs else machine

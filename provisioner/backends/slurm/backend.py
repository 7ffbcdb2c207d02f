"""The slurm backend. A pool consists of the jobs of one user in one partition, all made from one script.

Slurm does not keep names unique. So a batch of creates begins with a list, and if several jobs have the same name, all
but one are reported as doubles.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from provisioner.backends import BackendError, Finding, MayStart, Measure, Severity
from provisioner.backends.call_batch import Call, run_calls
from provisioner.backends.concurrency import MOST
from provisioner.backends.names_not_unique import UncertainCreates, divide, list_before
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
    Outcome,
    Phase,
    Queued,
    Snapshot,
)
from provisioner.names import name_pattern

SUSPENDED = "{} machines are suspended by Slurm, e.g. {}: they run on when it resumes them"
SUSPENDED_WORDS = frozenset({"SUSPENDED", "STOPPED"})


class SlurmBackend:
    """The backend of a pool of jobs."""

    def __init__(self, pool: SlurmPool, cluster: Cluster, *, provisioner: str, prefix: str) -> None:
        """Read the script. Raise BackendError if the script is unreadable."""
        self.pool, self.pace = pool.name, pool.observe_seconds
        self._settings, self._cluster = pool, cluster
        self._owner = Identity(provisioner, pool.name)
        self._shape = name_pattern(prefix)
        self._script_signature: object = None
        self._script, self._digest = "", ""
        self._uncertain = UncertainCreates(pool.lag_seconds)
        self._machines: Mapping[str, Machine] = {}
        self._read_script()

    def start(self, wake: Callable[[], None]) -> None:
        """Do nothing, because Slurm cannot be watched."""

    def close(self) -> None:
        """Do nothing, because connections end with the process."""

    @translated_errors()
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a snapshot of our jobs. The list may have been made for another pool of the cluster."""
        problems = [*filter(None, (self._read_script(), self._cluster.api.token.problem()))]
        listed = self._cluster.list.newer(self.pool, now, pace=self.pace, deadline=0.0)
        named = {name for name in listed.items if name in sought or self._shape.fullmatch(name)}
        divided = divide({name: read_jobs(listed.items[name]) for name in named}, sought, self)
        shared = (name for name, jobs in divided.others.items() if any(map(self._is_of_provisioner, jobs)))
        collisions = frozenset(shared)
        if divided.machines != self._machines:
            self._machines = divided.machines
        if suspended := [one.name for one in self._machines.values() if one.state]:
            problems.append(SUSPENDED.format(len(suspended), min(suspended)))
        return Snapshot(
            pool=self.pool,
            began_at=listed.began,
            wall=time.time(),
            machines=self._machines,
            foreign=frozenset(divided.others) - collisions,
            spec=self._digest,
            asked=frozenset(sought),
            ends=divided.ends,
            doubles=divided.doubles,
            problems=(*problems, *self._cluster.api.clock.slowness()),
            name_collisions=collisions,
        )

    def create(self, creates: Sequence[Create], may_start: MayStart) -> list[Outcome]:
        """List the jobs, and submit those that are missing, several at a time."""
        began = time.monotonic()
        listed, outcomes = list_before(creates, self._cluster.read_list, may_start)
        if listed is None:
            return outcomes
        calls = [Call((create,), partial(self._create, create, listed, began)) for create in creates]
        return run_calls(calls, workers=MOST, may_start=may_start, flow=self._cluster.api.flow)

    def delete(self, deletes: Sequence[Delete], may_start: MayStart) -> list[Outcome]:
        """List the jobs, and cancel the jobs of these machines by the ids in the list."""
        listed, outcomes = list_before(deletes, self._cluster.read_list, may_start)
        if listed is None:
            return outcomes
        if self._cluster.api.version() < MANY_CANCELLED:
            calls = [Call((delete,), partial(self._cancel_each, delete, listed)) for delete in deletes]
        else:
            parts = [tuple(deletes[at : at + CANCELS_A_CALL]) for at in range(0, len(deletes), CANCELS_A_CALL)]
            calls = [Call(part, partial(self._cancel_together, part, listed)) for part in parts]
        return run_calls(calls, workers=MOST, may_start=may_start, flow=self._cluster.api.flow)

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

    def _create(self, create: Create, listed: JobsByName, listed_at: float) -> Mapping[str, Failure]:
        """Submit one job, unless its name is listed or an earlier submission may still take effect. A job of this name
        that has ended counts as listed, too."""
        if create.name in listed:
            if not any(map(self._is_own, read_jobs(listed[create.name]))):
                raise BackendError(ErrorClass.OTHER, f"the name is taken: a job {create.name} exists and is not ours")
            self._uncertain.settle(create.name)
            return {}
        self._uncertain.check(create, listed_at)
        identity = self._owner._replace(request=create.request, template=create.template)
        api = self._cluster.api
        try:
            api.submit(submission(self._settings, create, identity, self._script, api.version()))
        except BackendError as error:
            if error.failure.error.is_ambiguous:
                self._uncertain.note(create.name)
            raise
        return {}

    def _jobs_to_cancel(self, delete: Delete, listed: JobsByName) -> Iterator[int]:
        """Yield the ids of the jobs to cancel: jobs that belong to the machine to delete and have not ended."""
        for job in read_jobs(listed.get(delete.name, ())):
            meant = job.uid == delete.uid if delete.uid else delete.is_adopted or self._is_own(job)
            if meant and job.end is None:
                yield job.id

    def _cancel_each(self, delete: Delete, listed: JobsByName) -> Mapping[str, Failure]:
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
        """Return True if the job is a machine of this pool. A job whose comment was changed is also such a machine if
        ``sought`` has its uid."""
        return self._is_own(job) or (job.user == self._settings.user and job.uid == sought.get(job.name))

    def end(self, job: Job) -> MachineEnd | None:
        """Return how a job has ended if only Slurm's record of it is left; None for any other job."""
        return job.end

    def machine(self, job: Job) -> Machine:
        """Return the machine of a job. If Slurm has requeued the job, the machine is gone, because the requeued job is
        another machine."""
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

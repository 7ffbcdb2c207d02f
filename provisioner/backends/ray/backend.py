"""The ray backend. A pool consists of one cluster's jobs that have our mark, an entry in the job's metadata. A job has
the name of its machine."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

from provisioner.backends.host_addresses import HostAddresses
from provisioner.backends.http import Document
from provisioner.backends.names_not_unique import ListingBackend, divide
from provisioner.backends.ray.api import RayApi
from provisioner.backends.ray.settings import RayPool
from provisioner.backends.responses import text, translated_errors, words
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
from provisioner.names import group_by

PHASES = {
    "PENDING": Phase.PENDING,
    "RUNNING": Phase.RUNNING,
    "STOPPED": Phase.GONE,
    "SUCCEEDED": Phase.GONE,
    "FAILED": Phase.GONE,
}
"""Phases of Ray's statuses. An unknown status fails the observation."""
MARK = "hf-provisioner"
"""Key of our mark in the metadata of a job."""
SETTLE_SECONDS = 10.0
"""Seconds from the end of a job to the delete of its record. Ray 2.60 checks each job once a second. If the record is
deleted before Ray has seen the end, Ray writes a new record of a failed job without our mark. The new record stays for
ever."""
JobsByName = Mapping[str, Sequence[Document]]


class RayBackend(ListingBackend[Document]):
    """The backend of a pool of jobs. A name must not be submitted twice at the same time. Ray would then fail both
    jobs."""

    def __init__(self, pool: RayPool, api: RayApi, *, provisioner: str, prefix: str) -> None:
        """Prepare the backend. ``prefix``: beginning of the names of our machines."""
        super().__init__(pool, prefix, pool.lag_seconds)
        self._settings, self._api, self.flow = pool, api, api.flow
        self._owner = f"{provisioner}/{pool.name}"
        self._addresses = HostAddresses()
        self._stopped: set[str] = set()
        """Uids of jobs that we have asked Ray to stop. If such a job still waited, Ray shows it as PENDING until the
        time at which it would have started."""
        dumped = pool.model_dump_json(exclude={"token_file", "ca_file", "observe_seconds"})
        self._digest = hashlib.sha256(dumped.encode()).hexdigest()[:16]

    @translated_errors()
    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a snapshot of our jobs."""
        divided = divide(self._read_list(), sought, self)
        session = self._api.session()  # read after the list, so that the list is not of a later session
        self._stopped &= {one.fingerprint.uid for one in divided.machines.values()}
        facts = {"endpoint_identity": session, "problems": self._api.clock.slowness(), "ends": {}}
        return self._snapshot(divided, sought, began_at=now, wall=self._api.clock.now(), **facts)

    def ahead(self) -> float | None:
        """Return the seconds by which the head's clock is ahead of this host's; None if unknown."""
        return self._api.clock.ahead()

    def is_shown(self, job: Document, sought: Mapping[str, str]) -> bool:
        """Return True if the job is a machine of this pool by name and mark. A job without the mark is also such a
        machine if ``sought`` has its uid."""
        return self._is_own(job) or sought.get(job["submission_id"]) == _uid(job)

    def end(self, job: Document) -> MachineEnd | None:
        """Return the end of an ended job if the job is not ours by name and mark; None for any other job. An ended job
        that is ours still counts as a machine, because the loop must delete its record."""
        return MachineEnd() if PHASES[job["status"]] is Phase.GONE and not self._is_own(job) else None

    def machine(self, job: Document) -> Machine:
        """Return a job as a machine."""
        name, uid, phase = text(job["submission_id"]), _uid(job), PHASES[job["status"]]
        host = urlsplit(job.get("driver_agent_http_address") or "").hostname if phase is Phase.RUNNING else None
        stops = uid in self._stopped and phase is not Phase.GONE
        wait = Queued(int(job["start_time"]) // 1000, words(job.get("message") or ""))
        machine = Machine(
            name,
            Phase.STOPPING if stops else phase if host or phase is not Phase.RUNNING else Phase.PENDING,
            Fingerprint(uid=uid),
            launched=int(job["start_time"]) // 1000 if host else 0,
            failure=_failure(job) if phase is Phase.GONE else None,
            cause=_cause(job) if phase is Phase.GONE else None,
            queued=wait if phase is Phase.PENDING and not stops else None,
            is_strayed=not self._is_own(job),
        )
        return self._addresses.locate(machine, host) if host and not stops else machine

    @translated_errors()
    def _read_list(self) -> JobsByName:
        """Return the submitted jobs by name. Raise BackendError if the list fails."""
        submitted = (job for job in self._api.jobs() if job.get("submission_id"))
        return group_by(itemgetter("submission_id"), submitted)

    def _submit(self, create: Create) -> None:
        self._api.submit(self._body(create))

    def _body(self, create: Create) -> dict[str, Any]:
        pool = self._settings
        return {
            "entrypoint": pool.entrypoint,
            "submission_id": create.name,
            "entrypoint_num_cpus": pool.num_cpus,
            "entrypoint_num_gpus": pool.num_gpus,
            "entrypoint_memory": pool.memory,
            "entrypoint_resources": dict(pool.resources) or None,
            "metadata": {MARK: f"{self._owner}/{create.request}/{create.template}"},
            "runtime_env": {"env_vars": {**pool.environment, "HF_MACHINE_NAME": create.name}},
        }

    @translated_errors(ErrorClass.UNAVAILABLE)
    def _delete(self, delete: Delete, listed: JobsByName) -> Mapping[str, Failure]:
        """Stop each job that has not ended. Delete the record of each job that ended at least ``SETTLE_SECONDS``
        ago."""
        for job in listed.get(delete.name, ()):
            if _uid(job) == delete.uid if delete.uid else delete.is_adopted or self._is_own(job):
                if PHASES[job["status"]] is Phase.GONE:
                    if (self._api.clock.now() or time.time()) - int(job.get("end_time") or 0) / 1000 >= SETTLE_SECONDS:
                        self._api.forget(delete.name)
                else:
                    self._api.stop(delete.name)
                    self._stopped.add(_uid(job))
        return {}

    def _has_own(self, jobs: Sequence[Document]) -> bool:
        return any(map(self._is_own, jobs))

    def _is_own(self, job: Document) -> bool:
        """Return True if the job's name has our shape, and its mark names this pool and the name's request."""
        found = self._shape.fullmatch(job["submission_id"])
        return found is not None and _mark(job).startswith(f"{self._owner}/{found['request']}/")

    def _is_of_provisioner(self, job: Document) -> bool:
        return _mark(job).startswith(f"{self._owner.partition('/')[0]}/")


def _mark(job: Document) -> str:
    return str((job.get("metadata") or {}).get(MARK) or "")


def _uid(job: Document) -> str:
    """Return the identity of a job: its name and the time of its start. The name alone is not enough, because a later
    job may have the same name."""
    return f"{job['submission_id']}.{job['start_time']}"


def _cause(job: Document) -> LossCause:
    return LossCause.DELETED if job["status"] == "STOPPED" else LossCause.EXITED


def _failure(job: Document) -> Failure | None:
    """Return why a job has ended; None for a success. The text is Ray's message without the job's output.

    The failure is a STOCKOUT if the job waited too long for resources. Ray ends such a job after
    RAY_JOB_START_TIMEOUT_SECONDS.
    """
    if job["status"] == "SUCCEEDED":
        return None
    said = words(str(job.get("message") or job["status"]).partition(", last available logs")[0])
    waited = job.get("error_type") == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
    return Failure(ErrorClass.STOCKOUT if waited else ErrorClass.OTHER, said)

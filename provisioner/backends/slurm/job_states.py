"""Jobs as machines: the state of a job, read from the responses of each version of slurmrestd's API. No I/O, no
clock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioner.backends.http import Document
from provisioner.backends.responses import text, translated_errors, words
from provisioner.backends.slurm.submission import Identity, read_identity
from provisioner.model import ErrorClass, Failure, LossCause, MachineEnd, Phase

ENDED: Mapping[str, LossCause] = {
    "COMPLETED": LossCause.EXITED,
    "FAILED": LossCause.EXITED,
    "OUT_OF_MEMORY": LossCause.EXITED,
    "CANCELLED": LossCause.DELETED,
    "TIMEOUT": LossCause.EXPIRES,
    "DEADLINE": LossCause.EXPIRES,
    "PREEMPTED": LossCause.PREEMPTED,
    "NODE_FAIL": LossCause.NODE,
    "BOOT_FAIL": LossCause.NODE,
}
"""States of jobs that have ended, with the cause of the end."""
BASE = frozenset({"PENDING", "RUNNING", "SUSPENDED", *ENDED})
BOOTING = frozenset({"CONFIGURING", "POWER_UP_NODE"})
"""Words that a job's state has in addition to RUNNING while the job's node boots."""
REQUEUED = frozenset({"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})

_LIMITS = re.compile(r"QOS\w*(Limit|PerUser|PerAccount|PerJob)|Assoc\w+|Max\w+")
"""Reasons of jobs that wait for a limit of a quality of service or an account."""
_REASONS = (
    (ErrorClass.DENIED, re.compile(r"Invalid(Account|QOS)|QOSNotAllowed|AccountNotAllowed")),
    (ErrorClass.QUOTA, _LIMITS),
    (ErrorClass.STOCKOUT, re.compile(r"Partition(Down|Inactive)")),
    (ErrorClass.INVALID, re.compile(r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|DependencyNeverSatisfied")),
)
"""Error classes of waiting jobs by Slurm's reason. A job with any other reason waits normally, for example for its
turn."""


def number(value: object) -> int:
    """Return a number of a job, which newer versions wrap in an object; 0 if it is unset or infinite."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else 0
    return int(value) if isinstance(value, int | float) else 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job as slurmrestd lists it. Times are epoch seconds by Slurm's clock, 0 if unknown."""

    id: int
    name: str
    user: str
    identity: Identity | None
    words: frozenset[str]
    """Words of the state: the base state and its flags."""
    reason: str
    explanation: str
    """Slurm's description of ``reason``."""
    submitted: int
    started: int
    ends: int
    host: str
    restarts: int
    exit: str
    """The exit status in words; empty for success."""

    @property
    def uid(self) -> str:
        """Return the identity of the job. An id alone is not unique, because ids begin again when slurmctld loses its
        state."""
        return f"{self.id}.{self.submitted}"

    @property
    def is_requeued(self) -> bool:
        """Return True if Slurm has requeued the job or has started it again. The job is then another machine."""
        return self.restarts > 0 or bool(self.words & REQUEUED)

    @property
    def phase(self) -> Phase:
        """Return the phase of the job's machine. The machine is GONE if the job has ended and only Slurm's record of it
        is left. It is also GONE if Slurm has requeued the job, because the job is then another machine."""
        if "COMPLETING" in self.words:
            return Phase.STOPPING
        if self.words & ENDED.keys() or self.is_requeued:
            return Phase.GONE
        runs = self.words & {"RUNNING", "SUSPENDED"} and not self.words & BOOTING and self.host
        return Phase.RUNNING if runs else Phase.PENDING

    @property
    def is_waiting(self) -> bool:
        """Return True if the job waits in the queue."""
        return "PENDING" in self.words and not self.words & BOOTING

    @property
    def end(self) -> MachineEnd | None:
        """Return how a job has ended if only Slurm's record of it is left; None for any other job."""
        ended = next((word for word in ENDED if word in self.words), None)
        if ended is None or "COMPLETING" in self.words:
            return None
        found = ErrorClass.INVALID if self.reason == "BadConstraints" else ErrorClass.OTHER
        parts = [ended, self._said if self.reason not in ("", "None", "NonZeroExitCode") else "", self.exit]
        return MachineEnd(ENDED[ended], Failure(found, ", ".join(filter(None, parts))))

    @property
    def failure(self) -> Failure | None:
        """Return why the job waits; None if it does not wait, or waits for a normal reason such as its priority."""
        found = next((error for error, shape in _REASONS if shape.fullmatch(self.reason)), None)
        return Failure(found, self._said) if found and "PENDING" in self.words else None

    @property
    def _said(self) -> str:
        return words(f"{self.reason}: {self.explanation}" if self.explanation else self.reason)


@translated_errors()
def read_jobs(records: Sequence[Document]) -> list[Job]:
    """Return the jobs of records, the oldest first. Raise BackendError if a record is not as documented."""
    return sorted(map(read_job, records), key=lambda job: (job.submitted, job.id))


def read_job(record: Document) -> Job:
    """Return the job of a record. Raise LookupError, TypeError or ValueError for a malformed record or an unknown
    state."""
    state = record["job_state"]
    state_words = frozenset([state] if isinstance(state, str) else map(text, state))
    if not state_words & (BASE | {"COMPLETING"}):
        raise ValueError(f"job {record['job_id']} has the unknown state {', '.join(sorted(state_words)) or 'none'}")
    return Job(
        id=int(record["job_id"]),
        name=text(record["name"]),
        user=text(record["user_name"]),
        identity=read_identity(str(record.get("comment") or "")),
        words=state_words,
        reason=str(record.get("state_reason") or ""),
        explanation=str(record.get("state_description") or ""),
        submitted=number(record.get("submit_time")),
        started=number(record.get("start_time")),
        ends=number(record.get("end_time")),
        host=str(record.get("batch_host") or ""),
        restarts=number(record.get("restart_cnt")),
        exit=_exit(record.get("exit_code")),
    )


def _exit(value: Any) -> str:
    """Return an exit status in words; empty for success. Up to v0.0.38, the status is a number as wait(2) returns
    it."""
    if isinstance(value, Mapping):
        signal = number((value.get("signal") or {}).get("id") or (value.get("signal") or {}).get("signal_id"))
        code = number(value.get("return_code"))
    else:
        signal, code = number(value) & 127, number(value) >> 8
    return f"signal {signal}" if signal else f"exit code {code}" if code else ""

"""The command backend. A pool consists of the jobs with our names in the output of a scheduler's list command.

A mark is a text with provisioner, pool and request. If the list shows marks, a job is in the pool only if its mark is
ours, too.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter

from provisioner.backends import BackendError, Finding, Severity
from provisioner.backends.command.commands import Commands, is_ended_as
from provisioner.backends.command.records import Record, epoch, host_name, read_records
from provisioner.backends.command.settings import STATE_PHASES, CommandPool
from provisioner.backends.host_addresses import HostAddresses
from provisioner.backends.names_not_unique import ListingBackend, divide
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

RecordsByName = Mapping[str, Sequence[Record]]


class CommandBackend(ListingBackend[Record]):
    """The backend of a pool whose machines are made, listed and deleted by commands."""

    def __init__(self, pool: CommandPool, *, provisioner: str, prefix: str) -> None:
        """Prepare the commands. ``prefix``: beginning of the names of our machines."""
        super().__init__(pool, prefix, pool.lag_seconds)
        self._settings, self.at_once = pool, pool.create.at_once
        self._mark = f"{provisioner}/{pool.name}"
        self._commands = Commands(pool, {"prefix": prefix})
        self._addresses = HostAddresses()
        self._launched: dict[str, int] = {}
        """Epoch seconds at which each machine without a time stamp was first seen running, by uid."""
        dumped = pool.model_dump_json(exclude={"credentials", "observe_seconds"})
        self._digest = hashlib.sha256(dumped.encode()).hexdigest()[:16]

    def close(self) -> None:
        """Start no further program, and end the waits of threads that want to start one."""
        self._commands.close()

    def observe(self, now: float, sought: Mapping[str, str]) -> Snapshot:
        """Return a snapshot of our machines. Each observation runs the list command once."""
        divided = divide(self._read_list(), sought, self)
        uids = {one.fingerprint.uid for one in divided.machines.values()}
        self._launched = {uid: at for uid, at in self._launched.items() if uid in uids}
        return self._snapshot(divided, sought, began_at=now, wall=time.time())

    def check(self, seconds: float) -> list[Finding]:
        """Return a note that shows how the first listed record was read; empty if no job is listed. The operator
        compares the note with the place.

        Raise BackendError if the list command fails.
        """
        for records in self._read_list().values():
            shown = ", ".join(f"{name} {value!r}" for name, value in records[0]._asdict().items() if value)
            text = f"the first listed job was read as {shown}: compare this with what the place shows"
            return [Finding(self.pool, Severity.NOTE, text)]
        return []

    def _read_list(self) -> RecordsByName:
        """Return all records by name. Raise BackendError if the command fails or its output is not as declared."""
        settings = self._settings
        ended = self._commands.run(settings.list.argv, time.monotonic() + settings.time_out_seconds)
        program = settings.list.argv[0]
        said = ended.errors.decode(errors="replace")
        is_empty = not ended.output.strip()
        if is_empty and is_ended_as(settings.list.empty, ended):
            return {}
        if ended.code or settings.class_of(settings.errors, said):
            raise self._commands.failure(ended, program)
        if is_empty:
            text = f"{program} printed nothing, and list.empty does not declare this as an empty place"
            raise BackendError(ErrorClass.UNAVAILABLE, text)
        try:
            records = read_records(settings, ended.output.decode())
        except ValueError as error:
            raise BackendError(ErrorClass.OTHER, f"the output of {program} is not as declared: {error}") from error
        records.sort(key=lambda one: (len(one.id), one.id))  # The oldest job is first, because ids grow.
        return group_by(attrgetter("name"), records)

    def _submit(self, create: Create) -> None:
        argv, pool = self._settings.create.argv, self._settings
        mark = f"{self._mark}/{create.request}"
        values = {"name": create.name, "template": create.template, "request": create.request, "mark": mark}
        ended = self._commands.run(argv, time.monotonic() + pool.time_out_seconds, **values)
        if ended.code < 0:
            self._uncertain.note(create.name)
        if ended.code:
            raise self._commands.failure(ended, argv[0])
        if not pool.finds_id(ended.output.decode(errors="replace")):
            text = f"{argv[0]} ended with 0 and printed no id as create.id describes: {ended.output[:200]!r}"
            raise BackendError(ErrorClass.TIMEOUT, text)

    def _delete(self, delete: Delete, listed: RecordsByName) -> Mapping[str, Failure]:
        pool = self._settings
        for record in listed.get(delete.name, ()):
            if record.kind == "gone" and not pool.cleanup:
                continue
            if not (record.uid == delete.uid if delete.uid else delete.is_adopted or self._is_own(record)):
                continue
            special = pool.delete.pending if record.kind == "pending" else pool.delete.running
            argv = special or pool.delete.argv or ()
            values = {"name": delete.name, "id": record.id}
            ended = self._commands.run(argv, time.monotonic() + pool.time_out_seconds, **values)
            if ended.code and not is_ended_as(pool.delete.gone, ended):
                raise self._commands.failure(ended, argv[0])
        return {}

    def _has_own(self, jobs: Sequence[Record]) -> bool:
        return any(map(self._is_own, jobs))

    def _is_own(self, record: Record) -> bool:
        """Return True if the record's name has our shape and its mark names this pool. If the list shows no marks, the
        name decides."""
        found = self._shape.fullmatch(record.name)
        if found is None or not self._settings.has_marks:
            return found is not None
        return record.mark == f"{self._mark}/{found['request']}"

    def is_shown(self, job: Record, sought: Mapping[str, str]) -> bool:
        """Return True if the record is a machine of this pool by name and mark. A record without the mark is also such
        a machine if ``sought`` has its uid."""
        return self._is_own(job) or sought.get(job.name) == job.uid

    def end(self, job: Record) -> MachineEnd | None:
        """Return how a job has ended; None if the job still counts as a machine, because it has not ended or because
        the loop must delete its record."""
        ended = job.kind == "gone" and not self._settings.cleanup
        return MachineEnd(LossCause.EXITED, _end_failure(job)) if ended else None

    def machine(self, job: Record) -> Machine:
        """Return the machine that a record describes."""
        before = self._machines.get(job.name)
        if job.kind == "unknown" and before is not None and before.fingerprint.uid == job.uid:
            return before
        phase, created = STATE_PHASES.get(job.kind, Phase.PENDING), self._epoch(job.created)
        host, launched = self._place_of(job, created) if phase is Phase.RUNNING else ("", 0)
        failure = _end_failure(job) if phase is Phase.GONE else self._refusal(job)
        machine = Machine(
            job.name,
            phase,
            Fingerprint(uid=job.uid),
            launched=launched,
            failure=failure,
            cause=LossCause.EXITED if phase is Phase.GONE else None,
            queued=Queued(created, job.reason or job.state) if job.kind == "pending" and failure is None else None,
            spills_at_once=failure is not None and failure.error.has_no_room,
            is_strayed=not self._is_own(job),
            state="suspended" if job.kind == "suspended" else "",
        )
        return self._addresses.locate(machine, host) if host else machine

    def _place_of(self, job: Record, created: int) -> tuple[str, int]:
        """Return the host of a running machine, and its start in epoch seconds."""
        host = job.address or host_name(job.host) or self._settings.list.host
        launched = self._epoch(job.started) or created or self._launched.setdefault(job.uid, int(time.time()))
        return host or "", launched

    def _refusal(self, job: Record) -> Failure | None:
        """Return the failure of a waiting job if the setting ``reasons`` gives the job's reason an error class; None
        for any other job."""
        error = self._settings.class_of(self._settings.reasons, job.reason) if job.kind == "pending" else None
        return Failure(error, job.reason) if error else None

    def _epoch(self, moment: str) -> int:
        try:
            return epoch(moment, self._settings.list.time_format)
        except ValueError as error:
            raise BackendError(ErrorClass.OTHER, f"list.time_format does not fit: {error}") from error


def _end_failure(record: Record) -> Failure:
    return Failure(ErrorClass.OTHER, f"{record.state}: {record.reason}" if record.reason else record.state)

"""Sentences for ``explain`` about the present state and the next events of a subject.

The subject is a request, a return request, a machine or a pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from provisioner.model import DESIRED, Memory, RequestRecord, ReturnRecord, Slot, format_utc
from provisioner.names import get_prefix
from provisioner.planning.core.slots import find_slot, format_wait, get_boot_deadline
from provisioner.state.errors import StateError
from provisioner.state.protocols import State
from provisioner.telemetry.brake_release_forecast import get_loop_time, release_fields
from provisioner.telemetry.pool_status import PoolStatus, read_pool_status
from provisioner.telemetry.pool_windows import format_local_time, format_pool_line, pool_failures, window_documents
from provisioner.telemetry.status_inputs import loop_document, read_script_calls, silence_message
from provisioner.telemetry.timeline import Kind, Subject
from provisioner.telemetry.unmet import UnmetDocuments, count_waiting, find_queues, unmet_lines

T = TypeVar("T")


class Sources:
    """The content of those state files that can be read. A file that cannot be read counts as empty."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.caveats: list[str] = []
        """Sentences about state files that cannot be read. Their content is missing from the explanation."""
        memory = self._readable(state.memory.read)
        self.has_memory = memory is not None
        self.memory = memory or Memory("")
        self.pool_status = self._readable(partial(read_pool_status, state)) or PoolStatus()
        self.wall = time.time()
        self.now = get_loop_time(self.memory, self.wall)

    def _readable(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except StateError as error:
            self.caveats.append(f"{error} This answer lacks its content.")
            return None

    def slot(self, name: str) -> Slot | None:
        """Return the slot of the machine with this name; None if there is none."""
        slot = find_slot(self.memory.requests, get_prefix(name), name)
        return slot if slot and slot.name == name else None

    def pools(self) -> set[str]:
        """Return the names of all pools in memory and in the pool status."""
        return {*(pool for pool, _ in self.memory.windows), *self.pool_status.pool_limits, *self.pool_status.pools}

    def unmet(self) -> UnmetDocuments:
        """Return an object that makes documents about the machines that open requests still lack."""
        return UnmetDocuments(self.memory, self.pool_status, pool_failures(self.memory), self.now)

    def local(self, at: float) -> str:
        """Return a moment of loop time as text, in this terminal's local time."""
        return format_local_time(format_utc(self.memory.wall_of(at)))

    def silence_message(self) -> str:
        """Return a text that says since when no loop has run. The text is empty if a loop runs or may run."""
        try:
            return silence_message(loop_document(self.state.life_signs()))
        except StateError:
            return ""


def prospects(sources: Sources, subject: Subject) -> Iterator[str]:
    """Yield sentences about the present state of the subject and its next events."""
    memory, id_ = sources.memory, subject.id
    if subject.kind is Kind.POOL:
        yield from _pool(sources, id_)
    elif subject.kind is Kind.REQUEST and (record := memory.requests.get(id_)):
        yield from _request(sources, record)
    elif subject.kind is Kind.RETURN and (return_request := memory.returns.get(id_)):
        yield _return(sources, return_request)
    elif slot := sources.slot(id_):
        yield from _machine(sources, slot)
    elif subject.kind is Kind.MACHINE and (deletion_time := _orphan_deletion(sources, id_)):
        yield f"It belongs to no known request, so it is deleted as an orphan {deletion_time}."
    elif sources.has_memory:
        yield "It has left the state files; only the journal still contains it."
    if silence := sources.silence_message():
        yield f"LOOP NOT RUNNING {silence}: the next steps wait for a loop; see `provisioner status`."


def _request(sources: Sources, record: RequestRecord) -> Iterator[str]:
    slots = record.slots.values()
    if record.ended is not None:
        unreported = "" if record.reported_at is not None else "; not reported to HostFactory yet"
        ended_at = sources.local(record.ended_at or sources.memory.written.time)
        yield f"It ended as {record.ended} at {ended_at}{unreported}."
        kept = sum(slot.verdict in DESIRED for slot in slots)
        leaving = sum(slot.verdict not in DESIRED and not slot.deletion.is_gone for slot in slots)
        ending = f"; ended, and not proven gone yet: {leaving:,}" if leaving else ""
        yield f"Machines of this request that HostFactory has: {kept:,}{ending}."
        return
    ran = sum(slot.is_with_hf for slot in slots)
    yield f"The request is open. Machines that run: {ran:,} of {record.count:,}."
    document = {"missing": sources.unmet().by_request().get(record.id, [])}
    lines = unmet_lines(document, loop_acts=not sources.silence_message())
    yield from (_with_full_stop(line.strip()) for line in lines)
    yield f"The request ends by {sources.local(record.deadline_at)}; machines that do not run by then fail."


def _machine(sources: Sources, slot: Slot) -> Iterator[str]:
    record = sources.memory.requests[slot.request]
    yield f"It belongs to request {slot.request} of template {record.template}, and was requested in pool {slot.pool}."
    if slot.is_set_aside:
        yield "It is set aside; the loop does not act on it until an operator has decided."
    if slot.verdict in DESIRED:
        yield from _wanted(sources, slot)
    elif slot.deletion.is_gone:
        yield f"It is {slot.verdict} and gone."
    else:
        yield from _leaving(sources, slot)


def _leaving(sources: Sources, slot: Slot) -> Iterator[str]:
    deletion = slot.deletion
    sent = "is to be sent" if deletion.sent_at is None else f"was sent at {sources.local(deletion.sent_at)}"
    yield f"It is {slot.verdict}. Its delete {sent}, and is repeated until an observation shows that it is gone."
    if deletion.is_stuck:
        yield "It is stuck; it should have been gone long ago."
    if deletion.hindrance is not None:
        yield f"Its place reports why it is not gone: {deletion.hindrance.error}: {deletion.hindrance.text}"


def _wanted(sources: Sources, slot: Slot) -> Iterator[str]:
    notice, ip = slot.observed.notice, slot.observed.ip
    if notice is not None:
        yield f"It ends at {sources.local(notice.ends_at)}: {notice.cause}."
    if slot.life.down_since is not None:
        reason = f": “{slot.failure.text}”" if slot.failure else ""
        yield f"It has not run since {sources.local(slot.life.down_since)}{reason}. HostFactory counts it as running."
    elif slot.ran_at is not None:
        yield f"It has run since {sources.local(slot.ran_at)} at {ip}, and is kept until HostFactory returns it."
    if slot.ran_at is not None:
        return
    limits = sources.pool_status.pool_limits.get(slot.pool)
    reason = f": {slot.trouble.error}, “{slot.trouble.text}”" if slot.trouble else ""
    wait = format_wait(slot)
    yield _with_full_stop(f"It is {wait}" if wait else f"It does not run yet{reason}")
    if limits and slot.submitted_at is not None and not slot.observed.is_queued:
        due_at = sources.local(get_boot_deadline(slot, limits))
        yield f"If it does not run by {due_at}, it fails and another machine replaces it."


def _return(sources: Sources, record: ReturnRecord) -> str:
    settled = f"{len(record.results):,} of {len(record.names):,} settled"
    if record.ended is not None:
        ended_at = sources.local(record.ended_at or sources.memory.written.time)
        return f"It ended as {record.ended} at {ended_at}: {settled}."
    return f"It is running: {settled}; it ends by {sources.local(record.deadline_at)}."


def _orphan_deletion(sources: Sources, name: str) -> str:
    """Return the time at which an orphan will be deleted, as text; empty if the machine is not an orphan."""
    if not sources.has_memory:
        return ""
    try:
        document = release_fields(sources.memory, sources.pool_status, read_script_calls(sources.state), sources.wall)
    except StateError:
        return ""
    condition = ", once the brake is released" if document["brake"] else ""
    times = {one["machine"]: one["deleted_at"] for one in document["waiting"]}
    if name not in times:
        return ""
    return (f"at {format_local_time(times[name])}" if times[name] else "later") + condition


def _pool(sources: Sources, name: str) -> Iterator[str]:
    pool_status, memory = sources.pool_status, sources.memory
    if name in pool_status.paused:
        yield "It is paused: it gets no new machines."
    yield from map(_with_full_stop, pool_status.pools.get(name, ()))
    for one in pool_status.refused:
        if one.pool == name:
            refused = f"creates of template {one.template}" if one.operation == "create" else "deletes"
            yield f"It has refused {refused} since {format_local_time(format_utc(one.since))}: “{one.text}”."
    if not sources.has_memory:
        return
    if memory.brake and memory.brake.pool == name:
        yield f"It has latched the brake, since {sources.local(memory.brake.since)}: {memory.brake.detail}"
    unmet = sources.unmet().by_request()
    waiting, queues = count_waiting(memory, unmet), find_queues(memory, unmet)
    for entry in window_documents(memory, pool_failures(memory), waiting, queues, sources.now):
        if entry["pool"] == name:
            yield _with_full_stop(format_pool_line(entry).strip().removeprefix(f"pool {name}, "))
    wanted = [slot.ran_at is not None for _, slot in memory.slots if slot.pool == name and slot.verdict in DESIRED]
    starting = "" if all(wanted) else f"; not running yet: {len(wanted) - sum(wanted):,}"
    yield f"Machines that run in this pool: {sum(wanted):,}{starting}."


def _with_full_stop(sentence: str) -> str:
    return sentence.rstrip(".") + "."

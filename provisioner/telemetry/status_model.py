"""The status: machines wanted, running and missing, the reasons, and the alarms for an operator.

The command ``status``, its JSON and the status page show this status. The functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any

from provisioner.loop.hf_activity import HF_AWAY_SECONDS
from provisioner.model import (
    FAULT,
    Failure,
    Limits,
    Memory,
    PendingReason,
    RequestRecord,
    RequestStatus,
    Slot,
    Verdict,
    format_utc,
)
from provisioner.planning.report.answers import UNLISTED_AFTER
from provisioner.state.errors import Condition
from provisioner.telemetry.brake_release_forecast import get_loop_time, release_fields
from provisioner.telemetry.config_drift import find_open_differences, format_difference
from provisioner.telemetry.cost import spending
from provisioner.telemetry.demand_status import demand_alarms, demand_document
from provisioner.telemetry.holds import hold_alarms
from provisioner.telemetry.losses import loss_documents, loss_lines
from provisioner.telemetry.machine_rows import ByPool, Row, count_slots, sum_row, tables
from provisioner.telemetry.pool_alarms import failing_documents, pool_alarms, unseen_documents
from provisioner.telemetry.pool_status import LastingFailure, PoolStatus
from provisioner.telemetry.pool_windows import (
    Document,
    format_count,
    format_local_time,
    last_error,
    pool_failures,
    window_documents,
)
from provisioner.telemetry.status_inputs import StatusInputs, hf_document, hf_message, loop_document, silence_message
from provisioner.telemetry.unmet import UnmetDocuments, count_waiting, find_queues


@dataclass(frozen=True, slots=True)
class StatusModel:
    """The status. Each field is a key of ``status -o json``. Times are UTC. A key that ends in ``_seconds`` holds the
    seconds since or until the time."""

    time: str
    """The time at which the status was made."""
    state_directory: str
    provisioner: str
    generation: int
    """The generation of intent.json."""
    loop: Document
    """The last holder of the loop lock; its ``fate`` (``ended``, ``gone``, ``released``, ``holds``, ``waits``, or empty
    if unknown); ``last_beat``, ``silent_seconds`` and ``running`` (None if unknown); ``advice``: the next step if no
    loop runs; ``waits``: a message if a loop waits, or empty; ``intent_lock``: the process that has held the lock of
    intent.json for too long, or empty."""
    files: Document
    """The ``condition`` of intent and of memory, each with a ``text`` if its condition is not fine."""
    hostfactory: Document
    """HF's last poll or list of hosts (``last_call``, ``script``, ``silent_seconds``), HF's ``last_list``, and the
    calls that the scripts ``refused`` in the last minutes."""
    unwritable: str
    """Reason why the loop cannot write the state directory, and the remedy; empty if it can write."""
    memory_lost: bool
    nothing_planned: Document | None
    """The problem that keeps the loop from planning (``since``, ``text``); None if it can plan."""
    configuration_refused: Document | None
    """The mistake because of which the loop refuses the configuration in the files (``since``, ``text``); None if the
    configuration is in force."""
    configuration_differs: Sequence[Document]
    """HF's files of which the scripts have read another version than the loop uses: ``file``, the ``newer`` side and
    ``text``. A newer file that the loop refuses is left out here, because it is in ``configuration_refused``."""
    paused: Sequence[str]
    """The pools that the configuration pauses."""
    holds: Document
    """The holds in force: ``current`` and ``problem``, as ``current_holds`` returns them."""
    refused: Sequence[Document]
    """Refusals of a template's creates, or of deletes, which last until an operator fixes the cause."""
    unseen: Sequence[Document]
    """The unseen pools, as ``unseen_documents`` returns them."""
    failing: Sequence[Document]
    """Pools and templates whose machines fail until an operator fixes the cause: see ``failing_documents``."""
    brake: Document | None
    """``reason``, ``detail``, ``pool`` and ``since`` of the latched brake; None if the brake is not latched."""
    release_asked: bool
    """True if the loop will release the brake in its next cycle."""
    waiting: Sequence[Document]
    """Machines that wait to be deleted as orphans: ``machine``, ``pool`` (empty if unknown), ``unlisted``,
    ``deleted_at``.

    ``unlisted``: True if the machine has a request but HF's lists do not name the machine. ``deleted_at``: the earliest
    time of the delete if the brake stays released from now on; None if the machine is never deleted, or if the time is
    unknown.
    """
    forgotten: Sequence[Document]
    """Requests that will be cancelled as forgotten. ``machines``: the number of machines that will then be deleted."""
    problems: Mapping[str, Sequence[str]]
    """Sentences about the places of pools, by pool. A sentence that begins with ``FAULT`` needs an operator."""
    templates: Sequence[Row]
    pools: Sequence[Row]
    machines: Sequence[Row]
    """A row for each template in each pool."""
    budget: Document | None
    """The costs and budgets, as ``cost.spending`` returns them; None if no pool has a price."""
    requests: Sequence[Document]
    """Requests with their ``deadline``, their machines by pool, and their ``missing`` machines with reasons (see
    ``UnmetDocuments``). ``text``: the reason why machines failed without a try; empty if each machine was tried."""
    returns: Sequence[Document]
    stuck: Sequence[Document]
    """Machines that still exist after their grace period. ``text``: the place's reason; empty if the place gives none.
    """
    down: Sequence[Document]
    """Machines that were reported to HF and do not run now. ``since``: the time at which they stopped. ``text``: the
    reason."""
    losses: Sequence[Document]
    """Machines that ended although the loop did not delete them, as ``loss_documents`` returns them."""
    pressure: Sequence[Document]
    """Window, back-off and last error of each pool and template, as ``window_documents`` returns them."""
    demand: Document | None
    """The last step of ``provisioner demand``, as ``demand_document`` returns it; None if there has been none."""
    unlisted: Sequence[str]
    """Machines that HF's lists have not named for a day."""
    unread: Sequence[str]
    """Requests and return requests that the loop has not read yet."""

    def document(self) -> dict[str, Any]:
        """Return the JSON object for ``-o json``."""
        rows = {name: [asdict(row) for row in getattr(self, name)] for name in ("templates", "pools", "machines")}
        return {one.name: getattr(self, one.name) for one in fields(self)} | rows

    @property
    def alarms(self) -> list[str]:
        """Return the problems that an operator has to fix, as sentences, the worst first."""
        return list(_alarms(self))

    @property
    def alarm_counts(self) -> Mapping[str, int]:
        """Return the number of alarms by their first words, which are in capitals."""
        texts = [*self.alarms, *["BRAKE"][: self.brake is not None]]
        capitals = (re.match("[A-Z]+(?: [A-Z]+)*", text) for text in texts)
        return Counter(found[0] for found in capitals if found)

    @property
    def is_fine(self) -> bool:
        """Return True if this status has no alarm."""
        return not (self.alarms or self.brake)

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Return the problems that need no operator. Each is a pair: the pool, and a sentence about the problem."""
        return [(pool, note) for pool, notes in self.problems.items() for note in notes if not note.startswith(FAULT)]

    @property
    def unmet_machines(self) -> int:
        """Return the number of missing machines of open requests. Do not count machines that are missing for a reason
        that needs no attention."""
        return sum(one["machines"] for request in self.requests for one in request["missing"] if not one["quiet"])

    @property
    def total(self) -> Row:
        """Return the sum of all rows. The sum has no cap."""
        return sum_row(self.templates)

    @property
    def is_loop_acting(self) -> bool:
        """Return True if a loop runs and plans, or may run and plan."""
        return self.loop["running"] is not False and not self.nothing_planned and not self.unwritable


# --- building ---------------------------------------------------------------------------------------------------------


def status_model(inputs: StatusInputs) -> StatusModel:
    """Return the status that follows from ``inputs``."""
    memory, intent, pool_status = inputs.memory, inputs.intent, inputs.pool_status
    owner = intent or memory
    remembered = set(memory.requests) | set(memory.returns) if memory else set()
    read = set(intent.requests) | set(intent.returns) if intent else set()
    return StatusModel(
        time=format_utc(inputs.wall),
        state_directory=inputs.directory,
        provisioner=owner.provisioner if owner else "",
        generation=owner.generation if owner else 0,
        loop=loop_document(inputs.signs),
        files={"intent": asdict(inputs.intent_file), "memory": asdict(inputs.memory_file)},
        hostfactory=hf_document(inputs.calls, inputs.signs),
        unwritable=inputs.refusal,
        memory_lost=inputs.memory_file.condition is Condition.MISSING,
        nothing_planned=_failure_entry(pool_status.problem),
        configuration_refused=_failure_entry(pool_status.configuration),
        configuration_differs=[
            {**one._asdict(), "text": format_difference(one)}
            for one in find_open_differences(inputs.differing, refused=pool_status.configuration is not None)
        ],
        paused=list(pool_status.paused),
        holds=inputs.holds,
        refused=[{**asdict(one), "since": format_utc(one.since)} for one in pool_status.refused],
        release_asked=inputs.release_asked,
        unseen=unseen_documents(pool_status),
        problems={
            pool: list(sentences) for pool, sentences in pool_status.pools.items() if pool not in pool_status.unseen
        },
        demand=demand_document(inputs.demand, inputs.wall),
        unread=sorted(read - remembered),
        **release_fields(memory, pool_status, inputs.calls, inputs.wall),
        **_memory_fields(memory or Memory(""), pool_status, inputs.wall),
    )


def _failure_entry(failure: LastingFailure | None) -> Document | None:
    return {"since": format_utc(failure.since), "text": failure.text} if failure else None


def _memory_fields(memory: Memory, pool_status: PoolStatus, wall: float) -> dict[str, Any]:
    """Return the fields of a ``StatusModel`` that are computed from memory."""
    now, failures = get_loop_time(memory, wall), pool_failures(memory)
    slots = {record.id: count_slots(record) for record in memory.requests.values()}
    unmet = UnmetDocuments(memory, pool_status, failures, now).by_request()
    limits, waiting = pool_status.limits or Limits("", {}, {}), count_waiting(memory, unmet)
    errors = {key: last_error(memory, last, waiting[key], now) for key, last in failures.items()}
    # a machine that was given up is not replaced, so it does not count as wanted
    wanted = waiting - count_waiting(memory, unmet, PendingReason.GIVEN_UP)
    return tables(memory, limits, slots, wanted, errors) | {
        "failing": failing_documents(memory, pool_status, failures, waiting, now),
        "requests": [
            _request_entry(memory, record, slots[record.id]) | {"missing": unmet.get(record.id, [])}
            for record in memory.requests.values()
        ],
        "returns": [
            {
                "id": record.id,
                "status": record.ended or RequestStatus.RUNNING,
                "machines": len(record.names),
                "settled": len(record.results),
            }
            for record in memory.returns.values()
        ],
        "stuck": [
            _machine_entry(slot, slot.deletion.hindrance)
            for _, slot in memory.slots
            if slot.deletion.is_stuck and not slot.deletion.is_gone
        ],
        "down": [
            _machine_entry(slot, slot.failure) | {"since": format_utc(memory.wall_of(slot.life.down_since))}
            for _, slot in memory.slots
            if slot.life.down_since is not None and slot.verdict is Verdict.SUCCEEDED
        ],
        "losses": loss_documents(memory, now),
        "pressure": window_documents(memory, failures, waiting, find_queues(memory, unmet), now),
        "budget": spending(memory, limits, chain.from_iterable(unmet.values()), now),
        "unlisted": sorted(name for name, since in memory.hosts.unlisted.items() if now - since >= UNLISTED_AFTER),
    }


def _machine_entry(slot: Slot, failure: Failure | None) -> dict[str, Any]:
    return {"machine": slot.name, "pool": slot.pool, "text": failure.text if failure else ""}


def _request_entry(memory: Memory, record: RequestRecord, pools: ByPool) -> dict[str, Any]:
    failed = [slot for slot in record.slots.values() if slot.verdict is Verdict.FAILED]
    return {
        "id": record.id,
        "template": record.template,
        "count": record.count,
        "status": record.ended or RequestStatus.RUNNING,
        "deadline": format_utc(memory.wall_of(record.deadline_at)),
        "running": sum(counts.running for counts in pools.values()),
        "slots": dict(Counter([str(slot.verdict) for slot in record.slots.values()])),
        "text": next((slot.failure.text for slot in failed if slot.submitted_at is None and slot.failure), ""),
        "set_aside": [slot.name for slot in record.slots.values() if slot.is_set_aside],
        "pools": {pool: counts._asdict() for pool, counts in pools.items()},
    }


# --- for operators ----------------------------------------------------------------------------------------------------


def _alarms(status: StatusModel) -> Iterator[str]:
    """Yield the problems that an operator has to fix, the worst first."""
    yield from _process_alarms(status)
    for file in status.files.values():
        if file["condition"] not in (Condition.FINE, Condition.NEW):
            yield f"{file['text']}; `provisioner recover` shows what to do"
    if failure := status.nothing_planned:
        yield f"PLANNING STOPPED since {format_local_time(failure['since'])}: {failure['text']}"
    if failure := status.configuration_refused:
        is_hf_file = re.search(r"\.json: \d+ problem", failure["text"])
        scripts = "the scripts read these files, too, and fail" if is_hf_file else "the scripts go on"
        message = f"the loop keeps the previous one; {scripts}: {failure['text']}"
        yield f"CONFIGURATION REFUSED since {format_local_time(failure['since'])}: {message}"
    yield from (f"CONFIGURATION DIFFERS: {one['text']}" for one in status.configuration_differs)
    yield from demand_alarms(status.demand)
    yield from hold_alarms(status.holds)
    for pool in status.paused:
        yield f"PAUSED pool {pool}: the pool gets no new machines until `paused` is removed from provisioner.yaml"
    for one in status.refused:
        which = f"creates of template {one['template']}" if one["operation"] == "create" else "deletes"
        yield f"REFUSED by pool {one['pool']}: {which} since {format_local_time(one['since'])}: {one['text']}"
    for pool, notes in status.problems.items():
        yield from (f"PLACE of pool {pool}: {note.removeprefix(FAULT)}" for note in notes if note.startswith(FAULT))
    rows = chain(status.machines, status.pools, status.templates)
    yield from pool_alarms(status.unseen, status.failing, rows, status.budget)
    yield from _machine_alarms(status)


def _process_alarms(status: StatusModel) -> Iterator[str]:
    """Yield alarms about the state directory, its lock, the loop and HostFactory."""
    if status.unwritable:
        message = "planning stops, and HostFactory's requests are refused, until it can be written"
        yield f"STATE DIRECTORY CANNOT BE WRITTEN: {status.unwritable}; {message}"
    if status.loop["intent_lock"]:
        yield f"LOCK of intent.json is held, so requests are late or refused: {status.loop['intent_lock']}"
    for one in status.hostfactory["refused"]:
        times = f"{format_count(one['recent'], 'time')} since {format_local_time(one['since'])}"
        yield f"CALLS REFUSED: the call of {one['script']} was refused {times}: {one['text']}"
    if silence := silence_message(status.loop):
        yield f"LOOP NOT RUNNING {silence}: {status.loop['advice']}"
    if status.hostfactory["last_list"] and (status.hostfactory["silent_seconds"] or 0.0) > HF_AWAY_SECONDS:
        step = "check that HostFactory runs, its provider is enabled, and its HF_PROVIDER_WORKDIR is this directory"
        yield f"HOSTFACTORY SILENT: {hf_message(status.hostfactory)}:\n{step}"


def _machine_alarms(status: StatusModel) -> Iterator[str]:
    """Yield alarms about machines that were lost, that do not run, or that should be gone but still exist. Yield also
    alarms about slots that an operator has to check."""
    yield from loss_lines(status.losses, quiet=False)
    for one, count in _count_by_reason(status.down):
        which = f"e.g. {one['machine']} since {format_local_time(one['since'])}: {one['text'] or 'not ready'}"
        yield f"DOWN {format_count(count, 'machine')} that HostFactory has in pool {one['pool']}, {which}"
    for one, count in _count_by_reason(status.stuck):
        why = one["text"] or "the place gives no reason; look at the machine's node or group"
        more = f" and {count - 1} more" if count > 1 else ""
        yield f"STUCK {one['machine']}{more} in pool {one['pool']}, should be gone by now: {why}"
    for request in status.requests:
        if names := request["set_aside"]:
            machines = f"{format_count(len(names), 'machine')} of request {request['id']}, e.g. {names[0]}"
            yield f"SET ASIDE {machines}: an operator has to check them (docs/alerts.md: SlotsSetAside)"


def _count_by_reason(machines: Sequence[Document]) -> Iterator[tuple[Document, int]]:
    """Group machines by pool and reason. Yield the first machine of each group, and the number of machines in the
    group."""
    firsts = {(one["pool"], one["text"]): one for one in reversed(machines)}
    for reason, count in Counter((one["pool"], one["text"]) for one in machines).items():
        yield firsts[reason], count

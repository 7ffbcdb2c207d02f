"""``provisioner explain``: the timeline of a request, a machine or a pool, what is now, and what comes next."""

from __future__ import annotations

import argparse
import difflib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from provisioner.commands.options import Document, add_shared, show, state_directory
from provisioner.model import DESIRED, Memory, RequestRecord, ReturnRecord, Slot, format_utc
from provisioner.names import prefix_of, request_of, short_name
from provisioner.planning.core.slots import boots_by, slot_named
from provisioner.state.errors import StateError
from provisioner.state.interfaces import State
from provisioner.state.journal import Excerpt
from provisioner.telemetry.brake_release import released, time_at
from provisioner.telemetry.facts import loop_document, script_calls, silence_message
from provisioner.telemetry.notes import Notes, read_notes
from provisioner.telemetry.pool_windows import local, pool_failures, pool_line, window_documents
from provisioner.telemetry.timeline import Kind, Subject, machines_of, named_in, needles, timeline
from provisioner.telemetry.unmet import UnmetDocuments, unmet_lines, waits

NEAR = 5
"""Ids that are named where what was asked for is unknown."""

T = TypeVar("T")


def add_options(command: argparse.ArgumentParser) -> None:
    """Whose timeline, and how to print it."""
    command.add_argument("id", metavar="REQUEST|MACHINE|POOL", help="an id or name; of a machine also with its domain")
    add_shared(command, "state-dir", "output")
    command.add_argument(
        "--machines", action="store_true", help="list each machine of a request, too; with -o json they always are"
    )


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM when nobody knows the id. Raises UsageError."""
    document = explain(state_directory(options.state_dir), options.id)
    return show(options, document, partial(explain_text, named=options.machines), fine=document["kind"] is not None)


@dataclass(frozen=True, slots=True)
class _Sources:
    """What the state files hold, as far as they can be read."""

    state: State
    memory: Memory | None
    notes: Notes
    caveats: list[str] = field(default_factory=list)
    """What the answer lacks, and why."""


def explain(state: State, id_: str) -> dict[str, Any]:
    """The timeline of what has this id.

    ``kind`` (None: unknown), ``id`` and ``story``: sentences with ``at``, ``until`` (UTC), ``event`` and ``text``.
    ``now``: sentences on how it stands and what comes next. ``machines``: those of a request (``machines_of`` has the
    fields). ``caveats``: what the answer lacks. ``near``: known ids that are spelled alike, where nobody knows this.
    """
    sources = _read(state)
    subject, excerpt = _find(sources, id_)
    caveats = [*sources.caveats, *_journal_caveats(excerpt)]
    if subject is None:
        return {"kind": None, "id": id_, "story": [], "now": [], "machines": [], "near": _near(sources, id_)} | {
            "caveats": caveats
        }
    told = [
        {"at": format_utc(one.at), "until": format_utc(one.until), "event": one.event, "text": one.text}
        for one in timeline(subject, excerpt.lines, sources.memory)
    ]
    if not told and excerpt.since is not None:
        caveats.append(f"The journal, which begins at {local(format_utc(excerpt.since))}, does not tell of it.")
    return {
        "kind": subject.kind,
        "id": subject.id,
        "story": told,
        "now": [*_now(sources, subject), *_loop(sources)],
        "machines": machines_of(sources.memory, subject.id) if sources.memory and subject.kind is Kind.REQUEST else [],
        "near": [],
        "caveats": caveats,
    }


# --- what is known ----------------------------------------------------------------------------------------------------


def _read(state: State) -> _Sources:
    caveats: list[str] = []
    memory = _readable(state.memory.read, caveats)
    return _Sources(state, memory, _readable(partial(read_notes, state), caveats) or Notes(), caveats)


def _readable(read: Callable[[], T], caveats: list[str]) -> T | None:
    try:
        return read()
    except StateError as error:
        caveats.append(f"{error} What follows lacks what it would tell.")
        return None


def _journal_caveats(excerpt: Excerpt) -> Iterator[str]:
    if excerpt.unreadable:
        yield f"A part of the journal cannot be read: {excerpt.unreadable}."
    if excerpt.torn:
        yield f"{excerpt.torn} lines of the journal are torn, and left out."
    if excerpt.since is None and not excerpt.unreadable:
        yield "There is no journal: this is what memory.json knows."


def _find(sources: _Sources, id_: str) -> tuple[Subject | None, Excerpt]:
    """Whose id it is, by the state files or else by the journal, and what the journal says of it."""
    subject = _in_files(sources, id_)
    if subject is not None:
        return subject, sources.state.find_history(*needles(subject, sources.memory))
    excerpt = sources.state.find_history(id_, short_name(id_))
    subject = _in_lines(excerpt, id_)
    if subject is None:
        return None, excerpt
    return subject, sources.state.find_history(*needles(subject, sources.memory, excerpt.lines))


def _in_files(sources: _Sources, id_: str) -> Subject | None:
    memory, notes, name = sources.memory, sources.notes, short_name(id_)
    if memory and id_ in memory.requests:
        return Subject(Kind.REQUEST, id_)
    if memory and id_ in memory.returns:
        return Subject(Kind.RETURN, id_)
    if id_ in _pool_names(sources):
        return Subject(Kind.POOL, id_)
    orphan = any(name in names for names in notes.orphans.values())
    return Subject(Kind.MACHINE, name) if orphan or (memory and _slot(memory, name)) else None


def _in_lines(excerpt: Excerpt, id_: str) -> Subject | None:
    """The subject that only the journal still knows."""
    for line in excerpt.lines:
        if line.get("request") == id_:
            return Subject(Kind.REQUEST, id_)
        if line.get("return") == id_:
            return Subject(Kind.RETURN, id_)
        if line.get("pool") == id_:
            return Subject(Kind.POOL, id_)
        if short_name(id_) in named_in(line):
            return Subject(Kind.MACHINE, short_name(id_))
    return None


def _pool_names(sources: _Sources) -> set[str]:
    learned = {pool for pool, _ in sources.memory.pressures} if sources.memory else set()
    return learned | sources.notes.pool_limits.keys() | sources.notes.pools.keys()


def _slot(memory: Memory, name: str) -> Slot | None:
    slot = slot_named(memory.requests, prefix_of(name), name)
    return slot if slot and slot.name == name else None


def _near(sources: _Sources, id_: str) -> list[str]:
    """Known ids that are spelled alike; for a machine of a known request, the first machine of that."""
    memory = sources.memory
    ids = [*(memory.requests if memory else ()), *(memory.returns if memory else ()), *sorted(_pool_names(sources))]
    name = short_name(id_)
    record = memory.requests.get(request_of(prefix_of(name), name)) if memory else None
    siblings = [slot.name for slot in record.slots.values()][:NEAR] if record else []
    alike = difflib.get_close_matches(id_, ids, NEAR, 0.6)
    part = [near for part in name.split("-")[1:-1] for near in difflib.get_close_matches(part, ids, NEAR, 0.6)]
    return list(dict.fromkeys([*siblings, *alike, *part]))[:NEAR]


# --- how it stands ----------------------------------------------------------------------------------------------------


def _now(sources: _Sources, subject: Subject) -> Iterator[str]:
    memory = sources.memory
    if subject.kind is Kind.POOL:
        yield from _pool(sources, subject.id)
    elif memory and subject.kind is Kind.REQUEST and (record := memory.requests.get(subject.id)):
        yield from _request(sources, memory, record)
    elif memory and subject.kind is Kind.RETURN and (back := memory.returns.get(subject.id)):
        yield _return(memory, back)
    elif memory and (slot := _slot(memory, subject.id)):
        yield from _machine(sources, memory, slot)
    elif memory and subject.kind is Kind.MACHINE and (one := _waiting(sources, memory, subject.id)):
        yield f"No request explains it: it is deleted as an orphan {one}."
    elif memory:
        yield "It has left the state files; the journal alone tells of it."


def _request(sources: _Sources, memory: Memory, record: RequestRecord) -> Iterator[str]:
    slots = record.slots.values()
    if record.ended is not None:
        heard = "" if record.told_at is not None else "; HostFactory has not heard of it yet"
        yield f"It ended as {record.ended} at {_local(memory, record.ended_at or memory.written.time)}{heard}."
        kept = sum(slot.verdict in DESIRED for slot in slots)
        leaving = sum(slot.verdict not in DESIRED and not slot.deletion.gone for slot in slots)
        yield f"{kept:,} of its machines are HostFactory's; {leaving:,} that have ended are not proven gone yet."
        return
    ran = sum(slot.is_with_hf for slot in slots)
    yield f"It is running: {ran:,} of {record.count:,} machines run."
    yield from _lacking(sources, memory, record)
    yield f"What does not run by {_local(memory, record.deadline)} fails, with the reason."


def _lacking(sources: _Sources, memory: Memory, record: RequestRecord) -> Iterator[str]:
    """Why it is short of machines, and when they are asked for again."""
    now = time_at(memory, time.time())
    unmet = UnmetDocuments(memory, sources.notes, pool_failures(memory), now).by_request()
    document = {"missing": unmet.get(record.id, [])}
    for line in unmet_lines(document, loop_acts=not _silence(sources)):
        yield _ended(line.strip())


def _machine(sources: _Sources, memory: Memory, slot: Slot) -> Iterator[str]:
    record = memory.requests[slot.request]
    yield f"It belongs to request {slot.request} of template {record.template}, and was asked for in pool {slot.pool}."
    if slot.set_aside:
        yield "It is set aside: nothing is done for it until a person has looked."
    if slot.verdict in DESIRED:
        yield from _wanted(sources, memory, slot)
    elif slot.deletion.gone:
        yield f"It is {slot.verdict}, and nothing is left of it."
    else:
        sent = "is to be sent" if slot.deletion.sent is None else f"was sent at {_local(memory, slot.deletion.sent)}"
        yield f"It is {slot.verdict}. Its delete {sent}, and is repeated until a look shows that it is gone."
        if slot.deletion.stuck:
            yield "It is stuck: it was to be gone long ago."
        if slot.deletion.hindrance is not None:
            yield f"Its place says why it does not go: {slot.deletion.hindrance.error}: {slot.deletion.hindrance.text}"


def _wanted(sources: _Sources, memory: Memory, slot: Slot) -> Iterator[str]:
    if slot.observed.notice is not None:
        yield f"It ends at {_local(memory, slot.observed.notice.ends)}: {slot.observed.notice.cause}."
    if slot.life.down is not None:
        why = f": “{slot.failure.text}”" if slot.failure else ""
        yield f"It has not run since {_local(memory, slot.life.down)}{why}. HostFactory was told of it."
    elif slot.ran is not None:
        since = _local(memory, slot.ran)
        yield f"It runs since {since} at {slot.observed.ip}, and is kept until HostFactory returns it."
    if slot.ran is not None:
        return
    limits = sources.notes.pool_limits.get(slot.pool)
    said = f": {slot.failure.error}, “{slot.failure.text}”" if slot.failure else ""
    yield f"It does not run yet{said}."
    if limits and slot.submitted is not None:
        due = _local(memory, boots_by(slot, limits))
        yield f"If it does not run by {due}, it fails and another takes its place."


def _return(memory: Memory, back: ReturnRecord) -> str:
    settled = f"{len(back.results):,} of {len(back.names):,} machines are settled"
    if back.ended is not None:
        return f"It ended as {back.ended} at {_local(memory, back.ended_at or memory.written.time)}: {settled}."
    return f"It is running: {settled}; it ends by {_local(memory, back.deadline)}."


def _waiting(sources: _Sources, memory: Memory, name: str) -> str:
    """When an orphan is deleted; empty for a machine that is none."""
    try:
        document = released(memory, sources.notes, script_calls(sources.state), time.time())
    except StateError:
        return ""
    held = ", once the brake is released" if document["brake"] else ""
    for one in document["waiting"]:
        if one["machine"] == name:
            return (f"at {local(one['deleted_at'])}" if one["deleted_at"] else "in time") + held
    return ""


def _pool(sources: _Sources, name: str) -> Iterator[str]:
    notes = sources.notes
    if name in notes.paused:
        yield "It is paused: it gets no new machines."
    yield from map(_ended, notes.pools.get(name, ()))
    for one in notes.refused:
        if one.pool == name:
            what = f"creates of {one.template}" if one.operation == "create" else "deletes"
            yield f"It refuses {what} since {local(format_utc(one.since))}: “{one.text}”."
    if sources.memory:
        yield from _learned(sources.memory, notes, name)


def _learned(memory: Memory, notes: Notes, name: str) -> Iterator[str]:
    """What the loop remembers of a pool: brake, windows, last errors with their ages, and machines."""
    if memory.brake and memory.brake.pool == name:
        yield f"The brake is on because of it since {_local(memory, memory.brake.since)}: {memory.brake.detail}"
    failures, now = pool_failures(memory), time_at(memory, time.time())
    waiting = waits(memory, UnmetDocuments(memory, notes, failures, now).by_request())
    for entry in window_documents(memory, failures, waiting, now):
        if entry["pool"] == name:
            yield _ended(pool_line(entry).strip().removeprefix(f"pool {name}, "))
    slots = [slot for _, slot in memory.slots if slot.pool == name]
    wanted = [slot.ran is not None for slot in slots if slot.verdict in DESIRED]
    yield f"{sum(wanted):,} machines run in it, {len(wanted) - sum(wanted):,} are to run."


def _loop(sources: _Sources) -> Iterator[str]:
    if silence := _silence(sources):
        yield f"LOOP NOT RUNNING {silence}: what comes next waits until `provisioner run` is started."


def _silence(sources: _Sources) -> str:
    """Return since when no loop runs; empty if a loop runs, or may run."""
    try:
        return silence_message(loop_document(sources.state.life_signs()))
    except StateError:
        return ""


def _ended(sentence: str) -> str:
    return sentence.rstrip(".") + "."


def _local(memory: Memory, at: float) -> str:
    return local(format_utc(memory.wall_of(at)))


# --- for people -------------------------------------------------------------------------------------------------------


def explain_text(document: Document, *, named: bool = False) -> str:
    """The document as text for a terminal; ``named``: with each machine of a request."""
    if document["kind"] is None:
        return "\n".join([_unknown(document), *(f"  {caveat}" for caveat in document["caveats"])])
    lines = [f"{str(document['kind']).capitalize()} {document['id']}"]
    lines += [f"  {caveat}" for caveat in document["caveats"]]
    lines += [f"  {_times(one)}  {one['text']}" for one in document["story"]]
    lines += ["Now", *(f"  {sentence}" for sentence in document["now"])]
    if named and document["machines"]:
        lines += ["Machines", *map(_machine_line, document["machines"])]
    return "\n".join(lines)


def _unknown(document: Document) -> str:
    words = "no request, return request, machine or pool with this id in the state files or the journal"
    near = f" Known and spelled alike: {', '.join(document['near'])}." if document["near"] else ""
    return f"{document['id']}: {words}.{near} `provisioner status` lists what there is."


def _times(one: Document) -> str:
    at, until = local(one["at"]), local(one["until"])
    return at if at == until else f"{at} – {until}"


def _machine_line(one: Document) -> str:
    state = "gone" if one["gone"] else ("ran" if one["ran"] else "did not run yet")
    words = f": {' '.join(one['text'].split())}" if one["text"] else ""
    return f"  {one['machine']} in {one['pool']}: {one['verdict']}, {state}{words}"

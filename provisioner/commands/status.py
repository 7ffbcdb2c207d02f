"""``provisioner status``: what the files hold, whether the loop runs, and what waits for a person."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from provisioner.commands.brake import brake_lines, released, time_now, wall_of
from provisioner.commands.held_levers import cancel_lines, held_levers, lever_alarms
from provisioner.commands.options import Document, add_shared, show, state_directory
from provisioner.commands.shortages import local, missing, missing_lines, pool_line, pools
from provisioner.loop.clock import utc
from provisioner.model import Intent, Memory, RequestStatus, Verdict
from provisioner.planning.answers import UNLISTED_AFTER
from provisioner.state.condition import Condition
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateMissing, StateUnreadable
from provisioner.state.loop_signals import UNSEEN
from provisioner.telemetry.notes import Notes, Trouble, read_notes


def add_options(command: argparse.ArgumentParser) -> None:
    """Which files, and how to print them."""
    add_shared(command, "state-dir", "output")


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM when something waits for a person. Raises StateError."""
    document = status(state_directory(options.state_dir))
    return show(options, document, status_text, fine=status_is_fine(document))


def status(state: StateDir) -> dict[str, Any]:
    """What the state files hold. Raises StateError, also where nothing was ever written.

    ``loop``: who signed last, ``last_beat``, ``silent_seconds`` and ``running`` (of both, None: nobody can say).
    ``files``: of intent and memory the ``condition`` (fine, new, missing, unreadable, older or alone: without its lock
    file) and, unless it is fine, a ``text``. ``nothing_planned`` and ``configuration_refused``: ``since`` and ``text``,
    or None. ``paused``: pools. ``refused``: pools that take no create or delete until a person mends something.
    ``levers``: as of ``held_levers``.
    ``brake``, ``release_asked``, ``waiting`` and ``forgotten``: as of ``released``. ``problems``: sentences by pool.
    ``requests``: each with its ``deadline`` and why it is short, ``missing``; ``pressure``: what was learned of each
    pool and template (``commands/shortages.py`` has the fields of both). Times are UTC.
    """
    memory, memory_file = _memory(state)  # before intent: what it has read must not be what scripts wrote in between
    intent, intent_file = _intent(state, memory)
    notes = read_notes(state)
    owner = intent or memory
    document: dict[str, Any] = {
        "state_directory": state.path,
        "provisioner": owner.provisioner if owner else "",
        "generation": owner.generation if owner else 0,
        "loop": _loop(state, notes),
        "files": {"intent": intent_file, "memory": memory_file},
        "memory_lost": memory_file["condition"] is Condition.MISSING,
        "nothing_planned": _trouble(notes.problem),
        "configuration_refused": _trouble(notes.configuration),
        "paused": list(notes.paused),
        "levers": held_levers(state, memory),
        "refused": [{**asdict(one), "since": utc(one.since)} for one in notes.refused],
        **released(state, memory, notes),
        "problems": {pool: list(sentences) for pool, sentences in notes.pools.items()},
        **(_held(memory, notes) if memory else {"requests": [], "returns": [], "stuck": [], "unlisted": []}),
    }
    known_ids = set(memory.requests) | set(memory.returns) if memory else set()
    read_ids = set(intent.requests) | set(intent.returns) if intent else set()
    document["unread"] = sorted(read_ids - known_ids)
    return document


def _memory(state: StateDir) -> tuple[Memory | None, Document]:
    try:
        memory = state.memory.read()
        older = state.memory.is_older()
    except StateMissing:
        if state.memory.existed():
            return None, _file(Condition.MISSING, "MEMORY LOST: memory.json is missing although it was written")
        return None, _file(Condition.NEW, "No loop has made memory.json yet.")
    except StateUnreadable as error:
        return None, _file(Condition.UNREADABLE, f"MEMORY UNREADABLE: {error}")
    if older:
        return memory, _file(Condition.OLDER, "MEMORY OLD: memory.json is an old copy: a later one had been written")
    if state.memory.stands_alone():
        words = "MEMORY ALONE: memory.json stands without its lock file, so it may be an old copy"
        return memory, _file(Condition.ALONE, words)
    return memory, _file(Condition.FINE)


def _intent(state: StateDir, memory: Memory | None) -> tuple[Intent | None, Document]:
    try:
        intent, newest = state.intent.read_newest()
    except StateMissing:
        if memory is None and not (state.memory.existed() or state.intent.existed()):
            raise
        return None, _file(Condition.MISSING, "INTENT LOST: intent.json is missing although it was written")
    except StateUnreadable as error:
        return None, _file(Condition.UNREADABLE, f"INTENT UNREADABLE: {error}")
    if intent.generation < max(newest, memory.generation if memory else 0):
        return intent, _file(Condition.OLDER, "INTENT OLD: intent.json is an old copy: a later one had been written")
    return intent, _file(Condition.FINE)


def _file(condition: Condition, text: str = "") -> Document:
    return {"condition": condition, "text": text}


def _loop(state: StateDir, notes: Notes) -> dict[str, Any]:
    """Whether the loop runs, by the file system's clock alone (law: time is an argument)."""
    holder, last, silent = state.loop_lock.holder(), state.heartbeat.last(), state.heartbeat.silent_now()
    running: bool | None = None
    if last is None or holder.get("ended"):
        running = False
    elif silent is not None:
        running = silent <= notes.silence
    beat = None if last is None else utc(last)
    return {**holder, "last_beat": beat, "silent_seconds": silent, "running": running}


def _trouble(trouble: Trouble | None) -> dict[str, Any] | None:
    return {"since": utc(trouble.since), "text": trouble.text} if trouble else None


def _held(memory: Memory, notes: Notes) -> dict[str, Any]:
    """What the loop remembers, and why there is less than is wanted."""
    lacks = missing(memory, notes)
    return {
        "requests": [_request(memory, id_) | {"missing": lacks.get(id_, [])} for id_ in memory.requests],
        "returns": [
            {
                "id": back.id,
                "status": back.ended or RequestStatus.RUNNING,
                "machines": len(back.names),
                "settled": len(back.results),
            }
            for back in memory.returns.values()
        ],
        "stuck": [
            {"machine": slot.name, "pool": slot.pool}
            for record in memory.requests.values()
            for slot in record.slots.values()
            if slot.stuck and not slot.gone
        ],
        "pressure": pools(memory, lacks),
        "unlisted": sorted(
            name for name, since in memory.unlisted.items() if time_now(memory) - since >= UNLISTED_AFTER
        ),
    }


def _request(memory: Memory, id_: str) -> dict[str, Any]:
    record = memory.requests[id_]
    slots = record.slots.values()
    return {
        "id": id_,
        "template": record.template,
        "count": record.count,
        "status": record.ended or RequestStatus.RUNNING,
        "deadline": utc(wall_of(memory, record.deadline)),
        "running": sum(slot.ran is not None and slot.verdict in (Verdict.OPEN, Verdict.SUCCEEDED) for slot in slots),
        "slots": dict(Counter(str(slot.verdict) for slot in slots)),
        "set_aside": [slot.name for slot in slots if slot.set_aside],
    }


# --- for people -------------------------------------------------------------------------------------------------------


def status_is_fine(document: Document) -> bool:
    """True when nothing here asks for a person."""
    unseen = any(note.startswith(UNSEEN) for notes in document["problems"].values() for note in notes)
    aside = any(request["set_aside"] for request in document["requests"])
    return not (unseen or aside or any(_alarms(document)) or document["brake"])


def _alarms(document: Document) -> Iterator[str]:
    """What a person has to mend, the worst first."""
    loop = document["loop"]
    if loop["running"] is False:
        since = loop["last_beat"]
        words = f"since {since}" if since else "and has never run on this directory"
        yield f"LOOP NOT RUNNING {words}: start `provisioner run`; no machine is made or deleted until then"
    yield from _file_alarms(document)
    if trouble := document["nothing_planned"]:
        yield f"NOTHING IS PLANNED since {trouble['since']}: {trouble['text']}"
    if trouble := document["configuration_refused"]:
        words = "CONFIGURATION REFUSED, the one before stays in force"
        yield f"{words}, since {trouble['since']}: {_indented(trouble['text'])}"
    yield from lever_alarms(document["levers"])
    for pool in document["paused"]:
        yield f"PAUSED pool {pool}: it gets no new machines until `paused` is taken out of provisioner.yaml"
    for one in document["refused"]:
        which = f"creates of {one['template']}" if one["operation"] == "create" else "deletes"
        yield f"REFUSED by pool {one['pool']}: {which} since {one['since']}: {one['text']}"
    for one in document["stuck"]:
        words = "still terminating long after its grace period; see its node and its finalizers"
        yield f"STUCK {one['machine']} in pool {one['pool']}: {words}"


def _file_alarms(document: Document) -> Iterator[str]:
    for file in document["files"].values():
        if file["condition"] not in (Condition.FINE, Condition.NEW):
            yield f"{file['text']}; what can be done: provisioner recover"


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def status_text(document: Document) -> str:
    """The document as text for a terminal."""
    loop = document["loop"]
    silent = loop["silent_seconds"]
    ran = (
        "has never run" if loop["last_beat"] is None else f"last ran at {loop['last_beat']} on {loop.get('host', '?')}"
    )
    ago = "" if silent is None else f", {silent:.0f} s ago"
    lines = [
        f"Provisioner {document['provisioner']} in {document['state_directory']}",
        f"  loop {ran}{ago}, epoch {loop.get('epoch', 0)}; intent generation {document['generation']}",
        *(f"  {alarm}" for alarm in _alarms(document)),
        *brake_lines(document),
    ]
    if document["brake"]:
        lines.append(
            "  No orphan is deleted, and no request cancelled as forgotten, until a person has looked (provisioner "
            "recover) and released it: provisioner recover --release-brake"
        )
    acts = loop["running"] is not False and not document["nothing_planned"]
    for request in document["requests"]:
        lines += [_request_line(request), *missing_lines(request, loop_acts=acts)]
    lines += [
        f"  return  {back['id']}: {back['status']}, {back['settled']} of {back['machines']} settled"
        for back in document["returns"]
    ]
    lines += cancel_lines(document["levers"])
    lines += [pool_line(pressure) for pressure in document.get("pressure", ())]
    lines += [f"  pool {pool}: {note}" for pool, notes in document["problems"].items() for note in notes]
    lines += [f"  machine {name}: no list of HostFactory has named it for a day" for name in document["unlisted"]]
    if document["unread"]:
        lines.append(f"  not read by a loop yet: {', '.join(document['unread'])}")
    return "\n".join(lines)


def _request_line(request: Document) -> str:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(request["slots"].items()))
    aside = f"; SET ASIDE: {', '.join(request['set_aside'])}" if request["set_aside"] else ""
    lacking = sum(one["machines"] for one in request["missing"])
    short = f", {lacking} missing until {local(request['deadline'])} at the latest" if lacking else ""
    return (
        f"  request {request['id']} ({request['template']}): {request['status']}, "
        f"{request['running']} of {request['count']} running{short}; slots: {verdicts or 'none'}{aside}"
    )

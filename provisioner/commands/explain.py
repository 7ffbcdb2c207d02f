"""The command ``provisioner explain``: show the timeline of a subject, its state and its next events.

The subject is a request, a return request, a machine or a pool.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from functools import partial
from typing import Any

from provisioner.commands.next_steps import Sources, prospects
from provisioner.commands.shared_options import Document, add_shared, open_state, show
from provisioner.model import format_utc
from provisioner.names import get_prefix, get_request_id, short_name
from provisioner.state.journal import Excerpt
from provisioner.state.protocols import State
from provisioner.telemetry.pool_windows import format_local_time
from provisioner.telemetry.timeline import Kind, Subject, get_machine_names, machine_documents, search_texts, timeline

NEAR = 5
"""Maximum number of ids that are suggested in place of an unknown id."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument(
        "id", metavar="REQUEST|MACHINE|POOL", help="an id or name; a machine's name may have its domain"
    )
    add_shared(command, "state-dir", "output")
    command.add_argument(
        "--machines", action="store_true", help="also list each machine of a request; -o json always lists them"
    )


def run(options: argparse.Namespace) -> int:
    """Print the explanation. Return PROBLEM if the id is unknown. Raises UsageError."""
    document = explain(open_state(options.state_dir), options.id)
    return show(options, document, partial(explain_lines, named=options.machines), fine=document["kind"] is not None)


def explain(state: State, id_: str) -> dict[str, Any]:
    """Return the timeline, the state and the next events of the subject with this id. Keys of the document:

    * ``kind``, ``id``: the subject; ``kind`` is None if the id is unknown
    * ``timeline``: sentences about the past, with times in UTC
    * ``now``: sentences about state and next events
    * ``machines``: the machines of a request, as in ``machine_documents``
    * ``caveats``: sentences about missing information
    * ``near``: known ids that resemble an unknown id
    """
    sources = Sources(state)
    subject, excerpt = _find(sources, id_)
    caveats = [*sources.caveats, *_journal_caveats(excerpt)]
    document = {"kind": None, "id": id_, "timeline": [], "now": [], "machines": [], "near": [], "caveats": caveats}
    if subject is None:
        return document | {"near": _find_similar_ids(sources, id_)}
    sentences = [
        {"at": format_utc(one.at), "until": format_utc(one.until), "event": one.event, "text": one.text}
        for one in timeline(subject, excerpt.lines, sources.memory)
    ]
    if not sentences and excerpt.since is not None:
        begin = format_local_time(format_utc(excerpt.since))
        caveats.append(f"The journal, which begins at {begin}, has no line about it.")
    now = [*prospects(sources, subject)]
    machines = machine_documents(sources.memory, subject.id) if subject.kind is Kind.REQUEST else []
    return document | {"kind": subject.kind, "id": subject.id, "timeline": sentences, "now": now, "machines": machines}


# --- the subject ------------------------------------------------------------------------------------------------------


def _journal_caveats(excerpt: Excerpt) -> Iterator[str]:
    if excerpt.unreadable:
        yield f"A part of the journal cannot be read: {excerpt.unreadable}."
    if excerpt.torn:
        yield f"Torn lines of the journal, which are left out: {excerpt.torn}."
    if excerpt.since is None and not excerpt.unreadable:
        yield "There is no journal; this answer comes from memory.json alone."


def _find(sources: Sources, id_: str) -> tuple[Subject | None, Excerpt]:
    """Return the subject with this id, and the journal lines about the subject. The subject is None if neither the
    state files nor the journal contain the id."""
    find, excerpt = sources.state.find_history, Excerpt()
    subject = _in_files(sources, id_)
    if subject is None:
        excerpt = find(id_, short_name(id_))
        subject = _in_lines(excerpt, id_)
    if subject is None:
        return None, excerpt
    return subject, find(*search_texts(subject, sources.memory, excerpt.lines))


def _in_files(sources: Sources, id_: str) -> Subject | None:
    memory, name = sources.memory, short_name(id_)
    for kind, ids in ((Kind.REQUEST, memory.requests), (Kind.RETURN, memory.returns), (Kind.POOL, sources.pools())):
        if id_ in ids:
            return Subject(kind, id_)
    is_orphan = any(name in names for names in sources.pool_status.orphans.values())
    return Subject(Kind.MACHINE, name) if is_orphan or sources.slot(name) else None


def _in_lines(excerpt: Excerpt, id_: str) -> Subject | None:
    """Return the subject that has this id in a journal line; None if no line has the id."""
    for line in excerpt.lines:
        for key, kind in (("request", Kind.REQUEST), ("return", Kind.RETURN), ("pool", Kind.POOL)):
            if line.get(key) == id_:
                return Subject(kind, id_)
        if short_name(id_) in get_machine_names(line):
            return Subject(Kind.MACHINE, short_name(id_))
    return None


def _find_similar_ids(sources: Sources, id_: str) -> list[str]:
    """Return known ids that resemble an unknown id.

    If the unknown id has the form of a machine's name and contains the id of a known request, the machines of this
    request come first.
    """
    ids = [*sources.memory.requests, *sources.memory.returns, *sorted(sources.pools())]
    name = short_name(id_)
    record = sources.memory.requests.get(get_request_id(get_prefix(name), name))
    similar = [slot.name for slot in record.slots.values()][:NEAR] if record else []
    for word in (id_, *name.split("-")[1:-1]):
        similar += difflib.get_close_matches(word, ids, NEAR, 0.6)
    return list(dict.fromkeys(similar))[:NEAR]


# --- text for a terminal ----------------------------------------------------------------------------------------------


def explain_lines(document: Document, *, named: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal. ``named``: True to name each machine of a request."""
    is_known = document["kind"] is not None
    yield f"{str(document['kind']).capitalize()} {document['id']}" if is_known else _unknown_message(document)
    yield from (f"  {caveat}" for caveat in document["caveats"])
    for one in document["timeline"]:
        times = dict.fromkeys([format_local_time(one["at"]), format_local_time(one["until"])])
        yield f"  {' – '.join(times)}  {one['text']}"
    if is_known:
        yield "Now"
        yield from (f"  {sentence}" for sentence in document["now"])
    if named and document["machines"]:
        yield "Machines"
        yield from map(_machine_line, document["machines"])


def _unknown_message(document: Document) -> str:
    words = "no request, return request, machine or pool with this id in the state files or the journal"
    similar = f" Known ids with similar spelling: {', '.join(document['near'])}." if document["near"] else ""
    return f"{document['id']}: {words}.{similar} `provisioner status` lists requests, machines and pools."


def _machine_line(one: Document) -> str:
    state = "gone" if one["gone"] else ("ran" if one["ran"] else "did not run yet")
    words = f": {' '.join(one['text'].split())}" if one["text"] else ""
    return f"  {one['machine']} in {one['pool']}: {one['verdict']}, {state}{words}"

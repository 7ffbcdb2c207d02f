"""What `provisioner recover` does about lost state files: what is wrong, what it would write, and writing it.

A lost intent.json is made again from memory.json; where that is lost too, from an older copy, from what HF was told and
from the names that run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from provisioner.hostfactory import Answer
from provisioner.model import Intent, Memory, Observation, Request, ReturnRequest, Snapshot
from provisioner.names import NO_TEMPLATE, RETURN_ID_PREFIX, request_of
from provisioner.state.atomic import tries
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, StateMissing, StateUnreadable
from provisioner.state.intent import IntentStore
from provisioner.state.memory import MemoryStore
from provisioner.state.status import StatusStore

UNKNOWN_MOMENT = 0.0
"""Wall time of a request of which nobody knows when it was made: its deadline is over, nothing is made for it."""

NOTHING = Intent("", 0, {}, {})


@dataclass(frozen=True, slots=True)
class Files:
    """The state files as they are."""

    conditions: Mapping[str, Condition]
    """By kind (intent, memory, status): FINE, MISSING, UNREADABLE or OLDER; NEW before the first loop."""
    intent: Intent | None
    memory: Memory | None
    answers: Mapping[str, Answer]
    newest: int
    """The newest generation of intent.json that anything knows of."""
    memory_lost: bool
    """memory.json is missing, and was there once."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a file is UNREADABLE, by kind: the row, its field and its value, or where it does not parse."""

    def fine(self, kind: str) -> bool:
        """True when the file of this kind can be relied on."""
        return self.conditions[kind] is Condition.FINE

    @property
    def without_loop(self) -> bool:
        """No loop has run on this directory yet."""
        return self.conditions["memory"] is Condition.NEW

    @property
    def need_machines(self) -> bool:
        """No file knows all requests: only the names that run tell what else there was."""
        return not (self.fine("intent") or self.fine("memory"))


@dataclass(frozen=True, slots=True)
class Recovery:
    """What ``provisioner recover`` would do."""

    files: Files
    intent: Intent | None
    """What intent.json lacks; None when it need not be written."""
    kept: tuple[str, ...]
    """Requests of which only machines are left: HF counts as knowing them, so they stay until it returns them."""
    unknown: tuple[str, ...]
    """Machines that run and belong to no request, not even to one written back: orphans."""

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Kinds of files that have to make room. Intent's makes room when it is written."""
        kinds = ("memory", "status")
        return tuple(kind for kind in kinds if self.files.conditions[kind] is Condition.UNREADABLE)

    @property
    def writes(self) -> bool:
        """Some file has to be written or moved."""
        return self.intent is not None or bool(self.unreadable)

    @property
    def latched(self) -> bool:
        """The brake is latched, or a loop is about to latch it for what is wrong with intent.

        Not of a memory that will be made again: that latches its own brake, which nobody has seen yet.
        """
        memory = self.files.memory if self.files.fine("memory") else None
        return memory is not None and (memory.brake is not None or self.intent is not None)

    @property
    def wrong(self) -> bool:
        """There is something that a person has to look at."""
        older = self.files.conditions["memory"] is Condition.OLDER
        return self.writes or self.latched or older or self.files.memory_lost

    def releases(self, *, applied: bool) -> bool:
        """The brake may be released now: a release while files are wrong would last for a cycle."""
        return self.latched and (applied or not self.writes)

    def keeps_brake(self, *, applied: bool) -> bool:
        """A release would be asked for in vain."""
        return not self.releases(applied=applied) and (self.wrong or not self.files.fine("memory"))


# --- what is there ----------------------------------------------------------------------------------------------------


def read_files(state: StateDir) -> Files:
    """All state files. Raises StateTooNew, and StateMissing where there never was anything to recover."""
    if not (state.intent.existed() or state.memory.existed() or state.status.exists()):
        state.intent.read()
    for _ in tries():
        files = _read_files(state)
        if files.conditions["intent"] is not Condition.OLDER:
            break  # else it may be older only than what scripts and loop wrote while we read
    return files


def _read_files(state: StateDir) -> Files:
    """Intent before memory: what memory knows and intent lacks must not be what left both in between."""
    conditions: dict[str, Condition] = {}
    reasons: dict[str, str] = {}
    intent: Intent | None = _read(state.intent, conditions, reasons)
    memory: Memory | None = _read(state.memory, conditions, reasons)
    answers: Mapping[str, Answer] | None = _read(state.status, conditions, reasons)
    newest = max(state.intent.known_generation(), memory.generation if memory else 0)
    if intent is not None and intent.generation < newest:
        conditions["intent"] = Condition.OLDER
    lost = conditions["memory"] is Condition.MISSING and state.memory.existed()
    if memory is None and not (state.memory.existed() or state.status.exists() or state.terminal_answers.ids()):
        conditions |= {"memory": Condition.NEW, "status": Condition.NEW}
    return Files(
        conditions, intent, memory, {**(answers or {}), **state.terminal_answers.answers()}, newest, lost, reasons
    )


def _read(
    file: IntentStore | MemoryStore | StatusStore, conditions: dict[str, Condition], reasons: dict[str, str]
) -> Any:
    try:
        held = file.read_all() if isinstance(file, StatusStore) else file.read()
        # status.json has no lock file; it is only a rendering, and binds even where it is old.
        older = not isinstance(file, StatusStore) and file.condition() is Condition.OLDER
    except StateMissing:
        conditions[file.kind] = Condition.MISSING
    except StateUnreadable as error:
        conditions[file.kind], reasons[file.kind] = Condition.UNREADABLE, str(error)
    else:
        conditions[file.kind] = Condition.OLDER if older else Condition.FINE
        return held
    return None


# --- what to write ----------------------------------------------------------------------------------------------------


def recovery(files: Files, machines: Collection[str], prefix: str, instance: str) -> Recovery:
    """What to write. ``machines``: the names that run, or that memory knows as orphans where nothing is lost.

    ``instance``: whose intent it is when no file says so. Pure.
    """
    wanted = _wanted(files, machines, prefix)
    held = (files.intent if files.fine("intent") else None) or NOTHING
    lacked = _lacked(wanted, held)
    owner = files.memory or files.intent
    lost = replace(lacked, provisioner=owner.provisioner if owner else instance, generation=files.newest)
    told_of = wanted.requests.keys() | held.requests.keys()
    return Recovery(
        files=files,
        intent=lost if held is NOTHING or lacked.requests or lacked.returns else None,
        kept=tuple(sorted(id_ for id_, request in lacked.requests.items() if request.template == NO_TEMPLATE)),
        unknown=tuple(sorted(name for name in machines if request_of(prefix, name) not in told_of)),
    )


def _lacked(wanted: Intent, held: Intent) -> Intent:
    """The part of ``wanted`` that ``held`` lacks."""
    requests = {id_: request for id_, request in wanted.requests.items() if id_ not in held.requests}
    returns = {id_: back for id_, back in wanted.returns.items() if id_ not in held.returns}
    return replace(wanted, requests=requests, returns=returns)


def _wanted(files: Files, machines: Collection[str], prefix: str) -> Intent:
    """What should be in intent: of what is told twice the later source counts."""
    sources: list[Intent | None] = []
    if files.need_machines:
        sources += [_of_machines(machines, prefix), _of_answers(files.answers), files.intent]
    if files.memory is not None and (files.need_machines or files.fine("memory")):
        sources.append(_of_memory(files.memory))
    wanted = NOTHING
    for source in filter(None, sources):
        wanted = replace(
            wanted, requests={**wanted.requests, **source.requests}, returns={**wanted.returns, **source.returns}
        )
    return wanted


def _of_memory(memory: Memory) -> Intent:
    """What intent held when this memory was written. What was leaving the files stays away."""
    requests = {
        record.id: Request(record.id, record.template, record.count, memory.wall_of(record.read), record.rc_account)
        for record in memory.requests.values()
        if not record.trimmed
    }
    returns = {
        back.id: ReturnRequest(back.id, back.names, memory.wall_of(back.read))
        for back in memory.returns.values()
        if not back.trimmed
    }
    return Intent(memory.provisioner, memory.generation, requests, returns)


def _of_answers(answers: Mapping[str, Answer]) -> Intent:
    """What HF was told of: the machines of each answer."""
    names = {id_: tuple(entry["name"] for entry in json.loads(each.text)["machines"]) for id_, each in answers.items()}
    requests = {id_: _remnant(id_, len(held)) for id_, held in names.items() if not id_.startswith(RETURN_ID_PREFIX)}
    returns = {
        id_: ReturnRequest(id_, held, UNKNOWN_MOMENT) for id_, held in names.items() if id_.startswith(RETURN_ID_PREFIX)
    }
    return Intent("", 0, requests, returns)


def _of_machines(machines: Iterable[str], prefix: str) -> Intent:
    """The intent that the names of machines tell: each names its request."""
    counts = Counter(id_ for name in machines if (id_ := request_of(prefix, name)))
    return Intent("", 0, {id_: _remnant(id_, count) for id_, count in counts.items()}, {})


def _remnant(id_: str, count: int) -> Request:
    return Request(id_, NO_TEMPLATE, count, UNKNOWN_MOMENT)


# --- what is said of it -----------------------------------------------------------------------------------------------


REMADE = (
    "the loop makes memory.json again as soon as it has seen every pool, and latches a brake that nobody has seen yet"
)

NO_LOOP = "No loop has run on this state directory yet (`provisioner run`)"


def pools_of_unknown(plan: Recovery, observations: Mapping[str, Observation]) -> Mapping[str, str]:
    """In which pool each machine runs that belongs to no request, as far as pools were looked at."""
    seen = [observation for observation in observations.values() if isinstance(observation, Snapshot)]
    return {name: observation.pool for observation in seen for name in plan.unknown if name in observation.machines}


def summary(plan: Recovery, *, applied: bool, release: bool) -> str:
    """What was done, and what to do next. ``applied``, ``release``: what the call asked for."""
    written = "All that was to be written is written. " if plan.writes and applied else ""
    if release and plan.keeps_brake(applied=applied):
        return f"{written}The brake was not released: {_why_not(plan, applied=applied)}."
    if plan.writes and not applied:
        return "Nothing was written. To write it: provisioner recover --apply"
    if release and plan.latched:
        return f"{written}The loop releases the brake with its next cycle."
    return written + _what_next(plan)


def _what_next(plan: Recovery) -> str:
    """Of the brake, once there is nothing to write and its release was not asked for."""
    if plan.files.fine("memory") and plan.files.memory is not None and plan.files.memory.brake is not None:
        return "The brake stays latched. To release it: provisioner recover --release-brake"
    if plan.latched:
        return "If a loop has latched the brake for that: provisioner recover --release-brake"
    if plan.files.fine("memory"):
        return "No brake is latched; there is nothing to release."
    if plan.files.without_loop and not plan.writes:
        return f"{NO_LOOP}: there is nothing to recover."
    return f"{REMADE[0].upper()}{REMADE[1:]}: look at `provisioner status` then."


def _why_not(plan: Recovery, *, applied: bool) -> str:
    if plan.files.without_loop and not plan.writes:
        return f"none is latched. {NO_LOOP}"
    if not plan.files.fine("memory"):
        in_the_way = "memory" in plan.unreadable and not applied
        return REMADE + ("; to make room for it: provisioner recover --apply" if in_the_way else "")
    words = "files are wrong, for which it would latch again; write them as well"
    return f"{words}: provisioner recover --apply --release-brake"


# --- writing it -------------------------------------------------------------------------------------------------------


def apply(state: StateDir, plan: Recovery) -> tuple[str, ...]:
    """Write what is to be written, but for the brake; returns where the files went that made room. Raises StateError.

    Interrupted at any point, it can be run again.
    """
    stores: Mapping[str, MemoryStore | StatusStore] = {"memory": state.memory, "status": state.status}
    moved = [name for kind in plan.unreadable if (name := _make_room(stores[kind]))]
    if plan.intent is not None:
        for id_ in plan.kept:  # HF may have had these machines for long, and will not ask for them again
            state.terminal_answers.presume(id_)
        kept = state.intent.restore(plan.intent)
        moved += [kept] if kept else []
    return tuple(moved)


def _make_room(file: MemoryStore | StatusStore) -> str:
    """Move aside what is still unreadable; the new name. Empty: another recovery moved it, or a loop made it again."""
    conditions: dict[str, Condition] = {}
    _read(file, conditions, {})
    try:
        return file.set_aside() if conditions[file.kind] is Condition.UNREADABLE else ""
    except StateMissing:
        return ""

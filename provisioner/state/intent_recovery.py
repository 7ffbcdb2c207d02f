"""Recovery of lost state files by `provisioner recover`: find the damage, plan the writes, and write.

The recovery makes a lost intent.json from memory.json. If memory.json is lost too, the recovery uses three sources: an
older copy of intent, the answers to HF, and the names of running machines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provisioner.hostfactory import Answer
from provisioner.model import CONFLICTS, Intent, Memory, Observation, Request, ReturnRequest, find_snapshots
from provisioner.names import NO_TEMPLATE, RETURN_ID_PREFIX, get_request_id
from provisioner.state.atomic import tries
from provisioner.state.errors import Condition, StateMissing, StateUnreadable

if TYPE_CHECKING:
    from provisioner.state.directory import StateDir
    from provisioner.state.kube.state import KubeState

    RecoverableState = StateDir | KubeState

UNKNOWN_MOMENT = 0.0
"""Wall time of a request of unknown age. The deadline of such a request has passed, so no machine is made for the
request."""

Records = dict[str, Request | ReturnRequest]


@dataclass(frozen=True, slots=True)
class Files:
    """The state files as they are on disk."""

    conditions: Mapping[str, Condition]
    """Condition by kind of file (intent, memory, status): FINE, MISSING, UNREADABLE or OLDER; NEW before the first
    loop."""
    intent: Intent | None
    memory: Memory | None
    answers: Mapping[str, Answer]
    newest: int
    """The newest generation of intent.json that any file records."""
    memory_lost: bool
    """True if memory.json is missing, although it existed before."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reason why a file is UNREADABLE, by kind of file. The reason names the field and value that do not fit, or the
    position at which the text does not parse."""

    def is_fine(self, kind: str) -> bool:
        """Return True if the file of this kind can be relied on."""
        return self.conditions[kind] is Condition.FINE

    @property
    def has_no_loop(self) -> bool:
        """Return True if no loop has run on this directory yet."""
        return self.conditions["memory"] is Condition.NEW

    @property
    def needs_machines(self) -> bool:
        """Return True if the files together do not contain all requests. The recovery then needs the running machines'
        names to find the missing requests."""
        return not (self.is_fine("intent") or self.is_fine("memory"))


@dataclass(frozen=True, slots=True)
class Recovery:
    """The plan of ``provisioner recover``."""

    files: Files
    intent: Intent | None
    """The records that intent.json lacks; None if intent.json is complete."""
    kept: tuple[str, ...]
    """Requests of which only machines are left.

    The recovery assumes that HF knows these requests, so they stay until HF returns their machines.
    """
    unknown: tuple[str, ...]
    """Orphans: running machines that belong to no request, not even to a request that the recovery writes back."""

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Return the kinds of unreadable files that the recovery moves aside before it writes. Intent is not among
        them, because the write of intent itself moves an unreadable intent aside."""
        kinds = ("memory", "status")
        return tuple(kind for kind in kinds if self.files.conditions[kind] is Condition.UNREADABLE)

    @property
    def writes(self) -> bool:
        """Return True if the recovery must write or move a file."""
        return self.intent is not None or bool(self.unreadable)

    @property
    def latched(self) -> bool:
        """Return True if the brake is latched, or if a loop will latch the brake because of intent.

        Return False if memory is lost, because no brake can be released yet. First the next loop must rebuild memory
        and latch the brake, and an operator must see the reason.
        """
        memory = self.files.memory if self.files.is_fine("memory") else None
        return memory is not None and (memory.brake is not None or self.intent is not None)

    @property
    def is_wrong(self) -> bool:
        """Return True if an operator has to act."""
        is_older = self.files.conditions["memory"] is Condition.OLDER
        return self.writes or self.latched or is_older or self.files.memory_lost

    def releases(self, *, applied: bool) -> bool:
        """Return True if the brake may be released now. Return False while files are wrong, because the next cycle
        would latch the brake again."""
        return self.latched and (applied or not self.writes)

    def keeps_brake(self, *, applied: bool) -> bool:
        """Return True if a release of the brake is refused now, because files are wrong or memory cannot be used."""
        return not self.releases(applied=applied) and (self.is_wrong or not self.files.is_fine("memory"))


# --- reading ----------------------------------------------------------------------------------------------------------


def read_files(state: RecoverableState) -> Files:
    """Read all state files. Raises StateTooNew, and StateMissing if no state file ever existed."""
    if not (state.intent.existed() or state.memory.existed() or state.status.exists()):
        state.intent.read()
    for _ in tries():
        files = _read_files(state)
        if files.conditions["intent"] is not Condition.OLDER:
            break  # read an OLDER intent again: scripts or loop may have written meanwhile
    return files


def _read_files(state: RecoverableState) -> Files:
    """Read the files once. Intent is read before memory. So a request that is removed meanwhile does not look lost."""
    conditions: dict[str, Condition] = {}
    reasons: dict[str, str] = {}
    intent: Intent | None = _read("intent", state.intent, conditions, reasons)
    memory: Memory | None = _read("memory", state.memory, conditions, reasons)
    answers: Mapping[str, Answer] | None = _read("status", state.status, conditions, reasons)
    newest = max(state.intent.known_generation(), memory.generation if memory else 0)
    if intent is not None and intent.generation < newest:
        conditions["intent"] = Condition.OLDER
    is_lost = conditions["memory"] is Condition.MISSING and state.memory.existed()
    if memory is None and not (state.memory.existed() or state.status.exists() or state.terminal_answers.ids()):
        conditions |= {"memory": Condition.NEW, "status": Condition.NEW}
    known_answers = {**(answers or {}), **state.terminal_answers.answers()}
    return Files(conditions, intent, memory, known_answers, newest, is_lost, reasons)


def _read(kind: str, part: Any, conditions: dict[str, Condition], reasons: dict[str, str]) -> Any:
    try:
        content = part.read_all() if kind == "status" else part.read()
        # status.json has no lock file. The loop can make it again, and its answers count even if it is old.
        is_older = kind != "status" and part.condition() is Condition.OLDER
    except StateMissing:
        conditions[kind] = Condition.MISSING
    except StateUnreadable as error:
        conditions[kind], reasons[kind] = Condition.UNREADABLE, str(error)
    else:
        conditions[kind] = Condition.OLDER if is_older else Condition.FINE
        return content
    return None


# --- planning ---------------------------------------------------------------------------------------------------------


def plan_recovery(files: Files, machines: Collection[str], prefix: str, instance: str) -> Recovery:
    """Plan the recovery, without reading or writing files.

    ``machines``: the running machines; if no file is lost, only the orphans that memory knows. ``prefix``: the prefix
    of machine names. ``instance``: the provider instance that owns intent if the files do not name an owner.
    """
    wanted = _find_wanted(files, machines, prefix)
    current = _records(files.intent) if files.is_fine("intent") else {}
    lacked = {id_: one for id_, one in wanted.items() if id_ not in current}
    owner = files.memory or files.intent
    lost = _intent(lacked, owner.provisioner if owner else instance, files.newest)
    known_ids = wanted.keys() | current.keys()
    return Recovery(
        files=files,
        intent=lost if lacked or not files.is_fine("intent") else None,
        kept=tuple(sorted(id_ for id_, request in lost.requests.items() if request.template == NO_TEMPLATE)),
        unknown=tuple(sorted(name for name in machines if get_request_id(prefix, name) not in known_ids)),
    )


def _find_wanted(files: Files, machines: Iterable[str], prefix: str) -> Records:
    """Return the records that should be in intent, by id. If several sources have a record, memory counts first, then
    the present intent, then answers, then machine names."""
    wanted: Records = {}
    if files.needs_machines:
        wanted |= _records_from_names(machines, prefix) | _records_from_answers(files.answers) | _records(files.intent)
    if files.memory is not None and (files.needs_machines or files.is_fine("memory")):
        wanted |= _records_from_memory(files.memory)
    return wanted


def _intent(records: Records, provisioner: str, generation: int) -> Intent:
    requests = {id_: one for id_, one in records.items() if isinstance(one, Request)}
    returns = {id_: one for id_, one in records.items() if isinstance(one, ReturnRequest)}
    return Intent(provisioner, generation, requests, returns)


def _records(intent: Intent | None) -> Records:
    return {**intent.requests, **intent.returns} if intent else {}


def _records_from_memory(memory: Memory) -> Records:
    """Return intent as it was when memory was written. Records that the loop may have trimmed already are left out."""
    found: Records = {}
    for one in memory.requests.values():
        if not one.is_trimmed:
            found[one.id] = Request(one.id, one.template, one.count, memory.wall_of(one.read_at), one.rc_account)
    for back in memory.returns.values():
        if not back.is_trimmed:
            found[back.id] = ReturnRequest(back.id, back.names, memory.wall_of(back.read_at))
    return found


def _records_from_answers(answers: Mapping[str, Answer]) -> Records:
    """Return a record for each answer. A return request has the names of its machines. A request has the number of its
    machines and its account."""
    found: Records = {}
    for id_, answer in answers.items():
        machines = json.loads(answer.text)["machines"]
        if id_.startswith(RETURN_ID_PREFIX):
            found[id_] = ReturnRequest(id_, tuple(one["name"] for one in machines), UNKNOWN_MOMENT)
        else:
            found[id_] = _remnant(id_, len(machines), next((one.get("rcAccount", "") for one in machines), ""))
    return found


def _records_from_names(machines: Iterable[str], prefix: str) -> Records:
    """Return a request for each request id in the names of machines."""
    counts = Counter(id_ for name in machines if (id_ := get_request_id(prefix, name)))
    return {id_: _remnant(id_, count) for id_, count in counts.items()}


def _remnant(id_: str, count: int, rc_account: str = "") -> Request:
    return Request(id_, NO_TEMPLATE, count, UNKNOWN_MOMENT, rc_account)


# --- texts for operators ----------------------------------------------------------------------------------------------


REMADE = (
    "the loop makes memory.json again as soon as it has seen every pool, and latches a brake that you have not seen yet"
)

NO_LOOP = "No loop has run on this state directory yet (`provisioner run`)"


def pools_of_unknown(plan: Recovery, observations: Mapping[str, Observation]) -> Mapping[str, str]:
    """Return the pool of each machine without a request. Machines in pools that were not observed are left out."""
    seen = find_snapshots(observations).values()
    return {name: snapshot.pool for snapshot in seen for name in plan.unknown if name in snapshot.machines}


def summary_message(plan: Recovery, *, applied: bool, release: bool) -> str:
    """Return the text that says what the recovery did or would do, and the operator's next step. ``applied``,
    ``release``: options of the command."""
    written = "All missing records are written. " if plan.writes and applied else ""
    if release and plan.keeps_brake(applied=applied):
        return f"{written}The brake was not released: {_not_released_message(plan, applied=applied)}."
    if plan.writes and not applied:
        return "No file was changed. To make these changes: provisioner recover --apply"
    if release and plan.latched:
        return f"{written}The loop releases the brake with its next cycle."
    return written + _next_step_message(plan)


def _next_step_message(plan: Recovery) -> str:
    """Return the text about memory and brake for a state whose files are complete."""
    if plan.files.is_fine("memory") and plan.files.memory is not None and plan.files.memory.brake is not None:
        first = " once no other provisioner makes machines" if plan.files.memory.brake.reason in CONFLICTS else ""
        return f"The brake stays latched. To release it{first}: provisioner recover --release-brake"
    if plan.latched:
        return "If a loop has latched the brake because of this: provisioner recover --release-brake"
    if plan.files.is_fine("memory"):
        return "No brake is latched; there is nothing to release."
    if plan.files.has_no_loop and not plan.writes:
        return f"{NO_LOOP}: there is nothing to recover."
    return f"{REMADE[0].upper()}{REMADE[1:]}: then run `provisioner status`."


def _not_released_message(plan: Recovery, *, applied: bool) -> str:
    if plan.files.has_no_loop and not plan.writes:
        return f"no brake is latched. {NO_LOOP}"
    if not plan.files.is_fine("memory"):
        in_the_way = "memory" in plan.unreadable and not applied
        return REMADE + ("; to move the old file aside: provisioner recover --apply" if in_the_way else "")
    problem = "files are wrong, and the brake would latch again because of them; write the files as well"
    return f"{problem}: provisioner recover --apply --release-brake"


# --- writing ----------------------------------------------------------------------------------------------------------


def apply_recovery(state: RecoverableState, plan: Recovery) -> tuple[str, ...]:
    """Carry out the plan, except the release of the brake. Return the paths of the files that were moved aside. Raises
    StateError.

    After an interruption at any point, the recovery can be run again.
    """
    parts = {"memory": state.memory, "status": state.status}
    moved = [name for kind in plan.unreadable if (name := _make_room(kind, parts[kind]))]
    if plan.intent is not None:
        for id_ in plan.kept:  # HF may have had these machines for long and will not poll again
            state.terminal_answers.assume_reported(id_)
        kept = state.intent.restore(plan.intent)
        moved += [kept] if kept else []
    return tuple(moved)


def _make_room(kind: str, part: Any) -> str:
    """Move aside a file that is still unreadable. Return its new path.

    Return an empty path if the file is readable or gone by now.
    """
    conditions: dict[str, Condition] = {}
    _read(kind, part, conditions, {})
    try:
        return str(part.set_aside()) if conditions[kind] is Condition.UNREADABLE else ""
    except StateMissing:
        return ""

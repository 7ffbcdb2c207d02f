"""The inputs of a status: the records of the state directory about the loop and its machines, read at one moment."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioner.loop.hf_activity import HF_AWAY_SECONDS
from provisioner.model import Intent, Memory, format_utc
from provisioner.state.directory_note import read_note
from provisioner.state.errors import Condition, StateError, StateMissing, StateUnreadable, advice_message, is_denied
from provisioner.state.marker_files import Difference, LifeSigns
from provisioner.state.protocols import State
from provisioner.telemetry.brake_release_forecast import ScriptCalls
from provisioner.telemetry.holds import current_holds
from provisioner.telemetry.pool_status import PoolStatus, read_pool_status
from provisioner.telemetry.pool_windows import Document, format_duration, format_local_time


@dataclass(frozen=True, slots=True)
class File:
    """The condition of a state file. ``text``: a sentence about a file that is not fine; empty if the file is fine."""

    condition: Condition = Condition.FINE
    text: str = ""


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """The inputs from which a ``StatusModel`` is made."""

    directory: str
    memory: Memory | None
    memory_file: File
    intent: Intent | None
    intent_file: File
    pool_status: PoolStatus
    signs: LifeSigns
    calls: ScriptCalls
    """HF's calls, as the scripts' poll markers record them."""
    release_asked: bool
    """True if an operator has asked the loop to release the brake, and the loop has not done so yet."""
    holds: Mapping[str, Any]
    """The holds in force, as ``current_holds`` returns them."""
    refusal: str
    """Reason why the loop cannot write the state directory. Empty if the loop can write, or if writing fails only for
    this user or on this host."""
    differing: Sequence[Difference]
    """HF's files of which the scripts have read another version than the loop uses."""
    demand: Mapping[str, Any]
    """The report of the last step of ``provisioner demand``; empty if there has been none."""
    wall: float
    """The time at which the inputs were read, in epoch seconds."""


def read_status_inputs(state: State, memory: Memory | None = None) -> StatusInputs:
    """Read the state files. ``memory``: the memory of this process's loop. If it is None, read memory.json.

    Raise StateError, for example if neither a script nor a loop has ever used the directory.
    """
    # Read memory before intent, so that intent contains every request in memory.
    remembered, memory_file = (memory, File()) if memory else _memory(state)
    pool_status, signs = read_pool_status(state), state.life_signs()
    intent, intent_file = _intent(state, remembered, has_loop=pool_status.limits is not None)
    later = (read_note(pool_status.note, state.path) or [""])[-1]
    return StatusInputs(
        directory=state.path,
        memory=remembered,
        memory_file=memory_file,
        intent=intent,
        intent_file=intent_file,
        pool_status=pool_status,
        signs=signs._replace(later_directory=later),
        calls=read_script_calls(state),
        release_asked=state.release_asked(),
        holds=current_holds(state, remembered),
        refusal=_write_problem(state, signs.holder),
        differing=state.config_differences(),
        demand=_demand(state),
        wall=time.time(),
    )


def _write_problem(state: State, holder: Mapping[str, Any]) -> str:
    """Return the reason why the loop cannot write; empty if it can write.

    A write that fails only for this user or on this host is no problem of the loop. For example, this host may mount
    the directory read-only.
    """
    error = state.find_write_error()
    if error is None or is_denied(error):
        return ""
    if error.errno == errno.EROFS and holder.get("host", socket.gethostname()) != socket.gethostname():
        return ""
    return f"{error.strerror}. {advice_message(error)}"


def _demand(state: State) -> Mapping[str, Any]:
    try:
        return state.read_demand()
    except StateError as error:  # the other parts of the status matter more
        return {"problem": str(error)}


def _memory(state: State) -> tuple[Memory | None, File]:
    try:
        memory = state.memory.read()
        condition = state.memory.condition()
    except StateMissing:
        if state.memory.existed():
            return None, File(Condition.MISSING, "MEMORY LOST: memory.json is missing although it was written")
        return None, File(Condition.NEW, "No loop has made memory.json yet.")
    except StateUnreadable as error:
        return None, File(Condition.UNREADABLE, f"MEMORY UNREADABLE: {error}")
    if condition is Condition.OLDER:
        return memory, File(Condition.OLDER, "MEMORY OLD: memory.json is an old copy: a later one had been written")
    if condition is Condition.ALONE:
        message = "MEMORY ALONE: memory.json exists without its lock file, so it may be an old copy"
        return memory, File(Condition.ALONE, message)
    return memory, File()


def _intent(state: State, memory: Memory | None, *, has_loop: bool) -> tuple[Intent | None, File]:
    try:
        intent, newest = state.intent.read_newest()
    except StateMissing as error:
        if memory is None and not (state.memory.existed() or state.intent.existed()):
            if not has_loop:
                raise
            return None, File(Condition.NEW, str(error))
        return None, File(Condition.MISSING, "INTENT LOST: intent.json is missing although it was written")
    except StateUnreadable as error:
        return None, File(Condition.UNREADABLE, f"INTENT UNREADABLE: {error}")
    if intent.generation < max(newest, memory.generation if memory else 0):
        return intent, File(Condition.OLDER, "INTENT OLD: intent.json is an old copy: a later one had been written")
    return intent, File()


def read_script_calls(state: State) -> ScriptCalls:
    """Return HF's calls of scripts. Times are in seconds by the file system's clock."""
    marks = state.polls()
    _, listed = state.listed_hosts() or ((), 0)
    return ScriptCalls(
        {id_: mark / 1e9 for id_, mark in marks.items()},
        state.terminal_answers.ids(),
        max(0, listed, *marks.values()) / 1e9,
        listed / 1e9,
        state.refused_calls(),
    )


def last_calls(state: State) -> Mapping[str, float]:
    """Return a dict of script → time of HF's last call, for getRequestStatus and getReturnRequests. Times are in epoch
    seconds by this host's clock."""
    calls, now = read_script_calls(state), state.life_signs().now
    ahead = 0.0 if now is None else time.time() - now
    times = {"getRequestStatus": max(calls.polled.values(), default=0.0), "getReturnRequests": calls.listed}
    return {script: at + ahead for script, at in times.items() if at}


def hf_document(calls: ScriptCalls, signs: LifeSigns) -> Document:
    """Return the field ``hostfactory`` of a ``StatusModel``."""
    now = signs.now
    return {
        "last_call": format_utc(calls.last) if calls.last else None,
        "script": "getReturnRequests" if calls.last == calls.listed else "getRequestStatus",
        "silent_seconds": None if now is None or not calls.last else max(0.0, now - calls.last),
        "last_list": format_utc(calls.listed) if calls.listed else None,
        "refused": [
            {**one._asdict(), "since": format_utc(one.since), "last": format_utc(one.last)}
            for one in calls.refused
            if one.recent and (now is None or now - one.last <= HF_AWAY_SECONDS)
        ],
    }


def hf_message(hostfactory: Document) -> str:
    """Return a sentence about HF's last poll and its last list of hosts."""
    last, listed, silent = (hostfactory[key] for key in ("last_call", "last_list", "silent_seconds"))
    if last is None:
        return "HostFactory has not polled or listed its hosts here yet"
    ago = "" if silent is None else f", {format_duration(silent)} ago"
    hosts = (
        f"its last list of hosts came at {format_local_time(listed)}" if listed else "it has not listed its hosts yet"
    )
    return f"HostFactory last called {hostfactory['script']} at {format_local_time(last)}{ago}; {hosts}"


# --- the loop ---------------------------------------------------------------------------------------------------------


def loop_document(signs: LifeSigns) -> Document:
    """Return the field ``loop`` of a ``StatusModel``."""
    beat = None if signs.last_beat_at is None else format_utc(signs.last_beat_at)
    facts = {"last_beat": beat, "silent_seconds": signs.silent_seconds, "running": signs.is_running}
    advice = {"advice": signs.advice, "intent_lock": signs.intent_lock}
    return {**signs.holder, **facts, "fate": signs.fate, "waits": _waits_message(signs), **advice}


def _waits_message(signs: LifeSigns) -> str:
    """Return a message about a loop that waits until the calls of its predecessor are over; empty if no loop waits."""
    until, pid, host = (signs.holder.get(key) for key in ("waits_until", "pid", "host"))
    if signs.fate != "waits" or not isinstance(until, str):
        return ""
    message = "waits until calls of the previous loop, which did not end in order, are over; it then goes on"
    return f"at {format_local_time(until)}: process {pid} on {host} {message}"


def silence_message(loop: Document) -> str:
    """Return a sentence part with the time since which no loop has run, and the duration. Return an empty text if a
    loop runs or may run."""
    if loop["running"] is not False:
        return ""
    if not loop["last_beat"]:
        return "and has never run on this directory"
    silent = loop["silent_seconds"]
    duration = "" if silent is None else f", silent for {format_duration(silent)}"
    return f"since {format_local_time(loop['last_beat'])}{duration}"

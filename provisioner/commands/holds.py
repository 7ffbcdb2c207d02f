"""``provisioner pause``, ``resume``, ``drain``, ``cancel``, ``stop-all`` and ``start-all``: holds, set and released.

They write levers.json alone, so they work whether or not a loop runs, and hold until an operator releases them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

from provisioner.commands.options import PROBLEM, Document, add_shared, settings, show, state_directory
from provisioner.files.owners import user_name
from provisioner.hostfactory.instance import DirectoryError
from provisioner.model import DESIRED, Lever, LeverKind, Levers, Memory, format_utc
from provisioner.names import RETURN_ID_PREFIX
from provisioner.planning.core.levers import is_done
from provisioner.schema.problems import ConfigError, suggestion
from provisioner.state.errors import StateError, StateMissing, StateUnreadable
from provisioner.state.interfaces import State
from provisioner.state.levers import let_go, pulled
from provisioner.telemetry.notes import Notes, read_notes

LONGEST_REASON = 500
"""Characters of a reason: it stands in HostFactory's messages, in the log and in each line of ``status``."""


class Verb(NamedTuple):
    """The effect of a command on holds."""

    kinds: tuple[LeverKind, ...]
    target: str = ""
    """Metavar of its argument; empty if the hold is on everything."""
    sets: bool = True
    needs_reason: bool = False


VERBS = {
    "pause": Verb((LeverKind.PAUSE,), "POOL"),
    "resume": Verb((LeverKind.PAUSE, LeverKind.DRAIN), "POOL", sets=False),
    "drain": Verb((LeverKind.DRAIN,), "POOL", needs_reason=True),
    "cancel": Verb((LeverKind.CANCEL,), "REQUEST|MACHINE", needs_reason=True),
    "stop-all": Verb((LeverKind.STOP_ALL,), needs_reason=True),
    "start-all": Verb((LeverKind.STOP_ALL,), sets=False),
}

NO_MEMORY = Memory("")

MACHINE = "machine"

TEXTS = {
    LeverKind.PAUSE: ("Pool {0} is paused", "Pool {0} gets no new machines until `provisioner resume {0}`."),
    LeverKind.DRAIN: (
        "Pool {0} is drained",
        "Pool {0} gets no new machines, and HostFactory is asked to give back those that it has there, until "
        "`provisioner resume {0}`.",
    ),
    LeverKind.CANCEL: (
        "Request {0} is cancelled",
        "Request {0} ends with the machines that run; what it lacks is given up.",
    ),
    MACHINE: (
        "Machine {0} is cancelled",
        "HostFactory is asked to give machine {0} back, once it has it; the machine runs until then.",
    ),
    LeverKind.STOP_ALL: (
        "Everything is stopped",
        "No machine is made or deleted until `provisioner start-all`; the scripts answer on.",
    ),
}
"""By kind of hold, and for the cancel of a machine: the target's state, and the effect of a new hold."""


def add_options(verb: Verb, command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    if verb.target:
        command.add_argument("target", metavar=verb.target)
    needed = "" if verb.needs_reason else "; may be left out"
    command.add_argument(
        "--reason",
        type=_reason,
        required=verb.needs_reason,
        metavar="TEXT",
        help=f"why, for the log, the journal, status and HostFactory's messages{needed}",
    )
    add_shared(command, "config", "state-dir", "output")
    command.set_defaults(target="")


def _reason(text: str) -> str:
    words = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    if not words or len(words) > LONGEST_REASON:
        raise argparse.ArgumentTypeError(f"expected a text of 1 to {LONGEST_REASON} characters")
    return words


def run(verb: Verb, options: argparse.Namespace) -> int:
    """Returns PROBLEM, and records nothing, for an unknown name. Raises StateError."""
    state = state_directory(options.state_dir)
    known = _Known(options, state)
    if refusal := known.refusal(verb, options.target):
        print(f"{refusal} Nothing was recorded.", file=sys.stderr)
        return PROBLEM
    by = Lever(verb.kinds[0], options.target, user_name(os.getuid()), time.time(), options.reason or "")

    def change(holds: Levers) -> Levers:
        # Who stops all waits for no file of machines.
        kept = Levers(tuple(one for one in holds.held if not (verb.target and known.is_over(one))), holds.released)
        return pulled(kept, by) if verb.sets else let_go(kept, verb.kinds, by)

    anew = _unusable(state) if LeverKind.STOP_ALL in verb.kinds else ""
    before, after = state.change_levers(change, anew=bool(anew))
    return show(options, {**_document(known, verb, by, before, after), "anew": anew}, _lines)


def _unusable(state: State) -> str:
    """Why the holds are unknown; empty if they are known. Raises StateTooNew, StateDenied."""
    try:
        state.read_levers()
    except (StateMissing, StateUnreadable) as error:
        return str(error)
    return ""


class _Known:
    """The names in a state directory."""

    def __init__(self, options: argparse.Namespace, state: State) -> None:
        self._options, self.state = options, state
        self.notes = Notes()
        with suppress(StateError):  # the loop writes them again
            self.notes = read_notes(state)

    @cached_property
    def memory(self) -> Memory:
        """Read only if it is needed: a stop of all must not wait for it."""
        with suppress(StateMissing):
            return self.state.memory.read()
        return NO_MEMORY

    @cached_property
    def intent(self) -> frozenset[str]:
        """The requests that HostFactory has made."""
        with suppress(StateMissing):
            return frozenset(self.state.intent.read().requests)
        return frozenset()

    def refusal(self, verb: Verb, target: str) -> str:
        """Why the target cannot be held; empty if it can."""
        if LeverKind.CANCEL in verb.kinds:
            return self._cannot_cancel(target)
        return self._no_pool(target) if verb.target else ""

    def is_over(self, hold: Lever) -> bool:
        """Return True for a cancel whose request has ended or is in no file any more."""
        if hold.kind is not LeverKind.CANCEL or self.memory is NO_MEMORY:
            return False
        return hold.target not in self.intent and is_done(hold, self.memory)

    def is_machine(self, hold: Lever) -> bool:
        """Return True for the cancel of a machine."""
        return hold.kind is LeverKind.CANCEL and hold.target not in {*self.intent, *self.memory.requests}

    def _no_pool(self, name: str) -> str:
        pools = {*self.notes.pool_limits, *(slot.pool for _, slot in self.memory.slots if not slot.deletion.gone)}
        with suppress(StateError):
            pools |= {hold.target for hold in self.state.read_levers().held if hold.kind is not LeverKind.CANCEL}
        pools.discard("")
        if name in pools:
            return ""
        try:
            pools |= settings(self._options.config).pools.keys()
        except (ConfigError, DirectoryError) as error:
            if not pools:
                unread = str(error).partition("\n")[0]
                why = f"no loop has told its pools yet, and the configuration cannot be read ({unread})"
                return f"Whether there is a pool {name!r} is not known: {why}. See `provisioner check`."
        return "" if name in pools else f"No pool is named {name!r}{_there_are(name, pools)}."

    def _cannot_cancel(self, name: str) -> str:
        records = self.memory.requests
        if name in records:
            ended = records[name].ended
            words = "its machines are HostFactory's. To ask for one of them: provisioner cancel MACHINE"
            return f"Request {name} has ended ({ended}): {words}." if ended else ""
        if name in self.intent:
            return ""
        if name.startswith(RETURN_ID_PREFIX):
            return f"{name} is a return: HostFactory has given its machines back."
        slots = {slot.name: slot for _, slot in self.memory.slots}
        if name in slots:
            verdict = slots[name].verdict
            return "" if verdict in DESIRED else f"Machine {name} is {verdict} already."
        there = {id_ for id_, record in records.items() if record.ended is None} | (self.intent - records.keys())
        there |= {slot.name for slot in slots.values() if slot.verdict in DESIRED}
        return f"No request and no machine is named {name!r}{_there_are(name, there)}."


def _there_are(name: str, names: set[str]) -> str:
    """Return the names that are spelled like a wrong one, or some of all names."""
    return suggestion(name, sorted(names), many=True) or "; there is none"


def _document(known: _Known, verb: Verb, by: Lever, before: Levers, after: Levers) -> dict[str, Any]:
    """The effect. ``changed``: false if it was so already; ``held_by``: the hold in force, or None.

    ``machine``: a cancel is of a machine. ``paused_by_settings``: the pool stays paused. ``loop_runs``: it holds now.
    ``anew``: why the file was moved aside, or made again, and all other holds are released; else empty.
    """
    held = next((one for one in after.held if (one.kind, one.target) == (by.kind, by.target)), None)
    was_held = any(by.target in before.of(kind) for kind in verb.kinds)
    return {
        "lever": by.kind,
        "target": by.target,
        "pulled": verb.sets,
        "changed": was_held is not verb.sets,
        "held_by": {"who": held.who, "since": format_utc(held.since), "reason": held.reason} if held else None,
        "machine": known.is_machine(by),
        "paused_by_settings": by.target in known.notes.paused,
        "loop_runs": bool(known.state.life_signs().is_running),
    }


def _lines(document: Document) -> Iterator[str]:
    """The document as a line for a terminal."""
    target, sets = document["target"], document["pulled"]
    which = f"pool {target}" if target else "everything"
    already, done = (words.format(target) for words in TEXTS[MACHINE if document["machine"] else document["lever"]])
    paused = " The pool stays paused until `paused` is taken out of provisioner.yaml."
    stays = paused if document["paused_by_settings"] and not sets else ""
    if document["changed"] or document["anew"]:
        text = done if sets else f"{which[0].upper()}{which[1:]} goes on."
        anew = f" No other lever is held any more: pull again what has to be. {document['anew']}"
        now = "The loop heeds it at once." if document["loop_runs"] else "No loop runs: it holds as soon as one does."
        yield f"{text}{stays}{anew if document['anew'] else ''} {now}"
    elif sets:
        by = document["held_by"]
        why = f": {by['reason']}" if by["reason"] else ""
        yield f"{already} already, by {by['who']} since {by['since']}{why}. Nothing was changed."
    else:
        yield f"No lever holds {which} back. Nothing was changed.{stays}"


COMMANDS = {name: (partial(add_options, verb), partial(run, verb)) for name, verb in VERBS.items()}

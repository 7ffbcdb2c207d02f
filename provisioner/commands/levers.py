"""``provisioner pause``, ``resume``, ``drain``, ``cancel``, ``stop-all`` and ``start-all``: levers, pulled and let go.

They write levers.json alone, so they work whether or not a loop runs, and hold until somebody lets them go.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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

NAMES_SHOWN = 20
"""Names that a sentence about an unknown one lists at most."""


@dataclass(frozen=True, slots=True)
class Verb:
    """What a command does to which levers."""

    kinds: tuple[LeverKind, ...]
    target: str = ""
    """What it has to be told; empty where it holds everything."""
    pulls: bool = True
    needs_reason: bool = False


VERBS = {
    "pause": Verb((LeverKind.PAUSE,), "POOL"),
    "resume": Verb((LeverKind.PAUSE, LeverKind.DRAIN), "POOL", pulls=False),
    "drain": Verb((LeverKind.DRAIN,), "POOL", needs_reason=True),
    "cancel": Verb((LeverKind.CANCEL,), "REQUEST|MACHINE", needs_reason=True),
    "stop-all": Verb((LeverKind.STOP_ALL,), needs_reason=True),
    "start-all": Verb((LeverKind.STOP_ALL,), pulls=False),
}


def add_options(command: argparse.ArgumentParser) -> None:
    """Which lever, and why."""
    name = command.prog.rpartition(" ")[2]
    verb = VERBS[name]
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
    command.set_defaults(lever=name, target="")


def _reason(text: str) -> str:
    words = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    if not words or len(words) > LONGEST_REASON:
        raise argparse.ArgumentTypeError(f"expected a text of 1 to {LONGEST_REASON} characters")
    return words


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM, and records nothing, for a name that nothing has. Raises StateError."""
    state, verb = state_directory(options.state_dir), VERBS[options.lever]
    here = _Here(options, state)
    if refusal := here.refusal(verb, options.target):
        print(refusal, file=sys.stderr)
        return PROBLEM
    by = Lever(verb.kinds[0], options.target, user_name(os.getuid()), time.time(), options.reason or "")

    def change(levers: Levers) -> Levers:
        # Who stops all waits for no file of machines.
        held = [lever for lever in levers.held if not (verb.target and here.forgets(lever))]
        kept = Levers(tuple(held), levers.released)
        return pulled(kept, by) if verb.pulls else let_go(kept, verb.kinds, by)

    anew = here.unusable() if LeverKind.STOP_ALL in verb.kinds else ""
    before, after = state.change_levers(change, anew=bool(anew))
    return show(options, {**_document(here, verb, by, before, after), "anew": anew}, _text)


class _Here:
    """What a state directory knows by name."""

    def __init__(self, options: argparse.Namespace, state: State) -> None:
        self._options, self._state = options, state
        self.notes = Notes()
        with suppress(StateError):  # people's notes, which the loop writes again
            self.notes = read_notes(state)

    @cached_property
    def memory(self) -> Memory | None:
        """Read only where it is asked for: who stops all must not wait for what it holds."""
        with suppress(StateMissing):
            return self._state.memory.read()
        return None

    @cached_property
    def intent(self) -> frozenset[str]:
        """The requests that HostFactory has made."""
        with suppress(StateMissing):
            return frozenset(self._state.intent.read().requests)
        return frozenset()

    def refusal(self, verb: Verb, target: str) -> str:
        """Why there is nothing of that name to hold; empty where there is."""
        if LeverKind.CANCEL in verb.kinds:
            return self._cannot_cancel(target)
        return self._no_pool(target) if verb.target else ""

    def forgets(self, lever: Lever) -> bool:
        """A cancel has nothing left to do when its request has ended or is in no file any more."""
        if lever.kind is not LeverKind.CANCEL or self.memory is None:
            return False
        return lever.target not in self.intent and is_done(lever, self.memory)

    def is_machine(self, lever: Lever) -> bool:
        """Return True for a lever that cancels a machine instead of a request."""
        if lever.kind is not LeverKind.CANCEL or lever.target in self.intent:
            return False
        return self.memory is None or lever.target not in self.memory.requests

    def _no_pool(self, name: str) -> str:
        pools = set(self.notes.pool_limits)
        for record in self.memory.requests.values() if self.memory else ():
            pools |= {slot.pool for slot in record.slots.values() if slot.pool and not slot.deletion.gone}
        if name in pools:
            return ""
        with suppress(StateError):
            pools |= {lever.target for lever in self._state.read_levers().held if lever.kind is not LeverKind.CANCEL}
        unread = ""
        try:
            pools |= settings(self._options.config).pools.keys()
        except (ConfigError, DirectoryError) as error:
            unread = str(error).partition("\n")[0]
        pools.discard("")
        if not pools and unread:
            why = f"no loop has told its pools yet, and the configuration cannot be read ({unread})"
            words = f"Whether there is a pool {name!r} is not known: {why}"
            return f"{words}. See `provisioner check`. Nothing was recorded."
        return "" if name in pools else f"No pool is named {name!r}{_there_are(name, pools)}. Nothing was recorded."

    def _cannot_cancel(self, name: str) -> str:
        records = self.memory.requests if self.memory else {}
        if name in records:
            ended = records[name].ended
            words = "its machines are HostFactory's. To ask for one of them: provisioner cancel MACHINE"
            return f"Request {name} has ended ({ended}): {words}. Nothing was recorded." if ended else ""
        if name in self.intent:
            return ""
        if name.startswith(RETURN_ID_PREFIX):
            return f"{name} is a return: HostFactory has given its machines back. Nothing was recorded."
        slots = {slot.name: slot for record in records.values() for slot in record.slots.values()}
        if name in slots:
            verdict = slots[name].verdict
            return "" if verdict in DESIRED else f"Machine {name} is {verdict} already. Nothing was recorded."
        there = {id_ for id_, record in records.items() if record.ended is None} | (self.intent - records.keys())
        there |= {slot.name for slot in slots.values() if slot.verdict in DESIRED}
        return f"No request and no machine is named {name!r}{_there_are(name, there)}. Nothing was recorded."

    def unusable(self) -> str:
        """Why nobody knows which levers are held; empty where they are known. Raises StateTooNew, StateDenied."""
        try:
            self._state.read_levers()
        except (StateMissing, StateUnreadable) as error:
            return str(error)
        return ""

    def loop_runs(self) -> bool:
        """Whether a loop runs, by the file system's clock alone."""
        return bool(self._state.life_signs().is_running)


def _there_are(name: str, names: set[str]) -> str:
    """The names that are spelled like a wrong one, or all names."""
    if not names:
        return "; there is none"
    said = suggestion(name, sorted(names))
    many = len(names) > NAMES_SHOWN and not said.endswith("?")
    return f"; there are {', '.join(sorted(names)[:NAMES_SHOWN])} and more" if many else said


def _document(here: _Here, verb: Verb, by: Lever, before: Levers, after: Levers) -> dict[str, Any]:
    """What was done. ``changed``: false where it was so already; ``held_by``: the lever that is held, or None.

    ``machine``: a cancel is of a machine. ``paused_by_settings``: the pool stays paused. ``loop_runs``: it holds now.
    ``anew``: why the file was moved aside, or made again, and all other levers are let go; else empty.
    """
    held = {(lever.kind, lever.target): lever for lever in after.held}.get((by.kind, by.target))
    kinds = [kind for kind in verb.kinds if by.target in before.of(kind)]
    return {
        "lever": by.kind,
        "target": by.target,
        "pulled": verb.pulls,
        "changed": not kinds if verb.pulls else bool(kinds),
        "held_by": {"who": held.who, "since": format_utc(held.since), "reason": held.reason} if held else None,
        "machine": here.is_machine(by),
        "paused_by_settings": by.target in here.notes.paused,
        "loop_runs": here.loop_runs(),
    }


def _text(document: Document) -> str:
    """The document as text for a terminal."""
    pulls, target = document["pulled"], document["target"]
    changed = document["changed"] or bool(document["anew"])
    if pulls and not changed:
        by = document["held_by"]
        why = f": {by['reason']}" if by["reason"] else ""
        return f"{_already(document)} already, by {by['who']} since {by['since']}{why}. Nothing was changed."
    if not changed:
        text = f"No lever holds {f'pool {target}' if target else 'everything'} back. Nothing was changed."
    else:
        text = _pulled(document) if pulls else f"{f'Pool {target}' if target else 'Everything'} goes on."
    if not pulls and document["paused_by_settings"]:
        text += " The pool stays paused until `paused` is taken out of provisioner.yaml."
    if not changed:
        return text
    if document["anew"]:
        text += f" No other lever is held any more: pull again what has to be. {document['anew']}"
    now = "The loop heeds it at once." if document["loop_runs"] else "No loop runs: it holds as soon as one does."
    return f"{text} {now}"


def _already(document: Document) -> str:
    target = document["target"]
    return {
        LeverKind.PAUSE: f"Pool {target} is paused",
        LeverKind.DRAIN: f"Pool {target} is drained",
        LeverKind.CANCEL: f"{'Machine' if document['machine'] else 'Request'} {target} is cancelled",
        LeverKind.STOP_ALL: "Everything is stopped",
    }[document["lever"]]


def _pulled(document: Document) -> str:
    target = document["target"]
    if document["machine"]:
        return f"HostFactory is asked to give machine {target} back, once it has it; the machine runs until then."
    return {
        LeverKind.PAUSE: f"Pool {target} gets no new machines until `provisioner resume {target}`.",
        LeverKind.DRAIN: f"Pool {target} gets no new machines, and HostFactory is asked to give back those that it has "
        f"there, until `provisioner resume {target}`.",
        LeverKind.CANCEL: f"Request {target} ends with the machines that run; what it lacks is given up.",
        LeverKind.STOP_ALL: "No machine is made or deleted until `provisioner start-all`; the scripts answer on.",
    }[document["lever"]]

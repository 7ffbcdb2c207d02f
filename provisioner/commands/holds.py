"""The commands ``provisioner pause``, ``resume``, ``drain``, ``cancel``, ``stop-all`` and ``start-all``: set and
release holds.

The commands write only the holds, so they also work while no loop runs. A hold lasts until an operator releases it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

from provisioner.commands.shared_options import Document, add_shared, open_state, settings, show
from provisioner.files.ownership import user_name
from provisioner.hostfactory.provider_config import DirectoryError
from provisioner.model import DESIRED, Hold, HoldKind, Holds, Memory, format_utc
from provisioner.names import RETURN_ID_PREFIX
from provisioner.planning.core.holds import is_done
from provisioner.process_end import CommandFailed
from provisioner.schema.validation import ConfigError, suggestion
from provisioner.state.errors import StateError, StateMissing, StateUnreadable
from provisioner.state.holds import with_hold, without_holds
from provisioner.state.protocols import State, read_memory
from provisioner.telemetry.pool_status import PoolStatus, read_pool_status

LONGEST_REASON = 500
"""Maximum number of characters of a reason. The reason appears in HostFactory's messages, in the log and in each line
of ``status``."""


class Verb(NamedTuple):
    """The effect of a command on holds: the kinds of holds that it sets or releases."""

    kinds: tuple[HoldKind, ...]
    target: str = ""
    """Name of the command's argument, as ``--help`` shows it; empty if the command has no argument because it concerns
    all pools."""
    sets: bool = True
    needs_reason: bool = False


VERBS = {
    "pause": Verb((HoldKind.PAUSE,), "POOL"),
    "resume": Verb((HoldKind.PAUSE, HoldKind.DRAIN), "POOL", sets=False),
    "drain": Verb((HoldKind.DRAIN,), "POOL", needs_reason=True),
    "cancel": Verb((HoldKind.CANCEL,), "REQUEST|MACHINE", needs_reason=True),
    "stop-all": Verb((HoldKind.STOP_ALL,), needs_reason=True),
    "start-all": Verb((HoldKind.STOP_ALL,), sets=False),
}

NO_MEMORY = Memory("")

MACHINE = "machine"

TEXTS = {
    HoldKind.PAUSE: ("Pool {0} is paused", "Pool {0} gets no new machines until `provisioner resume {0}`."),
    HoldKind.DRAIN: (
        "Pool {0} is drained",
        "Pool {0} gets no new machines, and HostFactory is asked to return its machines there, until "
        "`provisioner resume {0}`.",
    ),
    HoldKind.CANCEL: (
        "Request {0} is cancelled",
        "Request {0} ends with its running machines; its missing machines are not made any more.",
    ),
    MACHINE: (
        "Machine {0} is cancelled",
        "HostFactory is asked to return machine {0} once its request has ended; the machine runs until then.",
    ),
    HoldKind.STOP_ALL: (
        "Everything is stopped",
        "No machine is made or deleted until `provisioner start-all`; the scripts still answer.",
    ),
}
"""Two texts for each kind of hold: the state of the target, and the effect of a new hold. The cancel of a machine has
texts of its own."""


def add_options(verb: Verb, command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    if verb.target:
        command.add_argument("target", metavar=verb.target)
    needed = "" if verb.needs_reason else "; may be left out"
    text = f"reason for the log, the journal, status and HostFactory's messages{needed}"
    command.add_argument("--reason", type=_reason, required=verb.needs_reason, metavar="TEXT", help=text)
    add_shared(command, "config", "state-dir", "output")
    command.set_defaults(target="")


def _reason(text: str) -> str:
    words = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    if not words or len(words) > LONGEST_REASON:
        raise argparse.ArgumentTypeError(f"expected a text of 1 to {LONGEST_REASON} characters")
    return words


def run(verb: Verb, options: argparse.Namespace) -> int:
    """Set or release a hold and print the effect. Raises StateError. Raises CommandFailed, before any hold is changed,
    if the target is unknown or cannot be cancelled."""
    state = open_state(options.state_dir)
    known = _Known(options, state)
    if refusal := known.refusal_message(verb, options.target):
        raise CommandFailed(f"{refusal} No hold was changed.")
    by = Hold(verb.kinds[0], options.target, user_name(os.getuid()), time.time(), options.reason or "")

    def change(holds: Holds) -> Holds:
        # stop-all and start-all must work even if memory is unreadable, so they do not look for cancels that are done
        kept = Holds(tuple(one for one in holds.current if not (verb.target and known.is_over(one))), holds.released)
        return with_hold(kept, by) if verb.sets else without_holds(kept, verb.kinds, by)

    unusable_message = _unusable_message(state) if HoldKind.STOP_ALL in verb.kinds else ""
    before, after = state.holds.change(change, replace_unusable=bool(unusable_message))
    return show(options, {**_document(known, verb, by, before, after), "unusable_message": unusable_message}, _lines)


def _unusable_message(state: State) -> str:
    """Return the reason why the holds cannot be read; empty if they can be read. Raises StateTooNew, StateDenied."""
    try:
        state.holds.read()
    except (StateMissing, StateUnreadable) as error:
        return str(error)
    return ""


class _Known:
    """The names of pools, requests and machines that the state contains."""

    def __init__(self, options: argparse.Namespace, state: State) -> None:
        self._options, self.state = options, state
        self.pool_status = PoolStatus()
        with suppress(StateError):  # the loop will write the pool status again
            self.pool_status = read_pool_status(state)

    @cached_property
    def memory(self) -> Memory:
        """Return the memory; an empty memory if there is none. Memory is read only when it is needed, because stop-all
        must work without memory."""
        return read_memory(self.state) or NO_MEMORY

    @cached_property
    def intent(self) -> frozenset[str]:
        """Return the ids of all requests that the intent contains."""
        with suppress(StateMissing):
            return frozenset(self.state.intent.read().requests)
        return frozenset()

    def refusal_message(self, verb: Verb, target: str) -> str:
        """Return the reason why the target cannot have this hold; empty if it can."""
        if HoldKind.CANCEL in verb.kinds:
            return self._uncancellable_message(target)
        return self._unknown_pool_message(target) if verb.target else ""

    def is_over(self, hold: Hold) -> bool:
        """Return True if the hold is a cancel that has no more effect: its request or machine has ended, or is no
        longer in the state."""
        if hold.kind is not HoldKind.CANCEL or self.memory is NO_MEMORY:
            return False
        return hold.target not in self.intent and is_done(hold, self.memory)

    def is_machine(self, hold: Hold) -> bool:
        """Return True if the hold is a cancel of a machine."""
        return hold.kind is HoldKind.CANCEL and hold.target not in {*self.intent, *self.memory.requests}

    def _unknown_pool_message(self, name: str) -> str:
        pools = {slot.pool for _, slot in self.memory.slots if not slot.deletion.is_gone}
        pools |= self.pool_status.pool_limits.keys()
        with suppress(StateError):
            pools |= {hold.target for hold in self.state.holds.read().current if hold.kind is not HoldKind.CANCEL}
        pools.discard("")
        if name in pools:
            return ""
        try:
            pools |= settings(self._options.config).pools.keys()
        except (ConfigError, DirectoryError) as error:
            if not pools:
                reason = str(error).partition("\n")[0]
                return (
                    f"The pools are unknown, so {name!r} cannot be found: no loop has published its pools yet, and the "
                    f"configuration cannot be read ({reason}). See `provisioner check`."
                )
        return "" if name in pools else f"No pool is named {name!r}{_known_names_message(name, pools)}."

    def _uncancellable_message(self, name: str) -> str:
        records = self.memory.requests
        if name in records:
            ended = records[name].ended
            words = "so its machines are HostFactory's. To have one of them returned: provisioner cancel MACHINE"
            return f"Request {name} has ended ({ended}), {words}." if ended else ""
        if name in self.intent:
            return ""
        if name.startswith(RETURN_ID_PREFIX):
            return f"{name} is a return request and cannot be cancelled; HostFactory has returned its machines."
        slots = {slot.name: slot for _, slot in self.memory.slots}
        if name in slots:
            verdict = slots[name].verdict
            return "" if verdict in DESIRED else f"Machine {name} is {verdict} already."
        known_names = {id_ for id_, record in records.items() if record.ended is None} | (self.intent - records.keys())
        known_names |= {slot.name for slot in slots.values() if slot.verdict in DESIRED}
        return f"No request and no machine is named {name!r}{_known_names_message(name, known_names)}."


def _known_names_message(name: str, names: set[str]) -> str:
    """Return the last part of a message about an unknown name.

    This part suggests a known name with similar spelling. If no known name is similar, it lists known names.
    """
    return suggestion(name, sorted(names), many=True) or "; there is none"


def _document(known: _Known, verb: Verb, by: Hold, before: Holds, after: Holds) -> dict[str, Any]:
    """Return the effect of the command as a document. Some of its keys:

    * ``changed``: False if the hold was already set or released
    * ``held_by``: the hold in force, or None
    * ``machine``: True for the cancel of a machine
    * ``paused_by_settings``: True if provisioner.yaml also pauses the pool
    * ``loop_runs``: True if a loop runs and applies the hold now

    The caller adds ``unusable_message``: the reason if an unusable holds.json was replaced; else empty. The replacement
    releases all other holds.
    """
    in_force = next((one for one in after.current if (one.kind, one.target) == (by.kind, by.target)), None)
    was_in_force = any(by.target in before.of_kind(kind) for kind in verb.kinds)
    return {
        "hold": by.kind,
        "target": by.target,
        "set": verb.sets,
        "changed": was_in_force is not verb.sets,
        "held_by": in_force and {"who": in_force.who, "since": format_utc(in_force.since), "reason": in_force.reason},
        "machine": known.is_machine(by),
        "paused_by_settings": by.target in known.pool_status.paused,
        "loop_runs": bool(known.state.life_signs().is_running),
    }


def _lines(document: Document) -> Iterator[str]:
    """Yield one line that says what was changed."""
    target, sets = document["target"], document["set"]
    subject = f"pool {target}" if target else "everything"
    texts = TEXTS[MACHINE if document["machine"] else document["hold"]]
    state_text, effect_text = (words.format(target) for words in texts)
    paused = " The pool stays paused until `paused` is removed from provisioner.yaml."
    pause_note = paused if document["paused_by_settings"] and not sets else ""
    if document["changed"] or document["unusable_message"]:
        text = effect_text if sets else f"{subject[0].upper()}{subject[1:]} goes on."
        loss_message = f" All other holds are released; set again those that are needed. {document['unusable_message']}"
        now = "The loop obeys from now on." if document["loop_runs"] else "No loop runs; the next loop will obey."
        yield f"{text}{pause_note}{loss_message if document['unusable_message'] else ''} {now}"
    elif sets:
        by = document["held_by"]
        reason = f": {by['reason']}" if by["reason"] else ""
        yield f"{state_text} already, by {by['who']} since {by['since']}{reason}. No hold was changed."
    else:
        yield f"There is no hold on {subject}. No hold was changed.{pause_note}"


COMMANDS = {name: (partial(add_options, verb), partial(run, verb)) for name, verb in VERBS.items()}

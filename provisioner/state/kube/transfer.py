"""Copies of a whole state between files and a Kubernetes API. No loop and no script may work on either state meanwhile,
except on the source of a dump.

Memory is copied first. After an interruption, memory has requests that intent lacks. So a loop on the new state latches
the brake. The copy can be run again.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import NamedTuple

from provisioner.model import Intent
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, StateExists, StateMissing
from provisioner.state.kube.state import KubeState
from provisioner.state.loop_lock import be_the_loop
from provisioner.state.protocols import read_memory


class Copied(NamedTuple):
    """The number of records of each sort that a copy has put into the new state."""

    requests: int
    returns: int
    answers: int
    """Number of entries of settled answers."""


AnyState = StateDir | KubeState


def copy_state(source: AnyState, state: AnyState, *, for_dump: bool = False) -> Copied:
    """Copy a state into an empty state. After an interruption, the copy can be repeated. ``for_dump``: True if the copy
    is made for a dump. A loop may then work on ``source`` meanwhile.

    Raises StateError. In particular, raises StateExists if ``state`` has the memory of another state. Raises
    LockTimeout if a loop works on either state, except on the source of a dump.
    """
    with nullcontext() if for_dump else be_the_loop(source), be_the_loop(state):
        intent = _copy_memory(source, state, for_dump=for_dump)
        state.intent.restore(intent)
        if shown := source.shown():
            state.note_shown(shown)
        return _copy_answers(intent, source, state)


def _copy_memory(source: AnyState, state: AnyState, *, for_dump: bool) -> Intent:
    """Write the memory of ``source`` under a new epoch. Return the intent of ``source``.

    Memory that is lost or old stays so, unless the copy is made for a dump.
    """
    memory, present = read_memory(source), read_memory(state)
    intent = source.intent.read()
    known = state.intent.read().requests.keys() if state.intent.existed() else set()
    is_same = memory is present and known <= intent.requests.keys()  # perhaps an interrupted copy without memory
    if memory and present:
        is_same = replace(present, epoch=memory.epoch) == memory
    if not is_same and (present or state.status.exists()):
        raise StateExists(f"{state.path}: has another state already. No object was changed. Name an empty state.")
    epoch = state.loop_lock.raise_epoch(memory.epoch + 1 if memory else 1)
    if memory is not None:
        state.memory.write(replace(memory, epoch=epoch))
    if not for_dump and source.memory.condition() in (Condition.OLDER, Condition.MISSING):
        state.memory.outdate()
    state.loop_lock.sign_off()
    return intent


def _copy_answers(intent: Intent, source: AnyState, state: AnyState) -> Copied:
    settled = source.terminal_answers
    entries = state.terminal_answers.copy_from(settled, sorted(settled.ids() | settled.answers().keys()))
    with suppress(StateMissing):  # before the loop's first cycle there are no answers
        state.status.write(source.status.read_all(), source.status.read_lost(), {})
    holds = source.holds.read()
    state.holds.change(lambda _: holds, replace_unusable=True)
    return Copied(len(intent.requests), len(intent.returns), entries)

"""``provisioner diff``: HostFactory's last list, our memory and the clouds, machine by machine; changes nothing."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from provisioner.commands.options import Document, add_shared, settings, show, state_directory
from provisioner.model import Look, Memory, Phase, Slot, Snapshot, Unobserved, Verdict
from provisioner.names import short_name, split_name

SHOWN = 10
"""Machines that are named of each group, where not all are asked for."""

NONE, ABSENT, UNSEEN, STRAYED_PHASE = "none", "absent", "unseen", "strayed"


class View(NamedTuple):
    """What the three say of one machine."""

    listed: bool
    """HostFactory's last list names it."""
    memory: str
    """Its slot's verdict; ``none`` where no slot has its name."""
    cloud: str
    """Its phase; ``strayed`` where it stands without what makes it ours; ``absent``, or ``unseen`` where its pool could
    not be looked at."""


@dataclass(frozen=True)
class Meaning:
    """A combination of what HostFactory, memory and cloud say, and whether it is wrong."""

    text: str
    differs: bool = True


AGREE = Meaning("all three agree", differs=False)
BEING_MADE = Meaning("on its way: HostFactory hears of it when its request ends", differs=False)
BEING_DELETED = Meaning("on its way out", differs=False)
OVER = Meaning("over: nothing is left of it", differs=False)
UNKNOWN = Meaning("its pool was not seen: nobody knows")
VANISHED = Meaning("it vanished: HostFactory hears of it when a second look lacks it")
UNLISTED = Meaning("HostFactory does not list it: it has just begun, or HostFactory has lost sight of it")
NO_LIST = Meaning("memory and cloud agree; HostFactory has sent no list yet", differs=False)
DOWN = Meaning("it does not run any more: lost when it does not run again in time (provisioner status)")
EARLY = Meaning("HostFactory lists it before its request has ended")
LOST = Meaning("lost: HostFactory is asked to give it back")
STILL_LISTED = Meaning("HostFactory still lists what is closed: it is asked to give it back")
ORPHAN = Meaning("no request of ours made it: an orphan, deleted when its grace is over (provisioner status)")
KEPT = Meaning("no request that we know of made it, and HostFactory lists it: it stays")
NOBODYS = Meaning("nobody has it: HostFactory is asked to give it back")
STRAYED = Meaning("it runs on without our labels, or outside its group: somebody else's doing")
FOREIGN = Meaning("a name of somebody else's", differs=False)


def add_options(command: argparse.ArgumentParser) -> None:
    """Whose machines, and how to print them."""
    add_shared(command, "config", "state-dir", "output")
    command.add_argument("--machines", action="store_true", help=f"name all machines of a group, not only {SHOWN}")


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM where the three differ or a pool was not seen. Raises StateError, BackendError."""
    from provisioner.commands.offline import look_once

    given = settings(options.config)
    state = state_directory(options.state_dir)
    names, written = state.listed_hosts() or (None, 0)
    memory = state.memory.read()
    looks = look_once(given, memory)
    document = diff_document(memory, names, looks, given.name_prefix)
    document["listed_at"] = None if names is None else written / 1e9
    fine = not any(group["differs"] for group in document["groups"]) and not document["unseen"]
    return show(options, document, partial(diff_text, every=options.machines), fine=fine)


def diff_document(
    memory: Memory, names: Collection[str] | None, looks: Mapping[str, Look], prefix: str
) -> dict[str, Any]:
    """The machines in groups of the same view, those first that should be otherwise. ``names``: None before a list.

    ``hostfactory``, ``memory``, ``clouds``: how many machines each has. ``unseen``: the pools that could not be looked
    at, and why. ``groups``: what the three say, what it means, and the machines.
    """
    listed = frozenset(map(short_name, names or ()))
    slots = {slot.name: slot for _, slot in memory.slots}
    phases = _phases(looks)
    unseen = {name: seen.failure.text for name, seen in looks.items() if isinstance(seen, Unobserved)}
    living = [name for name, slot in slots.items() if not slot.deletion.gone]
    groups = defaultdict[tuple[View, Meaning], list[str]](list)
    for name in sorted({*listed, *living, *phases}):
        slot = slots.get(name)
        absent = UNSEEN if (slot.pool in unseen if slot else unseen) else ABSENT
        view = View(name in listed, str(slot.verdict) if slot else NONE, phases.get(name, absent))
        judgement = meaning(view, slot, ours=split_name(prefix, name) is not None)
        groups[view, NO_LIST if judgement is UNLISTED and names is None else judgement].append(name)
    return {
        "hostfactory": len(listed),
        "memory": len(living),
        "clouds": len(phases),
        "unseen": unseen,
        "groups": [
            view._asdict() | {"meaning": judgement.text, "differs": judgement.differs, "machines": machines}
            for (view, judgement), machines in sorted(
                groups.items(), key=lambda item: (not item[0][1].differs, item[0][0])
            )
        ],
    }


def _phases(looks: Mapping[str, Look]) -> Mapping[str, str]:
    """What the clouds show, by machine."""
    seen = [look.machines for look in looks.values() if isinstance(look, Snapshot)]
    return {
        name: STRAYED_PHASE if machine.strayed else str(Phase.RUNNING if machine.nameless else machine.phase)
        for machines in seen
        for name, machine in machines.items()
    }


def meaning(view: View, slot: Slot | None, *, ours: bool) -> Meaning:
    """The meaning of a view; ``ours``: the machine's name has our shape."""
    if view.cloud == UNSEEN and (slot is None or not slot.deletion.gone):
        return UNKNOWN if slot or ours else FOREIGN
    there = view.cloud not in (ABSENT, UNSEEN)
    if slot is None:
        return _of_a_stranger(view.listed, there=there, ours=ours)
    match slot.verdict:
        case Verdict.OPEN:
            return EARLY if view.listed else BEING_MADE
        case Verdict.SUCCEEDED:
            return _of_a_reported_one(view, there=there)
        case Verdict.LOST if view.listed:
            return LOST
    if there:
        return BEING_DELETED
    return STILL_LISTED if view.listed else OVER


def _of_a_reported_one(view: View, *, there: bool) -> Meaning:
    special = {STRAYED_PHASE: STRAYED, str(Phase.PENDING): DOWN}
    if view.cloud in special:
        return special[view.cloud]
    return (AGREE if view.listed else UNLISTED) if there else VANISHED


def _of_a_stranger(listed: bool, *, there: bool, ours: bool) -> Meaning:
    if there:
        return KEPT if listed else ORPHAN
    return NOBODYS if ours else FOREIGN


def diff_text(document: Document, *, every: bool = False) -> str:
    """The document as text for a terminal; ``every``: with all machines of each group."""
    return "\n".join(_lines(document, every))


def _lines(document: Document, every: bool) -> Iterator[str]:
    said = "has sent no list yet" if document["listed_at"] is None else f"lists {document['hostfactory']}"
    yield f"HostFactory {said}, memory has {document['memory']}, the clouds {document['clouds']} machines."
    yield from (f"  pool {name}: UNSEEN, {text}" for name, text in document["unseen"].items())
    for group in document["groups"]:
        machines = group["machines"]
        hf = "listed" if group["listed"] else "not listed"
        yield f"  {len(machines):>5}  {hf}, memory {group['memory']}, cloud {group['cloud']}: {group['meaning']}"
        if group["differs"] or every:
            shown = machines if every else machines[:SHOWN]
            yield from (f"         {name}" for name in shown)
            if left := len(machines) - len(shown):
                yield f"         and {left} more: --machines names them"

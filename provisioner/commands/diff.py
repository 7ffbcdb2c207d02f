"""``provisioner diff``: HostFactory's last list, our memory and the clouds, machine by machine; changes nothing."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from provisioner.commands.observe_pools import observe_once
from provisioner.commands.shared_options import Document, add_shared, settings, show, state_directory
from provisioner.model import Memory, Observation, ObservationFailed, Phase, Slot, Snapshot, Verdict
from provisioner.names import short_name, split_name

SHOWN = 10
"""Machines that are named of each group, where not all are asked for."""

NONE, ABSENT, UNSEEN, STRAYED_PHASE = "none", "absent", "unseen", "strayed"


class View(NamedTuple):
    """A machine as HostFactory, memory and cloud show it."""

    listed: bool
    """HostFactory's last list names it."""
    memory: str
    """Its slot's verdict; ``none`` where no slot has its name."""
    cloud: str
    """Its phase; ``strayed`` where it stands without what makes it ours; ``absent``, or ``unseen`` where its pool could
    not be looked at."""


class Meaning(NamedTuple):
    """A combination of what HostFactory, memory and cloud say, and whether it is wrong."""

    text: str
    differs: bool = True


AGREE = Meaning("all three agree", differs=False)
BEING_MADE = Meaning("on its way: HostFactory hears of it when its request ends", differs=False)
BEING_DELETED = Meaning("on its way out", differs=False)
OVER = Meaning("over: nothing is left of it", differs=False)
UNKNOWN = Meaning("its pool was not seen: nobody knows")
VANISHED = Meaning("it vanished: HostFactory hears of it when a second observation lacks it")
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

MEANINGS = {
    (None, True, True): KEPT,
    (None, False, True): ORPHAN,
    (Verdict.OPEN, True, True): EARLY,
    (Verdict.OPEN, True, False): EARLY,
    (Verdict.OPEN, False, True): BEING_MADE,
    (Verdict.OPEN, False, False): BEING_MADE,
    (Verdict.SUCCEEDED, True, True): AGREE,
    (Verdict.SUCCEEDED, False, True): UNLISTED,
    (Verdict.SUCCEEDED, True, False): VANISHED,
    (Verdict.SUCCEEDED, False, False): VANISHED,
    (Verdict.LOST, True, True): LOST,
    (Verdict.LOST, True, False): LOST,
}
"""By the slot's verdict (None: no slot), whether HostFactory lists the machine, and whether it stands."""

WRONG_PHASES = {STRAYED_PHASE: STRAYED, str(Phase.PENDING): DOWN}
"""The meaning of phases in which no machine that HostFactory was told of should be."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir", "output")
    command.add_argument("--machines", action="store_true", help=f"name all machines of a group, not only {SHOWN}")


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM where the three differ or a pool was not seen. Raises StateError, BackendError."""
    given = settings(options.config)
    state = state_directory(options.state_dir)
    names, written = state.listed_hosts() or (None, 0)
    memory = state.memory.read()
    observations = observe_once(given, memory)
    document = diff_document(memory, names, observations, given.name_prefix)
    document["listed_at"] = None if names is None else written / 1e9
    fine = not any(group["differs"] for group in document["groups"]) and not document["unseen"]
    return show(options, document, partial(diff_lines, every=options.machines), fine=fine)


def diff_document(
    memory: Memory, names: Collection[str] | None, observations: Mapping[str, Observation], prefix: str
) -> dict[str, Any]:
    """The machines in groups of the same view, those first that should be otherwise. ``names``: None before a list.

    ``hostfactory``, ``memory``, ``clouds``: how many machines each has. ``unseen``: the pools that could not be looked
    at, and why. ``groups``: what the three say, what it means, and the machines.
    """
    listed = frozenset(map(short_name, names or ()))
    slots = {slot.name: slot for _, slot in memory.slots}
    phases = _phases(observations)
    unseen = {name: seen.failure.text for name, seen in observations.items() if isinstance(seen, ObservationFailed)}
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
                groups.items(), key=lambda one: (not one[0][1].differs, one[0][0])
            )
        ],
    }


def _phases(observations: Mapping[str, Observation]) -> Mapping[str, str]:
    """The phase that the clouds show, by machine."""
    return {
        name: STRAYED_PHASE if machine.strayed else str(Phase.RUNNING if machine.nameless else machine.phase)
        for observation in observations.values()
        if isinstance(observation, Snapshot)
        for name, machine in observation.machines.items()
    }


def meaning(view: View, slot: Slot | None, *, ours: bool) -> Meaning:
    """The meaning of a view; ``ours``: the machine's name has our shape."""
    if view.cloud == UNSEEN and not (slot and slot.deletion.gone):
        return UNKNOWN if slot or ours else FOREIGN
    verdict, stands = slot and slot.verdict, view.cloud not in (ABSENT, UNSEEN)
    if verdict is None and not stands:
        return NOBODYS if ours else FOREIGN
    if verdict is Verdict.SUCCEEDED and view.cloud in WRONG_PHASES:
        return WRONG_PHASES[view.cloud]
    closed = BEING_DELETED if stands else STILL_LISTED if view.listed else OVER
    return MEANINGS.get((verdict, view.listed, stands), closed)


def diff_lines(document: Document, *, every: bool = False) -> Iterator[str]:
    """The document as lines for a terminal; ``every``: with all machines of each group."""
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

"""The command ``provisioner diff``: compare HostFactory's last list, memory and the clouds, machine by machine. The
command changes nothing."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from provisioner.commands.observe_pools import observe_once
from provisioner.commands.shared_options import Document, add_shared, open_state, settings, show
from provisioner.model import Memory, Observation, Phase, Slot, Verdict, find_failures, find_snapshots
from provisioner.names import OPERATOR_ACCOUNT, SLURM_ACCOUNT, short_name, split_name

SHOWN = 10
"""Maximum number of machines of a group that the text names, unless ``--machines`` requests all."""

NONE, ABSENT, UNSEEN, STRAYED_PHASE = "none", "absent", "unseen", "strayed"


class View(NamedTuple):
    """The three statements about a machine: by HostFactory's list, by memory and by the cloud."""

    listed: bool
    """True if HostFactory's last list names the machine."""
    memory: str
    """Verdict of the machine's slot; ``none`` if no slot has this name."""
    cloud: str
    """Phase of the machine. ``strayed``: the machine exists without our labels or outside its group. ``absent``: the
    machine does not exist. ``unseen``: its pool could not be observed."""


class Meaning(NamedTuple):
    """A sentence that explains a ``View`` to the operator."""

    text: str
    differs: bool = True
    """True if HostFactory, memory and cloud contradict each other."""


AGREE = Meaning("all three agree", differs=False)
BEING_MADE = Meaning("on its way; reported to HostFactory when its request ends", differs=False)
BEING_DELETED = Meaning("being deleted", differs=False)
OVER = Meaning("ended and gone", differs=False)
UNKNOWN = Meaning("unknown, because the machine's pool was not seen")
VANISHED = Meaning("the machine vanished; reported to HostFactory if a second observation lacks it too")
UNLISTED = Meaning("HostFactory does not list the machine yet, or has lost track of it")
NO_LIST = Meaning("memory and cloud agree; HostFactory has sent no list yet, or did not request it", differs=False)
DOWN = Meaning("the machine does not run any more; it is lost unless it runs again in time (provisioner status)")
EARLY = Meaning("HostFactory lists the machine before the machine's request has ended")
LOST = Meaning("lost; HostFactory is asked to return it")
STILL_LISTED = Meaning("the slot is closed, but HostFactory still lists the machine, and is asked to return it")
ORPHAN = Meaning("an orphan: no request explains the machine; deleted after its grace period (provisioner status)")
KEPT = Meaning("no request explains the machine; it stays because HostFactory lists it")
NOWHERE = Meaning("neither memory nor cloud has the machine; HostFactory is asked to return it")
STRAYED = Meaning("the machine runs without our labels, or outside its group: someone else has changed it")
FOREIGN = Meaning("the name is not one of ours", differs=False)

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
"""The meaning of a view, by three values: the verdict of the slot (None: no slot), True if HostFactory lists the
machine, and True if the machine exists."""

WRONG_PHASES = {STRAYED_PHASE: STRAYED, str(Phase.PENDING): DOWN}
"""The meaning of a view by the machine's phase, for a machine that was reported to HostFactory and should run."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir", "output")
    command.add_argument("--machines", action="store_true", help=f"name all machines of a line, not only {SHOWN}")


def run(options: argparse.Namespace) -> int:
    """Print the comparison. Return PROBLEM if HostFactory, memory and clouds differ, or if a pool could not be
    observed. Raises ConfigError, StateError, BackendError."""
    configuration = settings(options.config)
    state = open_state(options.state_dir)
    names, written_ns = state.listed_hosts() or (None, 0)
    memory = state.memory.read()
    document = diff_document(memory, names, observe_once(configuration, memory), configuration.name_prefix)
    document["listed_at"] = None if names is None else written_ns / 1e9
    fine = not any(group["differs"] for group in document["groups"]) and not document["unseen"]
    return show(options, document, partial(diff_lines, every=options.machines), fine=fine)


def diff_document(
    memory: Memory, names: Collection[str] | None, observations: Mapping[str, Observation], prefix: str
) -> dict[str, Any]:
    """Return a document that compares HostFactory's last list, the memory and the clouds.

    ``names``: the machines' names in the list; None before the first list. Keys of the document:

    * ``hostfactory``, ``memory``, ``clouds``: the number of machines in each
    * ``unseen``: the reason for each pool that could not be observed
    * ``groups``: machines of the same view and meaning; groups with a difference come first
    """
    listed = frozenset(map(short_name, names or ()))
    slots = {slot.name: slot for _, slot in memory.slots}
    accounts = {slot.name: record.rc_account for record, slot in memory.slots}
    phases = _phases(observations)
    unseen = {name: failure.text for name, failure in find_failures(observations).items()}
    living = [name for name, slot in slots.items() if not slot.deletion.is_gone]
    groups = defaultdict[tuple[View, Meaning], list[str]](list)
    for name in sorted({*listed, *living, *phases}):
        slot = slots.get(name)
        absent = UNSEEN if (slot.pool in unseen if slot else unseen) else ABSENT
        view = View(name in listed, str(slot.verdict) if slot else NONE, phases.get(name, absent))
        judgement = meaning(view, slot, ours=split_name(prefix, name) is not None)
        if judgement is UNLISTED and (names is None or accounts.get(name) in (OPERATOR_ACCOUNT, SLURM_ACCOUNT)):
            judgement = NO_LIST
        groups[view, judgement].append(name)
    return {
        "hostfactory": len(listed),
        "memory": len(living),
        "clouds": len(phases),
        "unseen": unseen,
        "groups": [
            view._asdict() | {"meaning": means.text, "differs": means.differs, "machines": machines}
            for (view, means), machines in sorted(groups.items(), key=lambda one: (not one[0][1].differs, one[0][0]))
        ],
    }


def _phases(observations: Mapping[str, Observation]) -> Mapping[str, str]:
    """Return the phase in which the cloud shows each machine, by machine. A strayed machine has the phase
    ``strayed``."""
    return {
        name: STRAYED_PHASE if machine.is_strayed else str(Phase.RUNNING if machine.is_nameless else machine.phase)
        for snapshot in find_snapshots(observations).values()
        for name, machine in snapshot.machines.items()
    }


def meaning(view: View, slot: Slot | None, *, ours: bool) -> Meaning:
    """Return the meaning of a view. ``ours``: True if the machine's name has the form of this provisioner's names."""
    if view.cloud == UNSEEN and not (slot and slot.deletion.is_gone):
        return UNKNOWN if slot or ours else FOREIGN
    verdict, exists = slot and slot.verdict, view.cloud not in (ABSENT, UNSEEN)
    if verdict is None and not exists:
        return NOWHERE if ours else FOREIGN
    if verdict is Verdict.SUCCEEDED and view.cloud in WRONG_PHASES:
        return WRONG_PHASES[view.cloud]
    closed = BEING_DELETED if exists else STILL_LISTED if view.listed else OVER
    return MEANINGS.get((verdict, view.listed, exists), closed)


def diff_lines(document: Document, *, every: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal. ``every``: True to name all machines of each group."""
    listed = "has sent no list yet" if document["listed_at"] is None else f"lists {document['hostfactory']}"
    yield f"Machines: HostFactory {listed}, memory has {document['memory']}, the clouds have {document['clouds']}."
    yield from (f"  pool {name}: UNSEEN, {text}" for name, text in document["unseen"].items())
    for group in document["groups"]:
        machines = group["machines"]
        view = "; memory: {memory}; cloud: {cloud}. Meaning: {meaning}".format(**group)
        yield f"  {len(machines):>5}  HostFactory: {'listed' if group['listed'] else 'not listed'}{view}"
        if group["differs"] or every:
            shown = machines if every else machines[:SHOWN]
            yield from (f"         {name}" for name in shown)
            if left := len(machines) - len(shown):
                yield f"         and {left} more: --machines names them"

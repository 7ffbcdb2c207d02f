"""The command ``provisioner plan``: show the actions of the next cycle, by pool, template and reason."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from provisioner.backends.registry import close, make_backends
from provisioner.commands.observe_pools import observe
from provisioner.commands.shared_options import Document, add_shared, open_state, settings, show
from provisioner.loop.batch_threads import ThreadedActors
from provisioner.loop.clock import LoopClock
from provisioner.loop.cycle_report import Mandate
from provisioner.loop.reconciler import Reconciler
from provisioner.model import NEVER, ErrorClass, Failure, Observation, PendingReason, Plan, Transition
from provisioner.names import group_by
from provisioner.planning.observe.trust import format_distrust
from provisioner.settings.definitions import Settings
from provisioner.state.protocols import State, read_memory
from provisioner.telemetry.pool_windows import format_count


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_shared(command, "config", "state-dir", "output")
    command.add_argument("--machines", action="store_true", help="also name each machine; -o json always names them")


def run(options: argparse.Namespace) -> int:
    """Print the plan. Return PROBLEM if a pool could not be observed or is not trusted. Raises ConfigError, StateError,
    BackendError."""
    observations, plan = preview(settings(options.config), open_state(options.state_dir))
    document = plan_document(plan, observations)
    return show(options, document, partial(plan_lines, named=options.machines), fine=plan_is_fine(document))


def preview(settings: Settings, state: State) -> tuple[Mapping[str, Observation], Plan | None]:
    """Observe the pools and plan the next cycle. Change nothing. The plan is None if there is nothing to plan. Raises
    StateError, BackendError."""
    backends = make_backends(settings.pools, settings.site)
    clock = LoopClock(read_memory(state))
    try:
        observations = observe(backends, clock.now())
        return observations, make_reconciler(settings, state, clock).preview(observations)
    finally:
        close(backends)


def make_reconciler(settings: Settings, state: State, clock: LoopClock, epoch: int = 0) -> Reconciler:
    """Return a Reconciler that writes the state with this ``epoch``. The Reconciler has no backends, so it cannot
    act."""
    actors, limits, mandate = ThreadedActors({}, wake=lambda: None), settings.limits(), Mandate(epoch)
    return Reconciler(
        clock=clock, state=state, actors=actors, limits=limits, provisioner=settings.instance, mandate=mandate
    )


def plan_document(plan: Plan | None, observations: Mapping[str, Observation]) -> dict[str, Any]:
    """Return a document about the actions of the next cycle. Keys of the document:

    * ``creates``, ``deletes``, ``closes``: an entry for each machine
    * ``deferred``: entries with a number of ``machines`` and the cloud's message as ``text``
    * ``pools``: the number of machines of each pool, or ``error`` and ``text`` if the pool was not observed or is not
      trusted

    ``template`` is empty if no request has the machine.
    """
    pools = {name: seen.log_fields for name, seen in observations.items()}
    if plan is None:
        return {"pools": pools, "creates": [], "deletes": [], "closes": [], "deferred": []}
    for name, distrusted in plan.distrusted.items():
        error = ErrorClass.INVALID if distrusted.until == NEVER else ErrorClass.UNAVAILABLE
        pools[name] = Failure(error, format_distrust(name, distrusted, plan.memory.wall_of(0.0))).log_fields
    templates = {slot.name: record.template for record, slot in plan.memory.slots}
    return {
        "pools": pools,
        "creates": [
            _about(c.name, c.pool, c.template) | {"reason": "repeated" if c.is_repeated else "wanted"}
            for c in plan.creates
        ],
        "deletes": [_about(d.name, d.pool, templates.get(d.name, "")) | {"reason": d.reason} for d in plan.deletes],
        "closes": [_close(close) for close in plan.closes],
        "deferred": [_deferred(plan, *key, count) for key, count in plan.deferred.items()],
    }


def _about(machine: str, pool: str, template: str) -> dict[str, str]:
    return {"machine": machine, "pool": pool, "template": template}


def _close(close: Transition) -> dict[str, Any]:
    slot = close.slot
    error, text = (slot.failure.error, slot.failure.text) if slot.failure else ("", "")
    about = _about(slot.name, slot.pool, close.template)
    return {**about, "verdict": slot.verdict, "reason": slot.observed.cause or error, "text": text}


def _deferred(plan: Plan, pool: str, template: str, reason: PendingReason, count: int) -> dict[str, Any]:
    """Return an entry for deferred machines. If the pool backs off, ``text`` is the cloud's message; otherwise it is
    empty."""
    window = plan.memory.windows.get((pool, template))
    text = window.failure.text if reason is PendingReason.BACKOFF and window and window.failure else ""
    return {"pool": pool, "template": template, "reason": reason, "machines": count, "text": text}


def plan_is_fine(document: Document) -> bool:
    """Return True if every pool was observed and is trusted. If a pool was not observed or is not trusted, the plan has
    no actions in this pool."""
    return not any("error" in seen for seen in document["pools"].values())


ACTIONS = {"creates": "create", "deletes": "delete", "closes": "close"}
"""The verb for each list of actions in the document."""


def plan_lines(document: Document, *, named: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal. ``named``: True to name each machine below its pool, template and reason."""
    has_actions = any(document[key] for key in (*ACTIONS, "deferred"))
    yield "The next cycle would:" if has_actions else "The next cycle has no action."
    for name, seen in sorted(document["pools"].items(), key=lambda pool: "error" not in pool[1]):
        text = f"UNSEEN, {seen['text']}" if "error" in seen else format_count(seen["machines"], "machine")
        yield f"  pool {name}: {text}"
    for name, seen in document["pools"].items():
        yield from (f"  pool {name}: {text}" for text in seen.get("problems", ()))
    for action, word in ACTIONS.items():
        yield from _action_lines(word, document[action], named=named)
    yield from (_line("defer", entry["machines"], entry) for entry in document["deferred"])


def _action_lines(word: str, entries: list[Document], *, named: bool) -> Iterator[str]:
    """Yield a line for all machines with the same pool, template and reason. Closed slots get a separate line for each
    verdict.

    If the cloud gave a message about the first machine of a line, the line ends with this message. ``named``: True to
    add a line with the name of each machine.
    """
    key = itemgetter("pool", "template", "reason")
    for group in group_by(lambda entry: (*key(entry), entry.get("verdict")), entries).values():
        yield _line(word, len(group), group[0])
        yield from (f"    {entry['machine']}" for entry in group if named)


def _line(word: str, count: int, entry: Document) -> str:
    template = f" of {entry['template']}" if entry["template"] else ""
    reason = ", ".join(filter(None, (entry.get("verdict"), entry["reason"])))
    message = f": {entry['text']}" if entry.get("text") else ""
    return f"  {word:<6} {count}{template} in {entry['pool']}: {reason}{message}"

"""``provisioner plan``: what the next cycle would do."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from provisioner.commands.looks import look
from provisioner.commands.options import Document, add_shared, settings, show, state_directory
from provisioner.model import Look, Plan, Snapshot
from provisioner.settings.tree import Settings
from provisioner.state.directory import StateDir


def add_options(command: argparse.ArgumentParser) -> None:
    """Whose next cycle, and how to print it."""
    add_shared(command, "config", "state-dir", "output")


def run(options: argparse.Namespace) -> int:
    """Returns PROBLEM when a pool was not seen. Raises StateError, BackendError."""
    looks, plan = preview(settings(options.config), state_directory(options.state_dir))
    document = plan_document(plan, looks)
    return show(options, document, plan_text, fine=plan_is_fine(document))


def preview(settings: Settings, state: StateDir) -> tuple[Mapping[str, Look], Plan | None]:
    """What the pools hold and what the next cycle would do; touches nothing. Raises StateError, BackendError."""
    from provisioner.backends.registry import close, make_backends
    from provisioner.commands.offline import clock_of, reconciler

    backends = make_backends(settings.pools, settings.site)
    clock = clock_of(state)
    try:
        looks = look(backends, clock.now())
        return looks, reconciler(settings, state, clock).preview(looks)
    finally:
        close(backends)


def plan_document(plan: Plan | None, looks: Mapping[str, Look]) -> dict[str, Any]:
    """What the next cycle would do."""
    pools = {
        name: {"machines": len(seen.machines), "problems": list(seen.problems)}
        if isinstance(seen, Snapshot)
        else {"error": seen.failure.error, "text": seen.failure.text}
        for name, seen in looks.items()
    }
    if plan is None:
        return {"pools": pools, "creates": [], "deletes": [], "closes": [], "deferred": []}
    return {
        "pools": pools,
        "creates": [{"machine": c.name, "pool": c.pool, "template": c.template} for c in plan.creates],
        "deletes": [{"machine": d.name, "pool": d.pool, "reason": d.reason} for d in plan.deletes],
        "closes": [{"machine": c.name, "pool": c.pool, "verdict": c.verdict} for c in plan.closes],
        "deferred": [
            {"pool": pool, "template": template, "reason": reason, "machines": count}
            for (pool, template, reason), count in plan.deferred.items()
        ],
    }


def plan_is_fine(document: Document) -> bool:
    """True when every pool was seen: of one that was not, the plan says nothing."""
    return not any("error" in seen for seen in document["pools"].values())


def plan_text(document: Document) -> str:
    """The document as text for a terminal."""
    lines = [
        f"  pool {name}: {seen['machines']} machines"
        if "machines" in seen
        else f"  pool {name}: UNSEEN, {seen['text']}"
        for name, seen in document["pools"].items()
    ]
    lines += [f"  pool {name}: {text}" for name, seen in document["pools"].items() for text in seen.get("problems", ())]
    lines += [f"  create {c['machine']} in {c['pool']} ({c['template']})" for c in document["creates"]]
    lines += [f"  delete {d['machine']} in {d['pool']}: {d['reason']}" for d in document["deletes"]]
    lines += [f"  close  {c['machine']}: {c['verdict']}" for c in document["closes"]]
    lines += [
        f"  defer  {d['machines']} of {d['template']} in {d['pool']}: {d['reason']}" for d in document["deferred"]
    ]
    acts = sum(len(document[key]) for key in ("creates", "deletes", "closes", "deferred"))
    return "\n".join(["The next cycle would:" if acts else "The next cycle has nothing to do.", *lines])

"""What ``plan``, ``trim``, ``check`` and ``recover`` say: documents first, text made from them. Touches nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from provisioner.backends import Backend, BackendError, Finding, Severity
from provisioner.backends.gke.pod_spec import read_pod_spec
from provisioner.commands.status import Document, brake_lines
from provisioner.files.atomic import StateMissing
from provisioner.loop.loop import FOR_PEOPLE, LoopClock
from provisioner.model import Look, Plan, Snapshot, Unobserved
from provisioner.names import RETURN_ID_PREFIX
from provisioner.settings.tree import AnyPool, GkePool, Settings
from provisioner.state.directory import StateDir
from provisioner.state.recovery import Recovery

LOOK_SECONDS = 30.0
"""How long ``plan`` tries to see a pool."""

# --- plan -------------------------------------------------------------------------------------------------------------


def look(backends: Mapping[str, Backend], now: float, seconds: float = LOOK_SECONDS) -> dict[str, Look]:
    """A complete look at each pool, or why there is none."""
    deadline = time.monotonic() + seconds
    return {name: _look(backend, now, deadline) for name, backend in backends.items()}


def _look(backend: Backend, now: float, deadline: float) -> Look:
    """Tried again, but only once where a person has to mend it: credentials may have ended just now."""
    refused = 0
    while True:
        try:
            return backend.observe(now, ())
        except BackendError as error:
            refused += error.failure.error in FOR_PEOPLE
            if refused > 1 or time.monotonic() + 1 >= deadline:
                return Unobserved(backend.pool, now, error.failure)
        time.sleep(1)


def clock_of(state: StateDir) -> LoopClock:
    """Loop time as the next loop would have it."""
    try:
        memory = state.memory.read()
    except StateMissing:
        return LoopClock()
    return LoopClock(memory.time, memory.time_wall)


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
    """Every pool was seen: of one that was not, the plan says nothing."""
    return not any("error" in seen for seen in document["pools"].values())


def plan_text(document: Document) -> str:
    """For a terminal."""
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


# --- trim -------------------------------------------------------------------------------------------------------------


def trim_document(left: Sequence[str] | None, *, dry_run: bool) -> dict[str, Any]:
    """Which ids leave, or left, the files; ``left`` is None where a running loop does it."""
    ids = left or ()
    return {
        "requests": [id_ for id_ in ids if not id_.startswith(RETURN_ID_PREFIX)],
        "returns": [id_ for id_ in ids if id_.startswith(RETURN_ID_PREFIX)],
        "dry_run": dry_run,
        "loop_runs": left is None,
    }


def trim_text(document: Document) -> str:
    """For a terminal."""
    if document["loop_runs"]:
        return "A loop runs: it trims the files by itself. To see what is due: provisioner trim --dry-run"
    word = "would leave" if document["dry_run"] else "left"
    lines = [f"  request {id_} {word} the files" for id_ in document["requests"]]
    lines += [f"  return  {id_} {word} the files" for id_ in document["returns"]]
    return "\n".join(lines or ["  nothing is due"])


# --- recover ----------------------------------------------------------------------------------------------------------


def recovery_document(plan: Recovery, looks: Mapping[str, Look], released: Document) -> dict[str, Any]:
    """What is wrong with the state files, what would be written, and what a release of the brake sets going.

    ``files``: fine, missing, unreadable or older, by kind. ``requests`` and ``returns``: written back; of a ``kept``
    one only the machines are left. ``writes``: kinds of files written or moved aside. ``unknown``: machines without a
    request. ``unseen``: pools. ``brake``, ``release_asked``, ``waiting`` and ``forgotten``: as of overview.released.
    ``applied``, ``released``, ``moved`` (files) and ``outcome`` (a sentence): what this call did.
    """
    intent = plan.intent
    return {
        "files": {kind: str(condition) for kind, condition in plan.files.conditions.items()},
        "requests": [
            {"id": request.id, "template": request.template, "count": request.count, "kept": request.id in plan.kept}
            for request in (intent.requests.values() if intent else ())
        ],
        "returns": [
            {"id": back.id, "machines": list(back.names)} for back in (intent.returns.values() if intent else ())
        ],
        "writes": [*(["intent"] if intent else []), *plan.unreadable],
        "unknown": list(plan.unknown),
        "unseen": [pool for pool, seen in looks.items() if isinstance(seen, Unobserved)],
        **released,
    }


def recovery_text(document: Document) -> str:
    """For a terminal."""
    lines = [f"  {kind}.json: {condition}" for kind, condition in document["files"].items()]
    lines += [
        f"  writes back request {request['id']}: {request['count']} of {request['template']}"
        + ("; only its machines are left, they stay until HostFactory returns them" if request["kept"] else "")
        for request in document["requests"]
    ]
    lines += [f"  writes back return {back['id']}: {', '.join(back['machines'])}" for back in document["returns"]]
    lines += [f"  moves aside {kind}.json" for kind in document["writes"] if document["files"][kind] == "unreadable"]
    lines += [f"  pool {pool} cannot be seen" for pool in document["unseen"]]
    lines += brake_lines(document)
    if document["waiting"] or document["forgotten"]:
        lines.append("  So it will be if no brake holds from now on, and HostFactory does not list the machine.")
    return "\n".join(lines)


# --- check ------------------------------------------------------------------------------------------------------------


def check_document(settings: Settings, advice: Sequence[str]) -> dict[str, Any]:
    """What the configuration comes to, and what to look at."""
    return {
        "id": settings.id,
        "name_prefix": settings.name_prefix,
        "pools": {name: {"kind": pool.kind, "place": list(pool.place)} for name, pool in settings.pools.items()},
        "templates": {
            id_: {"pools": list(limits.pools), "max_machines": limits.max_machines}
            for id_, limits in settings.template_limits.items()
        },
        "warnings": [*(text for name, pool in settings.pools.items() for text in _warnings(name, pool)), *advice],
    }


def _warnings(name: str, pool: AnyPool) -> list[str]:
    """What a person may not have meant, though it is no mistake."""
    if not isinstance(pool, GkePool):
        return []
    # urllib3, which comes with it, costs every command a tenth of a second.
    from provisioner.backends.gke.pods import OWN_LABELS

    replaced = read_pod_spec(pool.pod_spec, pool.namespace).replaced(OWN_LABELS)
    return [f"pools.{name}.pod_spec: '{pool.pod_spec.name}': {field}: replaced by our own" for field in replaced]


def findings_document(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """What the clouds say about the pools, the worst first."""
    ordered = sorted(findings, key=lambda finding: list(Severity).index(finding.severity), reverse=True)
    return [{"pool": one.pool, "severity": str(one.severity), "text": one.text} for one in ordered]


def check_is_fine(document: Document) -> bool:
    """Nothing but warnings, if that."""
    return all(finding["severity"] == Severity.WARNING for finding in document.get("findings", ()))


def check_text(document: Document) -> str:
    """For a terminal."""
    word = "Fine" if check_is_fine(document) else "Wrong"
    lines = [f"{word}: provisioner {document['id']}, machines named {document['name_prefix']}-…"]
    lines += [
        f"  pool {name}: {pool['kind']} {' '.join(pool['place'][1:])}" for name, pool in document["pools"].items()
    ]
    lines += [
        f"  template {id_}: {' → '.join(limits['pools'])}, at most {limits['max_machines'] or 'any number'}"
        for id_, limits in document["templates"].items()
    ]
    lines += [f"  warning: {text}" for text in document["warnings"]]
    findings = document.get("findings")
    lines += [f"  {found['severity'].upper()} pool {found['pool']}: {found['text']}" for found in findings or ()]
    if findings == []:
        lines.append("  every pool's place is as it should be")
    return "\n".join(lines)

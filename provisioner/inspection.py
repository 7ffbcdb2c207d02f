"""What ``status``, ``plan``, ``check`` and ``recover`` say: documents first, text made from them. Touches nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from provisioner.backends import Backend, BackendError, Finding, Severity
from provisioner.backends.pod_spec import read_pod_spec
from provisioner.durable import StateMissing
from provisioner.loop import LoopClock
from provisioner.marks import UNSEEN
from provisioner.model import Look, Memory, Plan, RequestStatus, Snapshot, Unobserved, Verdict
from provisioner.names import RETURN_ID_PREFIX
from provisioner.recovery import Recovery
from provisioner.settings import AnyPool, GkePool, Settings
from provisioner.status import UNLISTED_AFTER
from provisioner.store import StateDir

LOOK_SECONDS = 30.0
"""How long ``plan`` tries to see a pool."""

Document = Mapping[str, Any]


# --- status -----------------------------------------------------------------------------------------------------------


def status(state: StateDir) -> dict[str, Any]:
    """What the state files hold. Raises StateError."""
    intent = state.intent.read()
    try:
        memory: Memory | None = state.memory.read()
    except StateMissing:
        memory = None
    document: dict[str, Any] = {
        "state_directory": state.path,
        "provisioner": intent.provisioner,
        "generation": intent.generation,
        "loop": {**state.loop_lock.holder(), "silent_seconds": state.heartbeat.silent_now()},
        "requests": [],
        "returns": [],
        "stuck": [],
        "memory_lost": memory is None and state.memory.existed(),
        "brake": None,
        "problems": state.notes.read(),
        "unlisted": [],
    }
    if memory is not None:
        document["requests"] = [_request(memory, id_) for id_ in memory.requests]
        document["returns"] = [
            {
                "id": back.id,
                "status": back.ended or RequestStatus.RUNNING,
                "machines": len(back.names),
                "settled": len(back.results),
            }
            for back in memory.returns.values()
        ]
        document["stuck"] = [
            {"machine": slot.name, "pool": slot.pool}
            for record in memory.requests.values()
            for slot in record.slots.values()
            if slot.stuck and not slot.gone
        ]
        document["pressure"] = [
            {
                "pool": pool,
                "template": template,
                "window": known.window,
                "backing_off": known.level > 0,
                "why": known.failure.text if known.failure else "",
            }
            for (pool, template), known in sorted(memory.pressures.items())
        ]
        document["brake"] = _brake(memory)
        now = memory.time + max(0.0, time.time() - memory.time_wall)
        document["unlisted"] = sorted(name for name, since in memory.unlisted.items() if now - since >= UNLISTED_AFTER)
    known_ids = set(memory.requests) | set(memory.returns) if memory else set()
    document["unread"] = sorted((set(intent.requests) | set(intent.returns)) - known_ids)
    return document


def _brake(memory: Memory) -> dict[str, Any] | None:
    brake = memory.brake
    return {"reason": brake.reason, "detail": brake.detail, "pool": brake.pool} if brake else None


def _request(memory: Memory, id_: str) -> dict[str, Any]:
    record = memory.requests[id_]
    slots = record.slots.values()
    return {
        "id": id_,
        "template": record.template,
        "count": record.count,
        "status": record.ended or RequestStatus.RUNNING,
        "running": sum(slot.ran is not None and slot.verdict in (Verdict.OPEN, Verdict.SUCCEEDED) for slot in slots),
        "slots": dict(Counter(str(slot.verdict) for slot in slots)),
        "set_aside": [slot.name for slot in slots if slot.set_aside],
    }


def status_is_fine(document: Document) -> bool:
    """Nothing here asks for a person."""
    aside = any(request["set_aside"] for request in document["requests"])
    unseen = any(note.startswith(UNSEEN) for notes in document["problems"].values() for note in notes)
    return not (document["brake"] or document["memory_lost"] or document["stuck"] or aside or unseen)


def status_text(document: Document) -> str:
    """For a terminal."""
    loop = document["loop"]
    silent = loop.get("silent_seconds")
    ran = "has never run" if silent is None else f"last ran {silent:.0f} s ago on {loop.get('host', '?')}"
    lines = [
        f"Provisioner {document['provisioner']} in {document['state_directory']}",
        f"  loop {ran}, epoch {loop.get('epoch', 0)}; intent generation {document['generation']}",
    ]
    if document["memory_lost"]:
        lines.append("  MEMORY LOST: memory.json is missing although it was written; see: provisioner recover")
    if document["brake"]:
        lines += [
            f"  BRAKE {document['brake']['reason']}: {document['brake']['detail']}",
            "  No orphan is deleted until you looked and ran: provisioner recover",
        ]
    lines += [_request_line(request) for request in document["requests"]]
    lines += [
        f"  return  {back['id']}: {back['status']}, {back['settled']} of {back['machines']} settled"
        for back in document["returns"]
    ]
    lines += [
        f"  STUCK {one['machine']} in pool {one['pool']}: still terminating long after its grace period; "
        "see its node and its finalizers"
        for one in document["stuck"]
    ]
    lines += [
        f"  pool {known['pool']}, {known['template']}: window {known['window']}"
        + (f", backing off: {known['why']}" if known["backing_off"] else "")
        for known in document.get("pressure", ())
    ]
    lines += [f"  pool {pool}: {note}" for pool, notes in document["problems"].items() for note in notes]
    lines += [f"  machine {name}: no list of HostFactory has named it for a day" for name in document["unlisted"]]
    if document["unread"]:
        lines.append(f"  not read by a loop yet: {', '.join(document['unread'])}")
    return "\n".join(lines)


def _request_line(request: Document) -> str:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(request["slots"].items()))
    aside = f"; SET ASIDE: {', '.join(request['set_aside'])}" if request["set_aside"] else ""
    return (
        f"  request {request['id']} ({request['template']}): {request['status']}, "
        f"{request['running']} of {request['count']} running; slots: {verdicts or 'none'}{aside}"
    )


# --- plan -------------------------------------------------------------------------------------------------------------


def look(backends: Mapping[str, Backend], now: float, seconds: float = LOOK_SECONDS) -> dict[str, Look]:
    """A complete look at each pool, or why there is none."""
    deadline = time.monotonic() + seconds
    return {name: _look(backend, now, deadline) for name, backend in backends.items()}


def _look(backend: Backend, now: float, deadline: float) -> Look:
    while True:
        try:
            return backend.observe(now, ())
        except BackendError as error:
            if time.monotonic() + 1 >= deadline:
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


def recovery_document(plan: Recovery, looks: Mapping[str, Look]) -> dict[str, Any]:
    """What is wrong with the state files and what would be written; ``looks`` as far as pools were looked at."""
    memory, intent = plan.files.memory, plan.intent
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
        "brake": _brake(memory) if memory else None,
    }


def recovery_outcome(plan: Recovery, *, applied: bool) -> str:
    """What was done, and what to do next."""
    if not applied:
        return "Nothing was written. To write it: provisioner recover --apply"
    if plan.releases:
        return "The loop releases the brake with its next cycle."
    if plan.files.fine("memory"):
        return "No brake is latched; there is nothing to release."
    return (
        "The loop makes memory.json as soon as it has seen every pool. If it then latches the brake, "
        "look at `provisioner status` and run this again."
    )


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
    lines += [
        f"  machine {name} has no request: deleted as an orphan once the brake is released, unless HostFactory lists it"
        for name in document["unknown"]
    ]
    if document["brake"]:
        lines.append(f"  BRAKE {document['brake']['reason']}: {document['brake']['detail']}")
    return "\n".join([*lines, f"  {document['outcome']}"])


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
    from provisioner.backends.pods import OWN_LABELS

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

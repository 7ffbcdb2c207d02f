"""Why requests and pools are short of machines, as values and as sentences for people."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from provisioner.model import DAY, HOUR, Limits, Memory, format_utc
from provisioner.planning.shortage import BesideMemory, Lack, Shortage, Trouble, shortages
from provisioner.telemetry.notes import Notes

Document = Mapping[str, Any]
"""An object as ``-o json`` prints it."""

Key = tuple[str, str]
"""Pool and template."""

HOLDERS = 3
"""The most requests named as users of a cap on a terminal; ``-o json`` names all."""


def missing(
    memory: Memory, notes: Notes, last: Mapping[Key, Trouble], now: float
) -> Mapping[str, list[dict[str, Any]]]:
    """Of each open request what it is short of: an entry for each pool and reason. ``last``: the ``troubles``.

    ``reason``: a ``Lack``, as to ``machines`` of a ``pool``.
    ``error``: class, or None; ``text``: the cloud's words.
    ``since``, ``next_try`` and ``spills_at``: UTC, with ``_seconds``: for how long, and in how long; or None.
    ``spills_to``, ``behind``, ``bound``, ``holders`` and ``elsewhere``: as of ``Shortage``.
    ``braked``: machines without a request hold the cap, and the brake holds these.
    ``quiet``: nothing stands in their way.
    """
    beside = BesideMemory(
        notes.limits or Limits("", {}, {}),
        notes.unseen,
        {pool: len(names) for pool, names in notes.orphans.items()},
    )
    return {
        id_: [_entry(memory, one, now) for one in lacks]
        for id_, lacks in shortages(memory, beside, now, last).items()
        if lacks
    }


def _entry(memory: Memory, one: Shortage, now: float) -> dict[str, Any]:
    return {
        "machines": one.machines,
        "pool": one.pool,
        "reason": one.lack,
        "error": one.error,
        "text": one.text,
        **past(memory, "since", one.since, now),
        **coming(memory, "next_try", one.next_try, now),
        "spills_to": one.spills_to,
        **coming(memory, "spills_at", one.spills_at, now),
        "behind": one.behind,
        "bound": one.bound,
        "holders": dict(one.holders),
        "braked": memory.brake is not None and bool(one.holders.get("")),
        "elsewhere": dict(one.elsewhere),
        "quiet": one.quiet,
    }


def learned(
    memory: Memory, last: Mapping[Key, Trouble], waiting: Mapping[Key, int], now: float
) -> list[dict[str, Any]]:
    """What was learned of each pool and template; ``last``: their last troubles, ``waiting``: machines that wait there.

    ``window``, ``backing_off`` and ``why``; ``since`` when it backs off from that, and the ``next_probe``;
    ``last_error``: its ``error``, ``text`` and time ``at``, or None; ``missing``: machines that wait there.
    """
    return [
        _pool(memory, key, last.get(key), waiting.get(key, 0), now)
        for key in sorted(memory.pressures.keys() | last.keys() | waiting.keys())
        if key[0]
    ]


def _pool(memory: Memory, key: tuple[str, str], trouble: Trouble | None, waits: int, now: float) -> dict[str, Any]:
    window = memory.pressures.get(key)
    failure = window.failure if window else None
    backs_off = window is not None and window.level > 0
    same = trouble is not None and failure is not None and trouble.failure.error is failure.error
    since = (trouble.since if trouble and same else window.blocked_at) if window and backs_off else None
    return {
        "pool": key[0],
        "template": key[1],
        "window": window.window if window else None,
        "backing_off": backs_off,
        "why": failure.text if failure else "",
        **past(memory, "since", since, now),
        **coming(memory, "next_probe", window.retry_at if window and backs_off else None, now),
        "last_error": last_error(memory, trouble, waits, now),
        "missing": waits,
    }


def last_error(memory: Memory, trouble: Trouble | None, waits: int, now: float) -> dict[str, Any] | None:
    """The class of a trouble, its words, and when it was; None once it is over and no machine ``waits`` any more."""
    if trouble is None or (trouble.over and not waits):
        return None
    return {**trouble.failure.facts, **past(memory, "at", trouble.at, now)}


def past(memory: Memory, name: str, at: float | None, now: float) -> dict[str, Any]:
    """A time, and for how long it has passed."""
    passed = None if at is None else round(max(0.0, now - at), 1)
    return {name: None if at is None else format_utc(memory.wall_of(at)), f"{name}_seconds": passed}


def coming(memory: Memory, name: str, at: float | None, now: float) -> dict[str, Any]:
    """A time, and in how long it comes."""
    left = None if at is None else round(max(0.0, at - now), 1)
    return {name: None if at is None else format_utc(memory.wall_of(at)), f"{name}_seconds": left}


# --- for people -------------------------------------------------------------------------------------------------------


def missing_lines(request: Document, *, loop_acts: bool) -> Iterator[str]:
    """Why a request is short, a line for each pool and reason; none where its machines only start.

    ``loop_acts``: a loop runs and plans.
    """
    ones = request["missing"]
    if all(one["quiet"] and (loop_acts or one["reason"] != Lack.NEXT) for one in ones):
        return
    for one in ones:
        where = f" in {one['pool']}" if one["pool"] else ""
        facts = "; ".join(filter(None, _facts(one, loop_acts=loop_acts)))
        yield f"    {one['machines']}{where}: {facts}"


def _facts(one: Document, *, loop_acts: bool) -> Iterator[str]:
    text = on_one_line(one["text"])
    why = ", ".join(filter(None, (_reason(one), one["error"])))
    since = f" since {local(one['since'])} ({lasting(one['since_seconds'])})" if one["since"] else ""
    yield f"{why}{since}{': ' + text if text else ''}"
    yield _holders(one)
    yield f"behind {one['behind']}" if one["behind"] else ""
    yield _spill(one)
    yield _next_try(one, loop_acts=loop_acts)
    if one["elsewhere"]:
        yield "nor in " + ", ".join(f"{pool} ({lack})" for pool, lack in one["elsewhere"].items())


WORDS = {
    Lack.UNSEEN: "the pool is unseen",
    Lack.NEXT: "to be asked for",
    Lack.BUDGET: "held back by the budget",
    Lack.UNSENT: "not sent yet",
    Lack.UNANSWERED: "create not answered yet",
    Lack.GATED: "held back by a gate",
    Lack.TROUBLED: "asked for and not running",
    Lack.SET_ASIDE: "set aside for a person to look at",
    Lack.GIVEN_UP: "given up",
    Lack.UNKNOWN: "no loop has said which pools the template names",
}


def _reason(one: Document) -> str:
    bound = one["bound"]
    if one["reason"] == Lack.WINDOW and bound is not None:
        return f"window of {bound}"
    if one["reason"] == Lack.CAP and bound is not None:
        return f"cap of {bound}"
    return WORDS.get(one["reason"], str(one["reason"]))


def _holders(one: Document) -> str:
    held = list(one["holders"].items())
    if not held:
        return ""
    kept = " that the brake keeps" if one["braked"] else ""
    said = [f"{id_} ({count})" if id_ else f"{count} machines without a request{kept}" for id_, count in held[:HOLDERS]]
    more = f" and {len(held) - HOLDERS} more" if len(held) > HOLDERS else ""
    return f"held by {', '.join(said)}{more}"


def _spill(one: Document) -> str:
    left = one["spills_at_seconds"]
    when = f"in {lasting(left)}" if left else "once it takes them"
    return f"spills over to {one['spills_to']} {when}" if one["spills_to"] else ""


def _next_try(one: Document, *, loop_acts: bool) -> str:
    left = one["next_try_seconds"]
    if left is None:
        return ""
    if not left:
        return "next try with the next cycle" if loop_acts else "next try once the loop acts"
    if one["reason"] in (Lack.BACKOFF, Lack.UNSENT):
        return f"next try in {lasting(left)}"
    return f"asked for again in {lasting(left)} at the latest"


def pool_line(pool: Document) -> str:
    """What was learned of a pool and template, on a line."""
    facts = [f"window {pool['window']}"] if pool["window"] is not None else []
    if pool["missing"]:
        facts.append(f"{pool['missing']} missing")
    last = pool["last_error"]
    if pool["backing_off"]:
        left = pool["next_probe_seconds"]
        probe = f"next probe in {lasting(left)}" if left else "probing"
        since = f"since {local(pool['since'])} ({lasting(pool['since_seconds'])})"
        facts.append(f"backing off {since}, {probe}: {on_one_line(pool['why'])}")
    if last and not (pool["backing_off"] and last["text"] == pool["why"]):
        facts.append(f"last error {lasting(last['at_seconds'])} ago, {last['error']}: {on_one_line(last['text'])}")
    elif last:
        facts.append(f"last error {lasting(last['at_seconds'])} ago")
    return f"  pool {pool['pool']}, {pool['template']}: {', '.join(facts) or 'nothing is known'}"


def on_one_line(text: str) -> str:
    return " ".join(text.split())


def local(utc_time: str) -> str:
    """A UTC time as this terminal's clock shows it; with its date where that was not today."""
    try:
        then = datetime.fromisoformat(utc_time).astimezone()
    except (ValueError, OverflowError, OSError):
        return utc_time
    return then.strftime("%H:%M:%S" if abs(time.time() - then.timestamp()) < DAY else "%Y-%m-%d %H:%M:%S")


def lasting(seconds: float) -> str:
    """So many seconds as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR:.0f} h" if seconds < 2 * DAY else f"{seconds / DAY:.0f} d"

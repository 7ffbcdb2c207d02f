"""The decision of a step: which machines are requested and which are returned. No I/O, no clock, no log.

A step never requests more machines than are missing now. It returns only machines that do not work, and only after
fewer machines have been wanted for some time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from provisioner.demand.last_values import Wish
from provisioner.demand.machines import Ours
from provisioner.demand.settings import Demand

Levels = Mapping[str, Sequence[tuple[float, int]]]
"""Times and numbers of the latest wishes by template, the oldest first. They reach back ``fall_after_seconds``."""


class Step(NamedTuple):
    """The calls of a step."""

    returns: Sequence[str]
    """Machines to return, with one call."""
    requests: Mapping[str, int]
    """Machines to request by template, with one call each. They come after the returns."""
    reasons: Sequence[str]
    """Sentences for operators: what the step does, and why it does no more."""
    levels: Levels
    """The levels for the next step."""


def plan_step(wish: Wish, ours: Ours, lost: Mapping[str, int], settings: Demand, levels: Levels, now: float) -> Step:
    """Return the calls of this step. ``lost``: seconds left for the machines that HostFactory has to return; 0 for a
    machine that is gone. ``levels``: from the step before; empty after a start. ``now``: epoch seconds."""
    returns = [name for name, left in lost.items() if name in ours.settled and (not left or _is_free(name, wish, ours))]
    reasons = [f"returns {len(returns)} machines that are lost or have to leave"] if returns else []
    running = Counter(one.template for one in ours.running.values())
    leaving = Counter(ours.running[name].template for name in returns)
    free = _find_free(wish, ours, lost, now - settings.minimum_age_seconds)
    requests: dict[str, int] = {}
    kept: dict[str, Sequence[tuple[float, int]]] = {}
    since = now - settings.fall_after_seconds
    for template, wanted in wish.wanted.items():
        asked = ours.asked.get(template, 0) - leaving[template]
        if template not in wish.frozen:
            kept[template] = _levels_since(since, [*levels.get(template, ()), (now, wanted)])
        if wanted > asked:
            requests[template] = min(wanted - asked, settings.rise_at_once)
            reasons.append(f"{template}: requests {requests[template]}, because {wanted} are wanted and {asked} asked")
        elif wanted < asked and template in wish.frozen:
            reasons.append(f"{template}: keeps {asked} with {wanted} wanted, because {wish.frozen[template]}")
        elif wanted < asked:
            surplus = _find_surplus(asked, kept[template], since)
            share = max(1, int(settings.fall_share * running[template]))
            chosen = free.get(template, [])[: min(surplus, share)]
            returns += chosen
            reasons.append(
                f"{template}: {wanted} are wanted and {asked} asked, {surplus} of them too many since "
                f"{settings.fall_after_seconds:g} s, {len(free.get(template, []))} are free; returns {len(chosen)}"
            )
    return Step(returns, requests, reasons, kept)


def _find_surplus(asked: int, levels: Sequence[tuple[float, int]], since: float) -> int:
    """Return how many machines more than at any time after ``since`` were wanted; 0 if the levels are too new."""
    is_known = levels[0][0] <= since
    return max(0, asked - max(level for _, level in levels)) if is_known else 0


def _levels_since(since: float, levels: Sequence[tuple[float, int]]) -> Sequence[tuple[float, int]]:
    """Return the levels in force after ``since``: the last one of those until this time, and all later ones."""
    first = max((place for place, (at, _) in enumerate(levels) if at <= since), default=0)
    return levels[first:]


def _is_free(name: str, wish: Wish, ours: Ours) -> bool:
    """Return True if the machine is idle, or if no source knows the machines of its template."""
    idle = wish.idle.get(ours.running[name].template)
    return idle is None or name in idle


def _find_free(wish: Wish, ours: Ours, lost: Mapping[str, int], youngest: float) -> Mapping[str, Sequence[str]]:
    """Return by template the machines that may be returned: those idle for longest first, then the oldest.
    ``youngest``: the latest start of such a machine."""

    def order(name: str) -> tuple[float, float, str]:
        template, since = ours.running[name]
        return -wish.idle.get(template, {}).get(name, 0.0), since, name

    free: dict[str, list[str]] = {}
    for name in sorted(ours.settled - lost.keys(), key=order):
        if ours.running[name].since <= youngest and _is_free(name, wish, ours):
            free.setdefault(ours.running[name].template, []).append(name)
    return free

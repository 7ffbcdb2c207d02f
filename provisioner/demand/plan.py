"""The decision of a step: our machines, recovered from the scripts' answers, and which machines are requested and which
are returned. No I/O, no clock, no log.

A step never requests more machines than are missing now. It returns only machines that do not work, a share of a
template's machines at once, and only if they have to leave or after fewer machines have been wanted for some time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from provisioner.demand.last_values import UNDECIDED, Wish
from provisioner.demand.settings import Demand
from provisioner.demand.sources import Running
from provisioner.model import Request

ENDED = frozenset({"complete", "complete_with_error"})

Entry = Mapping[str, Any]
"""Entry of a request in getRequestStatus."""

Levels = Mapping[str, Sequence[tuple[float, int]]]
"""Times and numbers of the latest wishes by template, the oldest first. They reach back ``fall_after_seconds``."""


class Ours(NamedTuple):
    """Our requests and machines at one moment."""

    asked: Mapping[str, int]
    """Machines that run or are still on their way, by template."""
    running: Mapping[str, Running]
    """Machines that run, by name."""
    settled: Set[str]
    """Running machines whose request has ended. A return of another machine would end its request."""


def recover(requests: Iterable[Request], entries: Mapping[str, Entry], gone: Set[str]) -> Ours:
    """Return what ``requests`` have led to. ``entries``: the answer to each request. ``gone``: machines that were
    returned."""
    asked: Counter[str] = Counter()
    running: dict[str, Running] = {}
    settled: set[str] = set()
    for request in requests:
        entry = entries[request.id]
        machines, has_ended = entry["machines"], entry["status"] in ENDED
        ours = [one for one in machines if one["result"] == "succeed" and one["name"] not in gone]
        for one in ours:
            running[one["name"]] = Running(request.template, float(one["launchtime"] or request.created_wall))
        if has_ended:
            settled.update(one["name"] for one in ours)
            asked[request.template] += len(ours)
        else:
            over = sum(one["result"] == "fail" or one["name"] in gone for one in machines)
            asked[request.template] += max(0, request.count - over)
    return Ours(asked, running, settled)


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
    running = Counter(one.template for one in ours.running.values())
    shares = Counter({template: max(1, int(settings.fall_share * number)) for template, number in running.items()})
    returns = _find_leaving(wish, ours, lost, shares)
    reasons = [f"returns {len(returns)} machines that are lost or have to leave"] if returns else []
    leaving = Counter(ours.running[name].template for name in returns)
    free = _find_free(wish, ours, lost, now - settings.minimum_age_seconds)
    requests, kept = dict[str, int](), dict[str, Sequence[tuple[float, int]]]()
    since = now - settings.fall_after_seconds
    for template in {**wish.wanted, **ours.asked}:
        wanted, asked = wish.wanted.get(template, 0), ours.asked.get(template, 0) - leaving[template]
        frozen = wish.frozen.get(template, "" if template in wish.wanted else UNDECIDED)
        if not frozen:
            kept[template] = _levels_since(since, [*levels.get(template, ()), (now, wanted)])
        if wanted > asked:
            requests[template] = min(wanted - asked, settings.rise_at_once)
            reasons.append(f"{template}: requests {requests[template]}, because {wanted} are wanted and {asked} asked")
        elif wanted < asked and frozen:
            reasons.append(f"{template}: keeps {asked} with {wanted} wanted, because {frozen}")
        elif wanted < asked:
            surplus = _find_surplus(asked, kept[template], since)
            own = [name for name in free if ours.running[name].template == template]
            chosen = own[: min(surplus, shares[template])]
            returns += chosen
            reasons.append(
                f"{template}: {wanted} are wanted and {asked} asked, {surplus} of them too many since "
                f"{settings.fall_after_seconds:g} s, {len(own)} are free; returns {len(chosen)}"
            )
    return Step(returns, requests, reasons, kept)


def _find_leaving(wish: Wish, ours: Ours, lost: Mapping[str, int], shares: Counter[str]) -> list[str]:
    """Return the machines that are gone, and free machines that have to leave, those with the soonest end first.
    ``shares``: the number of machines that may still leave by template, which is reduced."""
    leaving = []
    for name in sorted(lost.keys() & ours.settled, key=lambda name: (lost[name], name)):
        template = ours.running[name].template
        if lost[name] and not (shares[template] and _is_free(name, wish, ours)):
            continue
        shares[template] -= bool(lost[name])
        leaving.append(name)
    return leaving


def _find_surplus(asked: int, levels: Sequence[tuple[float, int]], since: float) -> int:
    """Return how many machines more than at any time after ``since`` were wanted; 0 if the levels are too new."""
    return max(0, asked - max(level for _, level in levels)) if levels[0][0] <= since else 0


def _levels_since(since: float, levels: Sequence[tuple[float, int]]) -> Sequence[tuple[float, int]]:
    """Return the levels in force after ``since``: the last one of those until this time, and all later ones."""
    first = max((place for place, (at, _) in enumerate(levels) if at <= since), default=0)
    return levels[first:]


def _is_free(name: str, wish: Wish, ours: Ours) -> bool:
    """Return True if the machine is idle, or if no source knows the machines of its template."""
    idle = wish.idle.get(ours.running[name].template)
    return idle is None or name in idle


def _find_free(wish: Wish, ours: Ours, lost: Mapping[str, int], youngest: float) -> Sequence[str]:
    """Return the machines that may be returned: those idle for longest first, then the oldest. ``youngest``: the latest
    start of such a machine."""
    settled = {name: ours.running[name] for name in ours.settled - lost.keys()}
    free = [name for name, one in settled.items() if one.since <= youngest and _is_free(name, wish, ours)]
    idle = {name: wish.idle.get(settled[name].template, {}).get(name, 0.0) for name in free}
    return sorted(free, key=lambda name: (-idle[name], settled[name].since, name))

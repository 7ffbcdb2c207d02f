"""Our requests and machines, recovered from intent and from the scripts' answers. No I/O, no clock, no log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

from provisioner.demand.sources import Running
from provisioner.model import Request

ACCOUNT = "demand"
"""Account (``rc_account``) of our requests, by which they are found again after a crash."""

ENDED = frozenset({"complete", "complete_with_error"})

Entry = Mapping[str, Any]
"""Entry of a request in getRequestStatus."""


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
        running |= {
            one["name"]: Running(request.template, float(one["launchtime"] or request.created_wall)) for one in ours
        }
        if has_ended:
            settled.update(one["name"] for one in ours)
            asked[request.template] += len(ours)
        else:
            over = sum(one["result"] == "fail" or one["name"] in gone for one in machines)
            asked[request.template] += max(0, request.count - over)
    return Ours(asked, running, settled)

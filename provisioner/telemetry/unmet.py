"""The reasons why requests miss machines, as the loop published them: documents, and sentences for operators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

from provisioner.model import (
    DESIRED,
    ErrorClass,
    Memory,
    PendingReason,
    RequestRecord,
    Unmet,
    Verdict,
    Window,
    format_utc,
)
from provisioner.names import NO_TEMPLATE, format_printable
from provisioner.planning.report.unmet import TOTAL
from provisioner.telemetry.pool_status import PoolStatus
from provisioner.telemetry.pool_windows import (
    Document,
    Key,
    PoolFailure,
    coming_fields,
    format_count,
    format_duration,
    format_expected_start,
    format_local_time,
    past_fields,
)

HOLDERS_SHOWN = 3
"""Maximum number of requests that a line in a terminal names as users of a cap. ``-o json`` names all requests."""

QUIET = frozenset({PendingReason.UNKNOWN, PendingReason.UNANSWERED, PendingReason.STARTING, PendingReason.QUEUED})
"""Reasons that need no attention, because each machine passes through them."""

ADJECTIVES = frozenset({PendingReason.PAUSED, PendingReason.STOPPED, PendingReason.UNSEEN})
"""Reasons that describe the state of a pool, as in ``POOL is paused``."""

HELD_BACK = frozenset({PendingReason.WINDOW, PendingReason.BACKOFF, PendingReason.UNSENT})
"""Reasons that last as long as machines of the pool fail."""

BY_WINDOW = frozenset({PendingReason.WINDOW, PendingReason.BACKOFF})
"""Reasons whose cause is recorded in a window in memory. The cause is the same for all requests."""

MET = DESIRED | {Verdict.CANCELLED}
"""Verdicts of slots whose machines need no replacement."""

UNTRIED = Window(0)
"""The window of a pool and template if memory has none."""

PUBLISHED = ("pool", "reason", "machines", "spills_to", "behind", "bound")
"""Fields of ``Unmet`` that a document contains unchanged."""


class UnmetDocuments:
    """A maker of documents about unmet machines. Its inputs are memory and the pool status that the loop published."""

    def __init__(
        self, memory: Memory, pool_status: PoolStatus, failures: Mapping[Key, PoolFailure], now: float
    ) -> None:
        self._memory, self._pool_status, self._failures, self._now = memory, pool_status, failures, now
        self._holders: dict[Key, Mapping[str, int]] = {}
        """The number of machines of each request that use a cap, by the pool and template of the cap."""
        self._boots = defaultdict[Key, list[float]](list)
        """The seconds that each machine took from its create until it ran, by pool and template."""
        for record, slot in memory.slots:
            if slot.ran_at is not None:
                self._boots[slot.pool, record.template].append(slot.ran_at - slot.boots_from)

    def by_request(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return documents by open request: one for each pool and reason. Requests without missing machines are left
        out.

        * ``reason``: a ``PendingReason`` that holds for ``machines`` machines in ``pool``.
        * ``error``: the error class or None; ``text``: the cloud's words.
        * ``since``, ``next_try``, ``spills_at``: UTC times or None. The same keys with ``_seconds`` hold the seconds
          since or until the time.
        * ``spills_to``, ``behind``, ``bound``, ``elsewhere``, ``full``: as in ``Unmet``.
        * ``usual_seconds``: the median start-up time of the pool's machines; None if no machine ran.
        * ``holders``: the number of machines that use the cap, by request. The empty name stands for machines without a
          request.
        * ``braked``: True if machines without a request use the cap, and the brake prevents their deletion.
        * ``expected_start``: the UTC time at which the place expects to start a queued machine; or None.
        * ``quiet``: True if the reason needs no attention.
        """
        requests = [record for record in self._memory.requests.values() if record.ended is None]
        return {record.id: entries for record in requests if (entries := self._request_entries(record))}

    def _request_entries(self, record: RequestRecord) -> list[dict[str, Any]]:
        published = self._pool_status.unmet.get(record.id, ())
        met = [slot for slot in record.slots.values() if slot.ran_at is not None and slot.verdict in MET]
        running = sum([slot.life.down_since is None for slot in met])
        missing = record.count - record.failed_without_slot - running - sum(one.machines for one in published)
        unknown = [Unmet("", PendingReason.UNKNOWN, missing, since=record.read_at)] if missing > 0 else []
        return [self._entry(one, record) for one in (*published, *unknown)]

    def _entry(self, one: Unmet, record: RequestRecord) -> dict[str, Any]:
        error, text, since, next_try = self._find_cause(one, record)
        boots = self._boots.get((one.pool, record.template))
        holders = self._holders_of(one, record.template) if one.reason is PendingReason.CAP else {}
        return {name: getattr(one, name) for name in PUBLISHED} | {
            "error": error,
            "text": text,
            **past_fields(self._memory, "since", since, self._now),
            **coming_fields(self._memory, "next_try", next_try, self._now),
            **coming_fields(self._memory, "spills_at", one.spills_at, self._now),
            "elsewhere": dict(one.elsewhere),
            "full": dict(one.full),
            "usual_seconds": round(median(boots), 1) if boots else None,
            "expected_start": format_utc(one.expected_start) if one.expected_start else None,
            "holders": dict(holders),
            "braked": self._memory.brake is not None and bool(holders.get("")),
            "quiet": one.reason in QUIET and error is None,
        }

    def _find_cause(
        self, one: Unmet, record: RequestRecord
    ) -> tuple[ErrorClass | None, str, float | None, float | None]:
        """Return why the machines are missing: the error class and the text of the failure, the loop time at which the
        reason began, and the loop time of the next try. An unknown text is empty. Any other unknown value is None."""
        error, text, since, next_try = one.error, one.text, one.since, one.next_try_at
        if one.reason is PendingReason.UNSEEN:
            text, since = self._find_unseen_cause(one)
        window = self._memory.windows.get((one.pool, record.template), UNTRIED)
        if one.reason in BY_WINDOW and since is None:
            since = record.read_at if window.closed_since is None else window.closed_since
            next_try = (window.retry_at or None) if one.reason is PendingReason.BACKOFF else None
        if one.reason in BY_WINDOW and (failure := window.backs_off_from):
            error, text, since = failure.error, failure.text, window.blocked_at
        last = self._failures.get((one.pool, record.template))
        waits_for_room = one.reason is PendingReason.BACKOFF and error is None
        if last and one.reason in HELD_BACK and (error is last.failure.error or waits_for_room):
            error, text, since = last.failure.error, text or last.failure.text, last.since
        return error, text, since, next_try

    def _find_unseen_cause(self, one: Unmet) -> tuple[str, float | None]:
        began = self._pool_status.unseen_since.get(one.pool)
        since = one.since if began is None else began - self._memory.written.ahead
        return self._pool_status.unseen.get(one.pool, "its newest observation is too old or not trusted"), since

    def _holders_of(self, one: Unmet, template: str) -> Mapping[str, int]:
        """Return the number of machines that use the cap, by request, the largest number first. The cap limits one
        template, or all templates together."""
        key = (one.pool, "" if one.text == TOTAL else template)
        if key not in self._holders:
            users = Counter({"": len(self._pool_status.orphans.get(one.pool, ()))})
            for record in self._memory.requests.values():
                if record.template in (key[1] or record.template, NO_TEMPLATE):
                    there = [slot.pool for slot in record.slots.values() if not slot.deletion.is_gone]
                    users[record.id] = there.count(one.pool)
            self._holders[key] = {id_: machines for id_, machines in users.most_common() if machines}
        return self._holders[key]


def count_waiting(
    memory: Memory, unmet: Mapping[str, Sequence[Document]], reason: PendingReason | None = None
) -> Counter[Key]:
    """Return the number of machines that do not run, by pool and template. If ``reason`` is given, count only machines
    that are missing for this reason."""
    waiting = Counter[Key]()
    for id_, entries in unmet.items():
        for one in entries:
            if reason is None or one["reason"] == reason:
                waiting[one["pool"], memory.requests[id_].template] += one["machines"]
    return waiting


def find_queues(memory: Memory, unmet: Mapping[str, Sequence[Document]]) -> Mapping[Key, Document]:
    """Return a document about the queued machines of each pool and template: their number, the longest wait with its
    reason, and the earliest expected start."""
    queued = defaultdict[Key, list[Document]](list)
    for id_, entries in unmet.items():
        for one in entries:
            if one["reason"] == PendingReason.QUEUED:
                queued[one["pool"], memory.requests[id_].template].append(one)
    return {key: _queue_document(entries) for key, entries in queued.items()}


def _queue_document(entries: Sequence[Document]) -> Document:
    longest = max(entries, key=itemgetter("since_seconds"))
    return {
        "machines": sum(one["machines"] for one in entries),
        **{name: longest[name] for name in ("since", "since_seconds", "text")},
        "expected_start": min(filter(None, (one["expected_start"] for one in entries)), default=None),
    }


# --- for operators ----------------------------------------------------------------------------------------------------


def unmet_lines(request: Document, *, loop_acts: bool, dated: Container[str] = ()) -> Iterator[str]:
    """Yield a line for each pool and reason for which the request misses machines.

    ``loop_acts``: True if a loop runs and plans. ``dated``: unseen pools whose alarm already shows a time. Their lines
    show no time.
    """
    for one in request["missing"]:
        where = f" in {one['pool']}" if one["pool"] else ""
        is_dated = one["reason"] == PendingReason.UNSEEN and one["pool"] in dated
        shown = {**one, "since": None} if is_dated else one
        facts = "; ".join(filter(None, _format_facts(shown, loop_acts=loop_acts)))
        yield f"    {one['machines']}{where}: {facts}"


def _format_facts(one: Document, *, loop_acts: bool) -> Iterator[str]:
    text = format_printable(one["text"])
    why = ", ".join(filter(None, (_format_reason(one), one["error"])))
    duration = format_duration(one["since_seconds"]) if one["since"] else ""
    since = f" since {format_local_time(one['since'])} ({duration})" if one["since"] else ""
    if one["reason"] == PendingReason.STARTING and one["quiet"] and one["since"]:
        usual = one["usual_seconds"]
        since = f" for {duration}" + ("" if usual is None else f" (usual: {format_duration(usual)})")
    yield f"{why}{since}{': ' + text if text else ''}"
    yield format_expected_start(one)
    yield _format_holders(one)
    yield f"request {one['behind']} is served first" if one["behind"] else ""
    yield _format_spill(one)
    yield _format_next_try(one, loop_acts=loop_acts)
    yield from _format_elsewhere(one)


def _format_elsewhere(one: Document) -> Iterator[str]:
    """Yield the reasons why other pools take none of the machines."""
    yield from (f"{pool} is at its cap of {cap}" for pool, cap in one["full"].items())
    reasons = {pool: reason for pool, reason in one["elsewhere"].items() if pool not in one["full"]}
    yield from (f"{pool} is {reason}" for pool, reason in reasons.items() if reason in ADJECTIVES)
    if rest := [f"{pool} ({reason})" for pool, reason in reasons.items() if reason not in ADJECTIVES]:
        yield "none is made in " + ", ".join(rest)


REASON_WORDS = {
    PendingReason.UNSEEN: "the pool is unseen",
    PendingReason.BUDGET: "held back by the budget",
    PendingReason.UNSENT: "not sent yet",
    PendingReason.UNANSWERED: "create not answered yet",
    PendingReason.QUEUED: "queued",
    PendingReason.TROUBLED: "not running",
    PendingReason.SET_ASIDE: "set aside for an operator to check",
    PendingReason.GIVEN_UP: "given up",
    PendingReason.UNKNOWN: "no loop has published a reason",
}


def _format_reason(one: Document) -> str:
    bound = one["bound"]
    if one["reason"] == PendingReason.WINDOW:
        return "earlier calls are under way" if bound is None else f"window of {bound}"
    if one["reason"] == PendingReason.CAP and bound is not None:
        return f"cap of {bound}"
    return REASON_WORDS.get(one["reason"], str(one["reason"]))


def _format_holders(one: Document) -> str:
    users = list(one["holders"].items())
    if not users:
        return ""
    kept = " that the brake keeps" if one["braked"] else ""
    named = [
        f"{id_} ({count})" if id_ else f"{format_count(count, 'machine')} without a request{kept}"
        for id_, count in users[:HOLDERS_SHOWN]
    ]
    more = f" and {len(users) - HOLDERS_SHOWN} more" if len(users) > HOLDERS_SHOWN else ""
    return f"used by {', '.join(named)}{more}"


def _format_spill(one: Document) -> str:
    seconds_left = one["spills_at_seconds"]
    when = f"in {format_duration(seconds_left)}" if seconds_left else "once it takes them"
    return f"spills over to {one['spills_to']} {when}" if one["spills_to"] else ""


def _format_next_try(one: Document, *, loop_acts: bool) -> str:
    seconds_left = one["next_try_seconds"]
    if seconds_left is None:
        return ""
    if not seconds_left:
        return "next try with the next cycle" if loop_acts else "next try once the loop acts"
    if one["reason"] in (PendingReason.BACKOFF, PendingReason.UNSENT):
        return f"next try in {format_duration(seconds_left)}"
    if one["reason"] == PendingReason.STARTING and one["quiet"]:
        return f"must run by {format_local_time(one['next_try'])}"
    return f"the earliest one fails in {format_duration(seconds_left)} unless it runs"

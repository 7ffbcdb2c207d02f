"""Intent that memory ingests, and intent that has gone back in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import BrakeReason, Intent, Memory, Request, ReturnRequest
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.request_records import ingest_requests
from tests.unit.core import NOW, OTHER, REQUEST, TEMPLATE, draft_of, intent_of, limits, memory, name, record, slot

KNOWN = memory(record(slot()), generation=7)
RETURN_ID = "ret-bbbbbbbbbb"


def taken(remembered: Memory, intent: Intent) -> Draft:
    draft = draft_of(remembered, limits=limits(request_deadline_seconds=60.0, return_deadline_seconds=30.0))
    ingest_requests(draft, intent)
    return draft


def asking(generation: int) -> Intent:
    """Return an intent with the known request, another request, and a return request."""
    intent = intent_of(KNOWN, generation=generation)
    requests = {**intent.requests, OTHER: Request(OTHER, TEMPLATE, 3, 0.0, rc_account="acct")}
    return replace(intent, requests=requests, returns={RETURN_ID: ReturnRequest(RETURN_ID, (name(0),), 0.0)})


@pytest.mark.parametrize("generation", [7, 8], ids=["as before", "newer"])
def test_what_is_new_gets_its_deadline_and_the_generation_is_remembered(generation: int) -> None:
    draft = taken(KNOWN, asking(generation))
    request, return_record = draft.requests[OTHER], draft.returns[RETURN_ID]
    assert (request.count, request.read_at, request.deadline_at, request.rc_account) == (3, NOW, NOW + 60, "acct")
    assert (return_record.names, return_record.read_at, return_record.deadline_at) == ((name(0),), NOW, NOW + 30)
    assert draft.requests[REQUEST] is KNOWN.requests[REQUEST]
    assert (draft.memory().generation, draft.brake) == (generation, None)


def test_an_intent_that_is_older_than_one_already_read_latches_the_brake_and_asks_for_nothing() -> None:
    draft = taken(KNOWN, asking(6))
    assert draft.brake is not None
    assert draft.brake.reason is BrakeReason.INTENT_OLDER
    assert (draft.requests.keys(), draft.returns.keys()) == ({REQUEST}, set())
    assert draft.memory().generation == 7


@pytest.mark.parametrize(("trimmed", "reason"), [(False, BrakeReason.REQUEST_LOST), (True, None)])
def test_an_intent_that_lacks_a_known_request_latches_the_brake_unless_it_was_let_go(
    trimmed: bool, reason: BrakeReason | None
) -> None:
    known = memory(record(slot(), is_trimmed=trimmed), generation=7)
    draft = taken(known, Intent("demo", 8, {}, {}))
    assert (draft.brake.reason if draft.brake else None) is reason

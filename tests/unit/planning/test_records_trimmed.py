"""Records leave the files after HF has read their end and the retention time has passed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import (
    HfActivity,
    Intent,
    Memory,
    RequestStatus,
    ReturnRecord,
    Slot,
    Verdict,
)
from provisioner.planning.core.draft import Draft
from provisioner.planning.core.request_records import trim_records
from provisioner.planning.core.slots import CANCELLED_MESSAGE
from tests.unit.core import (
    NOW,
    REQUEST,
    draft_of,
    giving_back,
    intent_of,
    limits,
    memory,
    name,
    record,
    running,
)

LIMITS = limits(retention_seconds=86400.0)
DONE = RequestStatus.COMPLETE
LONG_AGO = NOW - 86400.0
BYGONE = running(0, Verdict.RETURNED, is_gone=True)
LEAVING = record(BYGONE, ended=DONE, reported_at=LONG_AGO, is_trimmed=True)


def trimmed(remembered: Memory, intent: Intent | None = None, activity: HfActivity | None = None) -> Draft:
    draft = draft_of(remembered, limits=LIMITS)
    trim_records(draft, intent or intent_of(remembered), activity or HfActivity())
    return draft


@pytest.mark.parametrize(
    ("one", "changes", "activity", "goes"),
    [
        pytest.param(BYGONE, {"reported_at": LONG_AGO}, HfActivity(), True, id="read long ago, no leftovers: it goes"),
        pytest.param(BYGONE, {"reported_at": LONG_AGO + 1}, HfActivity(), False, id="read within the retention: stays"),
        pytest.param(BYGONE, {}, HfActivity(), False, id="HF has not heard: stays"),
        pytest.param(running(0, Verdict.RETURNED), {"reported_at": LONG_AGO}, HfActivity(), False, id="machine left"),
        pytest.param(running(0, Verdict.SUCCEEDED), {"reported_at": LONG_AGO}, HfActivity(), False, id="in use: stays"),
        pytest.param(BYGONE, {"reported_at": LONG_AGO}, HfActivity(inventory=frozenset({name(0)})), False,
                     id="HF lists its machine: stays"),
        pytest.param(BYGONE, {"message": CANCELLED_MESSAGE, "ended_at": LONG_AGO}, HfActivity(), True,
                     id="cancelled long ago, unheard: it goes"),
    ],
)  # fmt: skip
def test_when_a_request_leaves_the_files(
    one: Slot, changes: dict[str, object], activity: HfActivity, goes: bool
) -> None:
    draft = trimmed(memory(record(one, ended=DONE, **changes)), activity=activity)
    assert draft.forget == ([REQUEST] if goes else [])
    assert draft.requests[REQUEST].is_trimmed is goes


def test_nothing_leaves_by_an_intent_that_is_older_than_one_read_before() -> None:
    remembered = memory(LEAVING, giving_back(name(0), is_trimmed=True), generation=8)
    draft = trimmed(remembered, replace(intent_of(memory()), generation=7))
    assert (draft.forget, draft.memory()) == ([], remembered)


def test_a_request_leaves_in_three_steps() -> None:
    remembered = memory(record(BYGONE, ended=DONE, reported_at=LONG_AGO))
    marked = trimmed(remembered)
    assert (marked.requests[REQUEST].is_trimmed, marked.forget) == (True, [REQUEST])
    recorded = marked.memory()
    again = trimmed(recorded, intent_of(remembered))
    assert (again.memory() is recorded, again.forget) == (True, [REQUEST])
    last = trimmed(recorded, intent_of(memory()))
    assert (last.memory().requests, last.forget) == ({}, [])


@pytest.mark.parametrize(
    ("return_record", "goes"),
    [
        pytest.param(giving_back(name(0), ended=DONE, reported_at=LONG_AGO), True, id="read long ago"),
        pytest.param(giving_back(name(0), ended=DONE, reported_at=LONG_AGO + 1), False, id="read within the retention"),
        pytest.param(giving_back(name(0), ended=DONE), False, id="HF has not heard"),
        pytest.param(giving_back(name(0)), False, id="still open"),
    ],
)
def test_when_a_return_request_leaves_the_files(return_record: ReturnRecord, goes: bool) -> None:
    draft = trimmed(memory(return_record))
    assert draft.forget == ([return_record.id] if goes else [])
    if goes:
        assert trimmed(draft.memory(), intent_of(memory())).memory().returns == {}


def test_a_request_that_is_leaving_leaves_whatever_is_said_of_its_machines_meanwhile() -> None:
    assert trimmed(memory(LEAVING, giving_back(name(0)))).forget == [REQUEST]


def test_a_request_follows_the_return_request_that_named_its_machine_although_nothing_else_happens() -> None:
    remembered = memory(
        record(BYGONE, ended=DONE, reported_at=LONG_AGO), giving_back(name(0), ended=DONE, is_trimmed=True)
    )
    draft = trimmed(remembered, intent_of(remembered, returns={}))
    assert (draft.returns, draft.forget) == ({}, [])
    assert draft.due_at < NOW + 1


def test_a_request_stays_as_long_as_a_return_request_names_its_machine() -> None:
    return_record = giving_back(name(0), ended=DONE, reported_at=NOW)
    draft = trimmed(memory(record(BYGONE, ended=DONE, reported_at=LONG_AGO), return_record))
    assert (draft.forget, draft.due_at) == ([], NOW + LIMITS.retention_seconds)

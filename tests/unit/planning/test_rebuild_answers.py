"""Terminal answers that a script settled and the loop did not record. After a restart, they decide memory's content."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provisioner.model import RequestRecord, RequestStatus, Verdict
from provisioner.planning.core.draft import Draft
from provisioner.planning.finish.cancellation import cancel
from provisioner.planning.finish.returns import fail_returned_early
from provisioner.planning.recover.rebuild import recover_answers
from provisioner.planning.report.answers import request_answer
from tests.unit.core import NOW, REQUEST, draft_of, limits, memory, record, running, unsent

ENDED = record(
    running(0, Verdict.SUCCEEDED), running(1, Verdict.SUCCEEDED), unsent(2, Verdict.FAILED),
    ended=RequestStatus.COMPLETE_WITH_ERROR,
)  # fmt: skip


def give_back_first(draft: Draft, record: RequestRecord) -> None:
    fail_returned_early(draft, record.slots[0])


@pytest.mark.parametrize("settle", [cancel, give_back_first])
def test_what_was_settled_before_the_loop_died_holds_after_it(settle: Callable[[Draft, RequestRecord], None]) -> None:
    draft = draft_of(memory(ENDED), limits=limits())
    settle(draft, ENDED)
    answer = request_answer(draft.requests[REQUEST])
    assert answer.text != request_answer(ENDED).text

    kept = recover_answers(memory(ENDED), {REQUEST: answer}, limits(), NOW)

    assert request_answer(kept.requests[REQUEST]).text == answer.text
    assert kept.requests[REQUEST].slots == draft.requests[REQUEST].slots


def test_a_memory_that_agrees_with_what_was_settled_stays_as_it_is() -> None:
    remembered = memory(ENDED)
    assert recover_answers(remembered, {REQUEST: request_answer(ENDED)}, limits(), NOW) is remembered

"""What was settled of a terminal answer and not recorded, as the loop died in between."""

from __future__ import annotations

import json
from collections.abc import Mapping

from provisioner.hostfactory import Answer
from provisioner.model import Limits, Memory, RequestRecord
from provisioner.planning.answers import RETURNED_EARLY, request_answer
from provisioner.planning.cancellation import CANCELLED_MESSAGE, cancel
from provisioner.planning.draft import Draft
from provisioner.planning.returns import take_back


def keep_claims(memory: Memory, settled: Mapping[str, Answer], limits: Limits, now: float) -> Memory:
    """The memory with what the settled answers of ended requests say otherwise; the same one where they agree."""
    draft = Draft(memory, {}, limits, now)
    for id_, answer in settled.items():
        record = draft.record(id_)
        if request_answer(record).text != answer.text:
            _keep(draft, record, answer)
    return draft.memory()


def _keep(draft: Draft, record: RequestRecord, answer: Answer) -> None:
    entry = json.loads(answer.text)
    if entry["message"] == CANCELLED_MESSAGE:
        cancel(draft, record)
    for machine in entry["machines"]:
        slot = draft.named(machine["name"])
        if slot is not None and machine["message"] == RETURNED_EARLY:
            take_back(draft, slot)

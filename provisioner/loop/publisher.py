"""Publish the answers to HF: render them from memory into status.json, and settle revised terminal answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from provisioner.hostfactory import Loss
from provisioner.model import HfActivity, Holds, Limits, Memory, RequestRecord, ReturnRecord
from provisioner.planning.core.draft import Draft
from provisioner.planning.report import answers
from provisioner.state.errors import StateError
from provisioner.state.protocols import State


class PublishedStatus(NamedTuple):
    """The content of status.json."""

    rendered: answers.Rendered
    lost: Mapping[str, Loss]
    available: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reported:
    """The differences between the new status.json and the previous status.json."""

    records: tuple[tuple[RequestRecord | ReturnRecord | None, RequestRecord | ReturnRecord], ...]
    """For each answer that changed: the record of the previous answer (None if there was no answer), and the record of
    the new answer."""
    lost: Mapping[str, Loss]
    """Machines newly reported to HF as lost."""


class Publisher:
    """The writer of status.json. The file is written if its content has changed, or if another process has replaced
    it."""

    def __init__(self, state: State, check: Callable[[], None]) -> None:
        self._state = state
        self._check = check
        """Function that raises SupersededError if a newer loop may write."""
        self._status: PublishedStatus | None = None
        """Content of status.json. Before the first write: the answers of the first memory, and the losses in the
        file."""
        self._inputs: tuple[object, ...] = ()
        """Inputs from which the status was made."""
        self._signature: object = None
        """Signature of status.json after the last write; None before the first write."""
        self._reported: list[Reported] = []
        self.unpublished = False
        """True if the answers of the recorded memory could not be published."""

    def begin(self, memory: Memory, limits: Limits, activity: HfActivity, now: float) -> None:
        """Take the answers of ``memory`` and the losses in status.json as known to HF, so that the first ``Reported``
        has only changes. Only the first call of this method has an effect."""
        if self._status is None:
            try:
                lost: Mapping[str, Loss] = self._state.status.read_lost()
            except StateError:
                # The losses by holds are left out, so the journal may name them twice. If they were included, the
                # journal could lack the losses by a new hold.
                lost = answers.find_losses(memory, activity, now)
            self._status = PublishedStatus(answers.render_answers(memory, {}, limits.prefix), lost, {})

    def publish(self, memory: Memory, limits: Limits, holds: Holds, activity: HfActivity, now: float) -> None:
        """Render the status, and write it if it changed. Raises StateError, SupersededError."""
        self.begin(memory, limits, activity, now)
        assert self._status is not None
        inputs, before = (memory, limits, holds, activity.inventory), self._status
        is_written = self._signature is not None and self._state.status.signature() == self._signature
        same = is_written and [*map(id, inputs)] == [*map(id, self._inputs)]
        if same and not any(loss.grace for loss in before.lost.values()):  # a grace period ends as time passes
            return
        status = PublishedStatus(
            answers.render_answers(memory, before.rendered, limits.prefix),
            answers.find_losses(memory, activity, now, holds),
            answers.count_available(memory, limits),
        )
        if not (is_written and status == before):
            self._write(status, before)
        self._inputs = inputs

    def _write(self, status: PublishedStatus, before: PublishedStatus) -> None:
        self._check()
        self.unpublished = True
        texts = {id_: answer for id_, (_, answer) in status.rendered.items()}
        self._state.status.write(texts, status.lost, status.available)
        self._status = status  # Set even if the next steps fail, so that a retry does not repeat the news.
        records = [
            (old and old[0], record)
            for id_, (record, _) in status.rendered.items()
            if (old := before.rendered.get(id_)) is None or old[0] is not record
        ]
        lost = {name: loss for name, loss in status.lost.items() if name not in before.lost}
        self._reported.append(Reported(tuple(records), lost))
        self._signature = self._state.status.signature()
        self.unpublished = False

    def pop_news(self) -> list[Reported]:
        """Return the changes of each status.json that was published since the last call."""
        reported, self._reported = self._reported, []
        return reported

    def settle_revised_answers(self, before: Memory, draft: Draft) -> Set[str]:
        """Settle each revised terminal answer before the loop records the revision or acts upon it.

        If a script has already settled the former answer of a request, this answer stays, because HF has it or is about
        to get it. Return the ids of such requests. Raises StateError, SupersededError.
        """
        revised = answers.find_revised(before, draft)
        if revised:
            self._check()
        return {id_ for id_, new in revised.items() if not self._state.terminal_answers.settle_revised(id_, new.text)}

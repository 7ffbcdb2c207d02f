"""Publishing: what HF is told, rendered from memory into status.json, and settled where a script may be faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from provisioner.hostfactory import Loss
from provisioner.model import Contact, Levers, Limits, Memory, RequestRecord, ReturnRecord
from provisioner.planning.core.draft import Draft
from provisioner.planning.report import answers
from provisioner.state.errors import StateError
from provisioner.state.interfaces import State


class PublishedStatus(NamedTuple):
    """What status.json holds."""

    rendered: answers.Rendered
    lost: Mapping[str, Loss]
    available: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reported:
    """What status.json says for the first time."""

    records: tuple[tuple[RequestRecord | ReturnRecord | None, RequestRecord | ReturnRecord], ...]
    """The records whose answers were made anew, each after the record of the answer before."""
    lost: Mapping[str, Loss]
    """Machines that HF is told to give back."""


class Publisher:
    """Writes status.json when what it says has changed, or when somebody else has put another in its place."""

    def __init__(self, state: State, check: Callable[[], None]) -> None:
        self._state = state
        self._check = check
        """Raises SupersededError when a newer loop may write."""
        self._status: PublishedStatus | None = None
        """What status.json holds; before it is written, the answers of the memory of the start and the losses there."""
        self._inputs: tuple[object, ...] = ()
        """What the status was made of."""
        self._signature: object = None
        """What status.json looked like when it was last written; None before."""
        self._reported: list[Reported] = []
        self.unpublished = False
        """A memory is recorded whose answers could not be published."""

    def begin(self, memory: Memory, limits: Limits, contact: Contact, now: float) -> None:
        """Take the answers of memory and the losses in status.json as reported before. Later calls change nothing."""
        if self._status is None:
            try:
                lost: Mapping[str, Loss] = self._state.status.read_lost()
            except StateError:  # the holds of now may be new: without them a loss is rather reported twice than never
                lost = answers.losses(memory, contact, now)
            self._status = PublishedStatus(answers.render(memory, {}, limits.prefix), lost, {})

    def publish(self, memory: Memory, limits: Limits, levers: Levers, contact: Contact, now: float) -> None:
        """Render what HF is told, and write it if it changed. Raises StateError, SupersededError."""
        self.begin(memory, limits, contact, now)
        assert self._status is not None
        inputs, before = (memory, limits, levers, contact.inventory), self._status
        there = self._signature is not None and self._state.status.signature() == self._signature
        same = there and [*map(id, inputs)] == [*map(id, self._inputs)]
        if same and not any(loss.grace for loss in before.lost.values()):  # a grace period ends as time passes
            return
        status = PublishedStatus(
            answers.render(memory, before.rendered, limits.prefix),
            answers.losses(memory, contact, now, levers),
            answers.available(memory, limits),
        )
        if not (there and status == before):
            self._write(status, before)
        self._inputs = inputs

    def _write(self, status: PublishedStatus, before: PublishedStatus) -> None:
        self._check()
        self.unpublished = True
        texts = {id_: answer for id_, (_, answer) in status.rendered.items()}
        self._state.status.write(texts, status.lost, status.available)
        self._status = status  # even if what follows fails: a retry reports nothing twice
        records = [
            (old and old[0], record)
            for id_, (record, _) in status.rendered.items()
            if (old := before.rendered.get(id_)) is None or old[0] is not record
        ]
        lost = {name: loss for name, loss in status.lost.items() if name not in before.lost}
        self._reported.append(Reported(tuple(records), lost))
        self._signature = self._state.status.signature()
        self.unpublished = False

    def tell(self) -> list[Reported]:
        """What was reported since the last call."""
        reported, self._reported = self._reported, []
        return reported

    def superseded(self, before: Memory, draft: Draft) -> Set[str]:
        """Settle the terminal answers that take the place of others, before anything is recorded or done about them.

        Returns the ids of which a script was faster: HF was told, or is about to be, and that has to stand. Raises
        StateError, SupersededError.
        """
        revised = answers.revised(before, draft)
        if revised:
            self._check()
        return {id_ for id_, new in revised.items() if not self._state.told.claim(id_, new.text)}

"""Publishing: what HF is told, rendered from memory into status.json, and settled where a script may be faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from provisioner.hostfactory import Loss
from provisioner.model import Contact, Levers, Limits, Memory
from provisioner.planning.core.draft import Draft
from provisioner.planning.report import answers
from provisioner.state.interfaces import State


@dataclass(frozen=True, slots=True)
class Edition:
    """What status.json holds."""

    rendered: answers.Rendered
    lost: Mapping[str, Loss]
    available: Mapping[str, int]

    def equals(self, other: Edition) -> bool:
        """The very same answers, and equal counts."""
        before = other.rendered
        same = len(self.rendered) == len(before) and all(
            before.get(id_) is entry for id_, entry in self.rendered.items()
        )
        return same and self.lost == other.lost and self.available == other.available


class Publisher:
    """Writes status.json when what it says has changed, or when somebody else has put another in its place."""

    def __init__(self, state: State, check: Callable[[], None]) -> None:
        self._state = state
        self._check = check
        """Raises SupersededError when a newer loop may write."""
        self._last = Edition({}, {}, {})
        self._published = False
        self._signature: object = None
        """What status.json looked like when it was last written."""
        self._counted: tuple[Memory | None, Limits | None] = (None, None)
        """What the numbers of available machines were counted from."""
        self._inventory: Set[str] = frozenset()
        """What HF listed when it was last found out what is lost."""
        self.behind = False
        """A memory is recorded whose answers could not be published."""

    @property
    def edition(self) -> Edition | None:
        """What this process has published last; None before it has published anything."""
        return self._last if self._published else None

    def publish(self, memory: Memory, limits: Limits, levers: Levers, contact: Contact, now: float) -> None:
        """Render what HF is told, and write it if it changed. Raises StateError, SupersededError."""
        edition = Edition(
            answers.render(memory, self._last.rendered, limits.prefix),
            self._losses(memory, limits, levers, contact, now),
            self._available(memory, limits),
        )
        same = self._published and edition.equals(self._last)
        if not (same and self._state.status.signature() == self._signature):
            self._write(edition)
        self._counted, self._inventory = (memory, limits), contact.inventory

    def _losses(
        self, memory: Memory, limits: Limits, levers: Levers, contact: Contact, now: float
    ) -> Mapping[str, Loss]:
        """What is lost changes with memory, levers and HF's lists; only what has a grace period does as time passes."""
        same = self._counted[0] is memory and self._counted[1] is limits and self._inventory == contact.inventory
        if same and not any(loss.grace for loss in self._last.lost.values()):
            return self._last.lost
        return answers.losses(memory, contact, now, levers)

    def _available(self, memory: Memory, limits: Limits) -> Mapping[str, int]:
        if self._counted[0] is memory and self._counted[1] is limits:
            return self._last.available
        return answers.available(memory, limits)

    def _write(self, edition: Edition) -> None:
        self._check()
        self.behind = True
        texts = {id_: answer for id_, (_, answer) in edition.rendered.items()}
        self._state.status.write(texts, edition.lost, edition.available)
        self._last, self._published = edition, True
        self._signature = self._state.status.signature()
        self.behind = False

    def overtaken(self, before: Memory, draft: Draft) -> Set[str]:
        """Settle the terminal answers that take the place of others, before anything is recorded or done about them.

        Returns the ids of which a script was faster: HF was told, or is about to be, and that has to stand. Raises
        StateError, SupersededError.
        """
        revised = answers.revised(before, draft)
        if revised:
            self._check()
        return {id_ for id_, new in revised.items() if not self._state.told.claim(id_, new.text)}

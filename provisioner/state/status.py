"""What the loop publishes: ``status.json`` for scripts, ``pools.json`` for operators.

The scripts import this: it imports nothing that costs time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from provisioner.hostfactory import Answer, Loss
from provisioner.state.atomic import parse, read_if_present, replace
from provisioner.state.database import generation_of
from provisioner.state.errors import StateDenied, StateMissing, StateUnreadable
from provisioner.state.state_file import StateFile


class StatusStore(StateFile):
    """``status.json``: a rendering of memory and intent, which the loop alone writes and can always make again."""

    kind = "status"
    advice = "The loop makes it again: see that one runs (`provisioner run`)."
    tables = ("lost", "available", "answers")
    """Answers are large and come last: who asks for another table does not read them."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._generation: int | None = None

    def read_answers(self, identifiers: Iterable[str]) -> dict[str, Answer]:
        """The answers of those ids that have one. Raises StateMissing, StateUnreadable or StateTooNew."""
        answers = self.load().get("answers", {})
        return self._answers({key: answers[key] for key in identifiers if key in answers})

    def read_all(self) -> dict[str, Answer]:
        """Every answer. Raises as ``read_answers`` does."""
        return self._answers(self.load().get("answers", {}))

    def _answers(self, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
        return {key: Answer(*self._values(key, each, answer=str, ended=bool)) for key, each in documents.items()}

    def read_lost(self) -> dict[str, Loss]:
        """The hosts to report, by short name. Raises as ``read_answers`` does."""
        lost = self._peek("lost").items()
        return {name: Loss(*self._values(name, each, grace=int, cause=str)) for name, each in lost}

    def read_available(self) -> dict[str, int]:
        """How many more machines each template may have, by id; raises as ``read_answers`` does."""
        return {name: self._values(name, each, machines=int)[0] for name, each in self._peek("available").items()}

    def write(
        self, answers: Mapping[str, Answer], lost: Mapping[str, Loss], available: Mapping[str, int] | None = None
    ) -> None:
        """Replace everything, durably. Raises StateTooNew or StateUnwritable; an unreadable file is set aside first."""
        if self._generation is None:
            self._generation = self._last_generation()
        tables = self._new_tables("")
        tables["lost"] = {name: loss._asdict() for name, loss in lost.items()}
        tables["available"] = {name: {"machines": most} for name, most in (available or {}).items()}
        tables["answers"] = {key: {"answer": one.text, "ended": one.ended} for key, one in answers.items()}
        self._replace(tables, self._generation + 1)
        self._generation += 1

    def _values(self, key: str, document: Mapping[str, Any], **kinds: type) -> list[Any]:
        """The fields of a document, each of its kind. Raises StateUnreadable."""
        values = [document.get(field) for field in kinds]
        if [*map(type, values)] != [*kinds.values()]:
            raise self._unreadable(f"{key!r} lacks {' or '.join(kinds)}")
        return values

    def _last_generation(self) -> int:
        try:
            return generation_of(self.load())
        except StateMissing:
            return 0
        except (StateUnreadable, StateDenied):
            self.set_aside()
            return 0


class PoolStatusFile:
    """``pools.json``: what people should know of loop and pools' places; the loop writes it when that changes.

    What its sections mean: ``PoolStatus`` in notes.py.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, pool_status: Mapping[str, Any]) -> None:
        """Replace the notes. Not fsynced: a new loop writes them again."""
        replace(self.path, json.dumps(pool_status).encode(), durable=False)

    def read(self) -> dict[str, Any]:
        """The sections by name; none before a loop ran. Raises StateUnreadable."""
        advice = "The loop writes it again when it starts."
        if (content := read_if_present(self.path, advice)) is None:
            return {}
        document = parse(self.path, content, advice)
        if not isinstance(document, dict):
            raise StateUnreadable(f"{self.path}: expected an object. {advice}")
        return document

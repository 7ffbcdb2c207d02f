"""The published status: ``status.json`` for scripts and ``pools.json`` for operators.

The scripts import this module, so it imports only modules that load fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from provisioner.hostfactory import Answer, Loss
from provisioner.state.atomic import Located, parse, read_if_present, replace
from provisioner.state.database import generation_of
from provisioner.state.errors import StateDenied, StateMissing, StateUnreadable
from provisioner.state.state_file import StateFile


class StatusStore(StateFile):
    """``status.json``: the answers, the losses, and how many further machines each template may have. Only the loop
    writes this file. The loop can always make it again from memory and intent."""

    kind = "status"
    advice = "A running loop makes this file again; start one with `provisioner run`."
    tables = ("lost", "available", "answers")
    """Names of the tables. The answers are large. Their table is last, so that readers of other tables need not read
    the answers."""

    _generation: int | None = None

    def read_answers(self, identifiers: Iterable[str]) -> dict[str, Answer]:
        """Return the answers of the ids that have an answer.

        Raises StateMissing, StateUnreadable or StateTooNew.
        """
        answers = self.load().get("answers", {})
        return self._answers({key: answers[key] for key in identifiers if key in answers})

    def read_all(self) -> dict[str, Answer]:
        """Return every answer. Raises the errors of ``read_answers``."""
        return self._answers(self.load().get("answers", {}))

    def _answers(self, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
        return {key: Answer(*self._values(key, each, answer=str, ended=bool)) for key, each in documents.items()}

    def read_lost(self) -> dict[str, Loss]:
        """Return the losses to report, by the short name of the host. Raises the errors of ``read_answers``."""
        lost = self._peek("lost").items()
        return {name: Loss(*self._values(name, each, grace=int, cause=str)) for name, each in lost}

    def read_available(self) -> dict[str, int]:
        """Return how many further machines each template may have, by template id. Raises the errors of
        ``read_answers``."""
        return {name: self._values(name, each, machines=int)[0] for name, each in self._peek("available").items()}

    def write(
        self, answers: Mapping[str, Answer], lost: Mapping[str, Loss], available: Mapping[str, int] | None = None
    ) -> None:
        """Replace all tables durably. First set aside the present file if it is unreadable. Raises StateTooNew or
        StateUnwritable."""
        if self._generation is None:
            self._generation = self._last_generation()
        tables = self._new_tables("")
        tables["lost"] = {name: loss._asdict() for name, loss in lost.items()}
        tables["available"] = {name: {"machines": most} for name, most in (available or {}).items()}
        tables["answers"] = {key: {"answer": one.text, "ended": one.ended} for key, one in answers.items()}
        self._replace(tables, self._generation + 1)
        self._generation += 1

    def _values(self, key: str, document: Mapping[str, Any], **kinds: type) -> list[Any]:
        """Return the fields of a document, checked against their types. Raises StateUnreadable."""
        values = [document.get(field) for field in kinds]
        if [*map(type, values)] != [*kinds.values()]:
            raise self._unreadable(f"{key!r} lacks {' or '.join(kinds)}")
        return values

    def _last_generation(self) -> int:
        with suppress(StateMissing):
            try:
                return generation_of(self.load())
            except (StateUnreadable, StateDenied):
                self.set_aside()
        return 0


class PoolStatusFile(Located):
    """``pools.json``: the status of loop and pools for operators. The loop writes the file when the status changes.
    ``PoolStatus`` in ``telemetry/pool_status.py`` defines the sections.

    This class also reads and writes ``demand.json``: the report of ``provisioner demand`` about its last step
    (``Report`` in ``demand/service.py``).
    """

    def write(self, pool_status: Mapping[str, Any]) -> None:
        """Replace the content. The file is not fsynced, because a restarted process writes the file again."""
        replace(self.path, json.dumps(pool_status).encode(), durable=False)

    def read(self) -> dict[str, Any]:
        """Return the sections by name; empty before the first write. Raises StateUnreadable."""
        advice = "The next process that writes this file makes it again."
        if (content := read_if_present(self.path, advice)) is None:
            return {}
        document = parse(self.path, content, advice)
        if not isinstance(document, dict):
            raise StateUnreadable(f"{self.path}: is not a JSON object. {advice}")
        return document

"""The calls of a step without any effect, for ``provisioner demand --dry-run``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from provisioner.demand.machines import Entry
from provisioner.hostfactory import Answer
from provisioner.state.errors import StateMissing
from provisioner.state.protocols import State


class PreviewedCalls:
    """Calls that are answered from what the loop has published, and that record nothing."""

    def __init__(self, states: Sequence[State]) -> None:
        """Store the state of each shard."""
        self._states = states

    def statuses(self, ids: Sequence[str]) -> Sequence[Entry]:
        """Return the published or settled answer to each id, and an answer without machines to an id that has none.
        Raises StateError."""
        answers: dict[str, Answer] = {}
        for state in self._states:
            try:
                answers |= state.status.read_all()
            except StateMissing:
                continue  # no loop has run yet
            answers |= state.terminal_answers.answers()
        waiting = {"status": "running", "message": "", "machines": []}
        return [json.loads(answers[id_].text) if id_ in answers else {**waiting, "requestId": id_} for id_ in ids]

    def reclaimed(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the seconds left of each machine that HostFactory has to return. Raises StateError."""
        lost: dict[str, int] = {}
        for state in self._states if names else ():
            lost |= {name: loss.grace for name, loss in state.status.read_lost().items() if name in names}
        return lost

    def request(self, template: str, count: int, rc_account: str) -> str:
        """Record nothing, and return an empty id."""
        return ""

    def return_machines(self, names: Sequence[str]) -> str:
        """Record nothing, and return an empty id."""
        return ""

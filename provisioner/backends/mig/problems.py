"""What people should know of one managed instance group: its settings that will go wrong, and what others did to it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping

from provisioner.backends.mig.checks import foreign_text, group_findings
from provisioner.backends.mig.instances import LEAVING_ACTIONS, Member
from provisioner.backends.mig.reads import GroupAddress, Json
from provisioner.backends.mig.settings import MigPool
from provisioner.model import Machine, Phase

log = logging.getLogger(__name__)

Entries = Mapping[str, Mapping[str, Json]]
"""The instances of a look, by zone and name."""


class Problems:
    """Remembers between looks at one group what others did, and what was said of it."""

    def __init__(self, pool: MigPool, adopt_prefixes: tuple[str, ...]) -> None:
        self._pool, self._adopt = pool, adopt_prefixes
        self._asked: set[str] = set()
        """Members that we asked the group to delete."""
        self._taken: set[str] = set()
        """Members that someone else had deleted while they ran."""
        self._strays: set[str] = set()
        """Former members that run on."""
        self.texts: tuple[str, ...] = ()
        """The sentences as they were said last."""

    def expect(self, names: Collection[str]) -> None:
        """We ask the group to delete these members: what becomes of them is no news."""
        self._asked.update(names)

    def compare(
        self, before: Mapping[str, tuple[Member, Machine]], members: Mapping[str, Member], entries: Entries
    ) -> None:
        """Notice what someone else did since the look ``before``, as far as two looks tell."""
        for name, (was, machine) in before.items():
            member = members.get(name)
            if member is None and (was.action == "ABANDONING" or was.action not in LEAVING_ACTIONS):
                self._strays.add(name)
            elif member is not None and member.action == "DELETING" and machine.phase is Phase.RUNNING:
                self._taken.add(name)
        self._strays = {name for name in self._strays - members.keys() if _runs(entries, name)}
        self._taken = self._taken & members.keys() - self._asked
        self._asked &= members.keys()

    def say(self, group: Json | None, others: Collection[str]) -> None:
        """Remember the group's problems, and log what is new among them; ``others`` are members that are not ours."""
        problems = (*self._settings(group), *self._doings(others))
        for problem in problems:
            if problem not in self.texts:
                log.warning("The group has a problem", extra={"pool": self._pool.name, "problem": problem})
        self.texts = problems

    def _settings(self, group: Json | None) -> Iterator[str]:
        if group is None:
            yield f"the group was deleted: {GroupAddress.of(self._pool).path}"
        else:
            yield from (finding.text for finding in group_findings(self._pool, group))

    def _doings(self, others: Collection[str]) -> Iterator[str]:
        if foreign := [name for name in others if not name.startswith(self._adopt)]:
            yield foreign_text(foreign)
        if self._taken:
            words = f"e.g. {min(self._taken)}: someone else shrinks the group"
            yield f"{len(self._taken)} members that ran are being deleted, not by us, {words}"
        if self._strays:
            words = f"e.g. {min(self._strays)}: nobody deletes them"
            yield f"{len(self._strays)} members were taken out of the group and run on, {words}"


def _runs(entries: Entries, name: str) -> bool:
    return any(name in instances and instances[name].get("status") == "RUNNING" for instances in entries.values())

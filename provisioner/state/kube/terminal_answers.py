"""The settled terminal answers (MachineAnswers) as the loop reads and writes them.

The loop reads the answers from the watch. While the loop settles an answer, it reads newer entries from the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor

from provisioner.hostfactory import Answer
from provisioner.names import group_by
from provisioner.state.kube.cache import ListedObjects
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.objects import ANSWERS, item
from provisioner.state.kube.parts import run_all
from provisioner.state.kube.script_state import KubeEntries
from provisioner.state.settled_answers import ASSUMED, REPORTED, Entry


class KubeTerminalAnswers(KubeEntries):
    """The settled terminal answers, which never change. An answer is settled when it is reported to HF, when it is
    assumed to be reported, or earlier by the loop."""

    def __init__(self, api: ApiServer, provisioner: str, cache: ListedObjects, threads: Executor | None = None) -> None:
        super().__init__(api, provisioner)
        self._cache, self._threads = cache, threads
        self._is_settling = False
        """True while an answer is being settled. Entries that the watch has not shown yet are then read from the
        server."""
        self._listed: tuple[int, frozenset[str]] = (-1, frozenset())

    def settled(self, id_: str) -> Answer | None:
        """Return the settled answer; None if no answer is settled, or if the text of the settled answer is unknown.
        Raises StateError."""
        self._cache.check()
        return self.settled_before(id_)

    def settled_before(self, id_: str) -> Answer | None:
        """Return the settled answer as of the cache's last check, without a new check. A new check may have to list all
        answers."""
        return super().settled(id_)

    def ids(self) -> frozenset[str]:
        """Return the ids of the requests whose answer was reported to HF or assumed to be reported. Raises
        StateError."""
        self._cache.check()
        if self._listed[0] != self._cache.version:
            specs = [one["spec"] for one in self._cache.objects.values()]
            reported = {spec["request"] for spec in specs if spec["kind"].lower() in (REPORTED, ASSUMED)}
            self._listed = self._cache.version, frozenset(reported)
        return self._listed[1]

    def answers(self) -> dict[str, Answer]:
        """Return every settled answer. Raises StateError."""
        self._cache.check()
        ids = {one["spec"]["request"] for one in self._cache.objects.values()}
        return {id_: answer for id_ in sorted(ids) if (answer := self.settled_before(id_)) is not None}

    def forget(self, ids: Iterable[str]) -> None:
        """Remove the entries of ids that have left the state. Raises StateError.

        The newest entry of an id is removed first. If the removal is interrupted, the remaining entries are therefore a
        state that existed before.
        """
        self._cache.check()
        doomed = frozenset(ids)
        last_first = sorted(self._cache.objects, key=lambda name: int(name.rpartition(".")[2]), reverse=True)
        names = group_by(lambda name: name.rpartition(".")[0], last_first)
        run_all(self._remove, [some for id_, some in names.items() if id_ in doomed], self._threads)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self._api.call("DELETE", item(self._api.namespace, ANSWERS, name))

    def _tries(self, id_: str) -> Iterator[Entry | None]:
        yield self._last(id_)
        self._is_settling = True
        try:
            yield from super()._tries(id_)
        finally:
            self._is_settling = False

    def _read(self, id_: str, position: int) -> Entry | None:
        found = self._cache.objects.get(f"{id_}.{position}")
        if found is None:
            return super()._read(id_, position) if self._is_settling else None
        return self._decode(found)

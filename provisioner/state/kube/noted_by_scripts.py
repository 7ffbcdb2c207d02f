"""The notes of HF's scripts, as the loop reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from provisioner.hostfactory.provider_config import Digests
from provisioner.state.errors import StateUnreadable
from provisioner.state.kube.cache import ListedObjects
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.intent import KubeIntent
from provisioner.state.kube.memory import KubeMemory
from provisioner.state.kube.objects import NOTES, READ, item, unpack
from provisioner.state.kube.parts import Item, Parts, patch
from provisioner.state.kube.terminal_answers import KubeTerminalAnswers
from provisioner.state.marker_files import KEPT, Difference, ReadContent, differences
from provisioner.state.refused_calls import SCRIPTS, Refusals

CONFIG = "config"
"""Name of the StatePart with the digests of HF's files that the loop has used."""


class NotedByScripts:
    """A mixin for ``State`` that reads the notes of HF's scripts: their polls, refused calls, lists and files. The
    class that inherits it sets the attributes."""

    memory: KubeMemory
    intent: KubeIntent
    terminal_answers: KubeTerminalAnswers
    _api: ApiServer
    _name: str
    _parts: Parts
    _caches: Mapping[str, ListedObjects]

    def _note(self, suffix: str = "") -> Item:
        self._caches[NOTES].check()
        spec: Item = self._caches[NOTES].objects.get(f"{self._name}{suffix}", {}).get("spec", {})
        return spec

    def polls(self) -> dict[str, int]:
        """Return when HF last polled each request, in ms by the server's clock. Raises StateError.

        While a cancel is announced, a poll that no watch has shown yet must count (law: a terminal answer stays).
        """
        memory = self.memory.latest
        if memory is not None and any(record.is_cancelling for record in memory.requests.values()):
            reply = self._api.call("GET", item(self._api.namespace, NOTES, f"{self._name}.polls"))
            polled = reply.document.get("spec", {}).get("polled", {})
        else:
            polled = self._note(".polls").get("polled", {})
        return {id_: int(at * 1000) for id_, at in polled.items()}

    def forget_polls(self, ids: Iterable[str]) -> None:
        """Remove the polls and the terminal answers of requests that leave. Raises StateError."""
        gone = set(ids)
        self.terminal_answers.forget(gone)
        if known := self._note(".polls").get("polled", {}).keys() & gone:
            patch(self._api, NOTES, f"{self._name}.polls", {"spec": {"polled": dict.fromkeys(sorted(known))}})

    def listed_hosts(self) -> tuple[tuple[str, ...], int] | None:
        """Return the hosts in HF's latest list. Raises StateError."""
        spec = self._note(".hosts")
        if "hosts" not in spec:
            return None
        try:
            return tuple(unpack(spec["hosts"])), spec.get("listed", 0)
        except (ValueError, TypeError) as error:
            raise StateUnreadable(
                f"{self._name}.hosts: {error}. HF's next getReturnRequests writes it again."
            ) from error

    def refused_calls(self) -> list[Refusals]:
        """Return the calls that scripts have refused for a reason of the site. Raises StateError."""
        refused = self._note().get("refused", {})
        known = {"total": 0, "recent": 0, "since": 0.0, "last": 0.0, "text": ""}
        return [Refusals(name, **(known | refused[name])) for name in SCRIPTS if name in refused]

    def note_in_force(self, digests: Digests) -> None:
        """Record that the loop uses these contents now. Raises StateError."""
        noted = self._parts.read(CONFIG) or []
        if not noted or noted[0][1] != [*digests]:
            now = self._api.call("GET", item(self._api.namespace, NOTES, self._name)).at  # by the server's clock
            read = [[int(now * 1e9), [*digests]], *noted][:KEPT]
            self._parts.write(CONFIG, read, self.memory.marks)

    def config_differences(self) -> list[Difference]:
        """Return the files of which scripts and loop have read different contents. Raises StateError."""
        loop = [ReadContent(int(at), Digests(*digests)) for at, digests in self._parts.read(CONFIG) or []]
        read = [(one["at"], one["digests"]) for one in self._note().get("read", [])]
        for found in self.intent.objects().values():
            metadata = found["metadata"]
            if digests := metadata.get("annotations", {}).get(READ):
                read.append((datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(), digests))
        newest = sorted(read, reverse=True)
        scripts = [ReadContent(int(at * 1e9), Digests(*text.split("-", 1))) for at, text in newest if "-" in text]
        return differences({"scripts": scripts, "loop": loop})

    def shown(self) -> dict[str, int]:
        """Return the maxNumbers that HF was shown. Raises StateError."""
        return dict(self._note().get("shown", {}))

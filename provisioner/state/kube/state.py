"""The state in a Kubernetes API, as loop, telemetry and commands use it: a ``State``.

The journal stays a local file, because decisions never depend on it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

from provisioner.hostfactory.provider_config import Digests
from provisioner.state.errors import StateError
from provisioner.state.journal import Excerpt, Journal
from provisioner.state.kube import objects
from provisioner.state.kube.answers import KubeAnswers
from provisioner.state.kube.cache import ListedObjects, ObjectCache
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.holds import ProvisionerObject
from provisioner.state.kube.intent import KubeIntent
from provisioner.state.kube.lease import KubeTurn
from provisioner.state.kube.memory import KubeMemory
from provisioner.state.kube.objects import ANSWERS, NOTES, REQUESTS, RETURNS, STATES, collection, object_name, own
from provisioner.state.kube.parts import Item, Parts, patch
from provisioner.state.kube.script_notes import KubeNotes
from provisioner.state.kube.terminal_answers import KubeTerminalAnswers
from provisioner.state.marker_files import KEPT, ConfigMark, Difference, LifeSigns, differences
from provisioner.state.refused_calls import SCRIPTS, Refusals

WATCHED = (REQUESTS, RETURNS, ANSWERS, STATES, NOTES)
"""Resources whose objects a running loop watches."""

THREADS = 8
"""Number of concurrent writes. etcd syncs several writes at once (565 a second with eight threads, 359 with one)."""
SYNC_SECONDS = 30.0
"""Seconds within which the first lists must end."""

POOLS, CONFIG = "pools", "config"
"""Names of the StateParts with the status of loop and pools, and with the digests of HF's files that the loop used."""


class KubeState:
    """The state of one provisioner in a namespace: a ``State``."""

    least_pause_seconds = 1.0

    def __init__(self, api: ApiServer, provisioner: str, directory: str = "", *, follows: bool = False) -> None:
        """Connect the parts of the state.

        ``directory``: the local directory of the journal; empty if there is none. ``follows``: True for a running loop,
        which watches the objects. A process that does not follow lists the objects at each use.
        """
        self._api, self._provisioner, self._directory = api, provisioner, directory
        self.path = f"kubernetes:{api.namespace} ({api.name})"
        threads = ThreadPoolExecutor(THREADS, "state") if follows else None
        kind = ObjectCache if follows else ListedObjects
        self._caches = {
            resource: kind(api, collection(api.namespace, resource, fieldSelector=own(provisioner)))
            for resource in WATCHED
        }
        notes = KubeNotes(api, provisioner, directory)
        self.note_shown, self.write_demand, self.read_demand = notes.note_shown, notes.note_demand, notes.read_demand
        self._parts, self._name = Parts(api, provisioner), object_name(provisioner)
        # The directory may also serve other shards, and earlier served another namespace.
        self.memory = KubeMemory(api, provisioner, directory and f"{directory}/generation-{api.namespace}-{self._name}")
        self.holds = ProvisionerObject(api, provisioner, self._caches[STATES], self.memory.exists)
        self.memory.prepare = self.holds.create
        self.ask_release, self.release_asked = self.holds.ask_release, self.holds.release_asked
        self.forget_release = self.holds.forget_release
        self.intent = KubeIntent(api, provisioner, self._caches, self.memory, threads)
        self.intent.on_restore = self.memory.on_restore = self._note_restore
        self.terminal_answers = KubeTerminalAnswers(api, provisioner, self._caches[ANSWERS], threads)
        self.status = KubeAnswers(api, self.intent.objects, self.holds, self.memory, self.terminal_answers, threads)
        self.loop_lock = KubeTurn(api, provisioner, fence=self.memory.fence)
        self._journal = Journal(os.path.join(directory, "journal.jsonl")) if directory else None
        self._pool_status: Mapping[str, object] = {}
        for cache in self._caches.values():
            cache.start_following()

    def _note_restore(self) -> None:
        """Note that etcd was restored. Treat intent as an old copy, and forget what this process has written."""
        self.intent.is_old, self.intent.is_accepted = True, False
        self.memory.restored += 1
        self.holds.forget_written()
        self.status.forget_written()

    def wait_synced(self) -> None:
        """Wait for the first lists. Raises StateError."""
        for cache in self._caches.values():
            cache.wait_synced(SYNC_SECONDS)

    def close(self) -> None:
        """End the watches."""
        for cache in self._caches.values():
            cache.stop_following()

    # --- history and status -------------------------------------------------------------------------------------------

    def add_history(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Append to the local journal. Raises StateUnwritable."""
        if self._journal:
            self._journal.append(entries)

    def find_history(self, *texts: str, newest: bool = False, most: int | None = None) -> Excerpt:
        """Return the lines of the local journal that contain one of ``texts``, as ``Journal.find`` does."""
        return self._journal.find(*texts, newest=newest, most=most) if self._journal else Excerpt()

    def write_pool_status(self, pool_status: Mapping[str, object]) -> None:
        """Write the pool status if it has changed, and publish why machines are missing. Raises StateError."""
        if pool_status != self._pool_status:
            self._parts.write(POOLS, pool_status, self.memory.marks)
            self._pool_status = pool_status
            self.status.explain(pool_status.get("unmet", {}))

    def read_pool_status(self) -> dict[str, Any]:
        """Read the pool status. Raises StateUnreadable."""
        return dict(self._parts.read(POOLS) or {})

    # --- signs of life ------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Record that a cycle has ended. Then set the final phase of each request whose answer HF has read. Raises
        StateError."""
        self.loop_lock.beat()
        self.status.finish(self.terminal_answers.ids())

    def life_signs(self) -> LifeSigns:
        """Return the loop's signs of life. Raises StateError."""
        return self.loop_lock.life_signs()

    def seconds_since_intent(self) -> float:
        """Return the seconds from the creation of intent's newest record to the end of the loop's last cycle; 0 if
        unknown. The server's clock gives both times."""
        last, made = self.life_signs().last_beat_at, self.intent.last_created()
        return max(last - made, 0.0) if last and made else 0.0

    def take_release(self) -> bool:
        """Return True if an operator has asked the loop to release the brake. Intent then counts as current again.

        Return False while the watches lack a request, whose machines would look like orphans. Raises StateError.
        """
        self.intent.is_accepted = self.holds.take_release() and self.intent.is_complete()
        return self.intent.is_accepted

    def sizes(self) -> Mapping[str, int]:
        """Return the bytes of the local journal, and the characters of memory's log, by name."""
        sizes = {"memory.log": self.memory.log_size}
        with suppress(OSError):
            sizes["journal.jsonl"] = os.stat(os.path.join(self._directory, "journal.jsonl")).st_size
        return sizes

    def find_write_error(self) -> OSError | None:
        """Return an error if the server does not answer or refuses this process; None if writing is possible. The
        error's number is ENETRESET, which stands for errors of a Kubernetes API."""
        try:
            self.holds.signature()
        except StateError as error:
            return OSError(errno.ENETRESET, str(error).rstrip("."))
        return None

    # --- notes of HF's scripts ----------------------------------------------------------------------------------------

    def _note(self, suffix: str = "") -> Item:
        self._caches[NOTES].check()
        spec: Item = self._caches[NOTES].objects.get(f"{self._name}{suffix}", {}).get("spec", {})
        return spec

    def polls(self) -> dict[str, int]:
        """Return the time of HF's last poll of each request, in ns by the server's clock. Raises StateError.

        The method usually reads the polls from the watch. While a cancel is announced, it reads them from the server,
        because every poll must then count (law: a terminal answer stays).
        """
        if (memory := self.memory.latest) and any(record.is_cancelling for record in memory.requests.values()):
            reply = self._api.call("GET", objects.item(self._api.namespace, NOTES, f"{self._name}.polls"))
            polled = reply.document.get("spec", {}).get("polled", {})
        else:
            polled = self._note(".polls").get("polled", {})
        return {id_: int(at * 1e9) for id_, at in polled.items()}

    def forget_polls(self, ids: Iterable[str]) -> None:
        """Remove the polls and the settled answers of requests that have left the state. Raises StateError."""
        gone = set(ids)
        self.terminal_answers.forget(gone)
        if known := self._note(".polls").get("polled", {}).keys() & gone:
            patch(self._api, NOTES, f"{self._name}.polls", {"spec": {"polled": dict.fromkeys(sorted(known))}})

    def listed_hosts(self) -> tuple[tuple[str, ...], int] | None:
        """Return the hosts in HF's latest list, and the time of that list in ns; None before HF's first list. Raises
        StateError."""
        spec = self._note(".hosts")
        if "hosts" not in spec:
            return None
        return objects.unpack(spec["hosts"], f"{self._name}.hosts", tuple), spec.get("listed", 0) * 10**9

    def refused_calls(self) -> list[Refusals]:
        """Return the calls that scripts have refused because of a local problem, by script. Raises StateError."""
        refused = self._note().get("refused", {})
        known = {"total": 0, "recent": 0, "since": 0.0, "last": 0.0, "text": ""}
        return [Refusals(name, **(known | refused[name])) for name in SCRIPTS if name in refused]

    def note_in_force(self, digests: Digests) -> None:
        """Record that the loop now uses HF's two files with these digests. Raises StateError."""
        noted = self._parts.read(CONFIG) or []
        if not noted or noted[0][1] != [*digests]:
            now = self._api.call("GET", objects.item(self._api.namespace, NOTES, self._name)).at
            read = [[int(now * 1e9), [*digests]], *noted][:KEPT]
            self._parts.write(CONFIG, read, self.memory.marks)

    def config_differences(self) -> list[Difference]:
        """Return each of HF's two files (provider config, templates) that scripts and loop have read with different
        contents. Raises StateError."""
        loop = [ConfigMark(int(at), Digests(*digests)) for at, digests in self._parts.read(CONFIG) or []]
        read = [(one["at"], one["digests"]) for one in self._note().get("read", [])]
        for found in self.intent.objects().values():
            metadata = found["metadata"]
            if digests := metadata.get("annotations", {}).get(objects.READ):
                read.append((datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(), digests))
        newest = sorted(read, reverse=True)
        scripts = [ConfigMark(int(at * 1e9), Digests(*text.split("-", 1))) for at, text in newest if "-" in text]
        return differences({"scripts": scripts, "loop": loop})

    def shown(self) -> dict[str, int]:
        """Return the highest maxNumber that was shown to HF for each template. Raises StateError."""
        return dict(self._note().get("shown", {}))

"""Intent: the MachineRequests and MachineReturns of one provisioner. Scripts create these objects, and the loop removes
them.

``generation`` starts at intent's generation as noted in the loop's memory. It grows with each change that this process
sees. After a restore of etcd, intent counts as an old copy until an operator releases the brake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from datetime import datetime

from provisioner.model import Intent, Request, ReturnRequest
from provisioner.names import RETURN_ID_PREFIX
from provisioner.state.errors import Condition, StateMissing
from provisioner.state.kube.cache import ListedObjects
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.memory import KubeMemory, resource_of
from provisioner.state.kube.objects import REQUESTS, RETURNS, item
from provisioner.state.kube.parts import Item, list_items, run_all
from provisioner.state.kube.script_state import KubeScriptState


class KubeIntent:
    """The requests and return requests of HF."""

    def __init__(
        self,
        api: ApiServer,
        provisioner: str,
        caches: Mapping[str, ListedObjects],
        memory: KubeMemory,
        threads: Executor | None = None,
    ) -> None:
        self._api, self._provisioner, self._memory, self._threads = api, provisioner, memory, threads
        self._caches = caches[REQUESTS], caches[RETURNS]
        self._intent: Intent | None = None
        self._versions: tuple[int, ...] = ()
        """Versions of the caches from which ``_intent`` was made."""
        self._unused_at: tuple[int, ...] = ()
        """Versions of the caches at which the state was unused: no request existed and no loop had run."""
        self._uids: Mapping[str, str] = {}
        self._restores = 0
        """Number of restores of etcd that the caches had noticed at the last check. A standby loop does not read
        intent, so the caches may notice several restores between two checks."""
        self.is_old = False
        """True from a restore of etcd until an operator releases the brake."""
        self.on_restore: Callable[[], None] = lambda: None
        self.is_accepted = False
        """True if an operator has released the brake, so that an old intent becomes current."""

    def objects(self) -> dict[str, Item]:
        """Return the objects of requests and return requests by id. Raises StateError."""
        for cache in self._caches:
            cache.check()
        return self._known()

    def is_complete(self) -> bool:
        """Return True if the watches have shown all objects of a new list. Raises StateError."""
        listed = {name for kind in (REQUESTS, RETURNS) for name in list_items(self._api, kind, self._provisioner)}
        return listed <= self.objects().keys()

    def _known(self) -> dict[str, Item]:
        return {name: one for cache in self._caches for name, one in cache.objects.items()}

    def _check_caches(self) -> tuple[int, ...]:
        """Return the versions of the caches. If etcd was restored since the last call, treat intent as an old copy. If
        an operator has released the brake since then, treat intent as current again. Raises StateError."""
        for cache in self._caches:
            cache.check()
        if (restores := sum(cache.restores for cache in self._caches)) > self._restores:
            self._restores = restores
            self.on_restore()
        if self.is_old and self._intent is not None and self.is_accepted:
            self._intent, self.is_old = self._decode(self._known(), self._intent.generation + 2), False
        return tuple(cache.version for cache in self._caches)

    def read(self) -> Intent:
        """Return all of intent. Raises StateError, in particular StateMissing if no request was recorded and no loop
        has run."""
        versions = self._check_caches()
        if self._intent is not None and versions == self._versions:
            return self._intent
        objects = self._known()
        is_unused = not objects and self._memory.latest is None
        if is_unused and (versions == self._unused_at or not self._memory.existed()):
            self._unused_at = versions
            raise StateMissing(
                f"kubernetes:{self._api.namespace}: HostFactory has recorded no request here, and no loop has run here."
            )
        uids = {name: one["metadata"]["uid"] for name, one in objects.items()}
        # An object that an operator has deleted may have had the only copy of a record.
        self._memory.detach(id_ for id_, uid in self._uids.items() if uids.get(id_) != uid)
        self._versions = versions
        if self._intent is None:
            generation, is_old = self._memory.intent_notes()
            generation, self.is_old = max(generation, 1), self.is_old or is_old
        elif uids == self._uids:
            return self._intent
        else:
            generation = self._intent.generation + 1
        self._uids = uids
        self._intent = self._decode(objects, generation)
        return self._intent

    def _decode(self, objects: Mapping[str, Item], generation: int) -> Intent:
        requests, returns = dict[str, Request](), dict[str, ReturnRequest]()
        for id_, one in sorted(objects.items(), key=_order):
            spec, created = one["spec"], float(one["spec"]["created"])
            if id_.startswith(RETURN_ID_PREFIX):
                returns[id_] = ReturnRequest(id_, tuple(spec["names"]), created)
            else:
                requests[id_] = Request(id_, spec["template"], spec["count"], created, spec.get("account", ""))
        return Intent(self._provisioner, generation, requests, returns)

    def existed(self) -> bool:
        """Return True if there is a request or return request, or if a loop has run on this state."""
        try:
            self.read()
        except StateMissing:
            return False
        return True

    def signature(self) -> object:
        """Return a value that changes when intent gains or loses a request, or when etcd is restored. Return None if no
        request was recorded and no loop has run. Raises StateError."""
        return (self.read().generation, self.is_old) if self.existed() else None

    def condition(self) -> Condition:
        """Return NEW if the state is unused, else FINE.

        After a restore of etcd, intent is an old copy, but still FINE. `provisioner recover` need not rewrite it,
        because it becomes current when an operator releases the brake. A recovery only adds the records that intent
        lacks.
        """
        return Condition.FINE if self.existed() else Condition.NEW

    def read_newest(self) -> tuple[Intent, int]:
        """Return all of intent, and the newest generation. If intent is an old copy, the newest generation is higher
        than the intent's own generation."""
        intent = self.read()
        return intent, intent.generation + self.is_old

    def note_newest(self, generation: int) -> None:
        """Do nothing, because a script cannot distinguish an old copy from the newest state. A script's new request is
        valid in an old copy, too."""

    def remove(self, identifiers: Iterable[str]) -> float:
        """Put the records of these requests and returns into memory's log, then remove their objects.

        Return 0.0, the seconds spent waiting for a lock. The Kubernetes API needs no lock.
        """
        known = self.objects()
        ids = [id_ for id_ in identifiers if id_ in known]
        self._memory.detach(ids)
        run_all(self._remove, ids, self._threads)
        return 0.0

    def _remove(self, id_: str) -> None:
        self._api.call("DELETE", item(self._api.namespace, resource_of(id_), id_))
        self._memory.remove_pieces(id_)

    def known_generation(self) -> int:
        """Return intent's own generation, because no object records a newer generation."""
        return self.read().generation

    def restore(self, wanted: Intent) -> None:
        """Create each request and return of ``wanted`` that this state lacks. Raises StateError."""
        known, scripts, owner = self.objects(), KubeScriptState(self._api, self._provisioner), self._provisioner
        for id_, one in wanted.requests.items():
            if id_ not in known:
                made, account = one.created_wall, one.rc_account
                scripts.record_request(owner, one.template, one.count, created_wall=made, rc_account=account, id_=id_)
        for id_, back in wanted.returns.items():
            if id_ not in known:
                scripts.record_return(owner, back.names, created_wall=back.created_wall, id_=id_)

    def last_created(self) -> float:
        """Return the creation time of the newest request or return request, in epoch seconds of the server's clock; 0
        if there is no request."""
        times = [one["metadata"]["creationTimestamp"] for one in self.objects().values()]
        return datetime.fromisoformat(max(times)).timestamp() if times else 0.0


def _order(named: tuple[str, Item]) -> tuple[str, float, str]:
    """Return a key that sorts requests by their creation. Within one second, the script's time decides, because the
    server's clock counts whole seconds."""
    id_, found = named
    return found["metadata"]["creationTimestamp"], found["spec"]["created"], id_

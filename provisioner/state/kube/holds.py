"""The ProvisionerState object: holds and releases of operators in its spec, and the loop's published status.

``kubectl edit`` changes the holds, too. If the object was deleted or is an old copy, the holds are unknown. Only an
operator may release a hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from provisioner.model import NO_HOLDS, Hold, Holds
from provisioner.state.errors import StateMissing, StateStale, StateUnreadable
from provisioner.state.holds import Change
from provisioner.state.kube.cache import ListedObjects
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.objects import STATES, body, collection, item, object_name
from provisioner.state.kube.parts import Item, patch
from provisioner.state.record_format import RecordError, decode, encode

ATTEMPTS = 10
"""Number of tries of a change, because several operators may change the holds at the same time."""

ADVICE = "`provisioner stop-all` or `start-all` makes it again; set the holds again."

KEPT_RELEASES = 200
"""Maximum number of released holds that the object keeps. The schema also limits the holds in force to this number."""


class ProvisionerObject:
    """The ProvisionerState of one provisioner. If this process has written a newer object than the cache has, the
    written object counts."""

    def __init__(self, api: ApiServer, provisioner: str, cache: ListedObjects, has_memory: Callable[[], bool]) -> None:
        self._api, self._provisioner, self._cache, self._has_memory = api, provisioner, cache, has_memory
        self.name = object_name(provisioner)
        self._path = item(api.namespace, STATES, self.name)
        self._written: Item | None = None
        """The object as last written by this process; None if it has written none."""
        self._taken = ""
        """Version of the object in which ``take_release`` last found a release that an operator asks for; empty if the
        object contained none."""
        self._seen = ("", 0)
        """Creation time of the newest object that this process has seen, and the highest generation of its holds."""
        self._old: object = None
        """The holds of an old copy; None if there is none. An operator's change of these holds counts."""

    def latest(self) -> Item | None:
        """Return the object; None if it does not exist. Raises StateError."""
        self._cache.check()
        found = self._cache.objects.get(self.name)
        if self._written and int(self._written["metadata"]["resourceVersion"]) > int(self._cache.resource_version):
            return self._written
        return found

    def forget_written(self) -> None:
        """Forget the object that this process has written, so that the object in the cache counts.

        Called after a restore of etcd. The server's versions are then lower than the written version.
        """
        self._written = None

    def create(self) -> None:
        """Make the object if it does not exist."""
        new = body(STATES, self.name, {"provisioner": self._provisioner})
        self._api.call("POST", collection(self._api.namespace, STATES), new)

    def patch(self, change: Mapping[str, object], subresource: str = "") -> bool:
        """Change fields of the object. Return False if the object does not exist. Raises StateStale if a newer loop has
        written."""
        written = patch(self._api, STATES, self.name, change, subresource)
        self._written = written or self._written
        return written is not None

    def signature(self) -> object:
        """Return a value that changes with the holds; None if there is no object."""
        found = self.latest()
        return None if found is None else (found["metadata"]["uid"], found["metadata"]["generation"])

    def read(self) -> Holds:
        """Return all holds. Raises StateMissing or StateUnreadable."""
        return self._decode(self.latest())

    def change(self, change: Change, *, replace_unusable: bool = False) -> tuple[Holds, Holds]:
        """Replace the holds durably, and return the holds before and after that. The function ``change`` gets the old
        holds and returns the new holds.

        ``replace_unusable``: True to replace unknown holds. The function gets no holds if this happens. Raises
        StateMissing or StateUnreadable. Raises StateStale if other operators keep changing the holds at the same
        moment.
        """
        for _ in range(ATTEMPTS):
            reply = self._api.call("GET", self._path)
            found = None if reply.status == 404 else reply.document
            try:
                before = self._decode(found)
            except (StateMissing, StateUnreadable):
                if not replace_unusable:
                    raise
                before = NO_HOLDS
            if (after := change(before)) == before and not (replace_unusable and found is None):
                return before, after
            newest = sorted(after.released, key=lambda hold: hold.since)[-KEPT_RELEASES:]
            spec = {"holds": [*map(encode, after.current)], "released": [*map(encode, newest)]}
            if found is None:
                self.create()
                continue
            self._seen = ("", 0)
            try:
                if self.patch({"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "spec": spec}):
                    return before, after
            except StateStale:
                continue
        raise StateStale(f"{self._path}: others changed it {ATTEMPTS} times at the same moment. Try again.")

    def ask_release(self) -> None:
        """Record that an operator allows the loop to release the brake. Raises StateError, in particular StateMissing
        if there is no object."""
        number = os.urandom(4).hex()  # so that each request changes the object
        if not self.patch({"spec": {"release": f"asked on {os.uname().nodename}, {number}"}}):
            raise StateMissing(f"{self._path}: was deleted, so no release was recorded. {ADVICE} Then try again.")

    def release_asked(self) -> bool:
        """Return True if an operator has asked the loop to release the brake. Raises StateError."""
        return bool((self.latest() or {}).get("spec", {}).get("release"))

    def take_release(self) -> bool:
        """Return what ``release_asked`` returns, and keep the object's version for ``forget_release``."""
        found = self.latest() if self.release_asked() else None
        self._taken = found["metadata"]["resourceVersion"] if found else ""
        return found is not None

    def forget_release(self) -> None:
        """Forget, durably, the release of the brake that ``take_release`` found last. Raises StateError, in particular
        Conflict if the object has changed since."""
        if self._taken:
            self.patch({"metadata": {"resourceVersion": self._taken}, "spec": {"release": None}})
        self._taken = ""

    def _decode(self, found: Item | None) -> Holds:
        if found is None:
            if any(self._seen) or self._has_memory():
                raise StateMissing(f"{self._path}: was deleted, so the holds in force are unknown. {ADVICE}")
            return NO_HOLDS
        spec, seen = found["spec"], (found["metadata"]["creationTimestamp"], found["metadata"]["generation"])
        if seen < self._seen and self._old in (None, spec.get("holds", [])):
            self._old = spec.get("holds", [])
            raise StateUnreadable(f"{self._path}: is an old copy: a later one had been written. {ADVICE}")
        self._seen, self._old = seen, None
        try:
            return Holds(*(decode(tuple[Hold, ...], spec.get(name, [])) for name in ("holds", "released")))
        except RecordError as error:
            raise StateUnreadable(f"{self._path}: {error}. Correct it with `kubectl edit`. {ADVICE}") from error

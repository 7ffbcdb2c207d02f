"""Notes in a Kubernetes API. The notes are only hints for the loop or for operators. They contain shown maxNumbers,
digests of HF's files, HF's hosts, refused calls, and the report of ``provisioner demand``.

The scripts import this module at each call, so it imports only modules that load fast.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any

from provisioner.hostfactory.provider_config import Digests
from provisioner.state.errors import StateError, StateUnreachable
from provisioner.state.kube import objects
from provisioner.state.kube.connection import MERGE, ApiServer, Response
from provisioner.state.kube.objects import NOTES, collection, item, unpack

FOUND, CREATED, MISSING, CONFLICT = 200, 201, 404, 409

KEPT_READS = 3
"""Maximum number of digests of HF's files in a note, one for each read. Earlier digests show whether scripts or loop
have the newer files."""


def check(api: ApiServer, reply: Response) -> Response:
    """Return the response if the call succeeded. Raises StateError."""
    if reply.status not in (FOUND, CREATED):
        raise StateError(f"{api.name}: HTTP {reply.status}: {reply.document.get('message')}.")
    return reply


class KubeNotes:
    """The notes of one provisioner, written with as few calls as possible."""

    def __init__(self, api: ApiServer, provisioner: str, directory: str) -> None:
        """Set server and provisioner. ``directory``: directory that keeps refused calls until they can be sent."""
        self._api, self._provisioner, self._directory = api, provisioner, directory
        self._name = objects.object_name(provisioner)
        self._read: Digests | None = None
        self._failure: StateUnreachable | None = None
        """The error of an earlier call; None if no call has failed. Further calls raise this error at once, because
        they would only wait for a silent server."""

    def note_read(self, digests: Digests) -> None:
        """Keep the digests of HF's two files until this process writes the next object or note. That write then
        contains the digests."""
        self._read = digests

    def note_shown(self, numbers: Mapping[str, int]) -> tuple[Mapping[str, int], str]:
        """Record and return the maxNumbers that HF is shown, by template. If HF was shown a higher number before, that
        number stays. Also return the path of the record. The record also gets the digests of the files that this
        process has read. Raises StateError."""
        from provisioner.hostfactory.templates import get_higher

        path, spec, now = self._noted()
        before = spec.get("shown") or {}
        shown = {name: get_higher(number, before.get(name, number)) for name, number in numbers.items()}
        change: dict[str, Any] = {"shown": shown} if before | shown != before else {}
        if self._read:
            digests = "-".join(self._read)
            earlier = [one for one in spec.get("read") or [] if one["digests"] != digests]
            change["read"] = [{"at": now, "digests": digests}, *earlier][:KEPT_READS]
        if change:
            self._note(change)
        return shown, path

    def note_hosts(self, names: Mapping[str, object]) -> None:
        """Record the hosts that HF lists. Raises StateError.

        HF sends a long list in parts. A list that has no host of the previous list is added to the previous list. Any
        other list replaces the previous list.
        """
        path, spec, now = self._noted(".hosts")
        hosts = list(names)
        digest = f"{zlib.crc32(' '.join(hosts).encode('utf-8', 'surrogateescape')):08x}"
        change: dict[str, Any] = {"listed": max(int(spec.get("listed") or 0) + 1, int(now))}
        if spec.get("digest") != digest:
            before = unpack(spec["hosts"], path) if spec.get("hosts") and hosts else []
            joined = [*before, *hosts] if names.keys().isdisjoint(before) else hosts
            change |= {"hosts": objects.pack(sorted(joined)), "digest": digest}  # sorted names take a third
            if len(change["hosts"]) > objects.MOST_PACKED:
                raise StateError(f"{path}: a list of {len(joined)} hosts does not fit. Set more shards.")
        self._note(change, ".hosts")

    def note_demand(self, report: Mapping[str, object]) -> None:
        """Record the report of the last step of ``provisioner demand``. Raises StateError."""
        self._failure = None  # each step tries again
        self._note({"demand": objects.pack(report)}, ".demand")

    def read_demand(self) -> dict[str, Any]:
        """Return the report of the last step of ``provisioner demand``; empty before the first step. Raises
        StateError."""
        self._failure = None
        path, spec, _ = self._noted(".demand")
        return dict(unpack(spec["demand"], path)) if "demand" in spec else {}

    def note_refusal(self, script: str, reason: str) -> None:
        """Record the reason why a script refuses its call; an empty reason if the script does not refuse the call.
        Raises StateError.

        The record is first written to a file, because the server may not answer. If it does not, a later call sends the
        record.
        """
        file = os.path.join(self._directory, "refused", script)
        if not reason and not os.path.exists(file):
            return
        from provisioner.state.refused_calls import RefusedCalls

        calls = RefusedCalls(os.path.dirname(file))
        calls.note(script, reason)
        if self._failure is None:
            noted = {one.script: one._asdict() for one in calls.read()}[script]
            del noted["script"]
            self._note({"refused": {script: noted}})
            if not reason:
                os.unlink(file)

    def _noted(self, part: str = "") -> tuple[str, dict[str, Any], float]:
        """Return the path and the content of a note, and the present time by the server's clock. A missing note has no
        content."""
        path = item(self._api.namespace, NOTES, f"{self._name}{part}")
        reply = self._call("GET", path)
        return path, reply.document["spec"] if reply.status == FOUND else {}, reply.at

    def _note(self, change: dict[str, Any], part: str = "") -> None:
        """Change fields of a note; create the note if it is missing. Raises StateError."""
        patch = "PATCH", item(self._api.namespace, NOTES, f"{self._name}{part}"), {"spec": change}, MERGE
        if (reply := self._call(*patch)).status == MISSING:  # if another script creates it first, this does no harm
            new = objects.body(NOTES, f"{self._name}{part}", {"provisioner": self._provisioner})
            self._call("POST", collection(self._api.namespace, NOTES), new)
            reply = self._call(*patch)
        check(self._api, reply)

    def _call(self, method: str, path: str, body: object = None, content: str = "application/json") -> Response:
        if self._failure is not None:
            raise self._failure
        try:
            return self._api.call(method, path, body, content=content)
        except StateUnreachable as error:
            self._failure = error
            raise

"""The state in a Kubernetes API as HF's scripts use it. Each script makes a few calls on one connection.

The scripts import this module at each call, so it imports only modules that load fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from provisioner.hostfactory import Answer, Loss, Polled, Recorded
from provisioner.names import RETURN_ID_PREFIX
from provisioner.state.errors import StateError, StateExists, StateStale
from provisioner.state.kube import objects
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.objects import ANSWERS, REQUESTS, RETURNS, STATES, collection, item, own, unpack
from provisioner.state.kube.script_notes import CONFLICT, FOUND, MISSING, KubeNotes, check
from provisioner.state.settled_answers import Entry, SettledAnswers

FEW = 10
"""Maximum number of ids that are read one by one. More ids are read with one list of all objects."""

ATTEMPTS = 5
"""Number of tries to add the next entry to an answer. A few tries are enough, because other processes add an entry only
once or twice in a request's life."""

LONGEST_NAME, LONGEST_ACCOUNT = 63, 255
"""Maximum numbers of characters that the server accepts: in a machine's name, and in an account."""

ENDED = "Ended"
"""Phase of a request whose terminal answer was published. HF may not have read this answer yet."""


class KubeEntries(SettledAnswers):
    """Settled answers as objects of a Kubernetes API. Each entry is one MachineAnswer and never changes. The first
    entry of request ``ID`` has the name ``ID.0``, the second entry ``ID.1``. The last entry counts."""

    def __init__(self, api: ApiServer, provisioner: str) -> None:
        self._api, self._provisioner = api, provisioner

    def _tries(self, id_: str) -> Iterator[Entry | None]:
        yield None  # usually there is no entry yet; if there is one, the server refuses a second object of this name
        for _ in range(ATTEMPTS):
            yield self._last(id_)
        raise StateStale(f"{id_}: other processes keep adding answers. Ask again.")

    def _read(self, id_: str, position: int) -> Entry | None:
        reply = self._api.call("GET", item(self._api.namespace, ANSWERS, f"{id_}.{position}"))
        return None if reply.status == MISSING else self._decode(reply.document)

    def _decode(self, found: Mapping[str, Any]) -> Entry:
        """Return the entry that a MachineAnswer contains. Raises StateUnreadable."""
        name, spec = found["metadata"]["name"], found["spec"]
        path = item(self._api.namespace, ANSWERS, name)
        text = unpack(spec["answer"], path) if "answer" in spec else ""
        return Entry(spec["kind"].lower(), text, int(name.rpartition(".")[2]))

    def _add(self, id_: str, last: Entry | None, kind: str, text: str) -> bool:
        spec = {"provisioner": self._provisioner, "request": id_, "kind": kind.capitalize()}
        spec |= {"answer": objects.pack(text)} if text else {}
        name = f"{id_}.{last.position + 1 if last else 0}"
        reply = self._api.call("POST", collection(self._api.namespace, ANSWERS), objects.body(ANSWERS, name, spec))
        if reply.status == CONFLICT:
            return False
        check(self._api, reply)
        return True


class KubeScriptState(KubeNotes):
    """The ``ScriptState`` in a Kubernetes API."""

    def __init__(self, api: ApiServer, provisioner: str, directory: str = "") -> None:
        super().__init__(api, provisioner, directory)
        self._entries = KubeEntries(api, provisioner)

    # --- requests and returns -----------------------------------------------------------------------------------------

    def record_request(
        self, provisioner: str, template: str, count: int, *, created_wall: float, rc_account: str, id_: str = ""
    ) -> Recorded:
        """Create a MachineRequest. This process chooses the object's name, so that a call without a response can be
        repeated. Raises StateError.

        ``id_``: the request's id; empty for a new id.
        """
        spec = {"provisioner": provisioner, "template": template, "count": count, "created": created_wall}
        spec |= {"account": rc_account[:LONGEST_ACCOUNT]} if rc_account else {}
        return self._record(REQUESTS, spec, id_)

    def record_return(self, provisioner: str, names: Iterable[str], *, created_wall: float, id_: str = "") -> Recorded:
        # A longer name is none of ours. Cut it so that it does not become one of ours.
        fitting = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}~" for name in names]
        spec = {"provisioner": provisioner, "names": fitting, "created": created_wall}
        return self._record(RETURNS, spec, id_)

    def _record(self, resource: str, spec: dict[str, Any], id_: str) -> Recorded:
        if not id_:
            from provisioner.state.new_ids import new_id  # imported here because most calls need no id

            id_ = (RETURN_ID_PREFIX if resource == RETURNS else "") + new_id()
        marks = {"annotations": {objects.READ: "-".join(self._read)}} if self._read else {}
        path = collection(self._api.namespace, resource)
        reply = self._call("POST", path, objects.body(resource, id_, spec, **marks))
        if reply.status == CONFLICT:  # the first of two tries took effect, but its response was lost
            found = check(self._api, self._call("GET", item(self._api.namespace, resource, id_)))
            if found.document["spec"] != spec:
                raise StateExists(f"{path}/{id_}: another request has this id. Ask again.")
        else:
            check(self._api, reply)
        try:
            return Recorded(id_, self._silence()[0])
        except StateError:  # the request is recorded
            return Recorded(id_, None)

    def _silence(self) -> tuple[float | None, float]:
        """Return the seconds since the loop's last cycle (None if unknown), and the present time. The server's clock
        gives both times."""
        reply = self._call("GET", f"{objects.leases(self._api.namespace)}/{self._name}.loop")
        marks = reply.document["metadata"].get("annotations") or {} if reply.status == FOUND else {}
        try:
            return max(0.0, reply.at - float(marks[objects.CYCLE])), reply.at
        except (KeyError, ValueError):  # no cycle has ended, or an operator has changed the mark
            return None, reply.at

    # --- answers ------------------------------------------------------------------------------------------------------

    def poll(self, ids: Iterable[str]) -> Polled:
        """Return the answer to each known id; None for a request that waits for its first answer or for a recovery.

        The script notes the poll before it reads the answers. The loop announces a cancel before it reads the notes. So
        either the loop notices the poll, or the script notices the cancel. Raises StateError.
        """
        asked = list(ids)
        if not asked:
            return Polled({}, None)
        silent, now = self._silence()
        self._note({"polled": dict.fromkeys(asked, now)}, ".polls")
        found = self._objects(asked)
        answers = {id_: self._answer(id_, found[id_]) for id_ in asked if id_ in found}
        if unknown := [id_ for id_ in asked if id_ not in found]:
            answers |= {id_: settled for id_ in unknown if (settled := self._entries.settled(id_))}
            # HF would give up the requests that a recovery makes again.
            if self._status().get("brake", "").startswith(("intent_older", "request_lost")):
                answers = dict.fromkeys(unknown) | answers
            else:
                self._note({"polled": dict.fromkeys(unknown)}, ".polls")
        return Polled(answers, silent)

    def _objects(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for resource in (REQUESTS, RETURNS):
            wanted = {id_ for id_ in ids if id_.startswith(RETURN_ID_PREFIX) == (resource == RETURNS)}
            if len(wanted) > FEW:
                found |= {name: one for name, one in self._list(resource) if name in wanted}
                continue
            for id_ in wanted:
                reply = self._call("GET", item(self._api.namespace, resource, id_))
                if reply.status == FOUND and reply.document["spec"]["provisioner"] == self._provisioner:
                    found[id_] = reply.document
        return found

    def _list(self, resource: str) -> Iterator[tuple[str, dict[str, Any]]]:
        path = collection(self._api.namespace, resource, fieldSelector=own(self._provisioner))
        for one in check(self._api, self._call("GET", path)).document["items"]:
            yield one["metadata"]["name"], one

    def _answer(self, id_: str, found: Mapping[str, Any]) -> Answer | None:
        """Return the answer in a request's object; None if the object has no answer yet. If the answer is terminal and
        HF has not read it before, settle it before returning it. Raises StateError."""
        status = found.get("status") or {}
        if "answer" not in status:
            return None
        path = item(self._api.namespace, "", id_)
        answer = Answer(**unpack(status["answer"], path))
        if status["phase"] == ENDED:
            # During an announced cancel, the answer is not terminal, but HF may have read a terminal answer before.
            if not answer.ended:
                return self._entries.settled(id_) or answer
            return Answer(self._entries.settle_reported(id_, answer.text), True)
        return answer

    def lost(self, machines: Iterable[str]) -> Mapping[str, Loss]:
        """Return the losses among ``machines``, except machines that HF has returned. Raises StateError."""
        status = self._status()
        path = item(self._api.namespace, STATES, self._name)
        published = unpack(status["lost"], path) if "lost" in status else {}
        lost = {name: Loss(*published[name]) for name in machines if name in published}
        if lost:
            for _, one in self._list(RETURNS):
                for name in one["spec"]["names"]:
                    lost.pop(name, None)
        return lost

    def available(self) -> Mapping[str, int]:
        """Return how many further machines each template may have. Raises StateError."""
        return self._status().get("available") or {}

    def _status(self) -> dict[str, Any]:
        reply = self._call("GET", item(self._api.namespace, STATES, self._name))
        return (reply.document.get("status") or {}) if reply.status == FOUND else {}

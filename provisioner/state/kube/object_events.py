"""Events on the objects of the state, for ``kubectl describe`` and ``kubectl get events``. The provisioner never reads
them."""

from __future__ import annotations

import logging
import os
import secrets
from datetime import UTC, datetime

from provisioner.state.errors import StateError
from provisioner.state.kube.connection import ApiServer
from provisioner.state.kube.parts import Item

log = logging.getLogger(__name__)

MOST = 10
"""Maximum number of Events in one write of the answers. If many objects change at once, the changes have one cause,
which the first Events show."""
LONGEST = 1024
"""Maximum number of characters of an Event's text that the server accepts."""
CALL_SECONDS = 2.0


class ObjectEvents:
    """A writer of Events. If an Event cannot be written, the writer logs this. It then writes no more Events until the
    loop next writes answers or reasons."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self.left = MOST
        """Number of Events that may still be written in this write of the answers."""

    def record(self, found: Item, reason: str, note: str, *, warns: bool = True) -> None:
        """Write an Event about a change of an object."""
        self.left -= 1
        if self.left < 0:
            return
        metadata = found["metadata"]
        place = {"name": metadata["name"], "namespace": self._api.namespace}
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {**place, "name": f"{metadata['name']}.{secrets.token_hex(8)}"},
            "regarding": {**place, "apiVersion": found["apiVersion"], "kind": found["kind"], "uid": metadata["uid"]},
            "type": "Warning" if warns else "Normal",
            "reason": reason,
            "action": "Publish",
            "note": note[:LONGEST],
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": "hostfactory-provisioner",
            "reportingInstance": os.uname().nodename,
        }
        try:
            path = f"/apis/events.k8s.io/v1/namespaces/{self._api.namespace}/events"
            self._api.call("POST", path, event, seconds=CALL_SECONDS)
        except StateError as error:
            self.left = 0
            log.warning("Event was not written", extra={"error": str(error)})

"""The simulator's log sink, which publishes audit log entries to a topic of a Pub/Sub emulator.

The sink calls the emulator's JSON API in its own thread. If the emulator does not accept an entry in time, the entry is
lost, as with a real sink.
"""

from __future__ import annotations

import base64
import logging
import queue
import threading

import requests

log = logging.getLogger(__name__)

TIMEOUT = 10.0
"""Seconds for which the sink waits for a response of the emulator."""

BATCH = 100
"""Maximum number of messages in a request."""


class Sink:
    """A publisher to one topic, which has one subscription. The sink makes both if they do not exist."""

    def __init__(self, address: str, project: str, subscription: str) -> None:
        """Prepare the sink without a call to the emulator. ``address``: host and port, as in PUBSUB_EMULATOR_HOST."""
        self._root = f"http://{address}/v1/projects/{project}"
        self._topic = f"projects/{project}/topics/{subscription}"
        self._subscription = subscription
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)

    def start(self) -> None:
        """Make topic and subscription, and publish from now on. Raises OSError if the emulator does not respond."""
        self._make("topics", {})
        self._make("subscriptions", {"topic": self._topic, "ackDeadlineSeconds": 10})
        self._thread.start()

    def put(self, data: bytes, _published: float) -> None:
        """Put a message into the queue."""
        self._queue.put(data)

    def close(self) -> None:
        """Publish the waiting messages, then end the sink's thread."""
        if self._thread.ident:
            self._queue.put(None)
            self._thread.join()

    def _make(self, kind: str, body: dict[str, object]) -> None:
        response = requests.put(f"{self._root}/{kind}/{self._subscription}", json=body, timeout=TIMEOUT)
        if response.status_code != requests.codes.conflict:
            response.raise_for_status()

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            batch = [data]
            while len(batch) < BATCH and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    self._publish(batch)
                    return
                batch.append(more)
            self._publish(batch)

    def _publish(self, batch: list[bytes]) -> None:
        messages = [{"data": base64.b64encode(data).decode()} for data in batch]
        url = f"{self._root}/topics/{self._subscription}:publish"
        try:
            requests.post(url, json={"messages": messages}, timeout=TIMEOUT).raise_for_status()
        except OSError as error:
            log.warning("Audit log entries are lost", extra={"messages": len(batch), "error": str(error)})

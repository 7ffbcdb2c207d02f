"""Pub/Sub messages as hints to observe now, never as state. Only this module imports google.cloud.pubsub.

The subscription delivers entries of Compute's audit log (the logs ``activity`` and ``system_event``). Each message is
acknowledged, whatever it contains. A message causes at most one hint.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import google.auth.exceptions
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import pubsub_v1

from provisioner.backends import SPOT_GRACE_SECONDS
from provisioner.backends.responses import ODD_RESPONSES
from provisioner.names import name_pattern

log = logging.getLogger(__name__)

REMEMBERED = 20_000
"""Number of audit log entries that are remembered to detect repetitions. A burst of 10,000 machines writes two entries
for each machine."""

MAX_MESSAGES = 500
"""Maximum number of messages that have been received but not yet processed. To process a message takes microseconds."""

LEASE_SECONDS = 120
"""Seconds after which a message that was not acknowledged returns to the service. With the library's default, a stuck
callback would keep its message for an hour."""

FIRST_PAUSE = 1.0
LAST_PAUSE = 300.0
"""Longest pause in seconds before a broken stream is opened again. The pause doubles with each break."""

CLOSE_SECONDS = 1.0
"""Seconds to wait for the end of the stream. If Pub/Sub does not respond, the library takes minutes to stop."""

STEADY_SECONDS = 60.0
"""Seconds after which an open stream counts as healthy. After the next break, the first pause applies again."""

STREAM_ERRORS = (GoogleAPICallError, google.auth.exceptions.GoogleAuthError)
"""Errors with which a stream breaks or does not open, for example because the subscription, the permission or the
credentials are missing."""


class InstanceEvent(StrEnum):
    """An event in an instance's life."""

    CREATED = "created"
    DELETED = "deleted"
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    RECREATED = "recreated"
    CRASHED = "crashed"


METHODS: Mapping[str, InstanceEvent] = {
    "instances.insert": InstanceEvent.CREATED,
    "instances.delete": InstanceEvent.DELETED,
    "instances.stop": InstanceEvent.STOPPED,
    "instances.guestTerminate": InstanceEvent.STOPPED,
    "instances.terminateOnHostMaintenance": InstanceEvent.STOPPED,
    "instances.preempted": InstanceEvent.PREEMPTED,
    "instances.repair.recreateInstance": InstanceEvent.RECREATED,
    "instances.automaticRestart": InstanceEvent.RECREATED,
    "instances.hostError": InstanceEvent.CRASHED,
}
"""Events by the end of ``methodName``. The beginning of ``methodName`` depends on the API version of the caller."""


class Worth(StrEnum):
    """The use that the loop can make of a message."""

    NOTICE = "notice"
    """The message announces the end of a machine of ours."""
    WAKE_UP = "wake_up"
    """The message reports another event of a machine of ours."""
    REPEATED = "repeated"
    """The message repeats an earlier message."""
    FOREIGN = "foreign"
    """The message is not about a machine of ours. A sink's filter may be wide, and the emulator ignores filters."""
    MALFORMED = "malformed"
    """The message is not an audit log entry."""


@dataclass(frozen=True, slots=True)
class Hint:
    """The content of a message. The hint may be out of date when the loop gets it."""

    instance: str
    event: InstanceEvent
    failed: bool
    """True if the entry reports an error, for example a create that found no stock."""
    timestamp: str
    """Time of the event by the cloud's clock, RFC 3339."""
    key: str
    """Key that is equal for all copies of an entry."""
    delay: float = 0.0
    """Seconds from the event until Pub/Sub received the message, both times by the cloud's clock; 0 if unknown."""

    @property
    def grace(self) -> float | None:
        """Return the seconds that the instance had left when Pub/Sub received the message; None if no end was
        announced."""
        left = SPOT_GRACE_SECONDS - self.delay
        return left if self.event is InstanceEvent.PREEMPTED and not self.failed and left > 0 else None


@dataclass(frozen=True, slots=True)
class Judged:
    """A message with its use for the loop. If the message cannot be read, ``problem`` is the reason."""

    worth: Worth
    hint: Hint | None = None
    """The hint; None if the message is not about an event of an instance, or is not an audit log entry."""
    problem: str = ""
    """The reason why the message cannot be read."""

    @property
    def news(self) -> Hint | None:
        """Return the hint if it reports something new about a machine of ours; None if not."""
        return self.hint if self.worth in (Worth.NOTICE, Worth.WAKE_UP) else None


def parse(data: bytes, published: datetime | None = None) -> Hint | None:
    """Return the hint in a Pub/Sub message; None if the message is not about an event of an instance.

    ``data``: an entry of the audit log. For other data, raise an error of ODD_RESPONSES. ``published``: time at which
    Pub/Sub received the message, by the cloud's clock.
    """
    entry = json.loads(data)
    payload = entry["protoPayload"]
    method, resource = str(payload["methodName"]), str(payload["resourceName"])
    status, operation = payload.get("status") or {}, entry.get("operation") or {}
    failed = bool(status.get("code")) or entry.get("severity") == "ERROR"
    part = f"{bool(operation.get('first')):d}{bool(operation.get('last')):d}"
    key = "/".join((str(entry["insertId"]), str(operation.get("id", "")), part))
    timestamp = str(entry.get("timestamp", ""))
    event = next((event for end, event in METHODS.items() if f".{method}".endswith(f".{end}")), None)
    _, separator, instance = resource.partition("/instances/")
    if event is None or not separator or not instance:
        return None
    return Hint(instance.partition("/")[0], event, failed, timestamp, key, _delay(timestamp, published))


def _delay(timestamp: str, published: datetime | None) -> float:
    """Return the seconds between two times of Google's clocks, never negative. This host's clock is not used."""
    try:
        return max(0.0, (published - datetime.fromisoformat(timestamp)).total_seconds()) if published else 0.0
    except (ValueError, TypeError):
        return 0.0


class Sieve:
    """A filter that finds the use (``Worth``) of each message and remembers messages to detect repetitions. Any thread
    may use it."""

    def __init__(self, prefix: str) -> None:
        self._name_pattern = name_pattern(prefix)
        self._seen_keys: dict[str, None] = {}
        self._lock = threading.Lock()

    def judge(self, data: bytes, published: datetime | None = None) -> Judged:
        """Return a message with its use. ``published``: as in ``parse``."""
        try:
            hint = parse(data, published)
        except ODD_RESPONSES as error:
            return Judged(Worth.MALFORMED, problem=f"{type(error).__name__}: {error}")
        if hint is None or not self._name_pattern.fullmatch(hint.instance):
            return Judged(Worth.FOREIGN, hint)
        if not self._is_new(hint.key):
            return Judged(Worth.REPEATED, hint)
        return Judged(Worth.WAKE_UP if hint.grace is None else Worth.NOTICE, hint)

    def _is_new(self, key: str) -> bool:
        """Return False if an earlier message had this key and is still remembered."""
        with self._lock:
            if key in self._seen_keys:
                return False
            self._seen_keys[key] = None
            if len(self._seen_keys) > REMEMBERED:
                del self._seen_keys[next(iter(self._seen_keys))]
            return True


class EventStream:
    """A subscription that is read until it is closed. The function ``taken`` is called with each judged message. The
    function ``broke`` is called with the reason for each break of the stream."""

    def __init__(
        self,
        project: str,
        subscription: str,
        *,
        prefix: str,
        taken: Callable[[Judged], None],
        broke: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = f"projects/{project}/subscriptions/{subscription}"
        self._sieve = Sieve(prefix)
        self._taken = taken
        self._broke = broke
        self._ending = threading.Event()
        self._future: Any = None
        self._thread = threading.Thread(target=self._supervise, name="events", daemon=True)

    def start(self) -> None:
        """Begin to read in a thread of its own. If the subscription cannot be read, try again for ever."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading. Messages that were not processed yet return to the service."""
        self._ending.set()
        if self._future:
            self._future.cancel()
        if self._thread.ident:
            self._thread.join(CLOSE_SECONDS)

    def _receive(self, message: Any) -> None:
        """Judge and acknowledge a message. The library calls this method. Without the acknowledgement, Pub/Sub would
        deliver the message again."""
        try:
            judged = self._sieve.judge(message.data, message.publish_time)
            if judged.worth is Worth.MALFORMED:
                log.debug("Message is no audit log entry", extra={"subscription": self._path, "error": judged.problem})
            self._taken(judged)
        finally:
            message.ack()

    def _supervise(self) -> None:
        """Keep the stream open until ``close`` is called."""
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            began_at = time.monotonic()
            reason = self._stream()
            if self._ending.is_set():
                return
            if time.monotonic() - began_at >= STEADY_SECONDS:
                pause = FIRST_PAUSE
            self._broke(reason)
            extra = {"subscription": self._path, "error": reason, "seconds": pause}
            log.warning("Event stream broke; it is opened again", extra=extra)
            self._ending.wait(pause)
            pause = min(2 * pause, LAST_PAUSE)

    def _stream(self) -> str:
        """Read until ``close`` is called or the stream breaks. Return the reason for the end."""
        limits = pubsub_v1.types.FlowControl(max_messages=MAX_MESSAGES, max_lease_duration=LEASE_SECONDS)
        try:
            with pubsub_v1.SubscriberClient() as client:
                self._future = client.subscribe(
                    self._path, self._receive, flow_control=limits, await_callbacks_on_shutdown=True
                )
                if self._ending.is_set():
                    self._future.cancel()
                self._future.result()
        except STREAM_ERRORS as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:
            log.exception("Event stream failed unexpectedly", extra={"subscription": self._path})
            return f"{type(error).__name__}: {error}"
        return "The stream ended."

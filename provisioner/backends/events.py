"""Pub/Sub messages as hints, never as state, by the only importer of google.cloud.pubsub: look now, something happened.

The subscription carries Compute's audit log entries (the logs ``activity`` and ``system_event``); each is acknowledged
whatever it holds, and gives a hint at most once.
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
"""Entries remembered to tell repeats: a burst of 10,000 machines writes two for each."""

MAX_MESSAGES = 500
"""Messages taken but not yet looked at. Each needs microseconds."""

LEASE_SECONDS = 120
"""A message is given back to the service after this: the library's hour would hide a stuck callback for an hour."""

FIRST_PAUSE = 1.0
LAST_PAUSE = 300.0
"""Seconds before a broken stream is opened again; doubles with each break."""

CLOSE_SECONDS = 1.0
"""How long the end of the stream is waited for: where nothing answers, the library takes minutes to give up."""

STEADY_SECONDS = 60.0
"""A stream that held so long was healthy: the next break begins with the first pause again."""

STREAM_ERRORS = (GoogleAPICallError, google.auth.exceptions.GoogleAuthError)
"""What ends a stream for good, or keeps it from opening: no such subscription, no permission, no credentials."""


class InstanceEvent(StrEnum):
    """What happened to an instance."""

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
"""Events by the end of ``methodName``: what precedes it depends on the version of the API that the caller used."""


class Worth(StrEnum):
    """What a message was good for."""

    NOTICE = "notice"
    """The message announces the end of a machine of ours."""
    WAKE_UP = "wake_up"
    """The message tells something else of a machine of ours."""
    REPEATED = "repeated"
    """The message came before."""
    FOREIGN = "foreign"
    """The message is about something else: a sink's filter is wide, the emulator's does nothing."""
    MALFORMED = "malformed"
    """The message is no audit log entry."""


@dataclass(frozen=True, slots=True)
class Hint:
    """What a message says. It may be false by the time it is read."""

    instance: str
    event: InstanceEvent
    failed: bool
    """The entry reports an error: a create that found no stock, for example."""
    timestamp: str
    """When it happened by the cloud's clock, RFC 3339."""
    key: str
    """A key that all copies of one entry share."""
    delay: float = 0.0
    """Seconds from what happened until Pub/Sub had the message, both by the cloud's clock; 0 when that is unknown."""

    @property
    def grace(self) -> float | None:
        """Seconds that the instance had left when Pub/Sub had the message; None when no coming end is announced."""
        left = SPOT_GRACE_SECONDS - self.delay
        return left if self.event is InstanceEvent.PREEMPTED and not self.failed and left > 0 else None


@dataclass(frozen=True, slots=True)
class Judged:
    """One message: what it was good for, and why."""

    worth: Worth
    hint: Hint | None = None
    """None when it is about something else or cannot be read."""
    problem: str = ""
    """Why it cannot be read."""

    @property
    def news(self) -> Hint | None:
        """The hint, if it says something new about a machine of ours."""
        return self.hint if self.worth in (Worth.NOTICE, Worth.WAKE_UP) else None


def parse(data: bytes, published: datetime | None = None) -> Hint | None:
    """The hint in a message; None when the entry is about something else. Raises ODD_RESPONSES for no entry.

    ``published`` is when Pub/Sub got it, by the cloud's clock.
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
    """Seconds between two times of Google's clocks, never negative; our own clock may be wrong and is not asked."""
    try:
        return max(0.0, (published - datetime.fromisoformat(timestamp)).total_seconds()) if published else 0.0
    except (ValueError, TypeError):
        return 0.0


class Sieve:
    """Judges messages one by one, and remembers which came before. From any thread."""

    def __init__(self, prefix: str) -> None:
        self._shape = name_pattern(prefix)
        self._seen_keys: dict[str, None] = {}
        self._lock = threading.Lock()

    def judge(self, data: bytes, published: datetime | None = None) -> Judged:
        """What a message is good for."""
        try:
            hint = parse(data, published)
        except ODD_RESPONSES as error:
            return Judged(Worth.MALFORMED, problem=f"{type(error).__name__}: {error}")
        if hint is None or not self._shape.fullmatch(hint.instance):
            return Judged(Worth.FOREIGN, hint)
        if not self._is_new(hint.key):
            return Judged(Worth.REPEATED, hint)
        return Judged(Worth.WAKE_UP if hint.grace is None else Worth.NOTICE, hint)

    def _is_new(self, key: str) -> bool:
        """False for a key that came before, as far back as is remembered."""
        with self._lock:
            if key in self._seen_keys:
                return False
            self._seen_keys[key] = None
            if len(self._seen_keys) > REMEMBERED:
                del self._seen_keys[next(iter(self._seen_keys))]
            return True


class EventStream:
    """One subscription, read until it is closed: ``taken`` gets each message, ``broke`` the reason of each break."""

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
        """Begin to read, in a thread of its own. A subscription that cannot be read is tried again for ever."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading. Messages not yet looked at go back to the service."""
        self._ending.set()
        if self._future:
            self._future.cancel()
        if self._thread.ident:
            self._thread.join(CLOSE_SECONDS)

    def _receive(self, message: Any) -> None:
        """Called by the library. An unacknowledged message would come again and again: it says nothing new then."""
        try:
            judged = self._sieve.judge(message.data, message.publish_time)
            if judged.worth is Worth.MALFORMED:
                log.debug("Message is no audit log entry", extra={"subscription": self._path, "error": judged.problem})
            self._taken(judged)
        finally:
            message.ack()

    def _supervise(self) -> None:
        """Keep the stream open until told to end."""
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            begun = time.monotonic()
            reason = self._stream()
            if self._ending.is_set():
                return
            if time.monotonic() - begun >= STEADY_SECONDS:
                pause = FIRST_PAUSE
            self._broke(reason)
            extra = {"subscription": self._path, "error": reason, "seconds": pause}
            log.warning("Event stream broke; it is opened again", extra=extra)
            self._ending.wait(pause)
            pause = min(2 * pause, LAST_PAUSE)

    def _stream(self) -> str:
        """Read until told to end or until the stream breaks; the reason."""
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

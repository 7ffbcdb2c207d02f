"""The right to be the loop, as a Lease of the Kubernetes API. The Lease also contains the loop's signs of life.

* A holder renews its Lease every ``RETRY_SECONDS``. After ``RENEW_SECONDS`` without a renewal, the holder does not act
  any more.
* A standby loop takes a Lease without a holder. It also takes a Lease that stayed unchanged for ``LEASE_SECONDS`` by
  the standby loop's own clock (law: time is an argument). Time in which it cannot read the Lease does not count.
* Each write names the version that it changes. So only one of several candidates succeeds.
* Each holder raises the *epoch*. The server refuses writes with a lower epoch. So late writes of an earlier holder have
  no effect.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from provisioner.state import errors, locks
from provisioner.state.errors import StateError, StateMissing, StateStale, StateUnreachable, StateUnwritable
from provisioner.state.kube.connection import ApiServer, Response
from provisioner.state.kube.objects import CYCLE, HOLDER, leases, object_name
from provisioner.state.kube.waits import SYSTEM, Waits
from provisioner.state.loop_lock import find_fate
from provisioner.state.marker_files import LifeSigns

log = logging.getLogger(__name__)

Document = dict[str, Any]

LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15.0, 10.0, 2.0
"""Seconds: after LEASE_SECONDS without a renewal, another loop may take the Lease; after RENEW_SECONDS, the holder no
longer acts; RETRY_SECONDS pass between two renewals. Kubernetes uses the same values. The speeds of two loops' clocks
may differ by up to the ratio of the first two numbers, 15 : 10."""
STOP_POLL = 0.5
"""Seconds between two calls by which a standby loop asks whether it shall stop."""
LAPSED_SECONDS = 2 * LEASE_SECONDS
"""Seconds since the last renewal, by the server's clock, after which commands assume that no loop runs."""
EXPIRED_SECONDS = 0.05
"""Seconds after the expiry of a Lease at which a standby loop reads the Lease again."""
CALL_SECONDS = RENEW_SECONDS / 2
"""Maximum duration of a call in seconds. Half of ``RENEW_SECONDS`` leaves time for a second try of a renewal."""
ATTEMPTS = 10
"""Number of tries of a write, because other processes may write at the same moment."""


class SignedLease:
    """The Lease of a provisioner's loop, as any process may read it."""

    def __init__(self, api: ApiServer, provisioner: str, waits: Waits = SYSTEM) -> None:
        self._api, self._waits = api, waits
        self._name = f"{object_name(provisioner)}.loop"
        self._server_ahead = 0.0
        """Seconds by which the server's clock is ahead of the monotonic clock."""

    @property
    def _place(self) -> str:
        return f"{self._api.name}: Lease {self._name} in the namespace {self._api.namespace}"

    def _call(self, method: str, body: Document | None = None) -> Response:
        path = leases(self._api.namespace)
        path += "" if method == "POST" else f"/{self._name}"
        reply = self._api.call(method, path, body, seconds=CALL_SECONDS)
        self._server_ahead = reply.at - self._waits.now()
        if 300 <= reply.status not in (404, 409):
            raise StateUnwritable(f"{self._place}: HTTP {reply.status}: {reply.document.get('message')}.")
        return reply

    def _read(self) -> Document:
        """Return the Lease. If it does not exist, its metadata are empty."""
        reply = self._call("GET")
        return {"metadata": {}, "spec": {}, **(reply.document if reply.status < 300 else {})}

    def _server_time(self) -> float:
        return self._waits.now() + self._server_ahead

    def epoch(self) -> int:
        """Return the current epoch. A loop with another epoch was replaced by a newer loop."""
        if not (lease := self._read())["metadata"]:
            raise StateMissing(f"{self._place} was deleted. The loop creates it again at its next renewal.")
        return locks.whole_number(_signature(lease), "epoch")

    def holder(self) -> Document:
        """Return ``epoch``, ``host``, ``pid`` and ``boot`` of the loop that signed last; empty if unknown.

        The result also has ``ended`` if that loop signed off.
        """
        return _signature(self._read())

    def stopped_message(self) -> str:
        """Return the operator's next step if the holder is a stopped process (SIGSTOP) of this host; empty if not."""
        return locks.stopped_message(self.holder())

    def is_held(self) -> bool:
        """Return True if the renewals of the Lease show that some process is the loop now."""
        return self._is_held(self._read())

    def _is_held(self, lease: Document) -> bool:
        """Return True if the Lease is held, by the server's clock.

        A loop that wants to take the Lease does not use this method, because the server's clock is not exact enough.
        """
        spec = lease["spec"]
        renewed, now = _epoch_seconds(spec.get("renewTime")), self._server_time()
        return bool(spec.get("holderIdentity")) and (renewed is None or now - renewed <= LAPSED_SECONDS)

    def life_signs(self) -> LifeSigns:
        """Return the loop's signs of life, by the server's clock. Raises StateError."""
        signature, beat = _signature(lease := self._read()), _epoch_seconds(_annotations(lease).get(CYCLE))
        silent = None if beat is None else max(0.0, self._server_time() - beat)
        fate = find_fate(signature, is_held=self._is_held(lease))
        signed_at = _epoch_seconds(lease["spec"].get("acquireTime"))
        return LifeSigns(signature, beat, silent, fate, signed_at, locks.stopped_message(signature))


class KubeTurn(SignedLease):
    """The right to be the loop, which the Lease gives to one process."""

    def __init__(
        self,
        api: ApiServer,
        provisioner: str,
        waits: Waits = SYSTEM,
        start: Callable[[threading.Thread], None] = threading.Thread.start,
        fence: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        """Store the collaborators. ``fence``: function that makes the server refuse writes with an epoch below the
        given epoch. ``fence`` is called before the new loop reads memory."""
        super().__init__(api, provisioner, waits)
        self._start, self._fence = start, fence
        self._identity = f"{os.uname().nodename[:64]}_{os.getpid()}_{os.urandom(4).hex()}"
        self._renewed_at = -math.inf
        """Monotonic time at which the last successful renewal began."""
        self._signed: Document = {}
        self._cycle = ""
        """The time of the last cycle by the server's clock; empty before the first cycle."""
        self._failure: StateError | None = None
        """The error of the last try to renew or to take the Lease; None after a success."""
        self._sight: tuple[object, float, float] = (None, 0.0, -math.inf)
        """A standby loop's last read of the Lease: its holder and renewal time; the monotonic time since which these
        values are the same; the monotonic time of the read."""
        self._closing, self._never = threading.Event(), threading.Event()

    # --- to become the loop -------------------------------------------------------------------------------------------

    def acquire(self, wait: float | None = None, stop: Callable[[], bool] = lambda: False) -> bool:
        """Become the loop within ``wait`` seconds. If ``wait`` is None, stand by until ``stop()`` returns True. Return
        False if this process has not become the loop.

        A loop that stands by also waits while the server is unreachable.
        """
        end = math.inf if wait is None else self._waits.now() + wait
        while not stop():
            try:
                if self._try_acquire(is_standby=wait is None):
                    break
                self._report()
            except StateUnreachable as error:
                if wait is not None:
                    raise
                self._report(error)
            now = self._waits.now()
            if now >= end:
                return False
            due = min(end, now + RETRY_SECONDS * random.uniform(1.0, 1.2))
            if (expires := self._sight[1] + LEASE_SECONDS + EXPIRED_SECONDS) > now:
                due = min(due, expires)
            while not stop() and (left := due - self._waits.now()) > 0:
                self._waits.wait(self._never, min(left, STOP_POLL))
        else:
            return False
        self._closing = threading.Event()
        self._start(threading.Thread(target=self._renew_until, args=(self._closing,), name="lease", daemon=True))
        return True

    def _try_acquire(self, *, is_standby: bool) -> bool:
        lease = self._read()
        if (holder := (spec := lease["spec"]).get("holderIdentity")) and holder != self._identity:
            now, (sight, since, until) = self._waits.now(), self._sight
            if sight != (holder, spec.get("renewTime")) or now - until > RENEW_SECONDS:
                since = now  # The Lease has changed, or it could not be read and may have been renewed since.
            self._sight = (holder, spec.get("renewTime")), since, now
            if now - since <= LEASE_SECONDS and (is_standby or self._is_held(lease)):
                return False
        transitions = locks.whole_number(spec, "leaseTransitions") + bool(lease["metadata"])
        new = {"holderIdentity": self._identity, "acquireTime": self._micro_time(), "leaseTransitions": transitions}
        return self._write(lease, new, {})

    def _write(self, lease: Document, spec: Document, annotations: Mapping[str, str]) -> bool:
        """Renew and change the Lease, or create it. Return False if another process has changed the Lease since
        ``lease`` was read."""
        notes = {"annotations": {**_annotations(lease), **annotations}}
        times = {"leaseDurationSeconds": int(LEASE_SECONDS), "renewTime": self._micro_time()}
        new = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            **lease,
            "spec": {**lease["spec"], **times, **spec},
        }
        new["metadata"] = {"name": self._name, **lease["metadata"], **notes}
        began = self._waits.now()
        if self._call("PUT" if lease["metadata"] else "POST", new).status >= 300:
            return False
        self._renewed_at = began
        return True

    def _micro_time(self) -> str:
        return datetime.fromtimestamp(self._server_time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    # --- to stay the loop ---------------------------------------------------------------------------------------------

    def keep(self) -> bool:
        """Confirm that this process is still the loop. Return False if another process has taken over. Raises
        StateError if this is unknown."""
        lease = self._read()
        if not lease["metadata"]:
            try:
                self.renew()
            except StateStale:
                return False
        elif lease["spec"].get("holderIdentity") != self._identity:
            return False
        if (silent := self._waits.now() - self._renewed_at) > RENEW_SECONDS:
            if isinstance(self._failure, errors.StateDenied):
                raise errors.StateDenied(str(self._failure))
            reason = f"was not renewed for {silent:.0f} s, so another loop may take over"
            raise StateUnreachable(f"{self._place} {reason}. This loop does not act until it can renew the Lease.")
        return True

    def renew(self, sign: Callable[[Document], Document] = lambda old: old, **spec: object) -> None:
        """Record that this loop lives, and the time of its last cycle. Raises StateError, in particular StateStale if
        another loop has the Lease.

        ``sign``: function that makes the new signature from the previous signature. ``spec``: further fields of the
        Lease.
        """
        for _ in range(ATTEMPTS):
            lease = self._read()
            if not lease["metadata"] and self._waits.now() - self._renewed_at <= RENEW_SECONDS:
                # The Lease was deleted, and no other loop can have it. If another loop creates it first, ours fails.
                spec = {"holderIdentity": self._identity, "acquireTime": self._micro_time(), **spec}
            elif lease["spec"].get("holderIdentity") != self._identity:
                raise StateStale(f"{self._place}: another process has the Lease now. This loop ends.")
            signed = sign(_signature(lease) or self._signed)
            notes = {HOLDER: json.dumps(signed) if signed else "", CYCLE: self._cycle}
            if self._write(lease, spec, {name: text for name, text in notes.items() if text}):
                self._signed = signed
                return
        raise StateUnreachable(f"{self._place}: other processes keep changing the Lease. The loop tries again.")

    def _renew_until(self, closing: threading.Event) -> None:
        while True:
            self._waits.wait(closing, RETRY_SECONDS * random.uniform(0.8, 1.2))
            if closing.is_set():
                return
            try:
                self.renew()
                self._report()
            except StateError as error:
                self._report(error)
                if isinstance(error, StateStale):
                    return
            except Exception:
                log.exception("Lease was not renewed, unexpectedly")

    def _report(self, error: StateError | None = None) -> None:
        """Store the error of a failed renewal; None after a success. Log the first of several failures in a row, and
        each loss of the Lease."""
        if error and (not self._failure or isinstance(error, StateStale)):
            log.warning("Lease cannot be read or renewed", extra={"error": str(error)})
        self._failure = error

    # --- signatures ---------------------------------------------------------------------------------------------------

    def raise_epoch(self, at_least: int = 1, wait_seconds: float = 0.0) -> int:
        """Sign with a new epoch of at least ``at_least``, and return the epoch. The signature is durable on return.
        Raises StateError."""
        facts = {**locks.identity(), "boot": locks.get_boot_id()}
        self.renew(lambda old: {"epoch": max(locks.whole_number(old, "epoch") + 1, at_least), **facts})
        self._fence(epoch := locks.whole_number(self._signed, "epoch"))
        return epoch

    def has_calls(self) -> bool:
        """Return False, because late calls of the previous loop are harmless. Each name is used once, and the server
        refuses the previous loop's writes."""
        return False

    def end_wait(self) -> None:
        """Do nothing, because this loop never waits for the previous loop."""

    def sign_off(self) -> None:
        """Record that no call of this loop is under way any more. Raises StateError."""
        self.renew(lambda old: {**old, "ended": True})

    def beat(self) -> None:
        """Remember the end of a cycle, so that the next renewal records its time."""
        self._cycle = f"{self._server_time():.3f}"

    def release(self) -> None:
        """Let the next loop take over. Safe to call twice. If the server does not answer, the Lease expires later."""
        self._closing.set()
        if self._renewed_at == -math.inf:
            return
        try:
            self.renew(holderIdentity=None)
        except StateError as error:
            log.warning("Lease was not released", extra={"error": str(error)})
        self._renewed_at = -math.inf


def _annotations(lease: Document) -> Document:
    return lease["metadata"].get("annotations") or {}


def _signature(lease: Document) -> Document:
    """Return the loop's signature in a Lease; empty if it is unknown."""
    return locks.parse_line(str(_annotations(lease).get(HOLDER, "")).encode())


def _epoch_seconds(text: object) -> float | None:
    """Return a Lease's time in epoch seconds. ``text``: the time as a number or a date. Return None if the time is
    unknown."""
    for parse in (float, lambda date: datetime.fromisoformat(date).timestamp()):
        with suppress(ValueError):
            return parse(str(text))
    return None

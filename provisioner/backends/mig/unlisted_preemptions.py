"""Preemptions that lists do not show. If a machine ended without a known cause, its zone's operations are read.

Unreadable operations do not make the observation fail, because operations show only causes, not states.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from provisioner.backends import CAUSE_SECONDS, BackendError
from provisioner.backends.mig.compute_fields import Json
from provisioner.backends.mig.instance_states import PREEMPTION, Observed
from provisioner.backends.responses import translated_errors
from provisioner.model import LossCause, Machine, Phase

log = logging.getLogger(__name__)

Seen = Mapping[str, Observed]
"""The machines of an observation, by name."""
Read = Callable[[str, float], Iterable[Json]]
"""A function that returns the newest preemptions in a zone. The second argument is the function's deadline, as
monotonic time."""

READ_SECONDS = 5.0
"""Seconds to wait for a zone's operations. An observation must not wait long for a cause."""


def is_unexplained(before: Machine | None, after: Machine | None) -> bool:
    """Return True if a machine has just ended or was replaced, and its end may be an unlisted preemption. Return False
    if ``before`` has a cause, or if ``after`` shows a preemption."""
    if before is not None and before.cause is not None:
        return False
    if after is not None and after.phase is Phase.GONE:
        return after.cause is not LossCause.PREEMPTED
    if before is None or before.phase is not Phase.RUNNING:
        return False
    return after is None or before.fingerprint.differs(after.fingerprint)


class Preemptions:
    """The machines of one group that were preempted and are no longer in any list."""

    def __init__(self, pool: str, read: Read) -> None:
        self._pool, self._read = pool, read
        self._gone_at: dict[str, float] = {}
        """Monotonic time at which each preemption was found, by name."""

    def explain(self, before: Seen, after: Seen, expected: Collection[str], zones: Collection[str]) -> Seen:
        """Return ``after`` with the causes that only a zone's operations show. The causes are those of machines that
        have ended since ``before``.

        If a machine's zone is unknown, the operations of all ``zones`` are read. ``expected``: names of machines that
        we deleted. The cause of their ends is known.
        """
        ends = [end for end in _ends(before, after) if end.member.name not in expected]
        asked = {zone for end in ends for zone in ([end.member.zone] if end.member.zone else zones)}
        taken = [one for zone in sorted(asked) for one in self._read_zone(zone)]
        ids, names = {id_ for id_, _ in taken}, {name for _, name in taken}
        preempted = {
            end.member.name
            for end in ends
            if (uid in ids if (uid := end.machine.fingerprint.uid) else end.member.name in names)
        }
        self._gone_at |= dict.fromkeys(preempted - after.keys(), time.monotonic())
        return {**after, **{name: _mark_preempted(after[name]) for name in preempted & after.keys()}}

    def causes(self) -> Mapping[str, LossCause]:
        """Return a dict of name → PREEMPTED for preempted machines that left the lists in the last
        ``CAUSE_SECONDS``."""
        since = time.monotonic() - CAUSE_SECONDS
        self._gone_at = {name: at for name, at in self._gone_at.items() if at >= since}
        return dict.fromkeys(self._gone_at, LossCause.PREEMPTED)

    def _read_zone(self, zone: str) -> Iterable[tuple[str, str]]:
        """Return a pair of id and name for each instance that was recently preempted in a zone."""
        try:
            with translated_errors():
                return [
                    (str(operation.get("targetId", "")), str(operation.get("targetLink", "")).rpartition("/")[2])
                    for operation in self._read(zone, time.monotonic() + READ_SECONDS)
                ]
        except BackendError as error:
            details = {"pool": self._pool, "zone": zone, "text": error.failure.text}
            log.warning("The causes of instances' ends could not be read", extra=details)
            return ()


def _ends(before: Seen, after: Seen) -> Iterator[Observed]:
    """Yield the machines whose end between two observations is unexplained. Machines that Google cannot preempt are
    left out."""
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        machines = (seen.machine if seen else None for seen in (old, new))
        if old is not new and is_unexplained(*machines) and (seen := old or after[name]).may_be_spot:
            yield seen


def _mark_preempted(seen: Observed) -> Observed:
    """Return the machine with a preemption as the cause of its end. If an instance of this name runs again, the machine
    has no failure."""
    failure = PREEMPTION if seen.machine.phase is Phase.GONE else seen.machine.failure
    return replace(seen, machine=replace(seen.machine, cause=LossCause.PREEMPTED, failure=failure))

"""Which machines Google took away although no list says so: asked of a zone's operations, and only for such an end.

The answer is a cause and never a state: a look does not fail because operations cannot be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provisioner.backends import CAUSE_SECONDS, BackendError
from provisioner.backends.mig.instances import PREEMPTION
from provisioner.backends.responses import understood
from provisioner.model import LossCause, Machine, Phase

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
Read = Callable[[str, float], Iterable[Json]]
"""The newest preemptions of a zone, until so much monotonic time."""

READ_SECONDS = 5.0
"""How long a zone's operations are waited for: a look must not wait for a cause."""


@dataclass(frozen=True, slots=True)
class End:
    """A machine that ended, or that another has replaced, between two looks."""

    name: str
    zone: str
    """Empty: nobody says."""
    id: str
    """Of the instance that ended; empty: nobody says."""


def unexplained(before: Machine | None, after: Machine | None) -> bool:
    """Whether a machine is first seen to have ended, or to be another one now, and neither look says who did it."""
    if before is not None and before.cause is not None:
        return False
    if after is not None and after.phase is Phase.GONE:
        return after.cause is not LossCause.PREEMPTED
    if before is None or before.phase is not Phase.RUNNING:
        return False
    return after is None or before.fingerprint.differs(after.fingerprint)


def preempted(machine: Machine) -> Machine:
    """The machine, ended by a preemption; one that runs again under its name is another, and does not fail."""
    failure = PREEMPTION if machine.phase is Phase.GONE else machine.failure
    return replace(machine, cause=LossCause.PREEMPTED, failure=failure)


class Preemptions:
    """Remembers which machines of one group were preempted and are in no list any more."""

    def __init__(self, pool: str, read: Read) -> None:
        self._pool, self._read = pool, read
        self._gone: dict[str, float] = {}
        """Names, and the monotonic time at which that was found, in that order."""
        self._asked: set[str] = set()

    def expect(self, names: Collection[str]) -> None:
        """We ask the group to delete these: nobody has to say why they end."""
        self._asked.update(names)

    def among(self, ends: Collection[End], zones: Collection[str]) -> frozenset[str]:
        """The names of those that Google took away; ``zones`` are asked where an end names none."""
        ends = [end for end in ends if end.name not in self._asked]
        asked = {zone for end in ends for zone in ([end.zone] if end.zone else zones)}
        taken = [one for zone in sorted(asked) for one in self._of(zone)]
        ids, names = {id_ for id_, _ in taken}, {name for _, name in taken}
        return frozenset(end.name for end in ends if (end.id in ids if end.id else end.name in names))

    def remember(self, gone: Collection[str], there: Collection[str]) -> None:
        """These preempted machines have left the lists; ``there`` are the names that are members now."""
        self._gone.update(dict.fromkeys(gone, time.monotonic()))
        self._asked.intersection_update(there)

    def causes(self) -> Mapping[str, LossCause]:
        """The preempted machines that left the lists lately."""
        before = time.monotonic() - CAUSE_SECONDS
        while self._gone and self._gone[oldest := next(iter(self._gone))] < before:
            del self._gone[oldest]
        return dict.fromkeys(self._gone, LossCause.PREEMPTED)

    def _of(self, zone: str) -> Iterable[tuple[str, str]]:
        """The id and the name of each instance that was preempted in a zone lately."""
        try:
            with understood():
                return [
                    (str(operation.get("targetId", "")), str(operation.get("targetLink", "")).rpartition("/")[2])
                    for operation in self._read(zone, time.monotonic() + READ_SECONDS)
                ]
        except BackendError as error:
            facts = {"pool": self._pool, "zone": zone, "text": error.failure.text}
            log.warning("Why instances ended could not be read", extra=facts)
            return ()

"""What observers see of the clouds, and what the loop hears of HostFactory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from provisioner.model.enums import Failure, LossCause, Phase


class Fingerprint(NamedTuple):
    """What tells a machine from another of the same name. An empty field is unknown."""

    uid: str = ""
    created: str = ""
    started: str = ""
    ip: str = ""

    def differs(self, other: Fingerprint) -> bool:
        """True when a known value changed; a value that appears is no change."""
        pairs = zip(self, other, strict=True)
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)

    def with_appeared(self, other: Fingerprint) -> Fingerprint:
        """Return this fingerprint with the values that only the other one has; this very one if there is no such."""
        merged = Fingerprint(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))
        return self if merged == self else merged


UNKNOWN_MACHINE = Fingerprint()


@dataclass(frozen=True, slots=True)
class Notice:
    """The place has said that a running machine will end."""

    cause: LossCause
    ends: float
    """Loop time when it will be gone."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of ours as its pool shows it."""

    name: str
    phase: Phase
    fingerprint: Fingerprint = UNKNOWN_MACHINE
    ip: str = ""
    public_ip: str = ""
    launched: int = 0
    """Epoch seconds by the cloud's clock; HF wants it constant. 0 = unknown."""
    failure: Failure | None = None
    """Why it does not run (yet), in the place's words."""
    cause: LossCause | None = None
    """Why it is GONE or STOPPING, when that is known."""
    notice: Notice | None = None
    gated: bool = False
    """Somebody, such as a queue, holds it back on purpose: nobody looks for a node for it yet."""
    no_room: bool = False
    """Its place has said that it has no room for it: it waits until something else goes."""
    strayed: bool = False
    """True for a machine without what makes it ours: its pod lost our labels, or its group has let it go."""
    nameless: bool = False
    """True for a machine that runs at its place and whose name does not resolve yet."""
    state: str = ""
    """The place's word for the machine's present state; empty for the usual ones."""
    expires: float | None = None
    """Epoch seconds, by its place's clock, at which its place ends it. None: no such time is known."""
    hindrance: Failure | None = None
    """The place's reason why a machine that is being deleted does not go."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one pool holds, seen completely. A failed observation raises instead (law: a failed observation is not an
    empty observation)."""

    pool: str
    began: float
    """When the observation began; everything true before then is in it, within the backend's lag."""
    machines: Mapping[str, Machine]
    """Ours, by name. The same object as in the snapshot before when nothing changed."""
    foreign: frozenset[str] = frozenset()
    """Of the names asked about, those that exist here and are not ours."""
    spec: str = ""
    """Fingerprint of the pod spec or instance template; a new one resets what was learned about the pool."""
    asked: frozenset[str] = frozenset()
    """The names that this observation asked about. Of any other name it says only whether the place shows it as
    ours."""
    causes: Mapping[str, LossCause] = field(default_factory=dict)
    """Machines that have gone, perhaps between two observations, and why."""
    problems: tuple[str, ...] = ()
    """What people should know of the pool's place: what others did to it, which of its settings will go wrong."""
    name_collisions: frozenset[str] = frozenset()
    """Of the names asked about, those that stand in the pool's place without being its machines. They may be ours, so
    none of them is gone."""
    endpoint_identity: str = ""
    """What tells the pool's place from any other of the same name, as the uid of a namespace; empty: nobody says."""
    wall: float | None = None
    """The time of the place's clock when the observation began, in epoch seconds. None: unknown."""
    listed: float | None = None
    """When the list began on which this snapshot rests; what was watched since counts as newer. None: with the
    observation."""

    @property
    def proves(self) -> float:
        """Since when the place itself, and nothing that was heard of it before, shows this."""
        return self.began if self.listed is None else self.listed

    @property
    def facts(self) -> dict[str, Any]:
        """What it shows, in short, as documents have it."""
        return {"machines": len(self.machines), "problems": list(self.problems)}


@dataclass(frozen=True, slots=True)
class ObservationFailed:
    """A pool that could not be seen completely. It gets no actions (law: a failed observation is not an empty
    observation)."""

    pool: str
    began: float
    failure: Failure

    @property
    def facts(self) -> dict[str, Any]:
        """Why it was not seen, as documents have it."""
        return {**self.failure.facts}


Observation = Snapshot | ObservationFailed


NEWS_SECONDS = 300.0
"""That HF goes on to list the same hosts is news so often: which of them no list names is a matter of an hour."""


@dataclass(frozen=True, slots=True)
class HfActivity:
    """What was noticed of HF's calls. Kept in memory only: after a restart everything counts as just polled."""

    polled: Mapping[str, float] = field(default_factory=dict)
    """When a poll of an id was last noticed."""
    since: float = 0.0
    """Since when HF's calls have been noticed: silence before it proves nothing."""
    active: float = 0.0
    """When any call of HF was last noticed."""
    reported: frozenset[str] = frozenset()
    """Ids whose terminal answer a script has read."""
    inventory: frozenset[str] = frozenset()
    """The hosts that HF's latest lists name, by short name: one list may be a part of the whole."""
    listed: Mapping[str, float] = field(default_factory=dict)
    """When a list was last noticed to name a host; for a day."""
    lists: float = 0.0
    """When any list was last noticed."""
    started: float = 0.0
    """When this process began to notice; before ``since`` when HF was away in the meantime."""

    @property
    def news(self) -> tuple[object, ...]:
        """A key that changes when HF tells something new; the same list repeated within ``NEWS_SECONDS`` leaves it
        as it is."""
        return self.reported, self.inventory, self.since, self.started, len(self.polled), self.active // NEWS_SECONDS

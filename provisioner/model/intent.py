"""Intent: HF's requests (intent.json), and the holds that operators set (holds.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Request:
    """A request of HF for ``count`` machines of a template, as a script recorded it."""

    id: str
    template: str
    count: int
    created_wall: float
    """Time of the request in epoch seconds on the script's host, used only if memory is lost."""
    rc_account: str = ""
    """Account that LSF named in the request. The answer names this account for each machine."""


@dataclass(frozen=True, slots=True)
class ReturnRequest:
    """A return request of HF for named machines. The names are short host names, like machine names."""

    id: str
    names: tuple[str, ...]
    created_wall: float


@dataclass(frozen=True, slots=True)
class Intent:
    """Content of intent.json."""

    provisioner: str
    generation: int
    requests: Mapping[str, Request]
    returns: Mapping[str, ReturnRequest]


class HoldKind(StrEnum):
    """Kinds of holds, named after the commands that set them."""

    PAUSE = "pause"
    """A pool gets no new machines."""
    DRAIN = "drain"
    """A pool gets no new machines, and HF is asked to return the machines of the pool."""
    CANCEL = "cancel"
    """An open request ends with the machines that it has. If the target is a machine, HF is asked to return the
    machine."""
    STOP_ALL = "stop-all"
    """Machines are not created or deleted in any pool."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold that an operator has set or released."""

    kind: HoldKind
    target: str = ""
    """Name of the pool, request or machine; empty for stop-all."""
    who: str = ""
    """Name of the user on the host where the command ran."""
    since: float = 0.0
    """Time of the hold in epoch seconds on the command's host, shown to operators and never compared."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Holds:
    """Content of holds.json."""

    current: tuple[Hold, ...] = ()
    released: tuple[Hold, ...] = ()
    """The last release of each hold, with the user, time and reason of the release."""

    def of_kind(self, kind: HoldKind) -> Mapping[str, Hold]:
        """Return the current holds of a kind by target."""
        return {hold.target: hold for hold in self.current if hold.kind is kind}

    @property
    def stop(self) -> Hold | None:
        """Return the stop-all hold; None if there is none."""
        return next((hold for hold in self.current if hold.kind is HoldKind.STOP_ALL), None)

    def against(self, pool: str) -> Hold | None:
        """Return the hold that keeps new machines away from a pool; None if there is none."""
        kinds = (HoldKind.DRAIN, HoldKind.PAUSE)
        mine = (hold for kind in kinds for hold in self.current if hold.kind is kind and hold.target == pool)
        return self.stop or next(mine, None)


NO_HOLDS = Holds()

"""What is wanted: HF's requests (intent.json), and what operators hold back (holds.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Request:
    """HF asks for ``count`` machines of a template, as a script recorded it."""

    id: str
    template: str
    count: int
    created_wall: float
    """Epoch seconds on the script's host. Only read when memory is lost."""
    rc_account: str = ""
    """LSF's account of the request; echoed with each machine."""


@dataclass(frozen=True, slots=True)
class ReturnRequest:
    """HF gives the named machines back. Names are short host names, as machine names are."""

    id: str
    names: tuple[str, ...]
    created_wall: float


@dataclass(frozen=True, slots=True)
class Intent:
    """What intent.json holds."""

    provisioner: str
    generation: int
    requests: Mapping[str, Request]
    returns: Mapping[str, ReturnRequest]


class HoldKind(StrEnum):
    """What a person holds the loop back by. The words are those of the commands."""

    PAUSE = "pause"
    """A pool gets no new machines."""
    DRAIN = "drain"
    """Nor does this one, and HF is asked to give its machines back."""
    CANCEL = "cancel"
    """An open request ends with what it got; HF is asked to give a machine back."""
    STOP_ALL = "stop-all"
    """No machine is made or deleted anywhere."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold that a person has pulled, or let go of."""

    kind: HoldKind
    target: str = ""
    """The pool, the request or the machine; empty where it holds everything."""
    who: str = ""
    """The user's name on the host where the command ran."""
    since: float = 0.0
    """Epoch seconds of that host. For people; never compared."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Holds:
    """What holds.json holds."""

    current: tuple[Hold, ...] = ()
    released: tuple[Hold, ...] = ()
    """Of each that was let go: by whom, when and why, the last time."""

    def of(self, kind: HoldKind) -> Mapping[str, Hold]:
        """Those of a kind that are held, by target."""
        return {hold.target: hold for hold in self.current if hold.kind is kind}

    @property
    def stop(self) -> Hold | None:
        """The hold that holds everything."""
        return next((hold for hold in self.current if hold.kind is HoldKind.STOP_ALL), None)

    def against(self, pool: str) -> Hold | None:
        """What keeps new machines from a pool."""
        kinds = (HoldKind.DRAIN, HoldKind.PAUSE)
        mine = (hold for kind in kinds for hold in self.current if hold.kind is kind and hold.target == pool)
        return self.stop or next(mine, None)


NO_HOLDS = Holds()

"""Set and release holds, as the commands of an operator do."""

from __future__ import annotations

from provisioner.model import Hold, HoldKind
from provisioner.state.directory import StateDir
from provisioner.state.holds import with_hold, without_holds

STOP = Hold(HoldKind.STOP_ALL, "", "ann", 1.5, "cloud is down")
PAUSE = Hold(HoldKind.PAUSE, "a", "bob", 2.0)
DRAIN = Hold(HoldKind.DRAIN, "a", "bob", 3.0, "zone is sick")
CANCEL = Hold(HoldKind.CANCEL, "aaaaaaaaaa", "eve", 4.0, "wrong job")


def set_holds(state: StateDir, *holds: Hold) -> None:
    for hold in holds:
        state.holds.change(lambda current, hold=hold: with_hold(current, hold))  # type: ignore[misc]


def release(state: StateDir, *kinds: HoldKind, target: str = "a") -> None:
    by = Hold(kinds[0], target, "joe", 9.0, "all is well")
    state.holds.change(lambda current: without_holds(current, kinds, by))

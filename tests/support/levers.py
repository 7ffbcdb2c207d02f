"""Levers that a person pulls and lets go, as commands do."""

from __future__ import annotations

from provisioner.model import Lever, LeverKind
from provisioner.state.directory import StateDir
from provisioner.state.levers import let_go, pulled

STOP = Lever(LeverKind.STOP_ALL, "", "ann", 1.5, "cloud is down")
PAUSE = Lever(LeverKind.PAUSE, "a", "bob", 2.0)
DRAIN = Lever(LeverKind.DRAIN, "a", "bob", 3.0, "zone is sick")
CANCEL = Lever(LeverKind.CANCEL, "aaaaaaaaaa", "eve", 4.0, "wrong job")


def pull(state: StateDir, *levers: Lever) -> None:
    for lever in levers:
        state.levers.change(lambda held, lever=lever: pulled(held, lever))  # type: ignore[misc]


def release(state: StateDir, *kinds: LeverKind, target: str = "a") -> None:
    by = Lever(kinds[0], target, "joe", 9.0, "all is well")
    state.levers.change(lambda held: let_go(held, kinds, by))

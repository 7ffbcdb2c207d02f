"""Notes which of HF's two files the loop has in force, compares them with those of the scripts, and sets the metric."""

from __future__ import annotations

import logging
from collections.abc import Callable

from provisioner.hostfactory.instance import Digests
from provisioner.state.errors import StateError
from provisioner.state.marker_files import Difference
from provisioner.state.protocols import State
from provisioner.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

FILES = {"config": "provider config", "templates": "templates file"}
"""What a person calls each of HF's files."""
TO_DO = {
    "scripts": "the scripts' is newer: bring it to the loop (provisioner configmap makes the pod's)",
    "loop": "the loop's is newer: bring it to HostFactory's host",
    None: "compare the two, and bring the right one to the other side",
}


def sentence(difference: Difference) -> str:
    """What a difference means, and what to do."""
    what = f"HostFactory's scripts read another {FILES[difference.file]} than the loop has in force"
    return f"{what}; {TO_DO[difference.newer]}"


class ConfigWatch:
    """Takes in each cycle, in the loop's thread."""

    def __init__(self, metrics: Metrics, state: State, digests: Callable[[], Digests]) -> None:
        """``digests``: those of HF's files that the loop has in force."""
        self._metrics, self._state, self._digests = metrics, state, digests
        self._told: list[Difference] = []

    def take(self) -> None:
        """Note what is in force if it is new, and compare."""
        try:
            self._state.note_in_force(self._digests())
            differences = self._state.config_differences()
        except StateError as error:
            log.warning("What the scripts have read cannot be compared", extra={"error": str(error)})
            return
        self._metrics.config_differs.replace({one.file: 1.0 for one in differences})
        if differences and differences != self._told:
            log.warning("Configuration differs", extra={"problem": "; ".join(map(sentence, differences))})
        self._told = differences

"""Comparison of two versions of HF's provider config and templates file: the version that the loop uses, and the
version that the scripts have read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from provisioner.hostfactory.provider_config import Digests
from provisioner.state.errors import StateError
from provisioner.state.marker_files import Difference
from provisioner.state.protocols import State
from provisioner.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

FILE_NAMES = {"config": "provider config", "templates": "templates file"}
"""Words for the two files of HF in messages."""

ADVICE = {
    "scripts": "the scripts have the newer file: bring it to the loop (for a loop in a pod: provisioner configmap)",
    "loop": "the loop has the newer file: bring it to HostFactory's host",
    None: "compare the two files, and bring the right one to the other side",
}


def format_difference(difference: Difference) -> str:
    """Return a sentence that names a difference and the way to remove it."""
    message = f"HostFactory's scripts read another {FILE_NAMES[difference.file]} than the loop uses"
    return f"{message}; {ADVICE[difference.newer]}"


def find_open_differences(differences: Iterable[Difference], *, refused: bool) -> list[Difference]:
    """Return the differences that an operator can fix by copying the newer file to the other side.

    ``refused``: True if the loop refuses the configuration in its files. A newer file that only the scripts have read
    may then be the refused file, so differences with such a file are left out.
    """
    return [one for one in differences if not (refused and one.newer == "scripts")]


class ConfigDrift:
    """A comparison of HF's files in the loop's thread after each cycle. Differences are logged, and counted in a
    metric."""

    def __init__(self, metrics: Metrics, state: State, digests: Callable[[], Digests]) -> None:
        """Set the inputs. ``digests``: function that returns the digests of HF's files as the loop uses them."""
        self._metrics, self._state, self._digests = metrics, state, digests
        self._logged: list[Difference] = []

    def compare(self, *, refused: bool) -> None:
        """Compare the digests of the loop's files with the digests that the scripts recorded. If the loop's digests are
        new, record them first. ``refused``: see ``find_open_differences``."""
        try:
            self._state.note_in_force(self._digests())
            differences = find_open_differences(self._state.config_differences(), refused=refused)
        except StateError as error:
            log.warning("The files that the scripts have read cannot be compared", extra={"error": str(error)})
            return
        self._metrics.config_differs.replace({one.file: 1.0 for one in differences})
        if differences and differences != self._logged:
            log.warning("Configuration differs", extra={"problem": "; ".join(map(format_difference, differences))})
        self._logged = differences

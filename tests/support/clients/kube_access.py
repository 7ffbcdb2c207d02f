"""An API server that is always reached the same way, by nobody in particular."""

from __future__ import annotations

from collections.abc import Mapping

import urllib3

from provisioner.backends.gke.api import Way


class Plain:
    """An ``Access`` without credentials."""

    def __init__(self, host: str, connections: urllib3.PoolManager | None = None) -> None:
        self._way = Way(host, connections or urllib3.PoolManager(maxsize=4))

    def now(self) -> tuple[Way, Mapping[str, str]]:
        return self._way, {}

    def rejected(self, way: Way) -> None:
        """Nothing: there is nobody else to be."""

    def close(self) -> None:
        """Nothing: connections end with the process."""

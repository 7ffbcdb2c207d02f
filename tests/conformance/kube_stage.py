"""The instance on which a conformance case runs if a Kubernetes API keeps the state. Each case has its own API server,
in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provisioner.hostfactory.provider_config import Directories
from provisioner.lab.cloud.server import Simulator
from provisioner.state.kube.script_state import KubeScriptState
from provisioner.state.kube.state import KubeState
from provisioner.state.protocols import State
from tests.conformance.stage import Case, Grid
from tests.support.kube_state_server import MemoryApiServer, ObjectServer


class KubeGrid(Grid):
    """The provider instance of a case. Its scripts run in this process."""

    def __init__(self, directory: Path, cloud: Simulator, case: Case) -> None:
        self.objects = ObjectServer()
        self._led: KubeState | None = None
        super().__init__(directory, cloud, case)

    @property
    def state(self) -> Any:
        """Return the state as an operator's command opens it."""
        return KubeState(MemoryApiServer(self.objects), self.instance)

    def loop_state(self) -> State:
        """Return the state as the loop opens it."""
        self._led = KubeState(MemoryApiServer(self.objects), self.instance, str(self.work), follows=True)
        self._led.wait_synced()
        return self._led

    def script_state(self, directories: Directories) -> KubeScriptState:
        """Return the state as a script opens it."""
        return KubeScriptState(MemoryApiServer(self.objects), directories.name, directories.state)

    def stop_loop(self) -> None:
        """End the loop, and end the loop's watches of the state."""
        super().stop_loop()
        if self._led is not None:
            self._led.close()
        self._led = None

    def heartbeats(self) -> int:
        """Return a number that changes with each cycle; 0 before the loop's server listens."""
        try:
            _ = self.url
        except RuntimeError:
            return 0
        return int(self.metric("hf_provisioner_cycles_total"))

    def shown(self) -> str:
        """Return an empty text in place of the output of `provisioner status`. As a separate process, `status` could
        not read the state, because the API server exists only in this process."""
        return ""

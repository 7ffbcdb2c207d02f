"""What tests add to every process that has a simulated Compute API, their own and those that they start: a witness of
its responses, and the switches that are in force.

A process is attended from its start (``conftest.py``, ``every_process/sitecustomize.py``), and pays for it only once it
imports the simulator: this module imports nothing else.
"""

from __future__ import annotations

import sys

FACE = "provisioner.simulator.compute.api"


class Arrival:
    """An importer that leaves everything to the others, and adds to the simulated Compute API when it is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """What the others find; of the one module, with something that follows it."""
        if name != FACE:
            return None
        import importlib.util

        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader = spec.loader
        execute = loader.exec_module  # type: ignore[union-attr]

        def execute_and_add(module: object) -> None:
            execute(module)  # type: ignore[arg-type]
            from tests.support.checks import witness
            from tests.support.clouds import switches

            switches.assume_given()
            witness.watch()

        loader.exec_module = execute_and_add  # type: ignore[union-attr, method-assign]
        return spec


def attend() -> None:
    """From now on this process is seen, if it ever has a simulated Compute API."""
    assert FACE not in sys.modules, "too late: this process has a simulated Compute API already"
    if not any(isinstance(importer, Arrival) for importer in sys.meta_path):
        sys.meta_path.insert(0, Arrival())  # type: ignore[arg-type]

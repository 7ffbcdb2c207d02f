"""Add checks to each of our processes, also to processes that a test starts.

The checks watch a simulated Compute API's responses, the switches in effect, and our clients' calls. They start with
the process (``conftest.py``, ``every_process/sitecustomize.py``). They cost time only after the process imports the
simulator or a client.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

FACE = "provisioner.lab.cloud.compute.api"
COMPUTE = "provisioner.backends.google_auth"
KUBERNETES = "provisioner.backends.gke.api"
PUBSUB = ("provisioner.backends.pubsub_events", "provisioner.backends.pubsub_subscription")


def _watch_responses(_: Any) -> None:
    from tests.support.checks import witness
    from tests.support.clouds import switches

    switches.assume_given()
    witness.watch()


def _see_compute(module: Any) -> None:
    from tests.support.checks.callers import watch_compute

    watch_compute(module)


def _see_kubernetes(module: Any) -> None:
    from tests.support.checks.callers import watch_kubernetes

    watch_kubernetes(module)


def _see_pubsub(module: Any) -> None:
    from tests.support.checks.pubsub_callers import watch_pubsub

    watch_pubsub(module)


ADDED: dict[str, Callable[[Any], None]] = {
    FACE: _watch_responses,
    COMPUTE: _see_compute,
    KUBERNETES: _see_kubernetes,
    **dict.fromkeys(PUBSUB, _see_pubsub),
}
"""Action to run after the import of each module, by the module's name."""


class Arrival:
    """An importer that runs the action of each module in ``ADDED`` after the import of the module. It finds no module
    itself, but leaves that to the other importers."""

    def __init__(self) -> None:
        self._awaited = dict(ADDED)

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """At the first import of a module in ``ADDED``, return a spec whose import also runs the module's action.

        Otherwise return None, so that the other importers find the module.
        """
        add = self._awaited.pop(name, None)
        if add is None:
            return None
        import importlib.util

        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader = spec.loader
        execute = loader.exec_module  # type: ignore[union-attr]

        def execute_and_add(module: object) -> None:
            execute(module)  # type: ignore[arg-type]
            add(module)

        loader.exec_module = execute_and_add  # type: ignore[union-attr, method-assign]
        return spec


def attend() -> None:
    """Check this process from now on. The checks work only if it imports a simulated Compute API or a cloud client."""
    late = [name for name in ADDED if name in sys.modules]
    assert not late, f"too late: this process has imported {late} already"
    if not any(isinstance(importer, Arrival) for importer in sys.meta_path):
        sys.meta_path.insert(0, Arrival())  # type: ignore[arg-type]

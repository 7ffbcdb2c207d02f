"""Settings of a pool of kind ``skeleton``. Each has a docstring with its default, unit and reason."""

from __future__ import annotations

from typing import Literal

from provisioner.schema.setting_types import Pool, Text


class SkeletonPool(Pool):
    """Jobs in one queue."""

    kind: Literal["skeleton"] = "skeleton"
    """Kind of the place."""
    queue: Text = "grid"
    """Name of the queue; default grid."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the kind and the queue. A second pool with the same identity is refused."""
        return (self.kind, self.queue)

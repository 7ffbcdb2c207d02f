"""All methods of the Compute Engine API that the simulator has."""

from __future__ import annotations

from provisioner.simulator import compute_calls, compute_group_calls, compute_project_calls

METHODS = (*compute_calls.METHODS, *compute_group_calls.METHODS, *compute_project_calls.METHODS)

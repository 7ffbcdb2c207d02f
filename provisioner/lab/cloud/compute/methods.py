"""All methods of the Compute Engine API that the simulator has."""

from __future__ import annotations

from provisioner.lab.cloud.compute import calls, group_calls, project_calls

METHODS = (*calls.METHODS, *group_calls.METHODS, *project_calls.METHODS)

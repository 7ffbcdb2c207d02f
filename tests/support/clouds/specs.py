"""Managed instance groups as a grid should have them, and as our pages and Terraform files make them."""

from __future__ import annotations

from typing import Any

from provisioner.lab.cloud.compute.settings import ADVISED, MigSpec


def advised(**fields: Any) -> MigSpec:
    """Return a group that ends no machine by itself, except as ``fields`` set."""
    return MigSpec(**{**ADVISED, **fields})

"""Managed instance groups with the settings that a grid needs. Our pages and Terraform files use the same settings."""

from __future__ import annotations

from typing import Any

from provisioner.lab.cloud.compute.settings import ADVISED, MigSpec


def advised(**fields: Any) -> MigSpec:
    """Return a group that ends no machine by itself, except as ``fields`` set."""
    return MigSpec(**{**ADVISED, **fields})

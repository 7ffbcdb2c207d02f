"""The kind ``mig``: settings of managed instance groups, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from provisioner.backends import Backend
from provisioner.backends.kind import Kind, Surroundings
from provisioner.backends.mig.settings import MigPool
from provisioner.hostfactory.templates import Template
from provisioner.optional_packages import extra
from provisioner.schema.setting_types import Site
from provisioner.schema.validation import Problem

COMPUTE_ENDPOINT = "PROVISIONER_COMPUTE_ENDPOINT"
"""Environment variable with the address of the Compute API, for all groups that do not set an endpoint."""


class Mig(Kind[MigPool]):
    """Instances of managed instance groups."""

    name = "mig"
    pool = MigPool
    distribution = extra("mig")
    longest_call = 45.0
    """Seconds for a group's create (20 s), the wait for its result (5 s), and the list that finds existing names (20
    s)."""
    template_field = "gcp_instance_group"
    template_words = "gcp_instance_group with gcp_zone or gcp_region"
    template_fields: ClassVar = {
        "zone": "gcp_zone",
        "region": "gcp_region",
        "group": "gcp_instance_group",
        "project": "(GCP_PROJECT_ID)",
    }

    def factory(self, site: Site) -> Callable[[MigPool], Backend]:
        """Return a function that makes backends. Pools of a project share connections, call budget and the lists of
        zones."""
        from provisioner.backends.mig.backend import MigBackend
        from provisioner.backends.mig.shared_lists import Projects

        return partial(MigBackend, projects=Projects(site))

    def inherited(self, body: Mapping[str, Any], around: Surroundings) -> Mapping[str, object]:
        """Return the settings that a pool inherits: project and credentials from HF's provider config, and the endpoint
        from the environment."""
        config = around.config
        return {
            "project": config.gcp_project_id,
            "credentials": around.beside(config.gcp_credentials_file),
            "endpoint": around.environment.get(COMPUTE_ENDPOINT),
        }

    def embedded(self, address: str) -> Mapping[str, object]:
        """Return settings that make ``address`` the endpoint, in place of Google's endpoint."""
        return {"endpoint": address}

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return the problem of a group that sets both zone and region, or neither."""
        if (body.get("zone") is None) != (body.get("region") is None):
            return []
        both_or_neither = "neither" if body.get("zone") is None else "both"
        return [Problem("", "zone", f"expected either zone or region, got {both_or_neither}")]

    def warnings(self, pool: MigPool) -> list[str]:
        """Return a warning if timings of a demonstration are used with a real cloud."""
        least = MigPool.model_fields["lag_seconds"].default
        if pool.lag_seconds >= least or pool.address.startswith("http://"):
            return []
        return [
            f"pools.{pool.name}.lag_seconds: {pool.lag_seconds:g} is for the embedded cloud: Compute's lists may miss "
            f"a new instance for longer, which then counts as gone; leave lag_seconds out (default {least:g})"
        ]

    def implicit(self, template: Template) -> Mapping[str, object]:
        """Return the settings of a pool if the template names its group; empty if the template names none."""
        body = {"zone": template.gcp_zone, "region": template.gcp_region, "group": template.gcp_instance_group}
        return {name: value for name, value in body.items() if value}


KIND = Mig()

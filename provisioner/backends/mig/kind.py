"""Managed instance groups as a kind of place: how its settings are read, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from provisioner.backends import Backend
from provisioner.backends.kind import Kind, Surroundings
from provisioner.backends.mig.settings import MigPool
from provisioner.hostfactory.templates import Template
from provisioner.optional_packages import extra
from provisioner.schema.pool import Site
from provisioner.schema.problems import Problem

COMPUTE_ENDPOINT = "PROVISIONER_COMPUTE_ENDPOINT"
"""Environment variable: the Compute API of every group that names no endpoint of its own."""


class Mig(Kind[MigPool]):
    """Instances of managed instance groups."""

    name = "mig"
    pool = MigPool
    distribution = extra("mig")
    longest_call = 45.0
    """A group's create (20 s), the wait for its result (5 s), and the look for names that are taken (20 s)."""
    template_field = "gcp_instance_group"
    template_words = "gcp_instance_group with gcp_zone or gcp_region"
    template_fields: ClassVar = {
        "zone": "gcp_zone",
        "region": "gcp_region",
        "group": "gcp_instance_group",
        "project": "(GCP_PROJECT_ID)",
    }

    def factory(self, site: Site) -> Callable[[MigPool], Backend]:
        """Pools of one project share its connections, its budget of calls, and the lists of its zones."""
        from provisioner.backends.mig.backend import MigBackend
        from provisioner.backends.mig.shared_lists import Projects

        projects = Projects(site.prefix, site.adopt_prefixes, calls_per_minute=site.compute.calls_per_minute)
        return partial(MigBackend, projects=projects)

    def inherited(self, body: Mapping[str, Any], around: Surroundings) -> Mapping[str, object]:
        """Project and credentials of HF's provider config, and the environment's endpoint."""
        config = around.config
        return {
            "project": config.gcp_project_id,
            "credentials": around.beside(config.gcp_credentials_file),
            "endpoint": around.environment.get(COMPUTE_ENDPOINT),
        }

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """What is wrong with a group's location: it is zonal or regional."""
        if (body.get("zone") is None) != (body.get("region") is None):
            return []
        both_or_neither = "neither" if body.get("zone") is None else "both"
        return [Problem("", "zone", f"expected either zone or region, got {both_or_neither}")]

    def warnings(self, pool: MigPool) -> list[str]:
        """Timings of a demonstration on a real cloud."""
        least = MigPool.model_fields["lag_seconds"].default
        if pool.lag_seconds >= least or pool.address.startswith("http://"):
            return []
        return [
            f"pools.{pool.name}.lag_seconds: {pool.lag_seconds:g} is for the embedded cloud: Compute's lists may miss "
            f"a new instance for longer, which then counts as gone; leave it out ({least:g})"
        ]

    def implicit(self, template: Template) -> Mapping[str, object]:
        """The group that the template names."""
        body = {"zone": template.gcp_zone, "region": template.gcp_region, "group": template.gcp_instance_group}
        return {name: value for name, value in body.items() if value}


KIND = Mig()

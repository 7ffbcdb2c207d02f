"""The kind ``ray``: settings of pools of Ray jobs, and their checks."""

from __future__ import annotations

from collections.abc import Callable

from provisioner.backends import Backend, MachineSize
from provisioner.backends.kind import JobKind
from provisioner.backends.ray.settings import RayPool
from provisioner.optional_packages import extra
from provisioner.schema.setting_types import Site


class Ray(JobKind[RayPool]):
    """Jobs of Ray clusters."""

    name = "ray"
    pool = RayPool
    distribution = extra("ray")
    docs = "docs/ray.md"
    longest_call = 35.0
    """Seconds for a connection (5 s) and a response (30 s)."""

    def factory(self, site: Site) -> Callable[[RayPool], Backend]:
        """Return a function that makes backends."""
        from provisioner.backends.ray.api import RayApi
        from provisioner.backends.ray.backend import RayBackend

        return lambda pool: RayBackend(pool, RayApi(pool), provisioner=site.id, prefix=site.prefix)

    def warnings(self, pool: RayPool) -> list[str]:
        """Return warnings: all machines may run on the head, machines may share a host, or a token is sent in clear."""
        found = []
        if not pool.num_cpus and not pool.num_gpus and not pool.resources:
            found.append("num_cpus: with 0 and no other resource, all machines run on the head of the cluster")
        if not pool.exclusive:
            found.append("exclusive: several machines may share a host and its name, by which Symphony knows a machine")
        if pool.token_file is not None and pool.endpoint.startswith("http://"):
            found.append("endpoint: the token is sent in clear: use https://")
        return [f"pools.{pool.name}.{text}" for text in found]

    def size(self, pool: RayPool, template: str) -> MachineSize | None:
        """Return the size that the settings reserve; None if they reserve no memory."""
        if pool.memory is None:
            return None
        return MachineSize(f"pools.{pool.name}", pool.num_cpus, pool.memory / 2**20)


KIND = Ray()

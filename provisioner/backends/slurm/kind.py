"""The kind ``slurm``: settings of pools of jobs, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from provisioner.backends import Backend, MachineSize
from provisioner.backends.kind import JobKind, Surroundings
from provisioner.backends.slurm.settings import SlurmPool
from provisioner.optional_packages import extra
from provisioner.schema.setting_types import Site
from provisioner.schema.validation import Problem

LOCAL = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class Slurm(JobKind[SlurmPool]):
    """Jobs of Slurm clusters."""

    name = "slurm"
    pool = SlurmPool
    distribution = extra("slurm")
    docs = "docs/slurm.md"
    longest_call = 20.0
    """Seconds for a connection (5 s) and a response (15 s)."""

    def factory(self, site: Site) -> Callable[[SlurmPool], Backend]:
        """Return a function that makes backends. Pools of a cluster share connections and lists."""
        from provisioner.backends.slurm.backend import SlurmBackend
        from provisioner.backends.slurm.cluster import Cluster

        clusters: dict[tuple[str, ...], Cluster] = {}

        def backend(pool: SlurmPool) -> Backend:
            if pool.cluster not in clusters:
                clusters[pool.cluster] = Cluster(pool)
            return SlurmBackend(pool, clusters[pool.cluster], provisioner=site.id, prefix=site.prefix)

        return backend

    def problems(self, body: Mapping[str, Any], inherited: Mapping[str, object], around: Surroundings) -> list[Problem]:
        """Return a problem if ``require_dns`` is set, and another problem if the script cannot be read."""
        problems = super().problems(body, inherited, around)
        file = around.beside(body.get("script_file"))
        try:
            if isinstance(body.get("script_file"), str):
                open(str(file), encoding="utf-8").close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.append(Problem("", "script_file", f"{body['script_file']!r} cannot be read: {reason}"))
        return problems

    def warnings(self, pool: SlurmPool) -> list[str]:
        """Return warnings about a token that is sent in clear or is in ``environment``, and about machines that share a
        host."""
        found = []
        if pool.endpoint.startswith("http://") and not pool.endpoint.startswith(LOCAL):
            found.append("endpoint: the token is sent in clear: use https://, or a socket (unix://)")
        if not pool.exclusive:
            found.append("exclusive: several machines may share a host and its name, by which Symphony knows a machine")
        if any("token" in value.lower() for value in pool.environment):
            found.append("environment: every user of the cluster may read it: no secret belongs there")
        return [f"pools.{pool.name}.{text}" for text in found]

    def size(self, pool: SlurmPool, template: str) -> MachineSize | None:
        """Return the size that the settings request; None if Slurm decides."""
        if pool.cpus is None or pool.memory_mb is None:
            return None
        return MachineSize(f"pools.{pool.name}", float(pool.cpus), float(pool.memory_mb))


KIND = Slurm()

"""The embedded cloud as a whole, without HTTP: a ``World`` (clock, random numbers, faults), one Kubernetes cluster, and
managed instance groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from provisioner.backends.gke.settings import GkePool
from provisioner.backends.mig.settings import MigPool
from provisioner.files import yaml_text
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.settings import ADVISED, MigSpec, Switches, Timings
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.kubernetes.settings import PodTimings
from provisioner.lab.cloud.world import Fault, World

if TYPE_CHECKING:
    from provisioner.settings.definitions import Settings

MODES = frozenset(
    # faults of pods, and of calls to the Kubernetes API
    {
        "altered",
        "bad_config",
        "crash",
        "image_pull",
        "invalid",
        "never_ready",
        "no_node_fits",
        "quota",
        "slow_start",
        "spot_node",
        "stockout",
    }
    | {"denied", "hang", "list_error", "lost_response", "no_watchlist", "stuck", "throttled", "unavailable"}
    | {"unprepared", "watch_cut", "watch_gone"}
    # faults of instances, groups and operations, and of calls to the Compute API
    | {
        "attempt_error",
        "false_start",
        "ip_exhausted",
        "no_address",
        "mig_gone",
        "no_ip",
        "preemption",
        "protected",
        "stuck_provisioning",
        "stuck_stopping",
    }
    | {"abandoned", "deleted", "name_taken", "paginated", "recreated", "repairs", "resized", "size_limit", "stopped"}
    | {"op_error", "op_gone", "op_stuck", "precondition", "unhealthy"}
    | {"empty_page", "http_error", "list_lag", "moved_page", "partial_list", "reset", "token_expired", "unknown_words"}
    | {"clock_skew"}
    # faults of entries between the audit log and Pub/Sub
    | {"event_late", "event_lost", "event_malformed", "event_number", "event_twice", "event_unfinished"}
)
"""The modes of all faults. Each part of the cloud documents the effects of its own modes."""

_NUMBERS = {"rate", "after", "limit", "start", "end"}


@dataclass(frozen=True)
class Conditions:
    """Faults, timings and switches for the embedded cloud. ``faults`` replaces all present faults. If ``gke``, ``mig``
    or ``switches`` is None, the cloud keeps its present timings or switches."""

    faults: Sequence[Fault] = ()
    gke: PodTimings | None = None
    mig: Timings | None = None
    switches: Switches | None = None

    @classmethod
    def parse(cls, document: object) -> Conditions:
        """Parse ``{"faults": […], "timings": {"gke": {…}, "mig": {…}}, "switches": {…}}``.

        Raise ValueError for a mistake, with its position in the document. A section of timings or switches replaces all
        present values: values that the section omits get their defaults. Without such a section, the cloud keeps its
        present values. Without ``faults``, the conditions have no faults.
        """
        root = _object("the document", document, {"faults", "timings", "switches"})
        faults = root.get("faults", [])
        if not isinstance(faults, list):
            raise ValueError(f"faults: expected a list, got {faults!r}")
        parsed = [_fault(f"faults[{number}]", fault) for number, fault in enumerate(faults)]
        return cls.of(parsed, root.get("timings"), root.get("switches"))

    @classmethod
    def of(cls, faults: Sequence[Fault] = (), timings: object = None, switches: object = None) -> Conditions:
        """Return conditions with these faults, timings and switches. ``timings`` and ``switches`` have the form of the
        sections that ``parse`` accepts. Raise ValueError for a mistake in one of them."""
        sections = _object("timings", timings if timings is not None else {}, {"gke", "mig"})
        return cls(
            faults=tuple(faults),
            gke=PodTimings.parse(_object("timings.gke", sections["gke"])) if "gke" in sections else None,
            mig=Timings.parse(_object("timings.mig", sections["mig"])) if "mig" in sections else None,
            switches=Switches.parse(_object("switches", switches)) if switches is not None else None,
        )

    @classmethod
    def read(cls, path: Path) -> Conditions:
        """Read conditions from a YAML or JSON file. Raise ValueError with the file's name for a mistake or an
        unreadable file."""
        try:
            return cls.parse(yaml_text.parse(yaml_text.read_text(path))[0] or {})
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: {yaml_text.format_read_error(error)}") from error
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: {yaml_text.format_syntax_error(error)}") from error


def _object(where: str, value: object, fields: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {value!r}")
    unknown = sorted(set(value) - fields) if fields is not None else []
    if unknown:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(sorted(fields or ()))}")
    return value


def _fault(where: str, value: object) -> Fault:
    try:
        document = _object("it", value)
        fault = Fault.parse(document)
        _object("params", fault.params)
        for name in _NUMBERS & document.keys():
            if isinstance(document[name], bool) or not isinstance(document[name], (int, float)):
                raise ValueError(f"{name}: expected a number, got {document[name]!r}")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if fault.mode not in MODES:
        raise ValueError(f"{where}: mode: unknown mode {fault.mode!r}; known: {', '.join(sorted(MODES))}")
    return fault


class Cloud:
    """The embedded cloud. Call its methods only in the thread in which its ``World`` advances."""

    def __init__(self, world: World, namespaces: Sequence[str], migs: Sequence[MigSpec]) -> None:
        self.world = world
        self.cluster = Cluster(world, namespaces)
        self.groups = Groups(world, migs)

    def impose(self, conditions: Conditions) -> None:
        """Replace faults and switches now. New timings apply only to steps that begin later."""
        self.world.set_faults(conditions.faults)
        if conditions.gke is not None:
            self.cluster.timings = conditions.gke
        if conditions.mig is not None:
            self.groups.impose_timings(conditions.mig)
        if conditions.switches is not None:
            self.groups.impose_switches(conditions.switches)

    def state(self) -> dict[str, Any]:
        """Return every machine, the cloud's time (epoch seconds) and the number of API calls by method."""
        machines = [*self.cluster.state(), *self.groups.state()]
        return {"time": self.world.wall(), "machines": machines, "calls": dict(sorted(self.world.calls.items()))}

    def preempt(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Preempt machines. Return the names of the preempted machines, and the names that were not preempted."""
        preempted = [*self.cluster.preempt(names), *self.groups.preempt(names)]
        return preempted, [name for name in names if name not in preempted]

    def reset(self) -> None:
        """Remove all machines, faults and counts of calls. Timings do not change."""
        self.world.set_faults(())
        self.cluster.reset()
        self.groups.reset()
        self.world.calls.clear()


def namespaces_of(settings: Settings) -> list[str]:
    """Return the namespaces that a configuration's pools name, in the order of the pools."""
    return list(dict.fromkeys(pool.namespace for pool in settings.pools.values() if isinstance(pool, GkePool)))


def contexts_of(settings: Settings) -> dict[str, str]:
    """Return the kubeconfig contexts that the pools of a configuration name.

    Each context comes with the namespace of its first pool.
    """
    contexts: dict[str, str] = {}
    for pool in settings.pools.values():
        if isinstance(pool, GkePool) and pool.context:
            contexts.setdefault(pool.context, pool.namespace)
    return contexts


def migs_of(settings: Settings) -> list[MigSpec]:
    """Return the managed instance groups that a configuration's pools name."""
    specs = {
        pool.identity: MigSpec(
            project=pool.project, name=pool.group, zone=pool.zone or "", region=pool.region or "", **ADVISED
        )
        for pool in settings.pools.values()
        if isinstance(pool, MigPool)
    }
    return list(specs.values())

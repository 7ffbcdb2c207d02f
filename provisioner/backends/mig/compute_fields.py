"""The fields that are read from Compute's JSON documents. The documents describe a group, its members and a zone's
instances. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from provisioner.backends import SPOT_GRACE_SECONDS
from provisioner.backends.mig.errors import attempt_error
from provisioner.backends.responses import seconds, text
from provisioner.model import Failure

Json = Mapping[str, Any]

Entries = Mapping[str, Mapping[str, Json]]
"""The instances of an observation, by zone and then by name."""

ATTEMPT_STATUSES = frozenset({"", "PROVISIONING", "STAGING"})
"""Instance statuses for which the error of the group's last attempt counts, as in Kubernetes' autoscaler. The error
also counts while the instance is being deleted."""


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of listManagedInstances."""

    name: str
    id: str
    """Id of the instance; empty if there is none yet."""
    zone: str
    """Zone; empty if the group has not chosen one yet."""
    status: str
    action: str
    attempt: Failure | None
    """Failure of the last attempt to create or delete the instance."""
    expires: float | None = None
    """Epoch seconds at which Compute ends the instance; None if the group does not know it."""

    @property
    def hindrance(self) -> Failure | None:
        """Return the failure of the last delete; None if no delete failed. If the instance was not made yet, the result
        is None, because ``attempt`` is then about the create."""
        return self.attempt if self.action == "DELETING" and self.status not in ATTEMPT_STATUSES else None

    @property
    def url(self) -> str:
        """Return the address of the instance in a call. The address is relative, because Compute refuses other hosts.
        If the zone is unknown, return the name."""
        return instance_url(self.zone, self.name) if self.zone else self.name


@dataclass(frozen=True, slots=True)
class Instance:
    """An entry of instances.list. An object with the defaults of all fields stands for a missing instance."""

    id: str = ""
    status: str = ""
    created: str = ""
    started: str = ""
    ip: str = ""
    """Address; empty if the instance has no usable address."""
    ipv6: str = ""
    public_ip: str = ""
    is_spot: bool = False
    grace: float = SPOT_GRACE_SECONDS
    """Seconds between the preemption notice and the end."""
    expires: float | None = None
    """Epoch seconds at which Compute ends the instance; None if it has no limit."""


def instance_url(zone: str, name: str) -> str:
    """Return the shortest address of an instance that Compute accepts."""
    return f"zones/{zone}/instances/{name}"


def read_member(item: Json, zone: str) -> Member:
    """Return a member. ``zone``: the zone of a zonal group; empty for a regional group."""
    url = text(item.get("instance", ""))
    status = text(item.get("instanceStatus", ""))
    action = text(item.get("currentAction", "NONE"))
    error = attempt_error(item) if status in ATTEMPT_STATUSES or action == "DELETING" else None
    return Member(
        name=text(item.get("name") or url.rpartition("/")[2]),
        id=text(str(item.get("id", ""))),
        zone=url.partition("/zones/")[2].partition("/")[0] or zone,
        status=status,
        action=action,
        attempt=error.failure() if error else None,
        expires=_termination(item),
    )


def read_instance(item: Json, *, ipv6: bool = False) -> Instance:
    """Return the instance of an entry of instances.list. If ``ipv6`` is true, an instance without an IPv4 address has
    its IPv6 address in ``ip``."""
    network = (item.get("networkInterfaces") or [{}])[0]
    access = (network.get("accessConfigs") or [{}])[0]
    outside = (network.get("ipv6AccessConfigs") or [{}])[0]
    address = network.get("ipv6Address") or outside.get("externalIpv6", "")
    scheduling = item.get("scheduling") or {}
    notice = (scheduling.get("preemptionNoticeDuration") or {}).get("seconds")
    return Instance(
        id=text(str(item.get("id", ""))),
        status=text(item.get("status", "")),
        created=text(item.get("creationTimestamp", "")),
        started=text(item.get("lastStartTimestamp", "")),
        ip=text(network.get("networkIP") or (address if ipv6 else "")),
        ipv6=text(address),
        public_ip=text(access.get("natIP", "")),
        is_spot=scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible")),
        grace=SPOT_GRACE_SECONDS if notice is None else seconds(notice),
        expires=_expiry(item),
    )


def _termination(item: Json) -> float | None:
    """Return ``terminationTimestamp`` in the schedule of ``item``, in epoch seconds; None if there is no such time."""
    return epoch((item.get("scheduling") or {}).get("terminationTimestamp", "")) or None


def _expiry(item: Json) -> float | None:
    """Return the epoch seconds at which Compute ends an instance; None if never. The instance's timestamp decides, or
    else its scheduling settings."""
    scheduling = item.get("scheduling") or {}
    scheduled_end = _termination(item.get("resourceStatus") or {}) or epoch(scheduling.get("terminationTime", ""))
    longest = (scheduling.get("maxRunDuration") or {}).get("seconds")
    started = epoch(item.get("lastStartTimestamp", ""))
    return scheduled_end or (started + seconds(longest) if longest is not None and started else None)


def epoch(timestamp: str) -> int:
    """Return the epoch seconds of an RFC 3339 time; 0 without a valid time."""
    try:
        return int(datetime.fromisoformat(timestamp).timestamp())
    except ValueError:
        return 0


def count_members(group: Json) -> int:
    """Return the number of members that the group counts, over all current actions."""
    return sum(value for value in (group.get("currentActions") or {}).values() if isinstance(value, int))


def count_resting(group: Json) -> int:
    """Return the number of members without a current action. Such members run."""
    return int((group.get("currentActions") or {}).get("none", 0))


def spec(group: Json) -> str:
    """Return a text that names the instance templates in use. An instance template never changes and can only be
    replaced, so its name identifies its content."""
    urls = [text(version.get("instanceTemplate", "")) for version in group.get("versions") or []]
    urls = urls or [text(group.get("instanceTemplate", ""))]
    return ",".join(url.partition("/projects/")[2] or url for url in urls)


def is_settled(group: Json, members: int) -> bool:
    """Return True if the group has and wants exactly ``members`` members, all without a current action."""
    return (count_resting(group), count_members(group), group.get("targetSize", 0)) == (members, members, members)


def zones(group: Json, zone: str) -> frozenset[str]:
    """Return the zones of the group's instances. ``zone``: the zone of a zonal group; empty for a regional group."""
    if zone:
        return frozenset({zone})
    policy = group.get("distributionPolicy") or {}
    return frozenset(entry["zone"].rpartition("/")[2] for entry in policy.get("zones") or [])

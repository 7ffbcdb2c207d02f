"""Compute's JSON as our machines: what a group's member entry and its instance entry say, judged together. Pure.

The lists are read one after the other and each may be late: a machine runs only when both say so, and ends when either
does.

``member entry`` (listManagedInstances): what the group does with the machine.
``instance entry`` (instances.list): how it is reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from provisioner.backends import SPOT_GRACE_SECONDS
from provisioner.backends.mig.errors import attempt_error
from provisioner.backends.responses import seconds, text
from provisioner.model import ErrorClass, Failure, Fingerprint, LossCause, Machine, Notice, Phase

Json = Mapping[str, Any]

GRACE_SECONDS = 120.0
"""An instance that is not preempted gets so long, whoever stops or deletes it (Scheduling in the API's reference)."""

PREEMPTION = Failure(ErrorClass.OTHER, "The instance was preempted.")

IPV6_ONLY = "The instance runs, and has an IPv6 address alone: set the pool's ipv6 to true, or give its subnet IPv4."

WAITING_ACTIONS = frozenset({"CREATING", "CREATING_WITHOUT_RETRIES", "VERIFYING", "REFRESHING", "STARTING", "RESUMING"})
"""Actions by which the group works towards a running instance."""

LEAVING_ACTIONS = frozenset({"DELETING", "STOPPING", "SUSPENDING", "RESTARTING"})
"""Actions by which the group ends what the instance does now. After RESTARTING it is another machine: its memory is
lost."""

STAYING_ACTIONS = frozenset({"NONE", "ABANDONING"})
"""Actions under which the instance goes on with what it does; an abandoned one does so outside of the group."""

CUSTOM_TYPE = re.compile(r"(?:[a-z0-9]+-)?custom-([0-9]+)-([0-9]+)(?:-ext)?")
"""``custom-4-8192``, ``n2-custom-4-8192-ext``: the name says it all (the E2 types with shared cores are looked up)."""

WAITING_STATUSES = frozenset({"PENDING", "PROVISIONING", "STAGING", "RUNNING"})
ENDING_STATUSES = frozenset({"STOPPING", "SUSPENDING", "PENDING_STOP", "DEPROVISIONING"})
ENDED_STATUSES = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})

ATTEMPT_STATUSES = frozenset({"", "PROVISIONING", "STAGING"})
"""The last attempt's error means something only until the instance is up (the rule of Kubernetes' autoscaler), and
again while it is deleted."""


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of listManagedInstances."""

    name: str
    id: str
    """Empty while there is no instance."""
    zone: str
    """Empty while the group has not chosen one."""
    status: str
    action: str
    attempt: Failure | None
    """The failure of the last attempt to create or delete the instance."""
    expires: float | None = None
    """Epoch seconds at which Compute ends it; None: unknown to the group."""

    @property
    def hindrance(self) -> Failure | None:
        """The failure of a delete. The failure of a member without an instance is that of its creation."""
        return self.attempt if self.action == "DELETING" and self.status not in ATTEMPT_STATUSES else None

    @property
    def url(self) -> str:
        """How a call names it: relative, for addresses with another host are refused. Without zone, its bare name."""
        return instance_url(self.zone, self.name) if self.zone else self.name


@dataclass(frozen=True, slots=True)
class Instance:
    """One entry of instances.list."""

    name: str
    id: str
    status: str
    created: str
    started: str
    ip: str
    """Empty where it has none that may be used."""
    ipv6: str
    public_ip: str
    spot: bool
    grace: float
    """Seconds that it has when Compute takes it away."""
    expires: float | None
    """Epoch seconds at which Compute ends it; None: as long as it likes."""


Entries = Mapping[str, Mapping[str, Json]]
"""The instances of an observation, by zone and name."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A machine, and the two entries that it was read from."""

    member: Member
    entry: Json | None
    machine: Machine

    @property
    def may_be_spot(self) -> bool:
        """False only if its entry says that it is no Spot instance."""
        return self.entry is None or read_instance(self.entry).spot


def instance_url(zone: str, name: str) -> str:
    """The shortest address of an instance that Compute takes."""
    return f"zones/{zone}/instances/{name}"


def read_member(item: Json, zone: str) -> Member:
    """A member; ``zone`` is that of a zonal group, empty for a regional one."""
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
    """An instance, with what of it the mask lets through; its address may be an IPv6 one where ``ipv6`` allows it."""
    network = (item.get("networkInterfaces") or [{}])[0]
    access = (network.get("accessConfigs") or [{}])[0]
    outside = (network.get("ipv6AccessConfigs") or [{}])[0]
    address = network.get("ipv6Address") or outside.get("externalIpv6", "")
    scheduling = item.get("scheduling") or {}
    notice = (scheduling.get("preemptionNoticeDuration") or {}).get("seconds")
    return Instance(
        name=text(item["name"]),
        id=text(str(item.get("id", ""))),
        status=text(item.get("status", "")),
        created=text(item.get("creationTimestamp", "")),
        started=text(item.get("lastStartTimestamp", "")),
        ip=text(network.get("networkIP") or (address if ipv6 else "")),
        ipv6=text(address),
        public_ip=text(access.get("natIP", "")),
        spot=scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible")),
        grace=SPOT_GRACE_SECONDS if notice is None else seconds(notice),
        expires=_end(item),
    )


def _termination(item: Json) -> float | None:
    """Return the epoch of ``terminationTimestamp`` in the schedule of ``item``; None without one."""
    return _epoch((item.get("scheduling") or {}).get("terminationTimestamp", "")) or None


def _end(item: Json) -> float | None:
    """Return the epoch at which Compute ends an instance, by its own timestamp, else by the instance's scheduling."""
    scheduling = item.get("scheduling") or {}
    told = _termination(item.get("resourceStatus") or {}) or _epoch(scheduling.get("terminationTime", ""))
    longest, started = (
        (scheduling.get("maxRunDuration") or {}).get("seconds"),
        _epoch(item.get("lastStartTimestamp", "")),
    )
    return told or (started + seconds(longest) if longest is not None and started else None)


def machine(member: Member, instance: Instance | None, before: Machine | None, began: float) -> Machine:
    """What the two entries say of one machine; ``before`` itself when that is what was known.

    ``began``: the loop time of the look.
    ``instance``: not used where its id is not the member's: it is another incarnation, or outside the group.
    """
    if instance and instance.id != member.id:
        instance = None
    phase = _phase(member, instance)
    cause = _cause(member, instance, before) if phase in (Phase.STOPPING, Phase.GONE) else None
    failure = _failure(member, instance, phase, cause, before)
    made = Machine(
        name=member.name,
        phase=phase,
        fingerprint=_fingerprint(member, instance),
        ip=instance.ip if instance else "",
        public_ip=instance.public_ip if instance else "",
        launched=_epoch(instance.created) if instance else 0,
        failure=failure,
        cause=cause,
        notice=_notice(phase, cause, instance.grace if instance else SPOT_GRACE_SECONDS, before, began),
        no_room=phase is Phase.PENDING and failure is not None and failure.error.has_no_room,
        strayed=member.action == "ABANDONING",
        state=_state(member, phase),
        expires=(instance.expires if instance else None) or member.expires,
        hindrance=member.hindrance,
    )
    return before if made == before and before is not None else made


def _phase(member: Member, instance: Instance | None) -> Phase:
    """The states least likely to be outdated are tested first, so that no end is taken back."""
    statuses = _statuses(member, instance)
    if member.action == "RECREATING":
        return Phase.GONE  # what comes back under the name is another machine
    if member.action in LEAVING_ACTIONS:
        return Phase.STOPPING
    if statuses & ENDED_STATUSES or (member.action == "NONE" and not statuses):
        return Phase.GONE
    if statuses & ENDING_STATUSES:
        return Phase.STOPPING
    if member.action in STAYING_ACTIONS and statuses == {"RUNNING"} and instance and instance.ip:
        return Phase.RUNNING
    return Phase.PENDING


def _state(member: Member, phase: Phase) -> str:
    """Return Compute's word for the state of a member that does not run; an empty text for any other."""
    return "/".join(sorted({member.status, member.action} - {"", "NONE"})) if phase is Phase.PENDING else ""


def _statuses(member: Member, instance: Instance | None) -> set[str]:
    return {member.status, instance.status if instance else ""} - {""}


def _cause(member: Member, instance: Instance | None, before: Machine | None) -> LossCause:
    """Why it ends. What was known stays: the last entry of a preempted instance says less than the first."""
    if before and before.cause:
        return before.cause
    if member.action == "DELETING" or not _statuses(member, instance):
        return LossCause.DELETED
    if member.action in LEAVING_ACTIONS:
        return LossCause.UNKNOWN
    return LossCause.PREEMPTED if instance and instance.spot else LossCause.UNKNOWN


def _fingerprint(member: Member, instance: Instance | None) -> Fingerprint:
    """What tells it from another of its name. Its start counts once it runs: until then it may be started again."""
    if instance is None:
        return Fingerprint(uid=member.id)
    started = instance.started if instance.status == "RUNNING" else ""
    return Fingerprint(uid=member.id, created=instance.created, started=started, ip=instance.ip)


def _failure(
    member: Member, instance: Instance | None, phase: Phase, cause: LossCause | None, before: Machine | None
) -> Failure | None:
    """Why it does not run, as far as that is known. A reason with a class of its own outlives one without."""
    if phase is Phase.RUNNING:
        return None
    if phase is Phase.PENDING:
        new = member.attempt or _unusual(member, instance)
        old = before.failure if before is not None and before.phase is Phase.PENDING else None
        return old if old is not None and new is not None and new.error is ErrorClass.OTHER else new
    if cause is LossCause.PREEMPTED:
        return PREEMPTION
    status = "/".join(sorted(_statuses(member, instance))) or "without instance"
    return Failure(ErrorClass.OTHER, f"The instance is {status}, the group's action {member.action}.")


def _unusual(member: Member, instance: Instance | None) -> Failure | None:
    """A word that Compute learned after us, or REPAIRING: it does not run, and nobody can say until when."""
    if instance and _statuses(member, instance) == {"RUNNING"} and not instance.ip:
        return Failure(ErrorClass.OTHER, IPV6_ONLY if instance.ipv6 else "The instance runs, and has no address.")
    if member.action == "VERIFYING":
        return Failure(ErrorClass.OTHER, "The instance runs; its group waits for its health check (VERIFYING).")
    strange = _statuses(member, instance) - WAITING_STATUSES
    if member.action not in WAITING_ACTIONS | STAYING_ACTIONS:
        strange.add(member.action)
    return Failure(ErrorClass.OTHER, f"The instance is {'/'.join(sorted(strange))}.") if strange else None


def _notice(phase: Phase, cause: LossCause | None, grace: float, before: Machine | None, began: float) -> Notice | None:
    """An instance that stops will be gone soon, or may hang while it stops; the end does not move from look to look."""
    if phase is not Phase.STOPPING or cause is None:
        return None
    if before and before.notice:
        return before.notice
    return Notice(cause, began + (grace if cause is LossCause.PREEMPTED else GRACE_SECONDS))


def _epoch(timestamp: str) -> int:
    """Epoch seconds of an RFC 3339 time; 0 when there is none."""
    try:
        return int(datetime.fromisoformat(timestamp).timestamp())
    except ValueError:
        return 0


def counted(group: Json) -> int:
    """How many members the group itself counts, whatever it does with them."""
    return sum(value for value in (group.get("currentActions") or {}).values() if isinstance(value, int))


def resting(group: Json) -> int:
    """How many members the group counts that it has made and does nothing with: those that run."""
    return int((group.get("currentActions") or {}).get("none", 0))


def spec(group: Json) -> str:
    """The instance templates in use; they cannot be changed, only replaced, so their names say all."""
    urls = [text(version.get("instanceTemplate", "")) for version in group.get("versions") or []]
    urls = urls or [text(group.get("instanceTemplate", ""))]
    return ",".join(url.partition("/projects/")[2] or url for url in urls)


def settled(group: Json, members: int) -> bool:
    """The group does nothing with any of its members, and has and wants exactly so many."""
    return (resting(group), counted(group), group.get("targetSize", 0)) == (members, members, members)


def custom_size(machine_type: str) -> tuple[int, int] | None:
    """Processors and memory (in 2^20 bytes) that a custom machine type names; None for one of Google's own."""
    amounts = CUSTOM_TYPE.fullmatch(machine_type)
    return (int(amounts[1]), int(amounts[2])) if amounts else None


def zones(group: Json, zone: str) -> frozenset[str]:
    """Where the group's instances may be; ``zone`` is that of a zonal group, empty for a regional one."""
    if zone:
        return frozenset({zone})
    policy = group.get("distributionPolicy") or {}
    return frozenset(entry["zone"].rpartition("/")[2] for entry in policy.get("zones") or [])

"""Compute's JSON as our machines: what a group's member entry and its instance entry say, judged together. Pure.

The lists are read one after the other and each may be late: a machine runs only when both say so, and ends when either
does.

``member entry`` (listManagedInstances): what the group does with the machine.
``instance entry`` (instances.list): how it is reached.
"""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.backends.mig.entries import Instance, Json, Member, epoch, read_instance
from provisioner.model import ErrorClass, Failure, Fingerprint, LossCause, Machine, Notice, Phase

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

WAITING_STATUSES = frozenset({"PENDING", "PROVISIONING", "STAGING", "RUNNING"})
ENDING_STATUSES = frozenset({"STOPPING", "SUSPENDING", "PENDING_STOP", "DEPROVISIONING"})
ENDED_STATUSES = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})


@dataclass(frozen=True, slots=True)
class Observed:
    """A machine, and the two entries that it was read from."""

    member: Member
    entry: Json
    """Empty while no list shows the instance."""
    machine: Machine

    @property
    def may_be_spot(self) -> bool:
        """False only if its entry says that it is no Spot instance."""
        return not self.entry or read_instance(self.entry).spot


def machine(member: Member, instance: Instance, before: Machine | None, began: float) -> Machine:
    """What the two entries say of one machine; ``before`` itself when that is what was known.

    ``began``: the loop time of the observation.
    ``instance``: not used where its id is not the member's: it is another incarnation, or outside the group.
    """
    if instance.id != member.id:
        instance = Instance()
    phase = _phase(member, instance)
    cause = _cause(member, instance, before) if phase in (Phase.STOPPING, Phase.GONE) else None
    failure = _failure(member, instance, phase, cause, before)
    made = Machine(
        name=member.name,
        phase=phase,
        fingerprint=_fingerprint(member, instance),
        ip=instance.ip,
        public_ip=instance.public_ip,
        launched=epoch(instance.created),
        failure=failure,
        cause=cause,
        notice=_notice(phase, cause, instance.grace, before, began),
        no_room=phase is Phase.PENDING and failure is not None and failure.error.has_no_room,
        strayed=member.action == "ABANDONING",
        state=_state(member, phase),
        expires=instance.expires or member.expires,
        hindrance=member.hindrance,
    )
    return before if made == before and before is not None else made


def _phase(member: Member, instance: Instance) -> Phase:
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
    if member.action in STAYING_ACTIONS and statuses == {"RUNNING"} and instance.ip:
        return Phase.RUNNING
    return Phase.PENDING


def _state(member: Member, phase: Phase) -> str:
    """Return Compute's word for the state of a member that does not run; an empty text for any other."""
    return "/".join(sorted({member.status, member.action} - {"", "NONE"})) if phase is Phase.PENDING else ""


def _statuses(member: Member, instance: Instance) -> set[str]:
    return {member.status, instance.status} - {""}


def _cause(member: Member, instance: Instance, before: Machine | None) -> LossCause:
    """Why it ends. What was known stays: the last entry of a preempted instance says less than the first."""
    if before and before.cause:
        return before.cause
    if member.action == "DELETING" or not _statuses(member, instance):
        return LossCause.DELETED
    if member.action in LEAVING_ACTIONS:
        return LossCause.UNKNOWN
    return LossCause.PREEMPTED if instance.spot else LossCause.UNKNOWN


def _fingerprint(member: Member, instance: Instance) -> Fingerprint:
    """What tells it from another of its name. Its start counts once it runs: until then it may be started again."""
    started = instance.started if instance.status == "RUNNING" else ""
    return Fingerprint(uid=member.id, created=instance.created, started=started, ip=instance.ip)


def _failure(
    member: Member, instance: Instance, phase: Phase, cause: LossCause | None, before: Machine | None
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


def _unusual(member: Member, instance: Instance) -> Failure | None:
    """A word that Compute learned after us, or REPAIRING: it does not run, and nobody can say until when."""
    if instance.id and _statuses(member, instance) == {"RUNNING"} and not instance.ip:
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

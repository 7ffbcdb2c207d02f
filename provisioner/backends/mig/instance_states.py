"""Machines, each read from a group's member entry and an instance entry. The functions are pure.

The two lists are read one after the other, and each may be late. A machine counts as running only if both entries show
it as running. A machine counts as ending if at least one entry shows it as ending.

``member entry`` (listManagedInstances): the group's action on the machine. ``instance entry`` (instances.list): the
instance's state and addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from provisioner.backends.mig.compute_fields import Instance, Json, Member, epoch, read_instance
from provisioner.model import ErrorClass, Failure, Fingerprint, LossCause, Machine, Notice, Phase

GRACE_SECONDS = 120.0
"""Seconds from a stop or delete to the machine's end, whoever asked for it. Preemptions have another time (API
reference, Scheduling)."""

PREEMPTION = Failure(ErrorClass.OTHER, "The instance was preempted.")

IPV6_ONLY = "The instance runs, and has only an IPv6 address: set the pool's ipv6 to true, or give its subnet IPv4."

WAITING_ACTIONS = frozenset({"CREATING", "CREATING_WITHOUT_RETRIES", "VERIFYING", "REFRESHING", "STARTING", "RESUMING"})
"""Actions by which the group makes an instance run."""

LEAVING_ACTIONS = frozenset({"DELETING", "STOPPING", "SUSPENDING", "RESTARTING"})
"""Actions by which the group ends the programs that run on the instance. After RESTARTING, the instance counts as
another machine, because its RAM was cleared."""

STAYING_ACTIONS = frozenset({"NONE", "ABANDONING"})
"""Actions during which the instance continues to run. An abandoned instance continues outside the group."""

WAITING_STATUSES = frozenset({"PENDING", "PROVISIONING", "STAGING", "RUNNING"})
ENDING_STATUSES = frozenset({"STOPPING", "SUSPENDING", "PENDING_STOP", "DEPROVISIONING"})
ENDED_STATUSES = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})


@dataclass(frozen=True, slots=True)
class Observed:
    """A machine, and the two entries that it was read from."""

    member: Member
    entry: Json
    """The instance entry; empty as long as no list shows the instance."""
    machine: Machine

    @property
    def may_be_spot(self) -> bool:
        """Return False if the instance entry shows that the instance is not a Spot instance; else True."""
        return not self.entry or read_instance(self.entry).is_spot


def machine(member: Member, instance: Instance, before: Machine | None, began: float) -> Machine:
    """Return the machine that a member entry and an instance entry describe. If the machine has not changed, return the
    object ``before``. ``began``: the loop time of the observation.

    If the id of ``instance`` differs from the member's id, ``instance`` is ignored, because it is an older or unrelated
    instance.
    """
    if instance.id != member.id:
        instance = Instance()
    phase = _phase(member, instance)
    cause = _cause(member, instance, before) if phase in (Phase.STOPPING, Phase.GONE) else None
    failure = _failure(member, instance, phase, cause, before)
    started = instance.started if instance.status == "RUNNING" else ""  # a stopped instance may be started again
    made = Machine(
        name=member.name,
        phase=phase,
        fingerprint=Fingerprint(uid=member.id, created=instance.created, started=started, ip=instance.ip),
        ip=instance.ip,
        public_ip=instance.public_ip,
        launched=epoch(instance.created),
        failure=failure,
        cause=cause,
        notice=_notice(phase, cause, instance.grace, before, began),
        spills_at_once=phase is Phase.PENDING and failure is not None and failure.error.has_no_room,
        is_strayed=member.action == "ABANDONING",
        state=_state(member, phase),
        expires_at=instance.expires or member.expires,
        hindrance=member.hindrance,
    )
    return before if made == before and before is not None else made


def _phase(member: Member, instance: Instance) -> Phase:
    """Return the phase of a machine. If the list of members and the list of instances disagree, an end counts. The
    other list is then older."""
    statuses = _statuses(member, instance)
    if member.action == "RECREATING":
        return Phase.GONE  # The next instance of this name is another machine.
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
    """Return Compute's own words for the state of a pending member; empty in any other phase."""
    return "/".join(sorted({member.status, member.action} - {"", "NONE"})) if phase is Phase.PENDING else ""


def _statuses(member: Member, instance: Instance) -> set[str]:
    return {member.status, instance.status} - {""}


def _cause(member: Member, instance: Instance, before: Machine | None) -> LossCause:
    """Return the cause of the machine's end. A cause in ``before`` stays, because a preempted instance's last entry
    does not show the cause."""
    if before and before.cause:
        return before.cause
    if member.action == "DELETING" or not _statuses(member, instance):
        return LossCause.DELETED
    if member.action in LEAVING_ACTIONS:
        return LossCause.UNKNOWN
    return LossCause.PREEMPTED if instance.is_spot else LossCause.UNKNOWN


def _failure(
    member: Member, instance: Instance, phase: Phase, cause: LossCause | None, before: Machine | None
) -> Failure | None:
    """Return why the machine does not run, if known. If ``before`` has a specific reason, a later general reason does
    not replace it."""
    if phase is Phase.RUNNING:
        return None
    if phase is Phase.PENDING:
        new = member.attempt or _unusual_failure(member, instance)
        old = before.failure if before is not None and before.phase is Phase.PENDING else None
        return old if old is not None and new is not None and new.error is ErrorClass.OTHER else new
    if cause is LossCause.PREEMPTED:
        return PREEMPTION
    status = "/".join(sorted(_statuses(member, instance))) or "without instance"
    return Failure(ErrorClass.OTHER, f"The instance is {status}, the group's action {member.action}.")


def _unusual_failure(member: Member, instance: Instance) -> Failure | None:
    """Return a failure if a machine's state is unusual; else None.

    A state is unusual if the instance runs without a usable address, if the group waits for a health check, or if a
    status or action is not among those of a normal start. An example is REPAIRING, which may last for any time.
    """
    if instance.id and _statuses(member, instance) == {"RUNNING"} and not instance.ip:
        no_address = Failure(ErrorClass.OTHER, "The instance runs, and has no address.")
        return Failure(ErrorClass.INVALID, IPV6_ONLY) if instance.ipv6 else no_address
    if member.action == "VERIFYING":
        return Failure(ErrorClass.OTHER, "The instance runs; its group waits for its health check (VERIFYING).")
    strange = _statuses(member, instance) - WAITING_STATUSES
    if member.action not in WAITING_ACTIONS | STAYING_ACTIONS:
        strange.add(member.action)
    return Failure(ErrorClass.OTHER, f"The instance is {'/'.join(sorted(strange))}.") if strange else None


def _notice(phase: Phase, cause: LossCause | None, grace: float, before: Machine | None, began: float) -> Notice | None:
    """Return the expected end of a stopping machine. If a stop was observed before, return the end that was computed
    then. Return None if the machine is not stopping or the cause is unknown."""
    if phase is not Phase.STOPPING or cause is None:
        return None
    if before and before.notice:
        return before.notice
    return Notice(cause, began + (grace if cause is LossCause.PREEMPTED else GRACE_SECONDS))

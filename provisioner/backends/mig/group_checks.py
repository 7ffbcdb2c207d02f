"""Problems of a group, as sentences with the way to fix them: problems in the group's settings, and changes of the
group by others."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from provisioner.backends import Finding, Severity
from provisioner.backends.mig.compute_fields import Entries, Json, Member
from provisioner.backends.mig.instance_states import LEAVING_ACTIONS, Observed
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.place_clock import SLOW_SECONDS
from provisioner.model import HOUR, Failure, LossCause, Phase
from provisioner.names import REQUEST_ID_LENGTH, SLOT_DIGITS

log = logging.getLogger(__name__)

ZONAL_LIMIT, REGIONAL_LIMIT = 1000, 2000
"""Maximum number of instances of a group unless Google raised the limit (regional: up to 4,000). The actual limit
cannot be read."""

ANY_SHAPE = re.compile(rf"(?P<prefix>[a-z][-a-z0-9]*)-[a-z0-9]{{{REQUEST_ID_LENGTH}}}-[0-9]{{{SLOT_DIGITS}}}")
"""Shape of the machine names of any provisioner."""


NEEDED = ("compute.instanceGroupManagers.get", "compute.instanceGroupManagers.update")
"""Permissions that the loop needs on the group: to read it, and to create and delete instances."""

AUTOSCALER_SECONDS = 30.0
"""Seconds after which the loop reads the autoscaler of a group again, if the group has one."""

NO_SETTING = (
    "no autoscaler works on it, and its repair and update policy delete no running machine, so an operator or another"
    " program does: gcloud logging read 'protoPayload.methodName:(instances.delete OR deleteInstances OR resize)'"
    " --freshness=1d"
)
"""Cause that is reported for deletes by others if neither the group's settings nor an autoscaler explain the
deletes."""

NO_PROJECT = re.compile(
    r"resource 'projects/[^/']+' was not found|failed to find project|unknown project|project \S+ is not found"
    r"|permission for 'projects/[^/']+'",
    re.IGNORECASE,
)
NO_LOCATION = re.compile(
    r"resource 'projects/[^/']+/(zones|regions)/[^/']+' was not found|unknown (zone|region)", re.IGNORECASE
)
"""Compute's texts for a missing project, zone or region. The status varies (400, 403, 404)."""


def group_findings(pool: MigPool, group: Json) -> list[Finding]:
    """Return the findings about the group. Most findings are about settings of the group that would make it end
    machines itself."""
    update, lifecycle = group.get("updatePolicy") or {}, group.get("instanceLifecyclePolicy") or {}
    texts = (
        (Severity.ERROR, _update_policy_message(pool, update)),
        (Severity.ERROR, _redistribution_message(pool, group, update)),
        (Severity.ERROR, _healing_message(pool, group, lifecycle)),
        (Severity.WARNING, _repair_message(pool, lifecycle)),
        (Severity.WARNING, _size_message(pool)),
    )
    return [Finding(pool.name, severity, text) for severity, text in texts if text]


def autoscaler_findings(pool: MigPool, autoscaler: Json) -> Iterator[Finding]:
    """Yield a finding if an autoscaler is active, because the autoscaler and not the loop would choose the machines to
    delete."""
    mode = (autoscaler.get("autoscalingPolicy") or {}).get("mode", "ON")
    if mode != "OFF":
        text = f"an autoscaler works on it (mode {mode}) and would delete machines in use:"
        yield Finding(pool.name, Severity.ERROR, f"{text} {_gcloud_command(pool, 'stop-autoscaling')}")


def template_findings(pool: MigPool, template: Json) -> Iterator[Finding]:
    """Yield a finding if the instance template ends its machines too soon, and a finding if it has no labels. Only the
    template can give machines labels, because the loop's calls cannot add them."""
    properties = template.get("properties") or {}
    life = int(((properties.get("scheduling") or {}).get("maxRunDuration") or {}).get("seconds") or 0)
    if life and life <= pool.least_life_seconds:
        text = (
            f"the instance template's maxRunDuration is {life} s, so no instance lives for least_life_seconds"
            f" ({pool.least_life_seconds:g}): lower that setting of pools.{pool.name}"
        )
        yield Finding(pool.name, Severity.ERROR, text)
    if not properties.get("labels"):
        text = "the instance template has no labels, so bills cannot be separated: make a template with --labels, then"
        then = _gcloud_command(pool, "set-instance-template", "--template=NEW_TEMPLATE")
        yield Finding(pool.name, Severity.WARNING, f"{text} {then}")


def name_findings(pool: MigPool, prefix: str, names: Iterable[str]) -> list[Finding]:
    """Return a finding if the group has another provisioner's machines whose name prefix overlaps ours. Prefixes
    overlap if one prefix begins with the other prefix."""
    prefixes = {match["prefix"] for name in names if (match := ANY_SHAPE.fullmatch(name))}
    return [
        Finding(
            pool.name,
            Severity.REFUSED,
            f"the group holds machines of a provisioner with name_prefix {other!r}, and ours is {prefix!r}. One begins"
            " with the other, so their machines cannot be distinguished: give one provisioner another name_prefix, or"
            " a group of its own",
        )
        for other in sorted(prefixes - {prefix})
        if is_prefix_of(prefix, other) or is_prefix_of(other, prefix)
    ]


def format_foreign_message(names: Sequence[str]) -> str:
    """Return the sentence about members that are not ours."""
    members = "1 member is" if len(names) == 1 else f"{len(names)} members are"
    return f"{members} not ours, e.g. {min(names)}: someone else resizes or uses the group"


def missing_group_finding(pool: MigPool) -> Finding:
    """Return the finding for a missing group: the group was deleted, or the configured name is wrong."""
    flags = ("--template=TEMPLATE", "--size=0", "--default-action-on-vm-failure=do-nothing")
    line = _gcloud_command(pool, "create", *flags)
    where = f"zone {pool.zone}" if pool.zone else f"region {pool.region}"
    group = f"there is no group {pool.group} in {where} of project {pool.project}"
    return Finding(pool.name, Severity.ERROR, f"{group}: correct pools.{pool.name}, or make the group: {line}")


def missing_place_message(pool: MigPool, failure: Failure) -> str:
    """Return a message with advice if ``failure`` says that the project, zone or region is missing; empty for any other
    failure."""
    where, name = ("zone", pool.zone) if pool.zone else ("region", pool.region)
    if NO_PROJECT.search(failure.text):
        return (
            f"there is no project {pool.project}, or no access to it: correct pools.{pool.name}.project, or let the"
            f" pool's credentials see it ({failure.text})"
        )
    if NO_LOCATION.search(failure.text):
        listed = f"gcloud compute {where}s list --project={pool.project}"
        return f"there is no {where} {name}: correct pools.{pool.name}.{where}, or see: {listed}"
    return ""


def permission_findings(pool: MigPool, granted: Collection[str]) -> list[Finding]:
    """Return a finding if the loop lacks permissions for the group."""
    if not (missing := [permission for permission in NEEDED if permission not in granted]):
        return []
    text = (
        f"the pool's account lacks {', '.join(missing)} on group {pool.group}, so that no machine can be made or "
        f"deleted: give it, in project {pool.project}, a role like deploy/terraform/roles/machines.yaml, or "
        "roles/compute.instanceAdmin.v1"
    )
    return [Finding(pool.name, Severity.ERROR, text)]


def is_prefix_of(prefix: str, other: str) -> bool:
    """Return True if every name that begins with ``other`` also begins with ``prefix``."""
    return f"{other}-".startswith(f"{prefix}-")


def _update_policy_message(pool: MigPool, update: Json) -> str:
    if update.get("type") != "PROACTIVE":
        return ""
    method = update.get("replacementMethod", "SUBSTITUTE")
    effect = (
        "every create will be refused (CONDITION_NOT_MET)"
        if method == "SUBSTITUTE"
        else "all its machines are recreated, whatever runs on them, once the group gets another template"
    )
    return (
        f"its updatePolicy is PROACTIVE with replacementMethod {method}, so {effect}:"
        f" {_gcloud_command(pool, 'update', '--update-policy-type=opportunistic')}"
    )


def _redistribution_message(pool: MigPool, group: Json, update: Json) -> str:
    """Return the message about redistribution; empty if the group does not move machines between zones.

    A group moves machines if it is regional, has the shape EVEN, and its instanceRedistributionType is not NONE
    (default: PROACTIVE).
    """
    kind = update.get("instanceRedistributionType", "PROACTIVE")
    shape = (group.get("distributionPolicy") or {}).get("targetShape", "EVEN")
    if pool.zone or kind == "NONE" or shape != "EVEN":
        return ""
    return (
        f"its instanceRedistributionType is {kind}, so it deletes running machines in one zone and makes others in"
        " another once returns have made its zones uneven:"
        f" {_gcloud_command(pool, 'update', '--instance-redistribution-type=none')}"
    )


def _healing_message(pool: MigPool, group: Json, lifecycle: Json) -> str:
    own = lifecycle.get("onFailedHealthCheck", "DEFAULT_ACTION")
    action = lifecycle.get("defaultActionOnFailure", "REPAIR") if own == "DEFAULT_ACTION" else own
    checks = [str(policy.get("healthCheck")).rpartition("/")[2] for policy in group.get("autoHealingPolicies") or ()]
    if action == "DO_NOTHING" or not checks:
        return ""
    return (
        f"the group recreates each machine that fails its health check {', '.join(checks)}, whatever runs"
        f" on it (onFailedHealthCheck {own}): {_gcloud_command(pool, 'update', '--clear-autohealing')}"
    )


def _repair_message(pool: MigPool, lifecycle: Json) -> str:
    if lifecycle.get("defaultActionOnFailure", "REPAIR") == "DO_NOTHING":
        return ""
    command = _gcloud_command(pool, "update", "--default-action-on-vm-failure=do-nothing")
    return (
        "its defaultActionOnFailure is REPAIR, so the group makes lost machines again under their old names, and they"
        f" are deleted when they are seen: {command}"
    )


def _size_message(pool: MigPool) -> str:
    limit = ZONAL_LIMIT if pool.zone else REGIONAL_LIMIT
    if pool.max_machines is None or pool.max_machines <= limit:
        return ""
    return (
        f"max_machines is {pool.max_machines}, but a group like this holds {limit} instances unless Google raised its"
        f" limit: let Google raise it, or set max_machines to {limit} and add another group to the template's pools"
    )


def _gcloud_command(pool: MigPool, verb: str, *flags: str) -> str:
    where = f"--zone={pool.zone}" if pool.zone else f"--region={pool.region}"
    words = ("gcloud compute instance-groups managed", verb, pool.group, where, f"--project={pool.project}", *flags)
    return " ".join(words)


class Problems:
    """The changes that others made to one group, and the last problems. Both are kept from observation to
    observation."""

    def __init__(self, pool: MigPool, check_autoscaler: Callable[[Json, float], list[Finding]]) -> None:
        self._pool, self._check_autoscaler = pool, check_autoscaler
        self._autoscaler: tuple[float, list[Finding]] = (float("-inf"), [])
        """The monotonic time at which the autoscaler was last read, and its findings."""
        self._deleted_by_others: dict[str, float] = {}
        """Running members that others have deleted, each with the monotonic time until which the delete is reported."""
        self._deleted_because = ""
        """Cause of the newest delete by others, as a text for operators: the autoscaler, the group's other problems, or
        ``NO_SETTING``."""
        self._strayed_names: set[str] = set()
        """Former members that still run."""
        self.texts: tuple[str, ...] = ()
        """The problems of the last observation, as sentences."""

    def note_strays(self, before: Mapping[str, Observed], members: Mapping[str, Member], entries: Entries) -> None:
        """Note members that others have taken out of the group since the observation ``before``."""
        for name, seen in before.items():
            was = seen.member.action
            if name not in members and (was == "ABANDONING" or was not in LEAVING_ACTIONS):
                self._strayed_names.add(name)
        self._strayed_names = {
            name
            for name in self._strayed_names - members.keys()
            if any(instances.get(name, {}).get("status") == "RUNNING" for instances in entries.values())
        }

    def note_deletes(
        self, before: Mapping[str, Observed], after: Mapping[str, Observed], group: Json, deadline: float
    ) -> None:
        """Note members that others deleted between two observations, and the likely cause of the deletes.

        ``after``: the later observation's machines, except those that we asked the group to delete. ``group``: the
        group's settings in the later observation.
        """
        ran = {name for name, seen in before.items() if seen.machine.phase is Phase.RUNNING}
        if deleted := [name for name in ran & after.keys() if after[name].machine.cause is LossCause.DELETED]:
            self._deleted_by_others |= dict.fromkeys(deleted, time.monotonic() + HOUR)
            is_wrong = any(one.severity is Severity.ERROR for one in group_findings(self._pool, group))
            settings = "see its other problems" if is_wrong else f"{NO_SETTING} --project={self._pool.project}"
            found = [finding.text for finding in self._check_autoscaler(group, deadline)]
            self._deleted_because = "; ".join(found) or settings

    def _find_autoscaler(self, group: Json, deadline: float) -> list[Finding]:
        """Return the findings about the autoscaler, at most ``AUTOSCALER_SECONDS`` old. The read has a short deadline,
        so that a slow response does not fail the observation."""
        if (now := time.monotonic()) > self._autoscaler[0] + AUTOSCALER_SECONDS:
            self._autoscaler = now, self._check_autoscaler(group, min(deadline, now + SLOW_SECONDS))
        return self._autoscaler[1]

    def report(self, group: Json | None, foreign: Sequence[str], deadline: float) -> None:
        """Store the problems of the group, and log those that are new. ``foreign``: members that are not ours."""
        texts = [f"the group was deleted: {self._pool.path}"]
        if group is not None:
            findings = (*group_findings(self._pool, group), *self._find_autoscaler(group, deadline))
            texts = [finding.problem for finding in findings]
        if foreign:
            texts.append(format_foreign_message(foreign))
        now = time.monotonic()
        self._deleted_by_others = {name: until for name, until in self._deleted_by_others.items() if until > now}
        if names := self._deleted_by_others:
            deleted = "1 machine of the group was" if len(names) == 1 else f"{len(names)} machines of the group were"
            texts.append(f"{deleted} deleted by others, e.g. {min(names)}: {self._deleted_because}")
        if self._strayed_names:
            words = f"e.g. {min(self._strayed_names)}: the provisioner cannot delete them"
            texts.append(f"members that were taken out of the group and run on: {len(self._strayed_names)}, {words}")
        for problem in texts:
            if problem not in self.texts:
                log.warning("The group has a problem", extra={"pool": self._pool.name, "problem": problem})
        self.texts = tuple(texts)

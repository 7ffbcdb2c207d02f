"""The fields of the resources that Compute Engine lists and patches, from Google's discovery document.

If a call names a field that this module lacks, the cloud refuses the call as the caller's mistake. Some objects never
occur in a resource of the embedded cloud. This module has only the names of such objects, without their fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

_MESSAGES = """
AccessConfig: externalIpv6 kind name natIP networkTier publicPtrDomainName type
ActionsSummary: abandoning# creating# creatingWithoutRetries# deleting# none# recreating# refreshing# restarting#
  resuming# starting# stopping# suspending# verifying#
Autoscaler: autoscalingPolicy:AutoscalingPolicy creationTimestamp@ description id# kind name recommendedSize# region
  scalingScheduleStatus* selfLink status statusDetails[]:Remark target zone
AutoscalingPolicy: coolDownPeriodSec# cpuUtilization:CpuUtilization customMetricUtilizations[]*
  loadBalancingUtilization* maxNumReplicas# minNumReplicas# mode scaleInControl* scalingSchedules*
  stabilizationPeriodSec#
AllInstancesConfig: properties:PropertiesPatch
AutoHealingPolicy: healthCheck initialDelaySec#
CpuUtilization: predictiveMethod utilizationTarget#
Deprecation: deleted deprecated obsolete replacement state
Disk: architecture autoDelete? boot? deviceName diskEncryptionKey* diskSizeGb# forceAttach? guestOsFeatures[]:Typed
  index# initializeParams:DiskParams interface kind licenses[] mode savedState shieldedInstanceInitialState* source type
DiskParams: architecture description diskName diskSizeGb# diskType labels{} licenses[] sourceImage sourceSnapshot
DistributionPolicy: targetShape zones[]:ZoneConfiguration
Error: code errorDetails[]* location message
Errors: errors[]:Error
FixedOrPercent: calculated# fixed# percent#
FlexibilityPolicy: instanceSelections{}:InstanceSelection
InstanceSelection: disks[]:Disk machineTypes[] minCpuPlatform rank#
Instance: advancedMachineFeatures* canIpForward? confidentialInstanceConfig* cpuPlatform creationTimestamp@
  deletionProtection? description disks[]:Disk displayDevice* fingerprint guestAccelerators[]* hostname id#
  instanceEncryptionKey* keyRevocationActionType kind labelFingerprint labels{} lastStartTimestamp@ lastStopTimestamp@
  lastSuspendedTimestamp@ machineType metadata:Metadata minCpuPlatform name networkInterfaces[]:NetworkInterface
  networkPerformanceConfig* params* privateIpv6GoogleAccess reservationAffinity:Affinity resourcePolicies[]
  resourceStatus* satisfiesPzi? satisfiesPzs? scheduling:Scheduling selfLink serviceAccounts[]:ServiceAccount
  shieldedInstanceConfig* shieldedInstanceIntegrityPolicy* sourceMachineImage sourceMachineImageEncryptionKey*
  startRestricted? status statusMessage tags:Tags zone
InstanceGroup: creationTimestamp@ description fingerprint id# kind name namedPorts[]:NamedPort network region selfLink
  size# subnetwork zone
InstanceGroupManager: allInstancesConfig:AllInstancesConfig autoHealingPolicies[]:AutoHealingPolicy baseInstanceName
  creationTimestamp@ currentActions:ActionsSummary description distributionPolicy:DistributionPolicy fingerprint id#
  instanceFlexibilityPolicy:FlexibilityPolicy instanceGroup instanceLifecyclePolicy:LifecyclePolicy instanceTemplate
  kind listManagedInstancesResults name namedPorts[]:NamedPort region resourcePolicies:ResourcePolicies satisfiesPzi?
  satisfiesPzs? selfLink standbyPolicy:StandbyPolicy statefulPolicy:StatefulPolicy status:Status targetPools[]
  targetSize# targetSizePolicy:TargetSizePolicy targetStoppedSize# targetSuspendedSize# updatePolicy:UpdatePolicy
  versions[]:Version zone
InstanceManagedByIgmError: error:ManagedError instanceActionDetails:ActionDetails timestamp@
ActionDetails: action instance version:ManagedVersion
InstanceProperties: advancedMachineFeatures* canIpForward? confidentialInstanceConfig* description disks[]:Disk
  guestAccelerators[]* keyRevocationActionType labels{} machineType metadata:Metadata minCpuPlatform
  networkInterfaces[]:NetworkInterface networkPerformanceConfig* privateIpv6GoogleAccess reservationAffinity:Affinity
  resourceManagerTags{} resourcePolicies[] scheduling:Scheduling serviceAccounts[]:ServiceAccount
  shieldedInstanceConfig* tags:Tags
InstanceTemplate: creationTimestamp@ description id# kind name properties:InstanceProperties region selfLink
  sourceInstance sourceInstanceParams*
InstanceWithNamedPorts: instance namedPorts[]:NamedPort status
Affinity: consumeReservationType key values[]
Item: key value
LastAttempt: errors:Errors
LifecyclePolicy: defaultActionOnFailure forceUpdateOnRepair onFailedHealthCheck onRepair:OnRepair
MachineType: accelerators[]* architecture bundledLocalSsds* creationTimestamp@ deprecated:Deprecation description
  guestCpus# id# imageSpaceGb# isSharedCpu? kind maximumPersistentDisks# maximumPersistentDisksSizeGb# memoryMb# name
  selfLink zone
ManagedInstance: currentAction id# instance instanceHealth[]* instanceStatus lastAttempt:LastAttempt name
  preservedStateFromConfig:PreservedState preservedStateFromPolicy:PreservedState propertiesFromFlexibilityPolicy*
  scheduling* shutdownDetails* targetStatus version:ManagedVersion
ManagedError: code message
ManagedVersion: instanceTemplate name
Metadata: fingerprint items[]:Item kind
NamedPort: name port#
NetworkInterface: accessConfigs[]:AccessConfig aliasIpRanges[]* fingerprint ipv6AccessConfigs[]:AccessConfig
  ipv6AccessType ipv6Address kind name network networkAttachment networkIP nicType queueCount# stackType subnetwork
OnRepair: allowChangingZone
Operation: clientOperationId creationTimestamp@ description endTime@ error:Errors httpErrorMessage httpErrorStatusCode#
  id# insertTime@ instancesBulkInsertOperationMetadata* kind name operationGroupId operationType progress# region
  selfLink setCommonInstanceMetadataOperationMetadata* startTime@ status statusMessage targetId# targetLink user
  warnings[]:Remark zone
PerInstanceConfig: fingerprint name preservedState:PreservedState status
PreservedDisk: autoDelete mode source
PreservedIp: autoDelete ipAddress:PreservedAddress
PreservedAddress: address literal
PreservedState: disks{}:PreservedDisk externalIPs{}:PreservedIp internalIPs{}:PreservedIp metadata{}
PropertiesPatch: labels{} metadata{}
Quota: limit# metric owner usage#
Region: creationTimestamp@ deprecated:Deprecation description id# kind name quotaStatusWarning* quotas[]:Quota selfLink
  status supportsPzs? zones[]
Remark: message
ResourcePolicies: workloadPolicy
Scheduling: automaticRestart? availabilityDomain# hostErrorTimeoutSeconds# instanceTerminationAction
  localSsdRecoveryTimeout* locationHint maxRunDuration* minNodeCpus# nodeAffinities[]* onHostMaintenance
  onInstanceStopAction* preemptible? provisioningModel terminationTime@
ServiceAccount: email scopes[]
StandbyPolicy: initialDelaySec# mode
Stateful: hasStatefulConfig? isStateful? perInstanceConfigs:StatefulConfigs
StatefulConfigs: allEffective?
StatefulDevice: autoDelete
StatefulPolicy: preservedState:StatefulState
StatefulState: disks{}:StatefulDevice externalIPs{}:StatefulDevice internalIPs{}:StatefulDevice
Status: allInstancesConfig:StatusConfig autoscaler isStable? stateful:Stateful versionTarget:VersionTarget
StatusConfig: currentRevision effective?
Tags: fingerprint items[]
TargetSizePolicy: mode
Typed: type
UpdatePolicy: instanceRedistributionType maxSurge:FixedOrPercent maxUnavailable:FixedOrPercent minReadySec#
  minimalAction mostDisruptiveAllowedAction replacementMethod type
Version: instanceTemplate name targetSize:FixedOrPercent
VersionTarget: isReached?
Zone: availableCpuPlatforms[] creationTimestamp@ deprecated:Deprecation description id# kind name region resourceStatus*
  selfLink status supportsPzs?
ZoneConfiguration: zone
"""
"""The messages, one per line: ``NAME: FIELD…``. After a field, ``[]`` marks a list, ``{}`` a map, ``:`` the message of
the field, ``#`` a number, ``?`` true or false, ``@`` a time, and ``*`` an object of unknown content. A field without a
mark is a text."""

_FIELD = re.compile(r"(\w+)(\[\]|\{\})?(?::(\w+)|([#?@*]))?")


class FieldType(StrEnum):
    """The type of a value."""

    TEXT = ""
    NUMBER = "#"
    TRUTH = "?"
    TIME = "@"
    OBJECT = "*"
    MAP = "{}"


@dataclass(frozen=True)
class Field:
    """A field of a message, or a key of a map."""

    kind: FieldType
    """The type of the value, or of each value of a list."""
    repeated: bool = False
    """True for a list."""
    message: str = ""
    """The name of the field's message, or of the message of a map's values; empty: no message."""


@dataclass(frozen=True)
class Message:
    """The fields of a kind of resource or of a part of a resource."""

    name: str
    fields: Mapping[str, Field] = field(repr=False)


@cache
def messages() -> Mapping[str, Message]:
    """Every message, by name."""
    entries = re.sub(r"\n  +", " ", _MESSAGES.strip()).splitlines()
    return {name: Message(name, _fields(names)) for name, _, names in (entry.partition(":") for entry in entries)}


def _fields(text: str) -> dict[str, Field]:
    entries: dict[str, Field] = {}
    for name, many, message, kind in _FIELD.findall(text):
        plain = FieldType.OBJECT if message else FieldType(kind)
        entries[name] = Field(FieldType.MAP if many == "{}" else plain, many == "[]", message)
    return entries


def field_at(message: str, path: Sequence[str]) -> Field:
    """Return the field at a path, which may contain keys of maps: ``("labels", "team")``. Raise ValueError if there is
    no such field."""
    reached = Field(FieldType.OBJECT, message=message)
    for index, name in enumerate(path):
        inner = _within(reached, name)
        if inner is None:
            raise ValueError(f"'{'.'.join(path[: index + 1])}' is no field of {message}")
        reached = inner
    return reached


def _within(outer: Field, name: str) -> Field | None:
    if outer.kind is FieldType.MAP:
        return Field(FieldType.OBJECT if outer.message else FieldType.TEXT, message=outer.message)
    return messages()[outer.message].fields.get(name) if outer.message else None

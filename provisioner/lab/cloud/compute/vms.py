"""Virtual machines of the simulated Compute Engine: their start, stop and end, and their entries in instances.list.

Fault modes. Targets: the VM's name, its MIG, its zone.

* ``stuck_provisioning``: the VM never runs. It stays PROVISIONING or, if ``status`` is STAGING, becomes STAGING and
  stays so
* ``stuck_stopping``: a deleted VM stays STOPPING for ever
* ``no_ip``: the internal IP is shown only ``seconds`` (30) after RUNNING
* ``no_address``: the VM has an IPv6 address but no IPv4 address, as in a subnet that is IPV6_ONLY
* ``preemption``: the VM is preempted ``seconds`` (60) after it runs
* ``deleted``: others delete the VM ``seconds`` (60) after it runs
* ``stopped``: others stop the VM ``seconds`` (60) after it runs
"""

from __future__ import annotations

import bisect
import ipaddress
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from provisioner.lab.cloud.compute.audit import Audit
from provisioner.lab.cloud.compute.fingerprints import fingerprint_of
from provisioner.lab.cloud.compute.operations import BASE, Document, OperationError, Operations, Target, timestamp
from provisioner.lab.cloud.compute.settings import MigSpec, Switches, Timings
from provisioner.lab.cloud.world import World

STAGING_SHARE = 0.3
"""Fraction of the boot time after which a VM is STAGING. The value is arbitrary, because no number is public."""

STARTING = ("PROVISIONING", "STAGING")

PREEMPTED = "Instance was preempted."
"""Google's text about a preemption, in the operation and in the audit log."""

FIRST_ADDRESS = int(ipaddress.IPv4Address("10.128.0.2"))


class Shelf:
    """Documents by name. A list can show the documents as they were up to ``MEMORY`` seconds ago."""

    MEMORY = 120.0
    """Maximum seconds of simulated time by which a list can lag."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._documents: dict[str, Document] = {}
        self._before: deque[tuple[float, str, Document | None]] = deque()
        self._names: list[str] | None = None

    def put(self, name: str, document: Document | None) -> None:
        """Show ``document`` from now on; if it is None, show no document of this name. The caller must never change a
        document in place."""
        now = self._world.now
        self._before.append((now, name, self._documents.get(name)))
        while self._before[0][0] < now - self.MEMORY:
            self._before.popleft()
        if document is None:
            self._documents.pop(name, None)
            self._names = None
            return
        if name not in self._documents:
            self._names = None
        self._documents[name] = document

    def get(self, name: str) -> Document | None:
        """Return the document of this name as it is now."""
        return self._documents.get(name)

    def after(self, name: str, lag: float = 0.0) -> Iterator[tuple[str, Document]]:
        """Yield the documents whose names sort after ``name``, in the order of names, as they were ``lag`` seconds
        ago."""
        if lag > 0:
            documents = self._past(self._world.now - lag)
            names = sorted(documents)
        else:
            if self._names is None:
                self._names = sorted(self._documents)
            documents, names = self._documents, self._names
        for index in range(bisect.bisect_right(names, name), len(names)):
            yield names[index], documents[names[index]]

    def _past(self, moment: float) -> dict[str, Document]:
        documents = dict(self._documents)
        for when, name, before in reversed(self._before):
            if when <= moment:
                break
            if before is None:
                documents.pop(name, None)
            else:
                documents[name] = before
        return documents


@dataclass(eq=False)
class Vm:
    """A virtual machine (an instance)."""

    id: int
    name: str
    zone: str
    spec: MigSpec
    """The MIG whose template the VM was made from."""
    created: float
    """Time of creation in epoch seconds by the simulated clock, like all times of this class."""
    ip: str
    labels: Mapping[str, str]
    status: str = "PROVISIONING"
    started: float | None = None
    stopped: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata from the VM's per-instance config. They are added to the metadata that every member of the MIG has."""
    is_ip_shown: bool = False
    is_ipv6_only: bool = False
    doomed: bool = False
    """True after a request to delete the VM, so that the VM does not stay as TERMINATED."""
    logged: dict[str, str] = field(default_factory=dict)
    """The VM's operations under way: their names in the audit log, by method."""
    watcher: Callable[[Vm], None] | None = None
    """A function that the VM's MIG has set, called after each change of the VM's status; None if the VM has no MIG."""

    @property
    def path(self) -> str:
        """Relative URL."""
        return f"projects/{self.spec.project}/zones/{self.zone}/instances/{self.name}"

    @property
    def exists(self) -> bool:
        """False once the VM is gone."""
        return self.status != "GONE"

    @property
    def is_live(self) -> bool:
        """True while the VM runs or is on its way to RUNNING."""
        return self.status == "RUNNING" or self.status in STARTING

    @property
    def terminates(self) -> float | None:
        """Time at which the maximum run duration is over; None before the start, or if there is no such duration."""
        longest = self.spec.max_run_seconds
        return None if longest is None or self.started is None else self.started + longest

    @property
    def scheduling(self) -> Document:
        """Return the value of the field ``scheduling``; empty if ``terminates`` is None. The VM's managed instance and
        the VM's ``resourceStatus`` both have this field."""
        return {} if self.terminates is None else {"terminationTimestamp": timestamp(self.terminates)}


@dataclass
class Vms:
    """All VMs of the embedded cloud, by project and zone."""

    world: World
    timings: Timings
    switches: Switches
    audit: Audit
    operations: Operations
    _vms: dict[tuple[str, str], dict[str, Vm]] = field(default_factory=dict)
    _shelves: dict[tuple[str, str], Shelf] = field(default_factory=dict)
    _next_address: int = FIRST_ADDRESS
    _free_addresses: deque[tuple[str, str]] = field(default_factory=deque)

    def zone(self, project: str, zone: str) -> Mapping[str, Vm]:
        """Return the VMs of a zone by name."""
        return self._vms.setdefault((project, zone), {})

    def shelf(self, project: str, zone: str) -> Shelf:
        """Return the documents that instances.list shows of a zone."""
        return self._shelves.setdefault((project, zone), Shelf(self.world))

    def __iter__(self) -> Iterator[Vm]:
        for vms in self._vms.values():
            yield from vms.values()

    def named(self, name: str) -> list[Vm]:
        """Return the VMs of this name in all projects and zones."""
        return [vms[name] for vms in self._vms.values() if name in vms]

    def insert(
        self,
        spec: MigSpec,
        zone: str,
        name: str,
        *,
        like: Vm | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Vm:
        """Begin to make a VM. ``name`` must be free. ``like``: the VM that is recreated, whose id and creation time the
        new VM keeps; None: the new VM gets its own."""
        vm = Vm(
            id=like.id if like else self.world.random.randrange(1 << 60, 1 << 63),
            name=name,
            zone=zone,
            spec=spec,
            created=like.created if like else self.world.wall(),
            ip=self._address(name),
            labels=spec.labels,
            metadata=metadata or {},
            is_ip_shown=self.switches.ip_before_running,
            is_ipv6_only=self.world.strikes("no_address", name, spec.name, zone) is not None,
        )
        self._vms.setdefault((spec.project, zone), {})[name] = vm
        self._begin(vm, "insert")
        self._show(vm)
        stuck = self.world.strikes("stuck_provisioning", name, spec.name, zone)
        boot = self.world.lognormal(*self.timings.boot)
        if stuck is None or stuck.params.get("status") == "STAGING":
            self.world.after(boot * STAGING_SHARE, lambda: self._move(vm, "PROVISIONING", "STAGING"))
        if stuck is None:
            self.world.after(boot, lambda: self._run(vm))
        return vm

    def delete(self, vm: Vm) -> None:
        """Stop a VM and remove it. A VM that is already stopping is removed once it has stopped."""
        vm.doomed = True
        if vm.status == "TERMINATED":
            self._begin(vm, "delete")
            self._remove(vm)
            return
        if not vm.is_live:
            return
        self._begin(vm, "delete")
        self._change(vm, "STOPPING")
        if self.world.strikes("stuck_stopping", vm.name, vm.spec.name, vm.zone):
            return
        spot = vm.spec.provisioning_model == "SPOT"
        delay = self.world.lognormal(*(self.timings.delete_spot if spot else self.timings.delete))
        self.world.after(min(delay, self.timings.delete_cap), lambda: self._remove(vm))

    def withdraw(self, vm: Vm, error: OperationError) -> None:
        """Remove a VM whose insert fails after it has begun."""
        self._ended(vm, "insert", error)
        self._remove(vm)

    def stop(self, vm: Vm) -> None:
        """Stop a VM, which then stays as TERMINATED."""
        if vm.is_live:
            self._begin(vm, "stop")
            self._change(vm, "STOPPING")
            delay = min(self.world.lognormal(*self.timings.delete), self.timings.delete_cap)
            self.world.after(delay, lambda: self._move(vm, "STOPPING", "TERMINATED"))

    def preempt(self, vm: Vm) -> bool:
        """Preempt a running VM, which ends after its notice time. Return False if the VM does not run."""
        if vm.status != "RUNNING":
            return False
        self._preempt(vm)
        return True

    def _preempt(self, vm: Vm) -> None:
        if vm.status != "RUNNING":
            return
        self.audit.system("instances.preempted", vm.path, PREEMPTED, vm.id)
        target = Target(vm.spec.project, f"zones/{vm.zone}", vm.path, str(vm.id))
        self.operations.happened("compute.instances.preempted", target, PREEMPTED)
        self._change(vm, "STOPPING")
        end = self._remove if vm.spec.termination_action == "DELETE" else self._terminate
        self.world.after(self.timings.notice, lambda: end(vm))

    def set_labels(self, vm: Vm, labels: Mapping[str, str]) -> None:
        """Give the VM these labels."""
        vm.labels = labels
        if vm.exists:
            self._show(vm)

    def reset(self) -> None:
        """Remove all VMs at once without a notice to their groups."""
        for vm in list(self):
            vm.status = "GONE"
        self._vms.clear()
        self._shelves.clear()
        self._free_addresses.clear()
        self._next_address = FIRST_ADDRESS

    def _run(self, vm: Vm) -> None:
        if vm.status not in STARTING:
            return
        vm.started = self.world.wall()
        hidden = self.world.strikes("no_ip", vm.name, vm.spec.name, vm.zone)
        if hidden:
            vm.is_ip_shown = False
            self.world.after(float(hidden.params.get("seconds", 30.0)), lambda: self._show_ip(vm))
        else:
            vm.is_ip_shown = True
        self._change(vm, "RUNNING")
        self._ended(vm, "insert")
        if vm.spec.max_run_seconds is not None:
            end = self.delete if vm.spec.termination_action == "DELETE" else self.stop
            self.world.after(vm.spec.max_run_seconds, partial(end, vm))
        for mode, act in (("preemption", self._preempt), ("deleted", self.delete), ("stopped", self.stop)):
            if fault := self.world.strikes(mode, vm.name, vm.spec.name, vm.zone):
                self.world.after(float(fault.params.get("seconds", 60.0)), partial(act, vm))

    def _show_ip(self, vm: Vm) -> None:
        vm.is_ip_shown = True
        if vm.exists:
            self._show(vm)

    def _terminate(self, vm: Vm) -> None:
        self._move(vm, "STOPPING", "TERMINATED")

    def _move(self, vm: Vm, before: str, after: str) -> None:
        if vm.status == before:
            self._change(vm, after)

    def _change(self, vm: Vm, status: str) -> None:
        if status == "TERMINATED" and vm.doomed:
            self._remove(vm)
            return
        vm.status = status
        if status == "TERMINATED":
            vm.stopped = self.world.wall()
            self._ended(vm, "stop")
        self._show(vm)
        if vm.watcher:
            vm.watcher(vm)

    def _remove(self, vm: Vm) -> None:
        if not vm.exists:
            return
        vm.status = "GONE"
        self._ended(vm, "delete")
        del self._vms[vm.spec.project, vm.zone][vm.name]
        self._free_addresses.append((vm.ip, vm.name))
        self.shelf(vm.spec.project, vm.zone).put(vm.name, None)
        if vm.watcher:
            vm.watcher(vm)

    def _begin(self, vm: Vm, method: str) -> None:
        vm.logged[method] = self.audit.begin(f"instances.{method}", vm.path, vm.id)

    def _ended(self, vm: Vm, method: str, error: OperationError | None = None) -> None:
        """Log the end of a VM's operation, if its start was logged."""
        operation = vm.logged.pop(method, "")
        if operation:
            self.audit.end(f"instances.{method}", vm.path, operation, error, instance=vm.id)

    def _address(self, name: str) -> str:
        """Return the internal IP that was released first, because real subnets also reuse addresses in this order.
        Return a new IP if no released IP is free, or if a VM of the same name released this IP."""
        if self._free_addresses and self._free_addresses[0][1] != name:
            return self._free_addresses.popleft()[0]
        self._next_address += 1
        return str(ipaddress.IPv4Address(self._next_address - 1))

    def _show(self, vm: Vm) -> None:
        self.shelf(vm.spec.project, vm.zone).put(vm.name, vm_document(vm))


def vm_document(vm: Vm) -> Document:
    """Return an instance as Compute Engine prints it."""
    project = f"{BASE}projects/{vm.spec.project}"
    document: Document = {
        "kind": "compute#instance",
        "id": str(vm.id),
        "name": vm.name,
        "creationTimestamp": timestamp(vm.created),
        "status": vm.status,
        "zone": f"{project}/zones/{vm.zone}",
        "selfLink": BASE + vm.path,
        "machineType": f"{project}/zones/{vm.zone}/machineTypes/{vm.spec.machine_type}",
        "cpuPlatform": "Intel Cascade Lake" if vm.status == "RUNNING" else "Unknown CPU Platform",
        "labelFingerprint": fingerprint_of(dict(vm.labels)),
        "fingerprint": "7jVK4fWJzWs=",
        "canIpForward": False,
        "deletionProtection": False,
        "startRestricted": False,
        "tags": {"fingerprint": "42WmSpB8rSM="},
        "disks": [_disk(vm)],
        "networkInterfaces": [_interface(vm)],
        "scheduling": _scheduling(vm.spec),
        "metadata": {
            "kind": "compute#metadata",
            "fingerprint": "MrV2ndz3ijM=",
            "items": [
                {"key": "created-by", "value": vm.spec.reference},
                {"key": "instance-template", "value": vm.spec.template},
                *({"key": key, "value": value} for key, value in vm.metadata.items()),
            ],
        },
    }
    if vm.labels:
        document["labels"] = dict(vm.labels)
    if vm.started is not None:
        document["lastStartTimestamp"] = timestamp(vm.started)
    if vm.stopped is not None:
        document["lastStopTimestamp"] = timestamp(vm.stopped)
    if vm.scheduling:
        document["resourceStatus"] = {"scheduling": vm.scheduling}
    return document


def _interface(vm: Vm) -> Document:
    region = vm.zone.rpartition("-")[0]
    interface: Document = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "stackType": "IPV6_ONLY" if vm.is_ipv6_only else "IPV4_ONLY",
        "fingerprint": "MrV2ndz3ijM=",
        "network": f"{BASE}projects/{vm.spec.project}/global/networks/default",
        "subnetwork": f"{BASE}projects/{vm.spec.project}/regions/{region}/subnetworks/default",
    }
    if vm.is_ipv6_only:
        interface |= {"ipv6AccessType": "INTERNAL", "ipv6Address": str(ipaddress.IPv6Address(f"fd20::{vm.ip}"))}
    elif vm.is_ip_shown:
        interface["networkIP"] = vm.ip
    return interface


def _disk(vm: Vm) -> Document:
    return {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "source": f"{BASE}projects/{vm.spec.project}/zones/{vm.zone}/disks/{vm.name}",
        "deviceName": "persistent-disk-0",
        "index": 0,
        "boot": True,
        "autoDelete": True,
        "interface": "SCSI",
        "diskSizeGb": "20",
    }


def _scheduling(spec: MigSpec) -> Document:
    spot = spec.provisioning_model == "SPOT"
    scheduling: Document = {
        "onHostMaintenance": "TERMINATE" if spot else "MIGRATE",
        "automaticRestart": not spot,
        "preemptible": spot,
        "provisioningModel": spec.provisioning_model,
    }
    if spot or spec.max_run_seconds is not None:
        scheduling["instanceTerminationAction"] = spec.termination_action
    if spec.max_run_seconds is not None:
        scheduling["maxRunDuration"] = {"seconds": str(int(spec.max_run_seconds))}
    return scheduling

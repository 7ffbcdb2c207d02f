"""Audit log entries of the simulated Compute Engine. Like a real log sink, the model sends them late and in any order.

Entries are logged only if there are listeners. The entries' delays come from a separate random generator. So the rest
of the cloud behaves the same with and without listeners.

* A call that takes effect later has two entries of one operation, ``first`` and ``last``.
* A preemption and a repair are system events and have one entry each.
* A refused call has one entry without operation.

Fault modes. Targets: the instance or MIG, the method such as ``instances.preempted``.

* ``event_lost``: the entry never comes
* ``event_twice``: the entry comes twice, as two messages
* ``event_late``: the entry comes ``seconds`` (3600) later than usual
* ``event_malformed``: the message is cut off in the middle
* ``event_number``: the entry contains the project's number instead of the project's id
* ``event_unfinished``: the entry ``last`` of an operation never comes
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from provisioner.lab.cloud.compute.operations import BASE, ApiError, Document, OperationError
from provisioner.lab.cloud.compute.settings import Timings, project_number
from provisioner.lab.cloud.world import World

LONGEST_DELAY = 60.0
"""Longest delay, in seconds, with which a log sink sends an entry."""

AUDIT_LOG = "type.googleapis.com/google.cloud.audit.AuditLog"
STATUS_CODES = {400: 3, 403: 7, 404: 5, 409: 6, 412: 9, 503: 14}
"""The code of google.rpc.Status that entries carry, by HTTP status."""

OTHER_ERROR = 13

Listener = Callable[[bytes, float], None]
"""A function that is called with each message and the time when Pub/Sub received it (epoch seconds by the simulated
clock)."""


@dataclass
class Audit:
    """A sender of audit log entries about instances and groups. Each entry is sent to all listeners."""

    world: World
    timings: Timings
    listeners: list[Listener] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.world.seed)
        self._serial = 0

    def begin(self, method: str, path: str, instance: int = 0) -> str:
        """Log an accepted call of ``method``, such as ``instances.insert``, on ``path``. Return the name of the call's
        operation.

        ``instance``: the id of the affected instance.
        """
        operation = f"operation-{int(self.world.wall() * 1000)}-{self._next():012x}"
        if self.listeners:
            self._log(method, path, _activity(method, path, instance) | {"operation": _part(operation, "first")})
        return operation

    def end(
        self, method: str, path: str, operation: str, error: OperationError | None = None, instance: int = 0
    ) -> None:
        """Log the end of an accepted call, with or without an error."""
        if not self.listeners or self._strikes("event_unfinished", _targets(method, path)):
            return
        entry = _activity(method, path, instance) | {"operation": _part(operation, "last")}
        del entry["protoPayload"]["response"]
        if error:
            entry["severity"] = "ERROR"
            code = STATUS_CODES.get(error.status, OTHER_ERROR)
            entry["protoPayload"]["status"] = {"code": code, "message": error.code}
        self._log(method, path, entry)

    def refused(self, method: str, path: str, error: ApiError) -> None:
        """Log a call that was refused at once."""
        if not self.listeners:
            return
        entry = _activity(method, path) | {"severity": "ERROR"}
        payload = entry["protoPayload"]
        payload["response"] = {
            "@type": "type.googleapis.com/error",
            "error": {"code": error.status, "message": error.message},
        }
        payload["status"] = {"code": STATUS_CODES.get(error.status, OTHER_ERROR), "message": error.message}
        self._log(method, path, entry)

    def system(self, method: str, path: str, message: str, instance: int = 0) -> None:
        """Log an action of Google itself, such as a preemption."""
        if not self.listeners:
            return
        operation = f"systemevent-{int(self.world.wall() * 1000)}-{self._next():012x}"
        name = f"compute.{method}"
        entry = _entry(name, path, instance) | {
            "severity": "INFO",
            "logName": f"projects/{_project(path)}/logs/cloudaudit.googleapis.com%2Fsystem_event",
            "operation": {"id": operation, "producer": name, "first": True, "last": True},
        }
        entry["protoPayload"] |= {
            "status": {"message": message},
            "authenticationInfo": {"principalEmail": "system@google.com"},
        }
        self._log(method, path, entry)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _log(self, method: str, path: str, entry: Document) -> None:
        targets, now = _targets(method, path), _utc(self.world.wall())
        entry |= {"insertId": f"{self._next():012x}", "timestamp": now, "receiveTimestamp": now}
        text = json.dumps(entry)
        if self._strikes("event_number", targets):
            project = _project(path)
            text = text.replace(f"projects/{project}/", f"projects/{project_number(project)}/")
        if self._strikes("event_malformed", targets):
            text = text[: len(text) // 2]
        for _ in range(2 if self._strikes("event_twice", targets) else 1):
            if not self._strikes("event_lost", targets):
                late = self.world.strikes("event_late", *targets, chance=self._random)
                self._send(text.encode(), float(late.params.get("seconds", 3600.0)) if late else 0.0)

    def _strikes(self, mode: str, targets: tuple[str, str]) -> bool:
        return self.world.strikes(mode, *targets, chance=self._random) is not None

    def _send(self, data: bytes, late: float) -> None:
        delay = min(self.world.lognormal(*self.timings.audit, chance=self._random), LONGEST_DELAY)
        self.world.after(delay + late, lambda: self._publish(data))

    def _publish(self, data: bytes) -> None:
        for listener in self.listeners:
            listener(data, self.world.wall())


def _activity(method: str, path: str, instance: int = 0) -> Document:
    """Return the fields that both entries of a call have."""
    name, project = f"v1.compute.{method}", _project(path)
    user = f"{project_number(project)}@cloudservices.gserviceaccount.com"
    entry = _entry(name, path, instance) | {
        "severity": "NOTICE",
        "logName": f"projects/{project}/logs/cloudaudit.googleapis.com%2Factivity",
        "labels": {"compute.googleapis.com/root_trigger_id": "c586d0a1-7c1f-4a8e-9a53-6f0f1b2c3d4e"},
    }
    entry["protoPayload"] |= {
        "authenticationInfo": {"principalEmail": user},
        "response": {
            "@type": "type.googleapis.com/operation",
            "operationType": method.rpartition(".")[2],
            "status": "RUNNING",
            "targetLink": BASE + path,
            "user": user,
        },
    }
    return entry


def _entry(name: str, path: str, instance: int = 0) -> Document:
    """Return the fields that every entry has."""
    scope, place = path.split("/")[2:4]
    group = "instanceGroupManagers" in path
    identity = {"instance_id": str(instance)} if instance else {}
    return {
        "protoPayload": {
            "@type": AUDIT_LOG,
            "serviceName": "compute.googleapis.com",
            "methodName": name,
            "resourceName": path,
            "request": {"@type": f"type.googleapis.com/{name.removeprefix('v1.')}"},
        },
        "resource": {
            "type": "gce_instance_group_manager" if group else "gce_instance",
            "labels": {"project_id": _project(path), scope.removesuffix("s"): place, **identity},
        },
    }


def _utc(wall: float) -> str:
    """Return a time in the RFC 3339 form of logs."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _part(operation: str, part: str) -> Document:
    return {"id": operation, "producer": "compute.googleapis.com", part: True}


def _project(path: str) -> str:
    return path.split("/")[1]


def _targets(method: str, path: str) -> tuple[str, str]:
    return path.rpartition("/")[2], method

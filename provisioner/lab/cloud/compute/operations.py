"""Operations of the simulated Compute Engine. Each accepted call has an operation, which ends later. If the call is
repeated with the same request id, the response is the operation of the first call.

An operation on a MIG is DONE once the MIG has accepted the call. The MIG makes or deletes VMs later.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from provisioner.lab.cloud.compute.settings import Switches, Timings, project_number
from provisioner.lab.cloud.world import Fault, World

if TYPE_CHECKING:
    from provisioner.lab.cloud.compute.audit import Audit

Document = dict[str, Any]

BASE = "https://www.googleapis.com/compute/v1/"
"""Start of every URL inside the model. The HTTP handlers replace ``BASE`` with the address that the caller used."""

_PACIFIC = timezone(timedelta(hours=-7))


class ApiError(Exception):
    """The error of a call that is refused at once: HTTP status, Google's reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class OperationError:
    """An error of an accepted call. A call with an error has no effect."""

    code: str
    message: str
    status: int = 400
    """The HTTP status that the error has in the operation (``httpErrorStatusCode``)."""
    details: Sequence[Document] = ()
    """The error's field ``errorDetails``."""

    def document(self) -> Document:
        """Return the error in the form in which an operation shows it."""
        entry: Document = {"code": self.code, "message": self.message}
        return entry | {"errorDetails": list(self.details)} if self.details else entry


Effect = Callable[[], OperationError | None]
"""A function that applies an accepted call completely and returns None, or applies nothing and returns the error."""

PHRASES: Mapping[int, str] = {
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    404: "NOT FOUND",
    409: "CONFLICT",
    412: "PRECONDITION FAILED",
    503: "SERVICE UNAVAILABLE",
}


def numeric_id(path: str) -> str:
    """Return a numeric id for a resource whose id the model does not store. The id is made from the path."""
    return str((1 << 60) + zlib.crc32(path.encode()))


def timestamp(wall: float) -> str:
    """Return a time in RFC 3339 with milliseconds and Google's Pacific offset."""
    return datetime.fromtimestamp(wall, _PACIFIC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Target:
    """The resource that an operation works on."""

    project: str
    scope: str
    """``zones/<zone>`` or ``regions/<region>``."""
    path: str
    """Relative URL."""
    id: str


@dataclass(eq=False)
class Operation:
    """An accepted call."""

    id: int
    name: str
    kind: str
    """``operationType``, such as ``compute.instanceGroupManagers.createInstances`` or ``delete``."""
    target: Target
    request_id: str
    inserted: float
    """Time of the call in epoch seconds by the simulated clock. ``started`` and ``ended`` use the same clock."""
    started: float | None = None
    ended: float | None = None
    error: OperationError | None = None
    logged: str = ""
    """The operation's name in the audit log; empty for a call on an instance, because a change of an instance is logged
    when it happens."""
    status_message: str = ""
    """The statusMessage; empty unless Google itself began the operation."""

    @property
    def is_group_call(self) -> bool:
        """Return True if the call is on a MIG."""
        return self.kind.startswith("compute.")

    @property
    def method(self) -> str:
        """The method's name in the audit log, without the API's version."""
        return self.kind.removeprefix("compute.")

    @property
    def done(self) -> bool:
        """Return True if the operation is done."""
        return self.ended is not None

    def document(self) -> Document:
        """Return the operation as Compute Engine prints it."""
        project, scope = self.target.project, self.target.scope
        location, _, place = scope.partition("/")
        document: Document = {
            "kind": "compute#operation",
            "id": str(self.id),
            "name": self.name,
            location.removesuffix("s"): f"{BASE}projects/{project}/{location}/{place}",
            "operationType": self.kind,
            "targetLink": BASE + self.target.path,
            "targetId": self.target.id,
            "status": "DONE" if self.done else "RUNNING",
            "user": "system"
            if self.status_message
            else f"{project_number(project)}-compute@developer.gserviceaccount.com",
            "progress": 100 if self.done else 0,
            "insertTime": timestamp(self.inserted),
            "startTime": timestamp(self.inserted if self.started is None else self.started),
            "selfLink": f"{BASE}projects/{project}/{scope}/operations/{self.name}",
        }
        if self.ended is not None:
            document["endTime"] = timestamp(self.ended)
        if self.status_message:
            document["statusMessage"] = self.status_message
        if self.request_id:
            document["clientOperationId"] = self.request_id
        if self.error:
            document["error"] = {"errors": [self.error.document()]}
            document["httpErrorStatusCode"] = self.error.status
            document["httpErrorMessage"] = PHRASES.get(self.error.status, "ERROR")
        return document


@dataclass
class Operations:
    """All operations of the embedded cloud, by project, scope and name."""

    world: World
    timings: Timings
    switches: Switches
    audit: Audit
    _operations: dict[tuple[str, str, str], Operation] = field(default_factory=dict)
    _requests: dict[tuple[str, str], Operation] = field(default_factory=dict)
    _pending: Counter[str] = field(default_factory=Counter)
    _events: Iterator[int] = field(default_factory=itertools.count)

    def repeated(self, target: str, request_id: str) -> Operation | None:
        """Return the operation of an earlier call with this request id on this target; None if there was no such call
        or its request id is forgotten."""
        begun = self._requests.get((target, request_id)) if request_id else None
        if begun and self.world.wall() - begun.inserted > self.switches.request_id_seconds:
            return None
        return begun

    def begin(self, kind: str, target: Target, request_id: str, effect: Effect) -> Operation:
        """Accept a call. Return its operation. The call takes effect when the operation ends."""
        operation = Operation(
            id=self.world.random.randrange(1 << 60, 1 << 63),
            name=self._name(),
            kind=kind,
            target=target,
            request_id=request_id,
            inserted=self.world.wall(),
        )
        if operation.is_group_call:
            operation.logged = self.audit.begin(operation.method, target.path)
        self._operations[target.project, target.scope, operation.name] = operation
        self._pending[target.path] += 1
        if request_id:
            self._requests[target.path, request_id] = operation
        self._forget()
        faults = self._faults(kind, target.path)
        delay = self.world.lognormal(*self.timings.operation)
        if delay > 0:
            self.world.after(delay, lambda: self._end(operation, effect, faults))
        else:
            self._end(operation, effect, faults)
        return operation

    def happened(self, kind: str, target: Target, status_message: str) -> None:
        """Record an action of Google itself, such as a preemption of an instance, as an operation that has ended.

        The method draws no random number, so that the random numbers of the later calls stay the same.
        """
        now = self.world.wall()
        name = f"systemevent-{int(now * 1000)}-{next(self._events):012x}"
        self._operations[target.project, target.scope, name] = Operation(
            id=int(numeric_id(name)),
            name=name,
            kind=kind,
            target=target,
            request_id="",
            inserted=now,
            ended=now,
            status_message=status_message,
        )

    def get(self, project: str, scope: str, name: str) -> Operation:
        """Return the operation of this name; raise 404 if it is unknown or ended too long ago."""
        operation = self._operations.get((project, scope, name))
        if operation is None or self._expired(operation):
            raise ApiError(
                404, "notFound", f"The resource 'projects/{project}/{scope}/operations/{name}' was not found"
            )
        return operation

    def documents_of(self, project: str, scope: str) -> dict[str, Document]:
        """Return all operations of a zone or region by name."""
        return {
            key[2]: operation.document()
            for key, operation in self._operations.items()
            if key[:2] == (project, scope) and not self._expired(operation)
        }

    def pending(self, target: str) -> bool:
        """Return True while an operation on this target has not ended."""
        return self._pending[target] > 0

    def reset(self) -> None:
        """Forget all operations. Effects that are still scheduled do not take place."""
        self._operations.clear()
        self._requests.clear()
        self._pending.clear()

    def _name(self) -> str:
        bits = self.world.random.getrandbits
        return f"operation-{int(self.world.wall() * 1000)}-{bits(52):013x}-{bits(32):08x}-{bits(32):08x}"

    def _expired(self, operation: Operation) -> bool:
        return operation.ended is not None and self.world.wall() - operation.ended > self.timings.operation_retention

    def _forget(self) -> None:
        """Remove operations that ended so long ago that callers can no longer query them, and request ids that are too
        old to be recognised. Only the two oldest operations and the two oldest request ids are checked."""
        for key in list(itertools.islice(self._operations, 2)):
            if self._expired(self._operations[key]):
                del self._operations[key]
        horizon = self.world.wall() - self.switches.request_id_seconds
        for request in list(itertools.islice(self._requests, 2)):
            if self._requests[request].inserted < horizon:
                del self._requests[request]

    def _faults(self, kind: str, target: str) -> dict[str, Fault]:
        name = target.rpartition("/")[2]
        modes = ["op_error", "op_stuck"] + ["precondition"] * kind.endswith(".createInstances")
        struck = {mode: self.world.strikes(mode, name, kind) for mode in modes}
        return {mode: fault for mode, fault in struck.items() if fault}

    def _end(self, operation: Operation, effect: Effect, faults: Mapping[str, Fault]) -> None:
        target = operation.target
        if self._operations.get((target.project, target.scope, operation.name)) is not operation:
            return
        stuck = faults.get("op_stuck")
        operation.error = _fault_error(faults)
        if operation.error is None and (stuck is None or stuck.params.get("applied", True)):
            operation.error = effect()
        if operation.is_group_call:
            self.audit.end(operation.method, target.path, operation.logged, operation.error)
        if stuck is None:
            operation.ended = self.world.wall()
            self._pending[target.path] -= 1


def _fault_error(faults: Mapping[str, Fault]) -> OperationError | None:
    """Return the error with which an operation ends because of a fault; None if no fault strikes."""
    if fault := faults.get("op_error"):
        params = fault.params
        return OperationError(
            str(params.get("code", "INTERNAL_ERROR")),
            str(params.get("message", "Internal error. Please try again or contact Google Support.")),
            int(params.get("status", 503)),
            params.get("details", ()),
        )
    return PROACTIVE_SUBSTITUTE if "precondition" in faults else None


PROACTIVE_SUBSTITUTE = OperationError(
    "CONDITION_NOT_MET",
    "CreateInstances cannot be used when UpdatePolicy type is set to PROACTIVE and replacementMethod to SUBSTITUTE. "
    "Set replacementMethod to RECREATE or disable rolling update by setting type to OPPORTUNISTIC.",
    412,
)
"""Google's error for createInstances of a group with PROACTIVE updates by SUBSTITUTE."""

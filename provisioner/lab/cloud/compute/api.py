"""The part of the Compute Engine API that MIGs need, over HTTP. ``group_registry.py`` implements the behaviour.

``world.calls`` counts every call by method.

Fault modes of calls. Targets: a name, a method or ``<name>/<method>``. A call about a MIG, a VM or an operation has the
name of this resource. Any other call has the name of its zone or region. A method is, for example,
``instanceGroupManagers.createInstances`` or ``regionInstanceGroupManagers.get``.

Further modes are in ``lists.py`` (lists), ``group_registry.py`` (operations), ``attempts.py`` (creation of VMs) and
``vms.py`` (VMs).

* ``throttled``: 403 rateLimitExceeded; with ``per_minute``, only for calls beyond that number in a simulated minute
* ``unavailable``: 503 before the call is applied
* ``http_error``: any ``status`` (500), ``reason``, ``message``, before the call is applied
* ``denied``: 403 forbidden
* ``invalid``: 400 invalid; mutations only
* ``hang``: the call waits ``seconds`` (3600) of simulated time and is then applied, even if the caller has gone
* ``reset``: the connection is dropped before the call is applied
* ``lost_response``: the call is applied; then the connection is dropped. If ``status`` is given, it is the response.
* ``unknown_words``: members and instances have an action and status that Google does not have yet, and a new field
* ``mig_gone``: 404 for the MIG, which is also missing in lists of MIGs; its VMs stay
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from provisioner.lab.cloud.compute import group_methods, method_table, project_methods
from provisioner.lab.cloud.compute.batch import BOUNDARY, Part, format_batch, parse_batch
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.mask import Mask, compile_fields, select
from provisioner.lab.cloud.compute.method_table import PATH, Call, Method
from provisioner.lab.cloud.compute.operations import BASE, ApiError, Document
from provisioner.lab.cloud.compute.resource_documents import error_document, with_unknown_words
from provisioner.lab.cloud.world import Fault, World

WAIT_LIMIT = 120.0
"""Seconds after which the wait for an operation ends even if the operation is not done."""

BETA = "/compute/beta/"
ALLOWED = "instanceGroupManagers/{name}/testIamPermissions"
"""Path of testIamPermissions, which only Google's beta API has for groups."""

METHODS = (*method_table.METHODS, *group_methods.METHODS, *project_methods.METHODS)
"""All methods of the Compute Engine API that the simulator has."""

_TICK = 0.01
"""Real seconds between two readings of the simulated clock."""


def routes(groups: Groups, world: World) -> Sequence[web.RouteDef]:
    """Return the routes below ``/compute/v1/`` and the route of batches."""
    handlers = ComputeHandlers(groups, world)
    served = [web.route(method.verb, PATH + method.path, handlers.serves(method)) for method in METHODS]
    allowed = "zones/{zone}", "regions/{region}"
    asked = [web.post(f"{BETA}projects/{{project}}/{scope}/{ALLOWED}", handlers.permissions) for scope in allowed]
    return [
        *served,
        *asked,
        web.route("*", PATH + "{tail:.*}", handlers.unknown),
        web.post("/batch/compute/v1", handlers.batch),
    ]


class Dropped(Exception):
    """Raised to close the connection without a response."""


@dataclass(frozen=True)
class Incoming:
    """A received call, alone or in a batch."""

    path: str
    """Relative URL."""
    parts: Mapping[str, str]
    """The values of the placeholders in the method's path."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    text: str
    base: str
    """The address that the caller used for this server; ends in ``/compute/v1/``."""


@dataclass
class ComputeHandlers:
    """The HTTP handlers of all methods. Calls alone or in a batch pass through ``reply``."""

    groups: Groups
    world: World
    _minutes: Counter[tuple[str, int]] = field(default_factory=Counter)

    def serves(self, method: Method) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return the HTTP handler of a method."""

        async def handle(request: web.Request) -> web.StreamResponse:
            path, parts = request.path.removeprefix(PATH), request.match_info
            headers = {name.lower(): value for name, value in request.headers.items()}
            incoming = Incoming(path, parts, request.query, headers, await request.text(), _base(request))
            try:
                return _response(*await self.reply(method, incoming))
            except Dropped:
                return _drop(request)

        return handle

    async def permissions(self, request: web.Request) -> web.StreamResponse:
        """Respond to testIamPermissions: grant each requested permission unless the fault ``denied`` names that
        permission."""
        parts = request.match_info
        scope = next(f"{place}s/{parts[place]}" for place in ("zone", "region") if place in parts)
        self.world.calls["instanceGroupManagers.testIamPermissions"] += 1
        try:
            group = self.groups.mig(parts["project"], scope, parts["name"]).spec.name
        except ApiError as error:
            return _response(error.status, json.dumps(error_document(error)))
        wanted = [str(permission) for permission in (await request.json()).get("permissions", ())]
        names = {permission: permission.removeprefix("compute.") for permission in wanted}
        granted = [
            permission
            for permission, name in names.items()
            if not self.world.strikes("denied", name, f"{group}/{name}")
        ]
        return _response(200, json.dumps({"permissions": granted} if granted else {}))

    async def unknown(self, request: web.Request) -> web.StreamResponse:
        """Refuse a method that this simulator lacks."""
        return _response(*self._lacks(request.method, request.path))

    async def batch(self, request: web.Request) -> web.StreamResponse:
        """Handle the calls of a batch one after the other. Return a single response that contains their responses."""
        responses = []
        try:
            for part in parse_batch(request.headers.get("Content-Type", ""), await request.read()):
                responses.append((part.id, *await self._reply_to(part, _base(request))))
        except ApiError as error:
            return _response(error.status, json.dumps(error_document(error)))
        except Dropped:
            return _drop(request)
        headers = {"Content-Type": f"multipart/mixed; boundary={BOUNDARY}"}
        return web.Response(body=format_batch(responses), headers=headers)

    async def _reply_to(self, part: Part, base: str) -> tuple[int, str]:
        path = part.path.removeprefix(PATH)
        for method in METHODS:
            match = method.pattern.fullmatch(path) if method.verb == part.verb else None
            if match:
                parts = match.groupdict()
                return await self.reply(method, Incoming(path, parts, part.query, part.headers, part.text, base))
        return self._lacks(part.verb, part.path)

    def _lacks(self, verb: str, path: str) -> tuple[int, str]:
        self.world.calls["unknown"] += 1
        return 404, json.dumps(error_document(ApiError(404, "notFound", f"The simulator has no method {verb} {path}")))

    async def reply(self, method: Method, incoming: Incoming) -> tuple[int, str]:
        """Handle a call, and return the status and JSON of the response.

        The URLs in the response begin with the address that the caller used.
        """
        self.world.calls[method.name] += 1
        try:
            status, document = 200, await self._serve(method, incoming)
        except ApiError as error:
            status, document = error.status, error_document(error)
            if method.mutates:
                verb = method.name.rpartition(".")[2]
                self.groups.audit.refused(method.name, incoming.path.removesuffix(f"/{verb}"), error)
        indent = 2 if incoming.query.get("prettyPrint") == "true" else None
        return status, json.dumps(document, indent=indent).replace(BASE, incoming.base)

    async def _serve(self, method: Method, incoming: Incoming) -> Document:
        call, mask = _parse(self.groups, method, incoming), self._mask(incoming)
        await self._pause(self.world.lognormal(*self.groups.timings.call))
        if hang := self._strikes("hang", call):
            await self._pause(float(hang.params.get("seconds", 3600.0)))
        if self._strikes("reset", call):
            raise Dropped
        self._refuse(call)
        call.check_place()
        if method.is_waiting:
            await self._wait(call)
        document = method.respond(call)
        if fault := self._strikes("lost_response", call):
            if "status" not in fault.params:
                raise Dropped
            raise ApiError(int(fault.params["status"]), "backendError", "Internal error")
        if self._strikes("unknown_words", call):
            document = with_unknown_words(document)
        masked: Document = select(document, mask)
        return masked

    def _strikes(self, mode: str, call: Call) -> Fault | None:
        return self.world.strikes(mode, call.named, call.method.name, f"{call.named}/{call.method.name}")

    def _refuse(self, call: Call) -> None:
        """If a fault strikes the call, raise the fault's error."""
        if fault := self._strikes("throttled", call):
            self._throttle(call, fault)
        if self._strikes("unavailable", call):
            raise ApiError(503, "backendError", "The service is currently unavailable.")
        if fault := self._strikes("http_error", call):
            params = fault.params
            message = str(params.get("message", "Internal error"))
            raise ApiError(int(params.get("status", 500)), str(params.get("reason", "backendError")), message)
        if self._strikes("denied", call):
            permission = f"compute.{call.method.name}"
            raise ApiError(403, "forbidden", f"Required '{permission}' permission for '{call.path}'")
        if call.method.mutates and self._strikes("invalid", call):
            raise ApiError(400, "invalid", "Invalid value for field 'resource.instances': refused by a fault.")

    def _throttle(self, call: Call, fault: Fault) -> None:
        minute = int(self.world.now // 60)
        self._minutes[call.scope, minute] += 1
        if self._minutes[call.scope, minute] > int(fault.params.get("per_minute", 0)):
            message = f"Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of {call.scope}."
            raise ApiError(403, "rateLimitExceeded", message)

    async def _wait(self, call: Call) -> None:
        """Wait until the operation is done, or until ``WAIT_LIMIT``."""
        operation, end = call.operation(), self.world.now + WAIT_LIMIT
        while not operation.done and self.world.now < end:
            await asyncio.sleep(_TICK)

    async def _pause(self, seconds: float) -> None:
        """Wait ``seconds`` of simulated time."""
        if seconds > 0:
            over = asyncio.Event()
            self.world.after(seconds, over.set)
            await over.wait()

    def _mask(self, incoming: Incoming) -> Mask | None:
        """Return the fields that the caller requests; None: all fields."""
        text = incoming.query.get("fields", "")
        if not text and self.groups.switches.field_mask_header:
            text = incoming.headers.get("x-goog-fieldmask", "")
        try:
            return compile_fields(text) if text else None
        except ValueError as error:
            raise ApiError(400, "invalidParameter", str(error)) from error


def _parse(groups: Groups, method: Method, incoming: Incoming) -> Call:
    """Return the parsed call. Raise 400 if the body or the requestId is malformed."""
    parts = incoming.parts
    scope = next((f"{place}s/{parts[place]}" for place in ("zone", "region") if place in parts), "")
    try:
        body = json.loads(incoming.text) if incoming.text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "parseError", f"Parse Error: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "parseError", "Parse Error: the body is not an object")
    _check_request_id(incoming.query)
    return Call(groups, method, incoming.path, scope, parts, incoming.query, body, incoming.base)


def _check_request_id(query: Mapping[str, str]) -> None:
    text = query.get("requestId", "")
    try:
        valid = not text or uuid.UUID(text).int != 0
    except ValueError:
        valid = False
    if not valid:
        raise ApiError(400, "invalid", f"Invalid value for field 'requestId': '{text}'. Must be a valid non-zero UUID.")


def _drop(request: web.Request) -> web.Response:
    """Close the connection without a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _base(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}{PATH}"


def _response(status: int, text: str) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json", charset="UTF-8")

"""The Kubernetes API over HTTP: namespaces, nodes, Events and pods, for kubectl and the official clients.

``world.calls`` counts every call by resource and verb, for example as ``pods.create``. The verbs are create, delete,
deletecollection, get, list, patch, update and watch. A watch that begins with a list counts as ``watchlist``.

Faults on the way to the server. The model has further faults (``pods.py``). Discovery has no faults. Targets: the
namespace, the name of the object (also in a create), ``<resource>.<verb>`` (``pods.create``) and
``<namespace>/<resource>.<verb>``.

* ``hang``: the call waits ``params.seconds`` (default 3600) without a response and is then carried out
* ``throttled``: 429 with Retry-After ``params.seconds`` (default 1); the call is not applied
* ``unavailable``: 503; the call is not applied
* ``denied``: 403 in RBAC's words; the call is not applied
* ``http_error``: any ``params.status`` (401), ``params.reason`` and ``params.message``; the call is not applied
* ``list_error``: a list gets 500
* ``lost_response``: the call is applied, then the connection is cut without a response
* ``watch_cut``: a watch ends after ``params.seconds`` (default 5), cleanly or, with ``params.abort``, in mid-stream
* ``watch_gone``: a watch gets 410 or, with ``params.event``, 200 and an ERROR event
* ``no_watchlist``: a streamed list gets 200 and an ERROR event, as from a server with too old an etcd. With
  ``params.gate`` it gets 422, as from a server whose feature gate WatchList is off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from aiohttp import web

from provisioner.lab.cloud.hang_ups import is_hung_up
from provisioner.lab.cloud.kubernetes import discovery
from provisioner.lab.cloud.kubernetes.errors import (
    ApiError,
    Json,
    bad_request,
    conflict,
    denied,
    expired,
    internal,
    method_not_allowed,
    modified,
    no_such_path,
    no_watch_progress,
    refused,
    throttled,
    unavailable,
    watchlist_disabled,
)
from provisioner.lab.cloud.kubernetes.form import encode, negotiate
from provisioner.lab.cloud.kubernetes.lists import ListOptions, list_page
from provisioner.lab.cloud.kubernetes.patch import apply_patch, check_patch_type
from provisioner.lab.cloud.kubernetes.pods import Cluster
from provisioner.lab.cloud.kubernetes.request import (
    Call,
    check_preconditions,
    delete_options,
    match_of,
    read_body,
    verb_of,
)
from provisioner.lab.cloud.kubernetes.store import Stored
from provisioner.lab.cloud.kubernetes.validation import check_path, check_shape, grace_period, known_fields
from provisioner.lab.cloud.kubernetes.watch import Watch, error_line
from provisioner.lab.cloud.world import World

log = logging.getLogger(__name__)

HANG = 3600.0
WATCH_CUT = 5.0
RETRY_AFTER = 1

_WITHOUT_BODY = ("get", "list", "watch")


Reply = Awaitable[web.StreamResponse]


class ClusterHandlers:
    """The HTTP handlers of a cluster."""

    def __init__(self, cluster: Cluster, world: World) -> None:
        self._cluster = cluster
        self._world = world
        self._verbs: dict[tuple[str, str], Callable[[Call], Reply]] = {
            ("", "create"): self._create,
            ("", "delete"): self._delete,
            ("", "deletecollection"): self._delete_collection,
            ("", "get"): self._get,
            ("", "list"): self._list,
            ("", "patch"): self._update,
            ("", "update"): self._update,
            ("", "watch"): self._watch,
            ("status", "get"): self._get,
            ("status", "patch"): self._update,
            ("status", "update"): self._update,
            ("eviction", "create"): self._evict,
        }

    async def resource(self, request: web.Request) -> web.StreamResponse:
        """Respond to a request about objects."""
        try:
            call = await self._understand(request)
            return await self._respond(call)
        except ApiError as error:
            return refusal(error)
        except Exception as error:
            if is_hung_up(request, error):
                raise
            log.exception("Request failed", extra={"method": request.method, "path": request.path})
            return refusal(internal(repr(error)))

    async def _understand(self, request: web.Request) -> Call:
        parts = request.match_info
        store = self._cluster.stores.get(parts["resource"])
        namespace, name, subresource = (parts.get(key, "") for key in ("namespace", "name", "subresource"))
        if store is None or (bool(name or namespace) and store.kind.namespaced is not bool(namespace)):
            raise no_such_path()
        verb = verb_of(request, bool(name), subresource)
        form = negotiate(request.headers.get("Accept", ""), request.query.get("includeObject", ""))
        call = Call(request, store, namespace, name, subresource, verb, form, {})
        self._world.calls[call.counted_as] += 1
        self._check_supported(call)
        if verb in _WITHOUT_BODY:
            return call
        call = replace(call, body=await read_body(request, verb))
        if verb != "create" or name:
            return call
        check_shape(store.kind.kind, call.body)
        if store is self._cluster.pods:
            known_fields(call.body, strict=call.is_strict)
        return replace(call, name=(call.body.get("metadata") or {}).get("name") or "")

    async def review(self, request: web.Request) -> web.Response:
        """Respond to a SelfSubjectAccessReview: grant the right, unless the fault ``denied`` names this right."""
        self._world.calls["selfsubjectaccessreviews.create"] += 1
        try:
            document = await read_body(request, "create")
        except ApiError as error:
            return refusal(error)
        asked = (document.get("spec") or {}).get("resourceAttributes") or {}
        place, method = asked.get("namespace", ""), f"{asked.get('resource', '')}.{asked.get('verb', '')}"
        allowed = self._world.strikes("denied", place, method, f"{place}/{method}") is None
        return _json(encode({**document, "metadata": {}, "status": {"allowed": allowed}}), 201)

    def _check_supported(self, call: Call) -> None:
        """Raise 404 for unknown subresources, and 405 for verbs that the resource does not have."""
        if call.subresource in ("log", "exec", "attach", "portforward"):
            raise method_not_allowed("the embedded cloud runs no containers")
        if call.subresource:
            if call.subresource not in ("status", "eviction") or call.store is not self._cluster.pods:
                raise no_such_path()
        elif call.verb not in call.store.kind.verbs:
            raise method_not_allowed()
        if (call.subresource, call.verb) not in self._verbs:
            raise method_not_allowed()
        if not call.namespace and call.store.kind.namespaced and call.verb not in ("list", "watch"):
            raise method_not_allowed()

    async def _respond(self, call: Call) -> web.StreamResponse:
        """Carry out the call. Inject the faults that strike before the call or on its response."""
        if fault := self._world.strikes("hang", *call.targets):
            await self._sleep(float(fault.params.get("seconds", HANG)))
        if fault := self._world.strikes("throttled", *call.targets):
            raise throttled(int(fault.params.get("seconds", RETRY_AFTER)))
        if self._world.strikes("unavailable", *call.targets):
            raise unavailable()
        if self._world.strikes("denied", *call.targets):
            raise denied(call.verb, call.resource, call.namespace, call.name)
        if fault := self._world.strikes("http_error", *call.targets):
            raise refused(fault.params)
        response = await self._verbs[call.subresource, call.verb](call)
        if self._world.strikes("lost_response", *call.targets):
            _cut(call.request)
        return response

    async def _sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of simulated time."""
        over = asyncio.Event()
        self._world.after(seconds, over.set)
        await over.wait()

    # --- verbs --------------------------------------------------------------------------------------------------------

    async def _get(self, call: Call) -> web.Response:
        return self._one(call, self._found(call))

    async def _list(self, call: Call) -> web.Response:
        if self._world.strikes("list_error", *call.targets):
            raise internal("etcdserver: request timed out")
        options = ListOptions.parse(call.request.query)
        ttl = self._cluster.timings.continue_ttl
        objects, metadata = list_page(call.store, call.namespace, match_of(call), options, self._world.now, ttl)
        return _json(call.form.many(call.store.kind, objects, metadata, self._world.wall()))

    async def _watch(self, call: Call) -> web.StreamResponse:
        options = ListOptions.parse(call.request.query)
        gone = self._world.strikes("watch_gone", *call.targets)
        if gone is not None:
            error = expired(f"too old resource version: {options.version or 0} ({call.store.version})")
            if not gone.params.get("event"):
                raise error
            return _json(error_line(error))
        if options.initial_events and (fault := self._world.strikes("no_watchlist", *call.targets)):
            if fault.params.get("gate"):
                raise watchlist_disabled()
            return _json(error_line(no_watch_progress()))
        watch = Watch(self._world, call.store, call.namespace, match_of(call), call.form, options)
        cut = self._world.strikes("watch_cut", *call.targets)
        if cut is not None:
            seconds = float(cut.params.get("seconds", WATCH_CUT))
            watch.ends = min(watch.ends, self._world.now + seconds)
            if cut.params.get("abort"):
                self._world.after(seconds, lambda: _cut(call.request))
        return await watch.stream(call.request, self._cluster.timings.bookmark)

    async def _create(self, call: Call) -> web.Response:
        metadata = call.body.get("metadata") or {}
        check_path(metadata, call.namespace)
        if call.store is self._cluster.pods:
            manager = call.request.query.get("fieldManager", "")
            stored = self._cluster.create(call.namespace, call.body, manager=manager, dry_run=call.is_dry_run)
        else:
            stored = self._cluster.create_event(call.namespace, call.body)
        return self._one(call, stored, 201)

    async def _update(self, call: Call) -> web.Response:
        """Replace or patch the pod or its status."""
        if call.verb == "patch":
            check_patch_type(call.request.content_type)
        pod = self._found(call)
        document = call.body
        if call.verb == "patch":
            whole = {"kind": "Pod", "apiVersion": "v1", **pod.document}
            document = apply_patch(whole, call.body, call.request.content_type)
        known_fields(check_shape("Pod", document), strict=call.is_strict and call.verb == "update")
        metadata = document.setdefault("metadata", {})
        check_path(metadata, call.namespace, call.name)
        if metadata.get("uid", pod.uid) != pod.uid:
            detail = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {pod.uid}"
            raise conflict("pods", call.name, detail)
        if metadata.get("resourceVersion") not in (None, "", str(pod.version)):
            raise modified("pods", call.name)
        status_only = call.subresource == "status"
        return self._one(call, self._cluster.update(pod, document, status_only=status_only, dry_run=call.is_dry_run))

    async def _delete(self, call: Call) -> web.Response:
        stored = self._found(call)
        options = delete_options(call)
        check_preconditions(options, stored)
        if call.store is not self._cluster.pods:
            self._cluster.fail_node(stored)
            details = {"name": stored.name, "kind": call.store.kind.resource, "uid": stored.uid}
            return _success(200, details)
        return self._one(call, stored if call.is_dry_run else self._cluster.delete(stored, grace_period(options)))

    async def _delete_collection(self, call: Call) -> web.Response:
        grace = grace_period(delete_options(call))
        objects = call.store.select(call.namespace, match_of(call))
        ended = objects if call.is_dry_run else [self._cluster.delete(pod, grace) for pod in objects]
        metadata = {"resourceVersion": str(call.store.version)}
        return _json(call.form.many(call.store.kind, ended, metadata, self._world.wall()))

    async def _evict(self, call: Call) -> web.Response:
        if (call.body.get("metadata") or {}).get("name", call.name) != call.name:
            raise bad_request("name in URL does not match name in Eviction object")
        pod = self._found(call)
        options = call.body.get("deleteOptions") or {}
        check_preconditions(options, pod)
        if not call.is_dry_run:
            self._cluster.evict(pod, grace_period(options))
        return _success(201, {})

    def _found(self, call: Call) -> Stored:
        return self._cluster.get(call.store.kind.resource, call.namespace, call.name)

    def _one(self, call: Call, stored: Stored, code: int = 200) -> web.Response:
        return _json(call.form.one(stored, self._world.wall()), code)


# --- writing responses ------------------------------------------------------------------------------------------------


def _json(body: bytes, code: int = 200) -> web.Response:
    return web.Response(body=body, status=code, content_type="application/json")


def _success(code: int, details: Json) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return _json(encode({**status, **({"details": details} if details else {"code": code})}), code)


def refusal(error: ApiError) -> web.Response:
    """Return the response for a refusal."""
    response = _json(encode(error.status), error.code)
    response.headers.update(error.headers)
    return response


def _cut(request: web.Request) -> None:
    """Close the connection without a response."""
    if request.transport is not None:
        request.transport.abort()


# --- routes -----------------------------------------------------------------------------------------------------------


def routes(cluster: Cluster, world: World) -> Sequence[web.RouteDef]:
    """Return the routes under ``/api``, ``/apis``, ``/openapi`` and the paths of health and version."""
    handlers = ClusterHandlers(cluster, world)
    base, space = "/api/v1/{resource}", "/api/v1/namespaces/{namespace}/{resource}"
    paths = (base, f"{base}/{{name}}", space, f"{space}/{{name}}", f"{space}/{{name}}/{{subresource}}")
    review = web.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", handlers.review)
    return [*_discovery(), review, *(web.route("*", path, handlers.resource) for path in paths), *_unknown()]


def _discovery() -> list[web.RouteDef]:
    async def api(request: web.Request) -> web.Response:
        return _json(encode(discovery.api_versions(request.host)))

    def fixed(document: Json) -> Callable[[web.Request], Awaitable[web.Response]]:
        body = encode(document)

        async def respond(_: web.Request) -> web.Response:
            return _json(body)

        return respond

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    documents = {
        "/api": api,
        "/apis": fixed(discovery.api_groups()),
        "/api/v1": fixed(discovery.resources()),
        "/version": fixed(discovery.VERSION),
        "/openapi/v3": fixed(discovery.openapi_index()),
        "/openapi/v3/api/v1": fixed(discovery.openapi_document()),
        **dict.fromkeys(("/healthz", "/livez", "/readyz"), healthy),
    }
    return [web.get(path + end, respond) for path, respond in documents.items() for end in ("", "/")]


def _unknown() -> list[web.RouteDef]:
    async def respond(_: web.Request) -> web.Response:
        return refusal(no_such_path())

    return [web.route("*", f"/{prefix}/{{rest:.*}}", respond) for prefix in ("api", "apis", "openapi")]

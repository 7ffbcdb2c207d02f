"""The calls to the Compute API of one project: raw JSON, and lists with field masks. A list is complete or fails.

Google's typed client is not used. Its import takes a second and 140 MB, and its lists take eighteen times the processor
time.

A call raises BackendError if its response has an unexpected structure. A list also raises BackendError if a page fails
or a part of the list is unreachable.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError
from google.auth.transport import DEFAULT_REFRESH_STATUS_CODES
from google.auth.transport.requests import AuthorizedSession

from provisioner.backends import BackendError
from provisioner.backends.call_budget import CallBudget
from provisioner.backends.client_connections import MOST_PAGES, PAGE
from provisioner.backends.google_auth import bounded_session, smaller_page
from provisioner.backends.login_refusals import UNKNOWN_USER, LoginRefusals
from provisioner.backends.mig.compute_fields import Json
from provisioner.backends.mig.errors import CALL_ERRORS, failed_call_error, http_error, raised
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.responses import json_object, text
from provisioner.model import ErrorClass

MOST_SAME_PAGES = 3
"""Maximum number of times that an empty page may name itself as the next page. If it does so more often, the
observation fails."""

GROUP_FIELDS = (
    "kind,name,targetSize,currentActions,instanceTemplate,versions/instanceTemplate,updatePolicy,"
    "instanceLifecyclePolicy,distributionPolicy(targetShape,zones/zone),autoHealingPolicies/healthCheck,"
    "status/autoscaler"
)
GROUPS_FIELDS = f"kind,nextPageToken,warning,items({GROUP_FIELDS})"
MEMBER_FIELDS = (
    "nextPageToken,managedInstances(name,instance,id,instanceStatus,currentAction,"
    "lastAttempt(errors(errors(code,message))),scheduling/terminationTimestamp)"
)
"""Fields that are read of a member. Of an error, only code and message are read, because its ``errorDetails`` are three
times as long as these."""

INSTANCE_FIELDS = (
    "kind,nextPageToken,warning,items(name,id,status,creationTimestamp,lastStartTimestamp,"
    "networkInterfaces(networkIP,accessConfigs/natIP,ipv6Address,ipv6AccessConfigs/externalIpv6),"
    "scheduling(provisioningModel,preemptible,terminationTime,maxRunDuration/seconds,preemptionNoticeDuration/seconds),"
    "resourceStatus/scheduling/terminationTimestamp)"
)

PREEMPTED = 'operationType="compute.instances.preempted"'
OPERATION_FIELDS = "kind,items(targetId,targetLink)"
OPERATION = "compute#operation"
"""``kind`` of the response to a call that changes something."""

HARMLESS_WARNINGS = frozenset(
    {"NO_RESULTS_ON_PAGE", "DEPRECATED_RESOURCE_USED", "DEPRECATED_TYPE_USED", "EXPERIMENTAL_TYPE_USED"}
)
"""Warnings that do not make a list incomplete. After any other warning the list may be incomplete: UNREACHABLE,
PARTIAL_SUCCESS, LIST_OVERHEAD_QUOTA_EXCEED (filtered items "can't be retrieved"), or a new warning."""

FIRST_PAUSE = 0.1
LAST_PAUSE = 2.0
"""Longest pause in seconds between two calls that wait for an operation. The pause is needed because such a call may
fail or end at once if Compute is overloaded."""


@dataclass(frozen=True, slots=True)
class ComputeTimes:
    """Time limits of Compute's calls, in seconds."""

    call: float = 20.0
    """Longest wait for a response. Compute usually responds within two seconds. If the wait ends without a response,
    the next cycle repeats the call."""
    observation: float = 60.0
    """Longest time for all calls of an observation. A longer observation would be too old to act upon."""
    admission: float = 5.0
    """Longest wait for the result of a create, which usually takes 0 to 4 s. Later results are read by observations."""
    window: float = 60.0
    """Length of Compute's window of call quotas."""


USUAL_TIMES = ComputeTimes()


class ComputeApi:
    """The calls of one project. Thread-safe."""

    def __init__(
        self, pool: MigPool, credentials: Credentials, prefix: str, budget: CallBudget, times: ComputeTimes
    ) -> None:
        """Prepare the connections. ``pool``: one of the project's pools that use these credentials."""
        self.times = times
        self._url, self._beta = f"{pool.address}/compute/v1/", f"{pool.address}/compute/beta/"
        self._project = f"projects/{pool.project}"
        self._prefix = f"{prefix}-"
        self._budget = budget
        self.clock, self._advice = PlaceClock(), str(getattr(credentials, "advice", ""))
        renewed = () if self._advice else DEFAULT_REFRESH_STATUS_CODES
        self._session = bounded_session(AuthorizedSession(credentials, refresh_status_codes=renewed), self.clock)
        self._refusals = LoginRefusals(self.clock, lambda: str(getattr(credentials, "login", "none")))

    def groups(self, location: str, deadline: float) -> Mapping[str, Json]:
        """Return all groups of a location by name. ``location``: ``zones/NAME`` or ``regions/NAME``. ``deadline`` is
        monotonic time, here and in all methods."""
        path = f"{self._project}/{location}/instanceGroupManagers"
        kind = "instanceGroupManagerList" if location.startswith("zones/") else "regionInstanceGroupManagerList"
        return _by_name(self._pages("GET", path, "items", GROUPS_FIELDS, deadline, f"compute#{kind}"))

    def group(self, group: MigPool, deadline: float) -> Json:
        """Return one group."""
        return self._call("GET", group.path, {"fields": GROUP_FIELDS}, deadline, "compute#instanceGroupManager")

    def members(self, group: MigPool, deadline: float) -> list[Json]:
        """Return all managed instances. The list has pages only if the group's listManagedInstancesResults is
        PAGINATED."""
        return self._pages("POST", f"{group.path}/listManagedInstances", "managedInstances", MEMBER_FIELDS, deadline)

    def instances(self, zone: str, deadline: float, begins: str = "") -> Mapping[str, Json]:
        """Return the zone's instances by name, including instances outside of groups. Only names that begin with
        ``begins`` are listed. If ``begins`` is empty, our prefix takes its place."""
        path = f"{self._project}/zones/{zone}/instances"
        kind = "compute#instanceList"
        named = f"name eq {begins or self._prefix}.*"
        return _by_name(self._pages("GET", path, "items", INSTANCE_FIELDS, deadline, kind, filter=named))

    def preemptions(self, zone: str, deadline: float) -> list[Json]:
        """Return the newest operations of a zone by which Google preempted instances of any group. Only the first page
        is read."""
        params = {"filter": PREEMPTED, "orderBy": "creationTimestamp desc", "maxResults": str(PAGE)}
        path = f"{self._project}/zones/{zone}/operations"
        page = self._call("GET", path, {"fields": OPERATION_FIELDS, **params}, deadline, "compute#operationList")
        return page.get("items") or []

    def resource(self, path: str, fields: str, deadline: float) -> Json:
        """Return the resource at a path below ``projects/``."""
        return self._call("GET", path, {"fields": fields}, deadline)

    def permissions(self, group: MigPool, wanted: Sequence[str], deadline: float) -> frozenset[str]:
        """Return which of the wanted permissions we have on the group. This call exists only in the beta API."""
        url = f"{self._beta}{group.path}/testIamPermissions"
        self._budget.wait_for_read(deadline)
        return frozenset(self._send("POST", url, deadline, json={"permissions": wanted}).get("permissions") or ())

    def create(self, group: MigPool, names: Sequence[str], id_: str) -> Json:
        """Call createInstances with the request id. Return the call's operation."""
        return self._change(group, "create", {"instances": [{"name": name} for name in names]}, requestId=id_)

    def delete(self, group: MigPool, urls: Sequence[str]) -> Json:
        """Call deleteInstances, which skips names that are no longer members. Return the call's operation."""
        return self._change(group, "delete", {"instances": list(urls), "skipInstancesOnValidationError": True})

    def operation(self, location: str, name: str, deadline: float) -> Json | None:
        """Return an operation; None if it is unreadable."""
        try:
            return self._call("GET", f"{self._project}/{location}/operations/{name}", {}, deadline)
        except BackendError:
            return None  # The request was accepted, even if its result cannot be read.

    def finished(self, location: str, name: str) -> Json | None:
        """Return an operation once it is DONE; None if it is unreadable or not DONE within ``times.admission``
        seconds."""
        path = f"{self._project}/{location}/operations/{name}/wait"
        deadline = time.monotonic() + self.times.admission
        pause = FIRST_PAUSE
        while True:
            try:
                operation = self._call("POST", path, {}, deadline)
            except BackendError:
                operation = {}  # The request was accepted even if the wait for its operation fails.
            if operation.get("status") == "DONE":
                return operation
            if time.monotonic() + pause >= deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _pages(
        self, method: str, path: str, items: str, fields: str, deadline: float, kind: str = "", **params: str
    ) -> list[Json]:
        entries, tokens = list[Json](), Counter[str]()
        params |= {"fields": fields, "maxResults": str(PAGE)}
        for _ in range(MOST_PAGES):
            try:
                page = self._call(method, path, params, deadline, kind)
            except BackendError as error:
                params["maxResults"] = str(smaller_page(int(params["maxResults"]), error))
                continue
            _check_complete(page)
            entries.extend(page.get(items) or [])
            params["pageToken"] = token = text(page.get("nextPageToken") or "")
            if not token:
                return entries
            tokens[token] += 1
            if tokens[token] > MOST_SAME_PAGES:
                raise BackendError(ErrorClass.OTHER, f"{path}: the server repeats a page after {token!r}")
        raise BackendError(ErrorClass.OTHER, f"{path}: the list has more than {MOST_PAGES} pages")

    def _call(self, method: str, path: str, params: Mapping[str, str], deadline: float, kind: str = "") -> Json:
        """Send a call. Return the response, a JSON object of the expected ``kind`` (empty: of any kind)."""
        self._budget.wait_for_read(deadline)
        return self._send(method, self._url + path, deadline, kind, params=params)

    def _change(self, group: MigPool, verb: str, body: Json, **params: str) -> Json:
        url = f"{self._url}{group.path}/{verb}Instances"
        self._budget.count_change()
        return self._send("POST", url, math.inf, OPERATION, params=params, json=body)

    def _send(self, method: str, url: str, deadline: float, kind: str = "", **options: Any) -> Json:
        path = url.removeprefix(self._url)
        left = min(deadline - time.monotonic(), self.times.call)
        if left <= 0:
            raise BackendError(ErrorClass.TIMEOUT, f"{path}: no time is left")
        began = time.monotonic()
        try:
            response = self._session.request(method, url, timeout=left, **options)
        except CALL_ERRORS as error:
            self.clock.hear(None, time.monotonic() - began)
            failed = failed_call_error(error)
            if not self._refusals.blame_clock(failed) and isinstance(error, RefreshError):
                self._refusals.explain(failed, UNKNOWN_USER)
            raise failed from error
        # A long wait for an operation does not mean that the server is slow.
        self.clock.hear(None, 0.0 if url.endswith("/wait") else time.monotonic() - began)
        content = response.content
        try:
            body, odd = json_object(content), ""
        except ValueError as error:
            body, odd = {}, f" ({error})"
        if response.status_code != 200:
            reported = http_error(response.status_code, body, content[:PAGE].decode(errors="replace"))
            refusal = raised(reported, response.headers.get("Retry-After"))
            self._budget.follow(refusal)
            self._refusals.explain(refusal, response.status_code, self._advice)
            raise refusal
        if odd or (kind and body.get("kind") != kind):
            raise BackendError(ErrorClass.UNAVAILABLE, f"{path}: not {kind or 'a JSON object'}{odd}: {content[:80]!r}")
        return body


def _by_name(items: list[Json]) -> dict[str, Json]:
    return {text(item["name"]): item for item in items}


def _check_complete(page: Json) -> None:
    """Raise BackendError for an incomplete list (law: a failed observation is not an empty observation)."""
    warning = page.get("warning")
    code = warning.get("code", "") if isinstance(warning, dict) else ""
    if warning and code not in HARMLESS_WARNINGS:
        raise BackendError(ErrorClass.UNAVAILABLE, f"partial answer: {warning}")
    if page.get("unreachables"):
        raise BackendError(ErrorClass.UNAVAILABLE, f"partial answer, unreachable: {page['unreachables']}")

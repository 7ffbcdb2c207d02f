"""Reads one managed instance group from the Compute API: raw JSON with field masks, every page or an error.

The typed client needs eighteen times the CPU for the same lists; it is used for mutations only (``mig``). A read that
is not complete raises BackendError: an unreachable part, a page that fails, a body that is not what was asked for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import google.auth
import google.auth.credentials
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account
from requests.adapters import HTTPAdapter

from provisioner.backends import BackendError
from provisioner.backends.compute_errors import CALL_ERRORS, http_error, of_exception, raised
from provisioner.model import ErrorClass
from provisioner.settings import MigPool

Json = dict[str, Any]

ENDPOINT = "https://compute.googleapis.com"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)

PAGE = 500
"""The most a page of Compute holds."""

SAME_PAGE = 3
"""How often a page may be empty and name itself as the next, before the look is given up."""

CONNECTIONS = 16
"""Kept open at once: the loop's calls and the zones of a regional group share them."""

GROUP_FIELDS = (
    "kind,targetSize,currentActions,instanceTemplate,versions/instanceTemplate,updatePolicy,instanceLifecyclePolicy"
)
MEMBER_FIELDS = "nextPageToken,managedInstances(name,instance,id,instanceStatus,currentAction,lastAttempt)"
INSTANCE_FIELDS = (
    "kind,nextPageToken,warning,items(name,id,status,creationTimestamp,lastStartTimestamp,"
    "networkInterfaces(networkIP,accessConfigs/natIP),scheduling(provisioningModel,preemptible))"
)

HARMLESS_WARNINGS = frozenset(
    {
        "NO_RESULTS_ON_PAGE",
        "DEPRECATED_RESOURCE_USED",
        "DEPRECATED_TYPE_USED",
        "EXPERIMENTAL_TYPE_USED",
        "LIST_OVERHEAD_QUOTA_EXCEED",
    }
)
"""Warnings under which a list is complete all the same. Any other (UNREACHABLE, PARTIAL_SUCCESS, a new one) is not."""

FIRST_PAUSE = 0.1
LAST_PAUSE = 2.0
"""Seconds between two waits for an operation: a wait may end at once when Compute is overloaded, or fail."""


@dataclass(frozen=True, slots=True)
class ComputeTimes:
    """How patient we are with Compute. Seconds."""

    connect: float = 5.0
    """For a connection."""
    call: float = 20.0
    """For an answer: Compute answers within a second or two, and the next cycle asks again."""
    look: float = 60.0
    """For all calls of a look: one that takes longer would be too old to act upon."""
    admission: float = 20.0
    """For the result of a create. Seen in practice: 0 to 4 s."""


USUAL_TIMES = ComputeTimes()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group is, and how it is reached."""

    root: str
    """Address of the API without path."""
    project: str
    location: str
    """``zones/…`` or ``regions/…``."""
    group: str
    zone: str
    """Of a zonal group; empty for a regional one."""

    @classmethod
    def of(cls, pool: MigPool) -> Place:
        """From the configuration. An endpoint may end in ``/compute/v1/``, as gcloud wants it."""
        root = (pool.endpoint or ENDPOINT).rstrip("/").removesuffix("/compute/v1")
        location = f"zones/{pool.zone}" if pool.zone else f"regions/{pool.region}"
        return cls(root, pool.project, location, pool.group, pool.zone or "")

    @property
    def path(self) -> str:
        """The group's name within the whole cloud."""
        return f"projects/{self.project}/{self.location}/instanceGroupManagers/{self.group}"


def credentials_for(pool: MigPool) -> google.auth.credentials.Credentials:
    """Anonymous for plain HTTP (a simulator), the pool's service account key, else what the surroundings offer."""
    try:
        if pool.endpoint and pool.endpoint.startswith("http://"):
            return google.auth.credentials.AnonymousCredentials()
        if pool.credentials:
            return service_account.Credentials.from_service_account_file(str(pool.credentials), scopes=SCOPES)
        return google.auth.default(scopes=SCOPES)[0]
    except (OSError, ValueError) as error:
        raise BackendError(ErrorClass.DENIED, f"key file {pool.credentials}: {error}") from error
    except CALL_ERRORS as error:
        raise of_exception(error) from error


class ComputeReads:
    """The reads of one group. Used by several threads at once."""

    def __init__(
        self,
        place: Place,
        credentials: google.auth.credentials.Credentials,
        *,
        prefix: str,
        times: ComputeTimes = USUAL_TIMES,
    ) -> None:
        self._place = place
        self.zone = place.zone
        """Of a zonal group; empty for a regional one."""
        self.times = times
        self._filter = f"name eq {prefix}-.*"
        self._session = AuthorizedSession(credentials)
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=CONNECTIONS))

    def group(self, deadline: float) -> Json:
        """The group itself. ``deadline`` is monotonic time, here and below."""
        return self._call("GET", self._place.path, {"fields": GROUP_FIELDS}, deadline, "compute#instanceGroupManager")

    def members(self, deadline: float) -> list[Json]:
        """Every managed instance. Without pages unless the group's listManagedInstancesResults is PAGINATED."""
        path = f"{self._place.path}/listManagedInstances"
        return self._pages("POST", path, "managedInstances", {"fields": MEMBER_FIELDS}, deadline)

    def instances(self, zone: str, deadline: float) -> list[Json]:
        """Every instance of the zone with our name prefix, members of the group or not."""
        path = f"projects/{self._place.project}/zones/{zone}/instances"
        params = {"fields": INSTANCE_FIELDS, "filter": self._filter}
        return self._pages("GET", path, "items", params, deadline, "compute#instanceList")

    def finished(self, operation: str) -> Json | None:
        """The operation once it is DONE; None when it is not, or cannot be read, in time."""
        path = f"projects/{self._place.project}/{self._place.location}/operations/{operation}/wait"
        deadline = time.monotonic() + self.times.admission
        pause = FIRST_PAUSE
        while True:
            try:
                found = self._call("POST", path, {}, deadline)
            except BackendError:
                found = {}  # the request was accepted: that its result cannot be read does not make it fail
            if found.get("status") == "DONE":
                return found
            if time.monotonic() + pause >= deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _pages(
        self, method: str, path: str, items: str, params: Mapping[str, str], deadline: float, kind: str = ""
    ) -> list[Json]:
        found: list[Json] = []
        token, tokens = "", Counter[str]()
        while True:
            query = {**params, "maxResults": str(PAGE), **({"pageToken": token} if token else {})}
            page = self._call(method, path, query, deadline, kind)
            _refuse_partial(page)
            found.extend(page.get(items) or [])
            token = page.get("nextPageToken") or ""
            if not token:
                return found
            tokens[token] += 1
            if tokens[token] > SAME_PAGE:
                raise BackendError(ErrorClass.OTHER, f"{path}: the pages do not go on after {token!r}")

    def _call(self, method: str, path: str, params: Mapping[str, str], deadline: float, kind: str = "") -> Json:
        """One answer, a JSON object of the ``kind`` that is expected."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise BackendError(ErrorClass.TIMEOUT, f"{path}: no time is left")
        url = f"{self._place.root}/compute/v1/{path}"
        try:
            timeout = (min(self.times.connect, left), min(self.times.call, left))
            answer = self._session.request(method, url, params=params, timeout=timeout)
            content = answer.content
        except CALL_ERRORS as error:
            raise of_exception(error) from error
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.status_code != 200:
            raise raised(http_error(answer.status_code, body, answer.text))
        if not isinstance(body, dict) or (kind and body.get("kind") != kind):
            raise BackendError(ErrorClass.UNAVAILABLE, f"{path}: not {kind or 'a JSON object'}: {content[:80]!r}")
        return body


def _refuse_partial(page: Json) -> None:
    """Law 4: a list that lacks a part is no list."""
    warning = page.get("warning")
    code = warning.get("code", "") if isinstance(warning, dict) else ""
    if warning and code not in HARMLESS_WARNINGS:
        raise BackendError(ErrorClass.UNAVAILABLE, f"partial answer: {warning}")
    if page.get("unreachables"):
        raise BackendError(ErrorClass.UNAVAILABLE, f"partial answer, unreachable: {page['unreachables']}")

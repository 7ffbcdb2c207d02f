"""Record each call that our own clients make to Compute and Kubernetes in this process.

If the roles in ``deploy/`` do not allow a call, the test that made the call fails. Calls by a test or by another client
are not recorded. ``pubsub_callers.py`` records the calls to Pub/Sub.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.support.checks.rights import compute_call, connect_call, granted, kube_call, needed
from tests.support.checks.simulators import NOTES

CALLS: set[str] = set()
"""The calls that this process has made."""


COMPUTE = "/compute/"
"""First characters of the path of each call to Compute. Calls to token servers and to the metadata server have other
paths and need no role."""


def see(call: str) -> None:
    """Check that a role gives the right to make this call, at the first such call of this process. If no role does,
    write a note."""
    if call in CALLS:
        return
    CALLS.add(call)
    right = needed(call)
    if right and right not in granted():
        with (Path(os.environ[NOTES]) / f"{os.getpid()}.calls").open("a") as notes:
            notes.write(f"{call} needs {right}, which no role of deploy/ gives: grant it there, or do not call it\n")


def watch_compute(module: Any) -> None:
    """Record every request that passes the sessions of ``backends/google_auth.py`` from now on."""
    adapter = module._WholeResponses
    send = adapter.send

    def seen(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        path = request.path_url.partition("?")[0]
        if path.startswith(COMPUTE):
            see(compute_call(request.method, path))
        return send(self, request, *arguments, **options)

    adapter.send = seen


def watch_kubernetes(module: Any) -> None:
    """Record every request of ``backends/gke/api.py`` from now on."""
    exchange = module.KubeApi._exchange

    def seen(self: Any, request: Any) -> Any:
        # The access itself gives its way only with credentials.
        way = getattr(self.access, "_way", None) or self.access._reading.way
        if connect := connect_call(way.host):
            see(connect)
        see(kube_call(request.method, request.path, {name: str(value) for name, value in request.query.items()}))
        return exchange(self, request)

    module.KubeApi._exchange = seen

"""Calls of Ray's Jobs API (docs.ray.io, Ray Jobs REST API; tested with Ray 2.60)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from provisioner.backends import BackendError
from provisioner.backends.concurrency import Flow
from provisioner.backends.http import Document, Request, connect, exchange, parse
from provisioner.backends.login_refusals import LoginRefusals, read_secret
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.proxies_and_authorities import seconds_until
from provisioner.backends.ray.settings import RayPool
from provisioner.backends.responses import class_of_status, words
from provisioner.model import ErrorClass

CALL_SECONDS = 30.0
"""Time-out of a call in seconds. The first submission after a start of the head takes several seconds."""
JOBS = "/api/jobs/"
"""Path of the jobs. Without the slash at the end, Ray redirects."""
NOT_ENDED = "non-terminal state"
EXISTS = "already exists"
"""Texts of Ray's errors about the delete of a job that runs (``NOT_ENDED``) and about a name that is taken. All of
Ray's errors have status 500, so only the text distinguishes them."""


class RayApi:
    """The Jobs API of one Ray cluster, at the dashboard of the cluster's head. Thread-safe."""

    def __init__(self, pool: RayPool, seconds: float = CALL_SECONDS) -> None:
        """Prepare the calls. Raise BackendError if the file of certificate authorities (``ca_file``) cannot be used."""
        self._pool, self._seconds = pool, seconds
        self._way = connect(pool.endpoint.rstrip("/"), pool.ca_file)
        self.clock, self.flow = PlaceClock(), Flow()
        login = f"pools.{pool.name}.token_file {pool.token_file}" if pool.token_file else "none is configured"
        self._refusals = LoginRefusals(self.clock, lambda: login)

    def session(self) -> str:
        """Return the session of the head. A head that was started again has another session, and has forgotten all
        jobs."""
        version = parse(self._call("GET", "/api/version"))
        return f"session {version['session_name']}" if version.get("session_name") else ""

    def jobs(self) -> list[Document]:
        """Return all jobs."""
        content = self._call("GET", JOBS)
        try:
            listed = json.loads(content)
        except ValueError as error:
            raise BackendError(ErrorClass.UNAVAILABLE, f"the list of jobs is not JSON: {error}") from error
        if not isinstance(listed, list):
            raise BackendError(ErrorClass.UNAVAILABLE, f"the list of jobs is no list: {words(content[:200].decode())}")
        return listed

    def submit(self, body: Document) -> None:
        """Submit a job."""
        self._call("POST", JOBS, body)

    def stop(self, name: str) -> None:
        """Stop a job: Ray sends SIGTERM, and SIGKILL some seconds later. If the job has ended or does not exist, this
        is a success."""
        self._on_job("POST", name, "/stop")

    def forget(self, name: str) -> None:
        """Delete the record of a job that has ended. If the job does not exist, this is a success."""
        self._on_job("DELETE", name, "")

    def _on_job(self, method: str, name: str, rest: str) -> None:
        try:
            self._call(method, f"{JOBS}{quote(name, safe='')}{rest}")
        except BackendError as error:
            if error.failure.error is not ErrorClass.NOT_FOUND:
                raise

    def _call(self, method: str, path: str, body: Document | None = None) -> bytes:
        headers = {}
        if self._pool.token_file is not None:
            token = read_secret(self._pool.token_file, f"pools.{self._pool.name}.token_file")
            headers["Authorization"] = f"Bearer {token}"
        content = None if body is None else json.dumps(body).encode()
        reply, answered = exchange(self._way, Request(method, path, self._seconds, {}, content, headers), self.clock)
        if reply.status < 300:
            return answered
        # The text is a traceback. Its last line that is not empty has the reason.
        lines = [line for line in answered.decode(errors="replace").splitlines() if len(line.strip()) > 1]
        said = lines[-1] if lines else f"HTTP {reply.status}"
        error = BackendError(
            _class_of(reply.status, said), words(said), seconds_until(reply.headers.get("Retry-After"))
        )
        self._refusals.explain(error, reply.status)
        raise error


def _class_of(status: int, said: str) -> ErrorClass:
    own: dict[int, Any] = {500: ErrorClass.OTHER} if NOT_ENDED in said or EXISTS in said else {}
    return class_of_status(status, own)

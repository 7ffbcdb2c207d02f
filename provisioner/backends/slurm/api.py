"""Calls to slurmrestd, in the newest version of its API that both sides know.

A response counts only if it has status 200, no errors, and the expected key, because slurmrestd may send an empty list
together with an error. The token's expiry is checked before each call, because slurmrestd sends the same response for a
bad token and for a dead slurmctld.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from provisioner.backends import BackendError
from provisioner.backends.concurrency import Flow
from provisioner.backends.http import Document, Request, Way, connect, exchange, parse
from provisioner.backends.login_refusals import UNKNOWN_USER, LoginRefusals, read_secret
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.proxies_and_authorities import seconds_until
from provisioner.backends.responses import class_of_status, translated_errors, words
from provisioner.backends.slurm.job_states import number
from provisioner.backends.slurm.settings import SlurmPool
from provisioner.model import ErrorClass
from provisioner.utc import format_utc

CALL_SECONDS = 15.0
"""Time-out of a call in seconds. If slurmctld is silent, slurmrestd responds after 10 s."""
NEWEST, OLDEST = 45, 37
"""The newest and oldest version of the API that this module knows, by their last numbers. Version 36 (v0.0.36) lists no
owners of jobs."""
MANY_CANCELLED = 40
"""First version of the API in which one call can cancel many jobs, by its last number."""
CANCELS_A_CALL = 200
"""Maximum number of jobs that one call cancels."""
TOKEN_SHARE = 0.2
"""If less than this fraction of a token's life is left, the operator is warned that the token was not renewed."""

NOTHING_NEW = "No job changes"
"""Beginning of slurmrestd's warning about an empty list: no job has changed. Such a list does not mean that there are
no jobs."""

AUTHENTICATION, UNKNOWN_JOB, ALREADY_DONE = 1007, 2017, 2021
"""Numbers of errors: Slurm refuses the login; Slurm does not know the job; the job has ended already."""

_CLASSES: Mapping[int, ErrorClass] = {
    **dict.fromkeys((2000, 2006, 2014, 2015, 2029, 2048, 2053, 2127, 9001, 9002), ErrorClass.INVALID),
    **dict.fromkeys((AUTHENTICATION, 2002, 2045, 2046, 2066), ErrorClass.DENIED),
    **dict.fromkeys((2049, 2050, 2051, 2067), ErrorClass.QUOTA),
    **dict.fromkeys((-1, 1800, 2070, 5005), ErrorClass.UNAVAILABLE),
    UNKNOWN_JOB: ErrorClass.NOT_FOUND,
}
"""Error classes of Slurm's error numbers."""
_WORDS = (
    (ErrorClass.DENIED, ("authentication", "access/permission", "invalid account", "invalid qos")),
    (ErrorClass.QUOTA, ("limit", "exceed")),
)
"""Error classes by texts of the error, for numbers that are not in the table. The numbers of limits differ between
versions."""


class SlurmError(BackendError):
    """A refusal by slurmrestd or slurmctld."""

    def __init__(self, error: ErrorClass, text: str, number: int, retry_after: float | None = None) -> None:
        super().__init__(error, text, retry_after)
        self.number = number
        """Slurm's number of the error; 0 if there is none."""


class Token:
    """The user's token. Its file is read again for each call."""

    def __init__(self, pool: SlurmPool) -> None:
        self._file, self._setting = pool.token_file, f"pools.{pool.name}.token_file"

    def read(self) -> str:
        """Return the token. Raise BackendError if there is no token or if it has expired."""
        token = read_secret(self._file, self._setting).removeprefix("SLURM_JWT=")
        if not token or len(token.split()) != 1:
            raise BackendError(ErrorClass.DENIED, f"{self.format_name()} does not hold one token: write a new one")
        ends = self._times(token).get("exp")
        if ends is not None and ends < time.time():
            text = f"the token has ended at {format_utc(ends)}: write a new one, and check what renews it"
            raise BackendError(ErrorClass.DENIED, f"{self.format_name()}: {text}")
        return token

    def problem(self) -> str:
        """Return a warning if the token will soon expire. The text is empty if it will not expire soon, or if ``read``
        would raise."""
        try:
            times = self._times(self.read())
        except BackendError:
            return ""
        ends, begin = times.get("exp"), times.get("iat")
        if ends is None or begin is None or ends - time.time() >= TOKEN_SHARE * (ends - begin):
            return ""
        return f"{self.format_name()}: the token ends at {format_utc(ends)} and was not renewed: check what renews it"

    def end(self) -> float | None:
        """Return the expiry of the token in epoch seconds, even if it has expired; None if unknown."""
        with suppress(OSError, ValueError):
            return self._times(self._file.read_text(encoding="ascii")).get("exp")
        return None

    def format_name(self) -> str:
        """Return the setting that names the token's file, followed by the file, for messages."""
        return f"{self._setting} {self._file}"

    def _times(self, token: str) -> dict[str, float]:
        """Return the times in the token, in epoch seconds; empty if the token is not in a known form. Only Slurm
        verifies the token."""
        try:
            part = token.split(".")[1]
            claims = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
            return {name: float(claims[name]) for name in ("exp", "iat") if name in claims}
        except (LookupError, TypeError, ValueError):
            return {}


class SlurmApi:
    """The calls to one slurmrestd. Thread-safe."""

    def __init__(self, pool: SlurmPool, seconds: float = CALL_SECONDS) -> None:
        """Prepare the calls for all pools of a cluster. ``pool``: any pool of the cluster. Raise OSError if the file of
        certificate authorities (``ca_file``) cannot be used."""
        self._way: Way = connect(pool.endpoint.rstrip("/"), pool.ca_file)
        self._user, self._seconds = pool.user, seconds
        self.token = Token(pool)
        self.clock, self.flow = PlaceClock(), Flow()
        self._refusals = LoginRefusals(self.clock, self.token.format_name)
        self._lock = threading.Lock()
        self._fixed_version = None if pool.api_version == "auto" else int(pool.api_version.rpartition(".")[2])
        self._version = self._fixed_version

    def version(self) -> int:
        """Return the last number of the API's version, for example 38 of v0.0.38. The version is found at the first
        call, and again after slurmrestd was replaced. Raise BackendError if both sides know no common version."""
        with self._lock:
            if self._version is None:
                self._version = next(filter(self._answers, range(NEWEST, OLDEST - 1, -1)), None)
            if self._version is None:
                text = f"slurmrestd knows no version of its API from v0.0.{OLDEST} to v0.0.{NEWEST}"
                raise BackendError(ErrorClass.NOT_FOUND, text)
            return self._version

    def jobs(self) -> list[Document]:
        """Return all jobs that the user sees. Raise BackendError if the call fails or the list may lack jobs."""
        answer = self._ask("GET", "jobs")
        warnings = [str(one.get("description", "")) for one in answer.get("warnings") or ()]
        if any(warning.startswith(NOTHING_NEW) for warning in warnings):
            raise BackendError(ErrorClass.UNAVAILABLE, f"the list of jobs is incomplete: {words(' '.join(warnings))}")
        jobs: list[Document] = answer["jobs"]
        return jobs

    @translated_errors(ErrorClass.UNAVAILABLE)
    def submit(self, body: Document) -> int:
        """Submit a job. Return the job's id. Raise BackendError if the job was not accepted. A job with warnings is
        accepted, although it may wait for ever."""
        return int(self._ask("POST", "job/submit", body, accepts="job_id")["job_id"])

    def cancel(self, job: int) -> None:
        """Cancel one job. If the job has ended or is unknown, this is a success."""
        try:
            self._ask("DELETE", f"job/{job}")
        except SlurmError as error:
            if error.number != UNKNOWN_JOB:
                raise

    def cancel_many(self, jobs: Sequence[int]) -> dict[int, BackendError]:
        """Cancel jobs with one call. Return the errors by job. The version of the API must be at least
        ``MANY_CANCELLED``."""
        if not jobs:  # Without ids, the call would cancel all jobs that match its other fields.
            raise ValueError("no jobs to cancel")
        answer = self._ask("DELETE", "jobs/", {"jobs": [str(job) for job in jobs]}, accepts="status")
        errors: dict[int, BackendError] = {}
        for one in answer["status"]:
            code, said = int((one.get("error") or {}).get("code") or 0), _text(one.get("error") or {})
            if code not in (0, UNKNOWN_JOB, ALREADY_DONE):
                errors[number(one["job_id"])] = SlurmError(_class_of(200, code, said), words(said), code)
        return errors

    def node_address(self, node: str) -> str:
        """Return the address or name of a node; empty if Slurm does not know the node's address."""
        nodes = self._ask("GET", f"node/{node}")["nodes"]
        return str(nodes[0].get("address") or "") if nodes else ""

    def _answers(self, version: int) -> bool:
        """Return True if slurmrestd has this version of the API. Raise BackendError if slurmrestd does not respond or
        refuses us."""
        try:
            self._call("GET", f"/slurm/v0.0.{version}/ping")
        except BackendError as error:
            if error.failure.error is ErrorClass.NOT_FOUND:
                return False
            if isinstance(error, SlurmError) and error.number:  # the version exists, and slurmctld has a problem
                return True
            raise
        return True

    def _ask(self, method: str, path: str, body: Document | None = None, *, accepts: str = "") -> Document:
        """Send a call and return the response. ``accepts``: a key of the response. If the response has this key, the
        call was a success, and its errors are only warnings."""
        try:
            return self._call(method, f"/slurm/v0.0.{self.version()}/{path}", body, accepts)
        except SlurmError as error:
            if error.failure.error is ErrorClass.NOT_FOUND and not error.number:
                self._version = self._fixed_version  # Another slurmrestd responds, which may have other versions.
            raise

    def _call(self, method: str, path: str, body: Document | None = None, accepts: str = "") -> Document:
        headers = {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": self.token.read()}
        content = None if body is None else json.dumps(body).encode()
        reply, answered = exchange(self._way, Request(method, path, self._seconds, {}, content, headers), self.clock)
        is_json = answered.lstrip().startswith(b"{")
        answer: Document = parse(answered) if is_json or reply.status == 200 else {}
        if reply.status == 200 and (answer.get(accepts) or not answer.get("errors")):
            return answer
        text = "; ".join(dict.fromkeys(_texts(answer))) or answered[:400].decode(errors="replace")
        code = _first_number(answer)
        found = _class_of(reply.status, code, text)
        error = SlurmError(found, words(text), code, seconds_until(reply.headers.get("Retry-After")))
        is_login = found is ErrorClass.DENIED and code in (0, AUTHENTICATION)
        self._refusals.explain(error, UNKNOWN_USER if is_login else reply.status)
        raise error


def _class_of(status: int, number: int, text: str) -> ErrorClass:
    """Return the class of an error. The error's number decides. If the number is unknown, the error's text decides. If
    the text is unknown, too, ``status`` decides.

    The status comes last, because slurmctld uses one status for all errors: 422 from Slurm 26.05 on, and 500 before.
    """
    if number in _CLASSES:
        return _CLASSES[number]
    by_words = (found for found, parts in _WORDS if any(part in text.lower() for part in parts))
    return next(by_words, None) or class_of_status(status, {422: ErrorClass.UNAVAILABLE, 200: ErrorClass.UNAVAILABLE})


def _first_number(answer: Document) -> int:
    """Return Slurm's number of the first error; 0 if there is none. The number may be under one of several keys, even
    within a version."""
    keys = ("error_number", "error_code", "errno")
    found = (error.get(key) for error in answer.get("errors") or () for key in keys)
    return next((number for number in found if isinstance(number, int)), 0)


def _texts(answer: Document) -> list[str]:
    return [_text(one) for part in ("errors", "warnings") for one in answer.get(part) or ()]


def _text(error: Mapping[str, Any]) -> str:
    """Return the texts of an error in one line. The key of a text depends on Slurm's version, and an error may have
    several texts."""
    parts = dict.fromkeys(str(error[key]) for key in ("error", "description", "string", "message") if error.get(key))
    return ": ".join(parts) or json.dumps(dict(error))

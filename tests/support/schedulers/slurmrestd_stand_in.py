"""Stand-in for slurmrestd. It has versions of the API that Debian 12 does not have: v0.0.39 to v0.0.45.

For v0.0.41 to v0.0.44, models of PyPI's slurmrestapi check the bodies of the responses. The models come from SchedMD's
description. For the other versions, the bodies have the documented form, but no model checks them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from types import TracebackType
from typing import Any, Self

Document = dict[str, Any]

WITH_MODELS = range(41, 45)
NOTHING_NEW = "No job changes since update_time"
EMPTY = "Zero jobs to dump"
UNKNOWN_JOB = 2017


def checked(model: str, version: int, body: Document) -> Document:
    """Return a body. If the version has a model, the model must accept the body. Raise ValueError if the model does
    not."""
    if version not in WITH_MODELS:
        return body
    name = f"V00{version}{model}"
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in model)
    module = import_module(f"slurmrestapi.models.v00{version}{snake}")
    read = getattr(module, name).from_dict(json.loads(json.dumps(body))).to_dict()
    lost = {key for key in body if key not in read}
    if lost:
        raise ValueError(f"{name} does not know {sorted(lost)}")
    return body


def struct(value: int) -> Document:
    """Return a number in the form that the API uses since v0.0.39."""
    return {"set": True, "infinite": False, "number": value}


class SlurmrestdStandIn:
    """A slurmrestd that has these versions of the API: ``with SlurmrestdStandIn(41, 42) as place``. Its address is
    ``place.url``."""

    def __init__(self, *versions: int) -> None:
        self.versions = versions
        self.jobs: dict[int, Document] = {}
        """The jobs, in the form of v0.0.42."""
        self.calls: list[tuple[str, str, Document]] = []
        """Method, path and body of each call."""
        self.list_warning = ""
        """Warning that the list of jobs gives. A list with a warning is empty."""
        self.refusal: tuple[int, int, str] | None = None
        """Status, error number and message of the refusal of each call except a ping; None if calls succeed."""
        self.unkillable: dict[int, tuple[int, str]] = {}
        """Error number and message for each job that cannot be cancelled, by job id."""
        self._lock = threading.Lock()
        place = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body: Document = json.loads(self.rfile.read(length)) if length else {}
                with place._lock:
                    place.calls.append((self.command, self.path, body))
                    status, answer = place._answer(self.command, self.path, body)
                content = json.dumps(answer).encode() if answer is not None else b"Unable find requested URL"
                self.send_response(status)
                self.send_header("Content-Type", "application/json" if answer is not None else "text/plain")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def change(self, name: str, *state: str, **fields: object) -> None:
        """Change the state and fields of the job of this name."""
        job = next(job for job in self.jobs.values() if job["name"] == name)
        job.update(fields)
        if state:
            job["job_state"] = [*state]

    def _answer(self, method: str, path: str, body: Document) -> tuple[int, Document | None]:
        _, _, prefix, rest = path.split("/", 3)
        version = int(prefix.rpartition(".")[2])
        if version not in self.versions:
            return 404, None
        if rest == "ping":
            ping = {"hostname": "head", "pinged": "UP", "latency": 100, "mode": "primary"}
            later = {"responding": True, "primary": True} if version >= 42 else {}
            return 200, checked("OpenapiPingArrayResp", version, {"pings": [ping | later], **_rest()})
        if self.refusal is not None:
            status, number, words = self.refusal
            error = {"description": words, "error_number": number, "error": words, "source": "slurm_load_jobs()"}
            return status, {"jobs": [], **_rest(), "errors": [error]}
        match method, rest.partition("/")[0], rest:
            case "GET", "jobs", _:
                return 200, self._list(version)
            case "POST", "job", "job/submit":
                return 200, self._submit(version, body)
            case "DELETE", "jobs", "jobs/" if version >= 40:
                return 200, self._cancel_many(version, body)
            case "DELETE", "job", _:
                return self._cancel(int(rest.rpartition("/")[2]))
            case "GET", "node", _:
                name = rest.rpartition("/")[2]
                node = {"name": name, "address": "127.0.0.1", "hostname": name}
                empty = {"last_update": struct(0), **_rest()}
                return 200, checked("OpenapiNodesResp", version, {"nodes": [node], **empty})
        return 404, None

    def _list(self, version: int) -> Document:
        jobs = [] if self.list_warning else [_form(job, version) for job in self.jobs.values()]
        words = self.list_warning or ("" if jobs else EMPTY)
        warnings = [{"description": words, "source": "slurm_load_jobs"}] if words else []
        times = {"last_update": struct(int(time.time())), "last_backfill": struct(0)} if version >= 40 else {}
        return checked("OpenapiJobInfoResp", version, {"jobs": jobs, **times, **_rest(), "warnings": warnings})

    def _submit(self, version: int, body: Document) -> Document:
        asked = checked("JobSubmitReq", version, body)["job"]
        number, now = len(self.jobs) + 1, int(time.time())
        self.jobs[number] = {
            "job_id": number,
            "name": asked["name"],
            "user_name": "grid",
            "comment": asked["comment"],
            "job_state": ["RUNNING"],
            "state_reason": "None",
            "state_description": "",
            "submit_time": struct(now),
            "start_time": struct(now),
            "end_time": struct(now + 60 * asked.get("time_limit", struct(600))["number"]),
            "batch_host": "n1",
            "restart_cnt": 0,
            "exit_code": {"status": ["SUCCESS"], "return_code": struct(0), "signal": {"id": struct(0), "name": ""}},
        }
        answer = {"job_id": number, "step_id": "batch", "job_submit_user_msg": "", **_rest()}
        return checked("OpenapiJobSubmitResponse", version, answer)

    def _cancel(self, number: int) -> tuple[int, Document]:
        if number not in self.jobs:
            error = {"error_number": UNKNOWN_JOB, "error": "Invalid job id specified"}
            return 422, {"jobs": [], **_rest(), "errors": [error]}
        self.jobs[number]["job_state"] = ["CANCELLED"]
        return 200, {**_rest(), "status": []}

    def _cancel_many(self, version: int, body: Document) -> Document:
        asked = checked("KillJobsMsg", version, body)
        status = []
        for number in map(int, asked["jobs"]):
            code, words = self.unkillable.get(number, (0, "No error"))
            if number not in self.jobs:
                code, words = UNKNOWN_JOB, "Invalid job id specified"
            if not code:
                self.jobs[number]["job_state"] = ["CANCELLED"]
            error = {"string": words, "code": code, "message": words if code else ""}
            status.append({"step_id": str(number), "job_id": struct(number), "error": error})
        return checked("OpenapiKillJobsResp", version, {"status": status, **_rest()})


def _form(job: Mapping[str, Any], version: int) -> Document:
    """Return a job in the form in which this version of the API lists it."""
    return {**job, "job_state": job["job_state"][0]} if version < 40 else {**job}


def _rest() -> dict[str, Sequence[Document] | Document]:
    return {"meta": {"slurm": {"version": {"major": "25", "micro": "4", "minor": "11"}}}, "errors": [], "warnings": []}

"""Ray's jobs as machines, and the calls that create and delete them. A test sets the dashboard's responses."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import urllib3

from provisioner.backends import BackendError
from provisioner.backends.http import Request, Way
from provisioner.backends.place_clock import PlaceClock
from provisioner.backends.ray import api
from provisioner.backends.ray.backend import RayBackend
from provisioner.backends.ray.kind import KIND
from provisioner.backends.ray.settings import RayPool
from provisioner.model import Create, Delete, DeleteReason, ErrorClass, LossCause, Phase, Snapshot

NAME = "hf-abcdefghij-000001"
MARK = "demo/ray/abcdefghij/small"
START = 1_795_000_000_123
Body = dict[str, Any]


def job(status: str = "RUNNING", **more: object) -> Body:
    """Return a job of ours as Ray 2.60 lists it."""
    return {
        "type": "SUBMISSION",
        "submission_id": NAME,
        "status": status,
        "message": "said",
        "error_type": None,
        "start_time": START,
        "metadata": {"hf-provisioner": MARK},
        "driver_agent_http_address": "http://10.0.0.7:52365",
        **more,
    }


class Dashboard:
    """A stand-in for the dashboard of a Ray head. A test sets its responses."""

    def __init__(self) -> None:
        self.jobs: list[Body] = []
        self.session = "session_1"
        self.next_session = ""
        """The session of a head that starts again right after a list."""
        self.list_answer = b""
        self.answers: dict[str, tuple[int, str]] = {}
        """Status and text of the response, by method. The entry for GET is used only if ``refuses_reads``."""
        self.refuses_reads = self.lost = False
        """``lost``: calls that change something get no answer."""
        self.headers: dict[str, str] = {}
        self.requests: list[Request] = []

    def exchange(self, _: Way, request: Request, __: PlaceClock) -> tuple[urllib3.HTTPResponse, bytes]:
        """Return the response to a request."""
        self.requests.append(request)
        status, text = self.answers.get(request.method, (200, "{}"))
        if request.method != "GET" and self.lost:
            raise BackendError(ErrorClass.TIMEOUT, "no answer")
        if request.method == "GET" and not self.refuses_reads:
            status, text = 200, self.list_answer.decode() or json.dumps(self.jobs)
            if request.path == "/api/version":
                text = json.dumps({"session_name": self.session})
            elif self.next_session:
                self.session = self.next_session
        return urllib3.HTTPResponse(status=status, headers=self.headers), text.encode()

    def sent(self) -> list[tuple[str, str]]:
        """Return the requests that change something."""
        return [(one.method, one.path) for one in self.requests if one.method != "GET"]


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Dashboard:
    """Return a stand-in for a Ray head, which gets all calls of the backend."""
    made = Dashboard()
    monkeypatch.setattr(api, "exchange", made.exchange)
    return made


def backend(**settings: object) -> RayBackend:
    """Return the backend of a pool."""
    body = {"name": "ray", "endpoint": "http://head:8265", "entrypoint": "run", "lag_seconds": 0, **settings}
    pool = RayPool.model_validate(body)
    return RayBackend(pool, api.RayApi(pool), provisioner="demo", prefix="hf")


def observe(made: RayBackend, *sought: str) -> Snapshot:
    return made.observe(1.0, dict.fromkeys(sought, ""))


def create(made: RayBackend) -> ErrorClass | None:
    """Create the machine. Return the class of the failure."""
    (outcome,) = made.create([Create(NAME, "ray", "small", "abcdefghij")], lambda: True)
    return outcome.failure.error if outcome.failure else None


def delete(made: RayBackend, uid: str = "") -> ErrorClass | None:
    """Delete the machine. Return the class of the failure."""
    (outcome,) = made.delete([Delete(NAME, "ray", DeleteReason.RETURNED, uid)], lambda: True)
    return outcome.failure.error if outcome.failure else None


@pytest.mark.parametrize(
    ("status", "phase", "cause"),
    [
        ("PENDING", Phase.PENDING, None),
        ("RUNNING", Phase.RUNNING, None),
        ("STOPPED", Phase.GONE, LossCause.DELETED),
        ("SUCCEEDED", Phase.GONE, LossCause.EXITED),
        ("FAILED", Phase.GONE, LossCause.EXITED),
    ],
)
def test_each_status_has_its_phase_and_cause(
    head: Dashboard, status: str, phase: Phase, cause: LossCause | None
) -> None:
    head.jobs = [job(status)]
    machine = observe(backend()).machines[NAME]
    assert (machine.phase, machine.cause) == (phase, cause)
    assert (machine.queued is not None) == (status == "PENDING")
    assert (machine.failure is not None) == (status in ("STOPPED", "FAILED"))
    assert machine.fingerprint.ip == machine.ip
    assert (machine.ip, machine.launched) == (("10.0.0.7", START // 1000) if status == "RUNNING" else ("", 0))


def test_an_unknown_status_fails_the_observation(head: Dashboard) -> None:
    head.jobs = [job("SUSPENDED")]
    with pytest.raises(BackendError):
        observe(backend())


def test_a_failure_has_rays_words_without_the_output_and_a_wait_that_ray_ended_is_a_stockout(head: Dashboard) -> None:
    head.jobs = [job("FAILED", message="exit code 3, last available logs (truncated):\nsecret")]
    failure = observe(backend()).machines[NAME].failure
    assert failure is not None
    assert (failure.error, failure.text) == (ErrorClass.OTHER, "exit code 3")
    head.jobs = [job("FAILED", error_type="JOB_SUPERVISOR_ACTOR_START_TIMEOUT")]
    failure = observe(backend()).machines[NAME].failure
    assert failure is not None
    assert failure.error is ErrorClass.STOCKOUT


@pytest.mark.parametrize(
    "mark", ["demo/other/abcdefghij/small", "two/ray/abcdefghij/small", "demo/ray/klmnopqrst/x", ""]
)
def test_jobs_without_the_mark_of_the_pool_are_not_ours(head: Dashboard, mark: str) -> None:
    head.jobs = [job(metadata={"hf-provisioner": mark} if mark else None)]
    snapshot = observe(backend(), NAME)
    assert not snapshot.machines
    assert (NAME in snapshot.name_collisions) == mark.startswith("demo/")
    assert (NAME in snapshot.foreign) != mark.startswith("demo/")
    assert create(backend()) is ErrorClass.OTHER
    assert delete(backend()) is None
    assert head.sent() == []


def test_the_record_of_anothers_job_that_has_ended_is_no_foreign_machine(head: Dashboard) -> None:
    head.jobs = [job("FAILED", metadata=None)]
    snapshot = observe(backend(), NAME)
    assert (snapshot.machines, snapshot.foreign, snapshot.name_collisions) == ({}, frozenset(), frozenset())


def test_a_job_that_is_submitted_again_has_another_uid(head: Dashboard) -> None:
    head.jobs = [job()]
    first = observe(backend()).machines[NAME].fingerprint
    head.jobs = [job(start_time=START + 1)]
    assert first.differs(observe(backend()).machines[NAME].fingerprint)
    assert delete(backend(), first.uid) is None
    assert head.sent() == []


def test_a_name_that_the_list_shows_is_not_submitted_again(head: Dashboard) -> None:
    head.jobs = [job()]
    assert create(backend()) is None
    assert head.sent() == []


def test_a_create_tells_the_machine_its_name(head: Dashboard) -> None:
    assert create(backend(environment={"A": "b"})) is None
    body = json.loads(head.requests[-1].body or b"")
    assert (body["submission_id"], body["metadata"]) == (NAME, {"hf-provisioner": MARK})
    assert body["runtime_env"] == {"env_vars": {"A": "b", "HF_MACHINE_NAME": NAME}}


def test_a_create_reserves_what_the_settings_say(head: Dashboard) -> None:
    assert create(backend(num_cpus=3, num_gpus=2, memory=2**30, resources={"node": 1})) is None
    body = json.loads(head.requests[-1].body or b"")
    found = [body[f"entrypoint_{name}"] for name in ("num_cpus", "num_gpus", "memory", "resources")]
    assert found == [3, 2, 2**30, {"node": 1}]


@pytest.mark.parametrize(
    ("status", "call"),
    [
        ("PENDING", ("POST", f"/api/jobs/{NAME}/stop")),
        ("RUNNING", ("POST", f"/api/jobs/{NAME}/stop")),
        ("FAILED", ("DELETE", f"/api/jobs/{NAME}")),
    ],
)
def test_a_live_job_is_stopped_and_the_record_of_an_ended_one_is_forgotten(
    head: Dashboard, status: str, call: tuple[str, str]
) -> None:
    head.jobs = [job(status)]
    assert delete(backend()) is None
    assert head.sent() == [call]
    head.answers = dict.fromkeys(("POST", "DELETE"), (404, "Job does not exist"))
    assert delete(backend()) is None


def test_the_record_of_a_job_that_has_just_ended_stays_for_seconds(head: Dashboard) -> None:
    made = backend()
    now = time.time()
    head.jobs = [job("STOPPED", end_time=int(now * 1000))]
    assert delete(made) is None
    assert head.sent() == []
    head.jobs = [job("STOPPED", end_time=int((now - 11) * 1000))]
    assert delete(made) is None
    assert head.sent() == [("DELETE", f"/api/jobs/{NAME}")]


def test_a_waiting_job_that_was_stopped_is_stopping_and_the_next_delete_stops_it_again(head: Dashboard) -> None:
    made, head.jobs = backend(), [job("PENDING")]
    assert delete(made) is None
    machine = observe(made).machines[NAME]
    assert (machine.phase, machine.queued) == (Phase.STOPPING, None)
    assert delete(made) is None
    assert head.sent() == [("POST", f"/api/jobs/{NAME}/stop")] * 2
    head.jobs = [job("STOPPED")]
    assert observe(made).machines[NAME].phase is Phase.GONE


def test_a_running_job_without_an_address_is_pending(head: Dashboard) -> None:
    head.jobs = [job(driver_agent_http_address=None)]
    assert observe(backend()).machines[NAME].phase is Phase.PENDING


def test_a_job_whose_mark_is_gone_is_found_by_its_uid(head: Dashboard) -> None:
    made, head.jobs = backend(), [job()]
    uid = observe(made).machines[NAME].fingerprint.uid
    assert not observe(made).machines[NAME].is_strayed
    head.jobs = [job(metadata=None)]
    assert made.observe(1.0, {NAME: uid}).machines[NAME].is_strayed
    assert not made.observe(1.0, {NAME: "another"}).machines


def test_a_snapshot_has_the_sought_names_and_the_same_machines_while_nothing_changes(head: Dashboard) -> None:
    made, head.jobs = backend(), [job(), {"type": "DRIVER", "submission_id": None, "status": "RUNNING"}]
    first = observe(made, NAME)
    assert first.asked == {NAME}
    assert observe(made).machines is first.machines
    assert first.machines.keys() == {NAME}


def test_the_spec_follows_the_settings_of_jobs_alone(head: Dashboard, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one")
    spec = observe(backend()).spec
    assert observe(backend(token_file=str(tmp_path / "token"))).spec == spec
    assert observe(backend(entrypoint="other")).spec != spec


def test_the_words_of_a_refused_login_name_the_token_file(head: Dashboard, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one")
    head.answers, head.refuses_reads = {"GET": (401, "no")}, True
    with pytest.raises(BackendError) as caught:
        observe(backend(token_file=str(tmp_path / "token")))
    assert f"pools.ray.token_file {tmp_path}/token" in caught.value.failure.text


def test_a_delete_of_a_record_whose_job_runs_is_a_failure(head: Dashboard) -> None:
    made, head.jobs = backend(), [job("FAILED")]
    head.answers = {"DELETE": (500, "RuntimeError: it is in a non-terminal state RUNNING.")}
    assert delete(made) is ErrorClass.OTHER


def test_a_head_without_a_session_has_no_identity(head: Dashboard) -> None:
    head.session = ""
    assert observe(backend()).endpoint_identity == ""


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (500, "Traceback\n  File\nRuntimeError: Job x already exists.\n.\n", ErrorClass.OTHER),
        (500, "Traceback\nRuntimeError: GCS is down\n", ErrorClass.UNAVAILABLE),
        (400, "no", ErrorClass.INVALID),
        (401, "no", ErrorClass.DENIED),
        (403, "no", ErrorClass.DENIED),
        (409, "no", ErrorClass.OTHER),
        (429, "no", ErrorClass.THROTTLED),
        (502, "<html>", ErrorClass.UNAVAILABLE),
        (503, "", ErrorClass.UNAVAILABLE),
    ],
)
def test_a_refusal_has_its_class_in_each_call(head: Dashboard, status: int, text: str, error: ErrorClass) -> None:
    head.answers = dict.fromkeys(("POST", "DELETE", "GET"), (status, text))
    assert create(backend()) is error
    for one in (job(), job("FAILED")):
        head.jobs = [one]
        assert delete(backend()) is error
    head.jobs = []
    head.refuses_reads = True
    with pytest.raises(BackendError) as caught:
        observe(backend())
    assert caught.value.failure.error is error
    not_sent = ErrorClass.UNAVAILABLE if error is ErrorClass.OTHER else error
    assert create(backend()) is not_sent, "a create that was not sent spends no try"


@pytest.mark.parametrize(("said", "seconds"), [("17", 17.0), ("", None)])
def test_a_head_that_asks_for_time_gets_it(head: Dashboard, said: str, seconds: float | None) -> None:
    head.answers = {"POST": (503, "busy")}
    head.headers = {"Retry-After": said} if said else {}
    (outcome,) = backend().create([Create(NAME, "ray", "small", "abcdefghij")], lambda: True)
    assert outcome.retry_after == seconds


def test_a_create_without_an_answer_is_repeated_only_after_two_lists_without_the_job(head: Dashboard) -> None:
    made, submits = backend(), ("POST", "/api/jobs/")
    head.lost = True
    assert create(made) is ErrorClass.TIMEOUT
    head.lost = False
    assert create(made) is ErrorClass.TIMEOUT, "one list"
    assert head.sent() == [submits]
    assert create(made) is None
    assert head.sent() == [submits] * 2


def test_a_create_without_an_answer_that_had_its_effect_is_a_success(head: Dashboard) -> None:
    made = backend()
    head.lost = True
    assert create(made) is ErrorClass.TIMEOUT
    head.lost = False
    head.jobs = [job("PENDING")]
    assert create(made) is None
    assert head.sent() == [("POST", "/api/jobs/")]
    head.jobs = []
    assert create(made) is None, "its fate was known"
    assert head.sent() == [("POST", "/api/jobs/")] * 2


def test_a_create_that_was_refused_is_repeated_at_once(head: Dashboard) -> None:
    made = backend()
    head.answers = {"POST": (403, "no")}
    assert create(made) is ErrorClass.DENIED
    head.answers = {}
    assert create(made) is None


def test_of_the_jobs_of_others_only_an_adopted_one_is_stopped(head: Dashboard) -> None:
    made, head.jobs = backend(), [job(metadata=None)]
    assert delete(made) is None
    assert head.sent() == []
    made.delete([Delete(NAME, "ray", DeleteReason.RETURNED, is_adopted=True)], lambda: True)
    assert head.sent() == [("POST", f"/api/jobs/{NAME}/stop")]


@pytest.mark.parametrize("answer", [b"[{", b"{}", b"null", b"<html>"])
def test_a_list_that_is_cut_or_no_list_is_not_empty(head: Dashboard, answer: bytes) -> None:
    head.list_answer = answer
    with pytest.raises(BackendError) as caught:
        observe(backend())
    assert caught.value.failure.error is ErrorClass.UNAVAILABLE
    assert create(backend()) is ErrorClass.UNAVAILABLE
    assert head.sent() == []


def test_another_session_is_another_endpoint(head: Dashboard) -> None:
    made = backend()
    first = observe(made).endpoint_identity
    head.session = "session_2"
    assert first
    assert observe(made).endpoint_identity not in ("", first)


def test_a_head_that_starts_again_during_an_observation_is_seen_at_once(head: Dashboard) -> None:
    """If the head is restarted during an observation, the observation must not have the identity of the old session,
    because the new head's list lacks all jobs."""
    made = backend()
    first = observe(made).endpoint_identity
    head.next_session = "session_2"
    assert observe(made).endpoint_identity != first


def test_the_token_is_read_anew_and_is_in_a_header_only(head: Dashboard, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    made = backend(token_file=str(file))
    observe(made)
    file.write_text("second\n")
    observe(made)
    assert [one.headers["Authorization"] for one in head.requests[1:3]] == ["Bearer first", "Bearer second"]
    assert not any("second" in f"{one.path}{one.query}{one.body!r}" for one in head.requests)
    file.unlink()
    with pytest.raises(BackendError) as caught:
        observe(made)
    assert caught.value.failure.error is ErrorClass.DENIED


def test_machines_on_the_head_or_on_shared_hosts_are_warned_of() -> None:
    body = {"name": "ray", "endpoint": "http://head:8265", "entrypoint": "run"}
    assert KIND.warnings(RayPool.model_validate(body)) == []
    odd = {**body, "num_cpus": 0, "exclusive": False, "token_file": "/t"}
    found = [text.split(":")[0] for text in KIND.warnings(RayPool.model_validate(odd))]
    assert found == ["pools.ray.num_cpus", "pools.ray.exclusive", "pools.ray.endpoint"]


def test_the_size_of_a_machine_is_what_ray_reserves() -> None:
    body = {"name": "ray", "endpoint": "http://head:8265", "entrypoint": "run", "num_cpus": 4}
    assert KIND.size(RayPool.model_validate(body), "small") is None
    size = KIND.size(RayPool.model_validate({**body, "memory": 2**30}), "small")
    assert size is not None
    assert (size.cores, size.megabytes) == (4, 1024)

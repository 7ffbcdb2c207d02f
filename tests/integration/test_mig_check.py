"""Findings about groups in a cloud, by `provisioner check --live` and by a loop that starts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import googleapiclient
import pytest

from provisioner.backends import BackendError, place_clock
from provisioner.backends.mig.api import ComputeApi
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.commands.cli import run
from provisioner.commands.loop_service import Service
from provisioner.lab.cloud.compute.settings import Switches, UnknownPlace, UnknownProject
from provisioner.lab.cloud.world import Fault
from provisioner.model import ErrorClass
from provisioner.schema.setting_types import Site as Owner
from provisioner.settings.reload import Configuration
from provisioner.state.directory import StateDir
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.clouds.mig_bench import OddServer
from tests.support.clouds.specs import advised
from tests.support.hostfactory.sites import Site, template
from tests.support.waiting import until

PROJECT = "demo-project"
LABELS = {"grid": "demo"}
GOOD = advised(project=PROJECT, name="hf-a", zone="us-central1-a", labels=LABELS)
WRONG = advised(
    project=PROJECT,
    name="hf-r",
    region="us-central1",
    update_type="PROACTIVE",
    default_action_on_failure="REPAIR",
    autoscaler_mode="ON",
)
RESTING = advised(project=PROJECT, name="hf-b", zone="us-central1-b", labels=LABELS, autoscaler_mode="OFF")


@pytest.fixture
def cloud() -> Iterator[ComputeCloud]:
    with ComputeCloud([GOOD, WRONG, RESTING], speed=2.0) as cloud:
        yield cloud


def site(directory: Path, endpoint: str, **pools: dict[str, Any]) -> Site:
    bodies = {name: {"kind": "mig", "project": PROJECT, "endpoint": endpoint, **body} for name, body in pools.items()}
    made = Site(
        directory,
        settings={"id": "demo", "listen": "127.0.0.1:0", "pools": bodies},
        templates=[template("T", pools=list(bodies))],
    )
    made.write()
    return made


ZONAL = {"zone": "us-central1-a", "group": "hf-a"}


def findings(path: Path, capsys: pytest.CaptureFixture[str], code: int) -> list[dict[str, str]]:
    assert run(["check", "--live", str(path), "-o", "json"]) == code
    listed: list[dict[str, str]] = json.loads(capsys.readouterr().out)["findings"]
    return listed


def test_groups_as_they_should_be_are_fine(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    made = site(tmp_path, cloud.url, a=ZONAL, b={"zone": "us-central1-b", "group": "hf-b"})
    assert findings(made.path, capsys, 0) == []
    assert run(["check", "--live", str(made.path)]) == 0
    assert "every pool's place is as it should be" in capsys.readouterr().out


def test_a_host_with_another_time_is_reported(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_clock, "time", SimpleNamespace(time=lambda: time.time() - 600, monotonic=time.monotonic))
    (finding,) = findings(site(tmp_path, cloud.url, a=ZONAL).path, capsys, 1)
    assert "this host's clock is " in finding["text"]
    assert "behind the place's" in finding["text"]


def test_everything_wrong_with_a_group_is_said_at_once(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"region": "us-central1", "group": "hf-r", "max_machines": 2500}
    listed = findings(site(tmp_path, cloud.url, a=ZONAL, wrong=wrong).path, capsys, 1)
    assert {finding["pool"] for finding in listed} == {"wrong"}
    words = ["CONDITION_NOT_MET", "stop-autoscaling", "do-nothing", "holds 2000 instances", "no labels"]
    assert [finding["severity"] for finding in listed] == ["error"] * 2 + ["warning"] * 3
    for word in words:
        assert [word in finding["text"] for finding in listed].count(True) == 1


@pytest.mark.parametrize(
    ("attributes", "machine_type", "words"),
    [
        pytest.param({"ncpus": 4, "nram": 16384}, "n2-standard-4", [], id="as big as promised"),
        pytest.param(
            {"ncpus": 8, "nram": 16385},
            "n2-standard-4",
            [
                "ncores x ncpus promises 8 cores, but machine type n2-standard-4 has 4 cores",
                "nram promises 16385 MB, but machine type n2-standard-4 has 16384 MB",
            ],
            id="smaller",
        ),
        pytest.param(
            {"ncpus": 6, "nram": 8193}, "n2-custom-6-8192", ["machine type n2-custom-6-8192 has 8192 MB"], id="custom"
        ),
        pytest.param(
            {"ncpus": 64, "nram": 1},
            "x9-unknown",
            ["machineTypes/x9-unknown' was not found"],
            id="an unknown type",
        ),
    ],
)
def test_a_template_that_promises_more_than_the_machine_type_has_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    attributes: dict[str, int],
    machine_type: str,
    words: list[str],
) -> None:
    place = {"region": "us-central1"}
    spec = advised(project=PROJECT, name="hf-a", labels=LABELS, machine_type=machine_type, **place)
    with ComputeCloud([spec]) as cloud:
        made = site(tmp_path, cloud.url, a={**place, "group": "hf-a"})
        made.templates = [template("T", pools=["a"], attributes={"type": "X86_64", **attributes})]
        made.write()
        listed = findings(made.path, capsys, 0)
    assert [finding["severity"] for finding in listed] == ["warning"] * len(words)
    for finding, part in zip(listed, words, strict=True):
        assert part in finding["text"]


@pytest.mark.parametrize("lacking", [1, 3])
def test_a_machine_type_that_some_zones_of_a_region_lack_is_looked_up_in_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lacking: int
) -> None:
    place = {"region": "us-central1"}
    with ComputeCloud([advised(project=PROJECT, name="hf-a", labels=LABELS, **place)]) as cloud:
        cloud.set_faults(
            Fault("http_error", "machineTypes.get", limit=lacking, params={"status": 404, "reason": "notFound"})
        )
        made = site(tmp_path, cloud.url, a={**place, "group": "hf-a"})
        made.templates = [template("T", pools=["a"], attributes={"type": "X86_64", "ncpus": 8, "nram": 1})]
        made.write()
        (finding,) = findings(made.path, capsys, 0)
    words = "machine type n2-standard-4 has 4 cores" if lacking < 3 else "so it was not checked"
    assert words in finding["text"]


def test_unreadable_parts_and_members_that_are_not_ours_are_warnings(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    group = cloud.groups.mig(PROJECT, RESTING.scope, "hf-b")
    cloud.do(lambda: group.resize(2))
    until(lambda: len(cloud.state()) == 2, 30)
    cloud.set_faults(Fault("denied", "autoscalers.get"))
    listed = findings(site(tmp_path, cloud.url, b={"zone": "us-central1-b", "group": "hf-b"}).path, capsys, 0)
    assert [finding["severity"] for finding in listed] == ["warning"] * 2
    assert "autoscalers/hf-b cannot be read, so it was not checked" in listed[0]["text"]
    assert listed[1]["text"].startswith("2 members are not ours, e.g. hf-b-")


def test_a_group_that_is_missing_and_a_place_that_does_not_answer(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {"zone": "us-central1-a", "group": "hf-x"}
    silent = {"zone": "us-central1-a", "group": "hf-a", "endpoint": "http://127.0.0.1:9"}
    listed = findings(site(tmp_path, cloud.url, missing=missing, silent=silent).path, capsys, 1)
    texts = {finding["pool"]: finding["text"] for finding in listed}
    words = (
        "there is no group hf-x in zone us-central1-a of project demo-project: correct pools.missing, or make the group"
    )
    assert texts["missing"].startswith(f"{words}: gcloud compute instance-groups managed create hf-x --zone")
    assert texts["silent"].startswith("cannot be checked: ConnectionError")


@pytest.mark.parametrize("place", [{"zone": "us-central1-a"}, {"region": "us-central1"}], ids=["zonal", "regional"])
def test_a_right_that_is_lacking_is_named_before_a_machine_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: dict[str, str]
) -> None:
    with ComputeCloud([advised(project=PROJECT, name="hf-a", labels=LABELS, **place)]) as cloud:
        made = site(tmp_path, cloud.url, a={**place, "group": "hf-a"})
        assert findings(made.path, capsys, 0) == []
        cloud.set_faults(Fault("denied", "instanceGroupManagers.update"))
        (finding,) = findings(made.path, capsys, 1)
        asked = [path for _, path in cloud.requests if path.endswith("testIamPermissions")]
    assert finding["severity"] == "error"
    assert finding["text"].startswith("the pool's account lacks compute.instanceGroupManagers.update on group hf-a")
    assert "roles/compute.instanceAdmin.v1" in finding["text"]
    assert len(asked) == 2


def test_unknown_rights_are_a_warning(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ComputeApi, "permissions", refuse)
    (finding,) = findings(site(tmp_path, cloud.url, a=ZONAL).path, capsys, 0)
    assert finding["text"] == "the rights of the pool's account cannot be checked: no such API"


def refuse(*_: object) -> None:
    raise BackendError(ErrorClass.NOT_FOUND, "no such API")


@pytest.mark.parametrize("kind", ["instanceGroupManagers", "regionInstanceGroupManagers"])
def test_google_has_this_question_in_its_beta_api(kind: str) -> None:
    documents = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    beta = json.loads((documents / "compute.beta.json").read_text())
    method = beta["resources"][kind]["methods"]["testIamPermissions"]
    scope = "regions/{region}" if kind.startswith("region") else "zones/{zone}"
    assert method["httpMethod"] == "POST"
    assert method["path"] == f"projects/{{project}}/{scope}/instanceGroupManagers/{{resource}}/testIamPermissions"
    assert beta["servicePath"] == "compute/beta/"
    for end in ("request", "response"):
        assert "permissions" in beta["schemas"][method[end]["$ref"]]["properties"]


REGION = {"region": "us-central1", "group": "hf-r"}
ABSENT = [
    pytest.param(ZONAL, 400, "Invalid value for field 'zone': 'us-central1-a'. Unknown zone.", "zone", id="zone, 400"),
    pytest.param(
        ZONAL, 404, f"The resource 'projects/{PROJECT}/zones/us-central1-a' was not found", "zone", id="zone, 404"
    ),
    pytest.param(
        REGION, 400, "Invalid value for field 'region': 'us-central1'. Unknown region.", "region", id="region, 400"
    ),
    pytest.param(
        REGION, 404, f"The resource 'projects/{PROJECT}/regions/us-central1' was not found", "region", id="region, 404"
    ),
    pytest.param(ZONAL, 404, f"The resource 'projects/{PROJECT}' was not found", "project", id="project, 404"),
    pytest.param(REGION, 404, f"Failed to find project {PROJECT}", "project", id="project, in older words"),
    pytest.param(ZONAL, 400, f"Unknown project id: {PROJECT}", "project", id="project, 400"),
    pytest.param(
        ZONAL, 403, "Project 76352966089 is not found and cannot be used for API calls.", "project", id="project, 403"
    ),
    pytest.param(
        ZONAL,
        403,
        f"Required 'compute.instanceGroupManagers.get' permission for 'projects/{PROJECT}'",
        "project",
        id="no access to the project",
    ),
]
MISSING = {
    "zone": "there is no zone us-central1-a: correct pools.a.zone, or see: gcloud compute zones list",
    "region": "there is no region us-central1: correct pools.a.region, or see: gcloud compute regions list",
    "project": f"there is no project {PROJECT}, or no access to it: correct pools.a.project, or let the pool's "
    "credentials see it",
}


def absent(status: int, message: str) -> Fault:
    """Return a fault by which Compute refuses every call with these words."""
    reason = {400: "invalid", 403: "forbidden", 404: "notFound"}[status]
    return Fault("http_error", params={"status": status, "reason": reason, "message": message})


@pytest.mark.parametrize(("place", "status", "message", "what"), ABSENT)
def test_a_missing_project_zone_or_region_is_distinguished_from_a_missing_group(
    tmp_path: Path,
    cloud: ComputeCloud,
    capsys: pytest.CaptureFixture[str],
    place: dict[str, str],
    status: int,
    message: str,
    what: str,
) -> None:
    cloud.set_faults(absent(status, message))
    (finding,) = findings(site(tmp_path, cloud.url, a=place).path, capsys, 1)
    assert (finding["pool"], finding["severity"]) == ("a", "error")
    assert finding["text"].startswith(MISSING[what])
    assert "make the group" not in finding["text"]


@pytest.mark.parametrize(("place", "status", "message", "what"), [ABSENT[0], ABSENT[3], ABSENT[7]])
def test_a_loop_says_the_same_of_a_missing_project_zone_or_region(
    cloud: ComputeCloud, place: dict[str, str], status: int, message: str, what: str
) -> None:
    cloud.set_faults(absent(status, message))
    pool = MigPool(name="a", project=PROJECT, endpoint=cloud.url, observe_seconds=0.01, **place)
    with closing(MigBackend(pool, Projects(Owner("demo", "hf")))) as backend, pytest.raises(BackendError) as caught:
        backend.observe(0.0, {})
    failure = caught.value.failure
    assert failure.error.needs_operator, "only an operator can fix it"
    assert failure.text.startswith(MISSING[what])
    assert failure.text.endswith("Until the group is seen, no machine counts as lost.")


@pytest.mark.parametrize("answer", UnknownPlace)
def test_an_unknown_zone_is_named(tmp_path: Path, answer: UnknownPlace, capsys: pytest.CaptureFixture[str]) -> None:
    with ComputeCloud([GOOD], switches=Switches(unknown_place=answer)) as cloud:
        (finding,) = findings(site(tmp_path, cloud.url, a={**ZONAL, "zone": "us-central1-x"}).path, capsys, 1)
    assert finding["text"].startswith("there is no zone us-central1-x: correct pools.a.zone")


@pytest.mark.parametrize("answer", UnknownProject)
def test_an_unknown_project_is_named(
    tmp_path: Path, answer: UnknownProject, capsys: pytest.CaptureFixture[str]
) -> None:
    with ComputeCloud([GOOD], switches=Switches(unknown_project=answer)) as cloud:
        (finding,) = findings(site(tmp_path, cloud.url, a={**ZONAL, "project": "nobodys"}).path, capsys, 1)
    assert finding["text"].startswith("there is no project nobodys, or no access")


def test_a_missing_permission_is_reported_in_compute_s_words(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"Required 'compute.x' permission for 'projects/{PROJECT}/zones/us-central1-a/instanceGroupManagers/hf-a'"
    cloud.set_faults(absent(403, words))
    (finding,) = findings(site(tmp_path, cloud.url, a=ZONAL).path, capsys, 1)
    assert finding["text"].startswith(f"cannot be checked: forbidden: {words}: the login (none) is refused; ")


def test_a_server_on_plain_http_that_wants_credentials_is_reported_with_the_setting(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.set_faults(Fault("http_error", params={"status": 401, "reason": "authError", "message": "Login Required"}))
    (finding,) = findings(site(tmp_path, cloud.url, a=ZONAL).path, capsys, 1)
    assert (finding["pool"], finding["severity"]) == ("a", "error")
    assert finding["text"] == (
        f"cannot be checked: authError: Login Required: {cloud.url} wants credentials (HTTP 401), "
        "and over plain HTTP none are sent: "
        "let the pool's 'endpoint' begin with https://, or leave it out for Google's own"
    )


def test_a_place_that_answers_oddly_keeps_no_other_from_being_checked(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    with OddServer(b'{"kind": "compute#instanceGroupManager", "updatePolicy": 3}') as address:
        made = site(tmp_path, cloud.url, odd={**ZONAL, "endpoint": address}, missing={**ZONAL, "group": "hf-x"})
        texts = {finding["pool"]: finding["text"] for finding in findings(made.path, capsys, 1)}
    assert texts["odd"].startswith("cannot be checked: answer not understood: AttributeError")
    assert texts["missing"].startswith("there is no group hf-x")


def test_without_live_no_cloud_is_asked(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(site(tmp_path, cloud.url, a=ZONAL).path)]) == 0
    assert cloud.requests == []
    assert "findings" not in capsys.readouterr().out


def test_a_start_beside_a_provisioner_whose_prefix_covers_ours_is_refused(tmp_path: Path, cloud: ComputeCloud) -> None:
    group = cloud.groups.mig(PROJECT, GOOD.scope, "hf-a")
    cloud.do(lambda: group.create(["hf-other-abcde01234-000001"]))
    made = site(tmp_path, cloud.url, a=ZONAL)
    cloud.do(lambda: cloud.world.advance(cloud.world.now + 1))
    with pytest.raises(BackendError, match="'hf-other', and ours is 'hf'"):
        Service(Configuration(made.path, {}), StateDir(str(tmp_path))).run(once=True)
    assert not (tmp_path / "memory.json").exists()


def test_a_start_where_a_place_does_not_answer_is_not_refused_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = site(tmp_path, "http://127.0.0.1:9", a=ZONAL)
    service = Service(Configuration(made.path, {}), StateDir(str(tmp_path)))
    with caplog.at_level("WARNING", "provisioner"):
        service._check_places()
    problems = [str(getattr(record, "problem", "")) for record in caplog.records]
    assert any(problem.startswith("cannot be checked: ConnectionError") for problem in problems)

"""Answers of the simulated Compute Engine to Google's clients about a missing zone, region or project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import BadRequest, Forbidden, GoogleAPICallError, NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from provisioner.lab.cloud.compute.settings import MigSpec, Switches, UnknownPlace, UnknownProject
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.clouds.specs import advised

ZONAL = advised(project="p", zone="us-central1-a", name="g")
REGIONAL = advised(project="p", region="europe-west1", name="r")

PLACES = {
    UnknownPlace.INVALID: (BadRequest, "invalid", "Invalid value for field '{kind}': '{name}'. Unknown {kind}."),
    UnknownPlace.NOT_FOUND: (NotFound, "notFound", "The resource 'projects/p/{kind}s/{name}' was not found"),
}
PROJECTS = {
    UnknownProject.NOT_FOUND: (NotFound, "notFound", "The resource 'projects/x' was not found"),
    UnknownProject.FORBIDDEN: (Forbidden, "forbidden", "Required 'compute.{method}' permission for 'projects/x'"),
}

ZONE_PATHS = (
    "",
    "/instances",
    "/instances/vm",
    "/instanceGroupManagers",
    "/instanceGroupManagers/g",
    "/autoscalers",
    "/operations/operation-1",
    "/machineTypes/n2-standard-4",
)


@pytest.fixture
def cloud() -> Iterator[ComputeCloud]:
    with ComputeCloud([ZONAL, REGIONAL]) as running:
        yield running


def refusal(cloud: ComputeCloud, kind: Any, ask: Callable[[Any], object]) -> GoogleAPICallError:
    """Return the error that google-cloud-compute raises."""
    client = kind(credentials=AnonymousCredentials(), client_options=ClientOptions(api_endpoint=cloud.host))
    with pytest.raises(GoogleAPICallError) as caught:
        ask(client)
    return caught.value


def reason(error: GoogleAPICallError) -> str:
    return str(error.errors[0]["reason"])  # type: ignore[attr-defined]


PLACED = [
    pytest.param(ZONAL, compute_v1.InstanceGroupManagersClient, "zone", id="zone"),
    pytest.param(REGIONAL, compute_v1.RegionInstanceGroupManagersClient, "region", id="region"),
]


@pytest.mark.parametrize("answer", UnknownPlace)
@pytest.mark.parametrize(("spec", "client", "kind"), PLACED)
def test_an_unknown_place_is_refused_as_a_switch_says(
    spec: MigSpec, client: Any, kind: str, answer: UnknownPlace
) -> None:
    raised, word, text = PLACES[answer]
    where = {"project": "p", kind: "mars-1", "instance_group_manager": spec.name}
    with ComputeCloud([spec], switches=Switches(unknown_place=answer)) as cloud:
        error = refusal(cloud, client, lambda migs: migs.get(**where, timeout=30))
    assert type(error) is raised
    assert (reason(error), text.format(kind=kind, name="mars-1") in str(error)) == (word, True)


@pytest.mark.parametrize("answer", UnknownProject)
def test_an_unknown_project_is_refused_as_a_switch_says(answer: UnknownProject) -> None:
    raised, word, text = PROJECTS[answer]
    with ComputeCloud([ZONAL], switches=Switches(unknown_project=answer)) as cloud:
        error = refusal(
            cloud, compute_v1.ZonesClient, lambda zones: zones.get(project="x", zone="us-central1-a", timeout=30)
        )
    assert type(error) is raised
    assert (reason(error), text.format(method="zones.get") in str(error)) == (word, True)


def test_every_method_checks_the_zone(cloud: ComputeCloud) -> None:
    _, word, text = PLACES[Switches().unknown_place]
    for path in ZONE_PATHS:
        error = requests.get(f"{cloud.url}projects/p/zones/x{path}", timeout=30).json()["error"]
        assert error["errors"][0]["reason"] == word, path
        assert error["message"] == text.format(kind="zone", name="x"), path

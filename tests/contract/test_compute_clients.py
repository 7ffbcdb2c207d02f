"""All of Google's clients (two libraries and gcloud) get the same results from the same simulator."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from tests.support.clients.compute_clients import ABSENT, ApiLibrary, Client, CloudLibrary, Gcloud
from tests.support.clouds.specs import advised
from tests.support.waiting import until

ZONAL = advised(project="p", zone="us-central1-a", name="g")
REGIONAL = advised(project="p", region="europe-west1", name="r", list_results="PAGINATED")
TIMINGS = {"call": 0, "operation": 0.1, "schedule": 0.1, "boot": 0.3, "delete": 0.2, "leave": 0.1}

needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs gcloud")


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(migs=[ZONAL, REGIONAL], conditions=Conditions.of(timings={"mig": TIMINGS})) as running:
        yield running


@pytest.fixture(params=[ZONAL, REGIONAL], ids=["zonal", "regional"])
def spec(request: pytest.FixtureRequest) -> MigSpec:
    made: MigSpec = request.param
    return made


@pytest.fixture(
    params=[
        pytest.param(CloudLibrary, id="google-cloud-compute"),
        pytest.param(ApiLibrary, id="google-api-python-client"),
        pytest.param(Gcloud, id="gcloud", marks=[needs_gcloud, pytest.mark.slow]),
    ]
)
def client(request: pytest.FixtureRequest, simulator: Simulator, spec: MigSpec, tmp_path: Path) -> Client:
    made: Client = request.param(simulator, spec, tmp_path)
    return made


def phases(simulator: Simulator) -> dict[str, str]:
    return {machine["name"]: machine["phase"] for machine in simulator.state()["machines"]}


def test_a_life_in_a_group(simulator: Simulator, client: Client) -> None:
    assert client.create("sym-a") == ""
    until(lambda: phases(simulator) == {"sym-a": "running"}, 30)
    assert client.members() == {"sym-a": ("NONE", "RUNNING")}
    assert client.addresses() == {"sym-a": "10.128.0.2"}
    simulator.impose([Fault("stockout")])
    assert client.create("sym-b") == "", "that there is no stock is no refusal"
    until(lambda: client.errors() == ["ZONE_RESOURCE_POOL_EXHAUSTED"], 30)
    assert client.target_size() == 2
    client.delete(["sym-a", "sym-b"])
    until(lambda: phases(simulator) == {}, 30)
    simulator.impose([Fault("precondition")])
    refusal = client.create("sym-c")
    assert "CreateInstances cannot be used when UpdatePolicy type is set to PROACTIVE" in refusal
    assert client.target_size("absent") == ABSENT
    calls = simulator.state()["calls"]
    changes = {method.rpartition(".")[2]: count for method, count in calls.items() if "Instances" in method}
    assert (changes["createInstances"], changes["deleteInstances"]) == (3, 1)
    assert "unknown" not in calls, "the simulator has every method that the client asked for"

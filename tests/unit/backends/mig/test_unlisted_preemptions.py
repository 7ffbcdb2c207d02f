"""Ends of instances: those for which a zone's operations are read, and those that the operations show to be
preemptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from provisioner.backends import BackendError
from provisioner.backends.mig import unlisted_preemptions
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.compute_fields import Json, Member
from provisioner.backends.mig.instance_states import Observed
from provisioner.backends.mig.shared_lists import Projects
from provisioner.backends.mig.unlisted_preemptions import Preemptions, is_unexplained
from provisioner.model import Delete, DeleteReason, ErrorClass, Fingerprint, LossCause, Machine, Phase
from provisioner.schema.setting_types import Site
from tests.support.clouds.mig_bench import creates, name, pool
from tests.support.clouds.mig_cloud import SPEC, Cloud
from tests.support.clouds.virtual_compute import ENDPOINT, VirtualWire

RUNS = Machine("a", Phase.RUNNING, Fingerprint(uid="1"))
BOOTS = replace(RUNS, phase=Phase.PENDING)
DEAD = replace(RUNS, phase=Phase.GONE, cause=LossCause.DELETED)
TAKEN = replace(DEAD, cause=LossCause.PREEMPTED)
STOPS = replace(RUNS, phase=Phase.STOPPING, cause=LossCause.PREEMPTED)
AGAIN = replace(RUNS, fingerprint=Fingerprint(uid="2"))


@pytest.mark.parametrize(
    ("before", "after", "asks"),
    [
        pytest.param(RUNS, RUNS, False, id="it runs on"),
        pytest.param(RUNS, None, True, id="it is gone"),
        pytest.param(RUNS, DEAD, True, id="it has no instance any more"),
        pytest.param(None, DEAD, True, id="it had none when the loop began"),
        pytest.param(RUNS, AGAIN, True, id="it is another one"),
        pytest.param(RUNS, TAKEN, False, id="its status says that it was preempted"),
        pytest.param(STOPS, None, False, id="it was seen on its way out"),
        pytest.param(DEAD, DEAD, False, id="it was asked about before"),
        pytest.param(BOOTS, None, False, id="it never ran"),
        pytest.param(BOOTS, AGAIN, False, id="another attempt boots"),
        pytest.param(None, RUNS, False, id="it is new"),
        pytest.param(RUNS, STOPS, False, id="it stops"),
    ],
)
def test_operations_are_read_only_for_an_unexplained_end(
    before: Machine | None, after: Machine | None, asks: bool
) -> None:
    assert is_unexplained(before, after) is asks


OPERATIONS = {
    "z": [{"targetId": "1", "targetLink": "https://x/projects/p/zones/z/instances/a"}],
    "y": [{"targetId": "2", "targetLink": "https://x/projects/p/zones/y/instances/b"}],
}


def read(zone: str, _until: float) -> list[Json]:
    if zone == "x":
        raise BackendError(ErrorClass.DENIED, "no such right")
    return list(OPERATIONS[zone])


def ran(name: str, zone: str, uid: str) -> dict[str, Observed]:
    """Return a mapping with one running machine."""
    machine = Machine(name, Phase.RUNNING, Fingerprint(uid=uid))
    return {name: Observed(Member(name, uid, zone, "RUNNING", "NONE", None), {}, machine)}


@pytest.mark.parametrize(
    ("before", "taken"),
    [
        pytest.param(ran("a", "z", "1"), True, id="by id"),
        pytest.param(ran("a", "z", "7"), False, id="another machine of the same name"),
        pytest.param(ran("a", "z", ""), True, id="by name, where no id is known"),
        pytest.param(ran("b", "", "2"), True, id="no zone is known"),
        pytest.param(ran("b", "z", "2"), False, id="another zone is not asked"),
        pytest.param(ran("a", "x", "1"), False, id="operations that cannot be read say nothing"),
    ],
)
def test_which_end_was_a_preemption(before: dict[str, Observed], taken: bool) -> None:
    seen = Preemptions("m", read)
    assert seen.explain(before, {}, (), ["y", "z"]) == {}
    assert seen.causes() == dict.fromkeys(before if taken else (), LossCause.PREEMPTED)


def test_what_went_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Preemptions("m", read)
    seen.explain(ran("a", "z", "1"), {}, (), ())
    assert seen.causes() == {"a": LossCause.PREEMPTED}
    monkeypatch.setattr(unlisted_preemptions, "CAUSE_SECONDS", -1.0)
    assert seen.causes() == {}


class Spot:
    """A group of Spot instances, two of which run."""

    def __init__(self, wire: VirtualWire, cloud: Cloud) -> None:
        self.wire, self.cloud = wire, cloud
        self.backend = MigBackend(
            pool(ENDPOINT, SPEC, lag_seconds=0.0, observe_seconds=0.001), Projects(Site("demo", "hf"))
        )
        self.backend.create(creates(1, 2), lambda: True)
        self.observe(60.0)

    def observe(self, seconds: float = 0.0) -> dict[str, LossCause | None]:
        """Let ``seconds`` pass, observe the group, and return the cause of each machine's end by name; None without a
        known cause."""
        self.wire.advance(seconds)
        observation = self.backend.observe(1000.0 + self.cloud.world.now, {})
        ends = {name: end.cause for name, end in observation.ends.items()}
        return {**{one.name: one.cause for one in observation.machines.values()}, **ends}

    @property
    def asked(self) -> int:
        """Return how often operations were listed."""
        return self.cloud.world.calls["zoneOperations.list"]


@pytest.fixture(params=["SPOT", "STANDARD"])
def group(request: pytest.FixtureRequest) -> Iterator[Spot]:
    cloud = Cloud(replace(SPEC, provisioning_model=request.param, termination_action="DELETE"))
    with VirtualWire(cloud.groups) as wire:
        made = Spot(wire, cloud)
        yield made
        made.backend.close()


def test_operations_are_read_once_for_an_instance_that_went_unseen_and_only_where_it_may_be_spot(group: Spot) -> None:
    group.cloud.groups.preempt([name(1)])
    spot = group.cloud.mig.spec.provisioning_model == "SPOT"
    expected = LossCause.PREEMPTED if spot else LossCause.DELETED
    for _ in range(3):
        assert group.observe(40.0) == {name(1): expected, name(2): None}
    assert group.asked == int(spot)


def test_what_we_delete_ourselves_is_not_asked_about(group: Spot) -> None:
    group.backend.delete([Delete(name(1), "m", DeleteReason.RETURNED)], lambda: True)
    assert group.observe(200.0) == {name(2): None}
    assert group.asked == 0

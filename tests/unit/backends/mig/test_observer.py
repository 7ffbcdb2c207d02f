"""Changes that observations notice. The lists that all pools share show some of them; only a group's list of members
shows the others."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest

from provisioner.backends import Finding
from provisioner.backends.mig import group_checks, observer
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.compute_fields import Json, Member
from provisioner.backends.mig.observer import leaving_names
from provisioner.backends.mig.shared_lists import Projects
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.world import Fault
from provisioner.model import Delete, DeleteReason, LossCause, Phase, Snapshot
from provisioner.schema.setting_types import Site
from tests.support.clouds.mig_bench import creates, name, pool
from tests.support.clouds.mig_cloud import SPEC, Cloud
from tests.support.clouds.virtual_compute import ENDPOINT, VirtualWire

ONE, TWO = name(1), name(2)


class Watch:
    """A group with two machines that run, in a world whose clock the test advances."""

    def __init__(self, wire: VirtualWire, cloud: Cloud) -> None:
        self._wire, self.cloud = wire, cloud
        settings = pool(ENDPOINT, SPEC, lag_seconds=0.0, observe_seconds=0.001)
        self.backend = MigBackend(settings, Projects(Site("demo", "hf")))
        self.backend.create(creates(1, 2), lambda: True)
        self.settle()
        assert [one.phase for one in self.observe().machines.values()] == [Phase.RUNNING] * 2

    def pass_time(self, seconds: float) -> None:
        self._wire.advance(seconds)

    def settle(self) -> None:
        """Let all operations end."""
        self.pass_time(60.0)

    def observe(self) -> Snapshot:
        return self.backend.observe(1000.0 + self.cloud.world.now, {})


@pytest.fixture
def watch() -> Iterator[Watch]:
    cloud = Cloud()
    with VirtualWire(cloud.groups) as wire:
        made = Watch(wire, cloud)
        yield made
        made.backend.close()


class Moved(MigSpec):
    """A group whose instance template was changed after its instances were made."""

    @property
    def template(self) -> str:
        return f"{super().template}-2"


def test_another_template_is_noticed_although_no_machine_changes(watch: Watch) -> None:
    """A pool's windows are reset if the group's instance template changes. So an observation must show the new instance
    template."""
    before = watch.observe()
    watch.cloud.mig.spec = Moved(project=SPEC.project, zone=SPEC.zone, name=SPEC.name)
    after = watch.observe()
    assert after.spec == f"{before.spec}-2"
    assert after.machines is before.machines


def test_a_setting_of_the_group_is_reported_and_gone_at_once_although_no_machine_changes(watch: Watch) -> None:
    right = watch.cloud.mig.spec
    watch.cloud.mig.spec = replace(right, update_type="PROACTIVE")
    assert watch.observe().problems[0].startswith("PLACE: its updatePolicy is PROACTIVE")
    watch.cloud.mig.spec = right
    assert watch.observe().problems == ()


def test_a_member_that_comes_is_noticed_although_no_instance_of_ours_changes(watch: Watch) -> None:
    watch.cloud.mig.resize(3)
    watch.settle()
    assert watch.observe().problems[0].startswith("1 member is not ours")


def test_what_the_shared_lists_do_not_show_is_noticed_all_the_same_in_time(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member is abandoned, and the group makes another member. The shared lists show no change, because the number of
    members stays the same and the abandoned instance still runs. So the members are listed again after
    ``MEMBERS_SECONDS``."""
    watch.cloud.mig.abandon([watch.cloud.url(ONE)])
    watch.settle()
    watch.cloud.mig.resize(2)
    watch.settle()
    monkeypatch.setattr(observer, "MEMBERS_SECONDS", 0.0)
    assert list(watch.observe().machines) == [TWO]


def test_a_member_that_was_taken_out_of_the_group_is_reported_while_it_runs(watch: Watch) -> None:
    message = f"members that were taken out of the group and run on: 1, e.g. {ONE}: the provisioner cannot delete them"
    watch.cloud.mig.abandon([watch.cloud.url(ONE)])
    watch.settle()
    assert watch.observe().problems == (message,)
    watch.cloud.mig.resize(2)  # makes the observer list the members again, as the next resize does
    watch.settle()
    assert message in watch.observe().problems
    watch.cloud.groups.vms.delete(*watch.cloud.groups.vms.named(ONE))
    watch.cloud.mig.resize(3)
    watch.settle()
    assert message not in watch.observe().problems


def test_a_member_that_was_seen_leaving_the_group_is_reported_as_well(watch: Watch) -> None:
    watch.cloud.mig.abandon([watch.cloud.url(ONE)])
    watch.pass_time(1.1)
    assert (leaves := watch.observe().machines[ONE]).is_strayed
    assert leaves.phase is Phase.RUNNING
    watch.settle()
    assert "taken out of the group and run on" in str(watch.observe().problems)


def test_a_member_that_the_group_deleted_is_no_stray_although_its_instance_is_still_listed(watch: Watch) -> None:
    """If the group has deleted a member, its instance must not count as strayed while the instance is still listed,
    because the list of instances may lag behind the list of members."""
    watch.cloud.delete(ONE)
    watch.pass_time(1.1)
    assert watch.observe().machines[ONE].phase is Phase.STOPPING
    watch.settle()
    watch.cloud.faults(Fault("list_lag", ".*instances.list", params={"seconds": 90.0}))
    observation = watch.observe()
    assert list(observation.machines) == [TWO]
    assert "taken out of the group" not in str(observation.problems)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, "no autoscaler works on it, and its repair and update policy delete no running machine, so an operator"),
        ({"autoscaler_mode": "OFF"}, "no autoscaler works on it"),
        ({"autoscaler_mode": "ON"}, "an autoscaler works on it (mode ON) and would delete machines in use: gcloud"),
        ({"update_type": "PROACTIVE", "replacement_method": "RECREATE"}, "see its other problems"),
    ],
)
def test_after_deletes_by_others_the_group_is_read_again_and_the_result_is_reported_for_an_hour(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], found: str
) -> None:
    mig = watch.cloud.mig
    mig.spec = replace(mig.spec, **changes)  # type: ignore[arg-type]
    mig.resize(1)
    watch.pass_time(1.1)
    message = watch.observe().problems[-1]
    assert message.startswith(f"1 machine of the group was deleted by others, e.g. {ONE}: {found}")
    watch.settle()
    assert message in watch.observe().problems
    mig.resize(0)
    watch.pass_time(1.1)
    assert watch.observe().problems[-1].startswith(f"2 machines of the group were deleted by others, e.g. {ONE}: ")
    later = time.monotonic() + 3600
    monkeypatch.setattr(group_checks, "time", SimpleNamespace(monotonic=lambda: later))
    watch.settle()
    assert "deleted by others" not in str(watch.observe().problems)


def test_an_autoscaler_that_is_on_is_a_fault_of_the_place_after_half_a_minute_and_gone_as_soon(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.monotonic()
    monkeypatch.setattr(group_checks, "time", SimpleNamespace(monotonic=lambda: later))
    texts = []
    for mode in ("ON", "OFF"):
        watch.cloud.mig.spec = replace(watch.cloud.mig.spec, autoscaler_mode=mode)
        texts.append(watch.observe().problems)
        later += group_checks.AUTOSCALER_SECONDS + 1
        texts.append(watch.observe().problems)
    assert [[text[:32] for text in found] for found in texts] == [[], *[["PLACE: an autoscaler works on it"]] * 2, []]


def test_an_autoscaler_that_cannot_be_read_hides_no_machine(watch: Watch) -> None:
    watch.cloud.mig.spec = replace(watch.cloud.mig.spec, autoscaler_mode="ON")
    watch.cloud.mig.resize(1)
    watch.pass_time(1.1)
    watch.cloud.faults(Fault("denied", ".*autoscalers.get"))
    observation = watch.observe()
    assert [one.phase for one in observation.machines.values()] == [Phase.STOPPING, Phase.RUNNING]
    assert "/autoscalers/g cannot be read, so it was not checked" in observation.problems[-1]


def test_the_loop_does_not_wait_long_for_an_autoscaler(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = time.monotonic(), list[float]()
    monkeypatch.setattr(group_checks, "time", SimpleNamespace(monotonic=lambda: now))

    def check(_: Json, deadline: float) -> list[Finding]:
        waits.append(deadline - now)
        return []

    for deadline in (now + 60.0, now + 1.0):
        group_checks.Problems(pool(ENDPOINT, SPEC), check).report({}, (), deadline)
    assert waits == pytest.approx([group_checks.SLOW_SECONDS, 1.0])


def test_our_own_deletes_are_no_deletes_by_others(watch: Watch) -> None:
    watch.backend.delete([Delete(ONE, "m", DeleteReason.RETURNED)], lambda: True)
    watch.pass_time(1.1)
    observation = watch.observe()
    assert (observation.machines[ONE].cause, observation.problems) == (LossCause.DELETED, ())


def test_a_machine_is_observed_until_it_runs_although_the_shared_lists_are_settled(watch: Watch) -> None:
    """The list of members may lag behind the shared lists. So members must still be listed after the shared lists have
    shown their last change."""
    watch.cloud.faults(Fault("list_lag", ".*listManagedInstances", params={"seconds": 30.0}))
    watch.backend.create(creates(3), lambda: True)
    watch.pass_time(35.0)
    assert watch.observe().machines[name(3)].phase is Phase.PENDING
    watch.settle()
    assert watch.observe().machines[name(3)].phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("before", "members", "standing", "left"),
    [
        pytest.param((), {"a": "DELETING", "b": "NONE"}, ("a", "b"), {"a"}, id="it leaves"),
        pytest.param({"a"}, {}, ("a",), {"a"}, id="it has left, and a late list still shows it"),
        pytest.param({"a"}, {}, (), set(), id="it is gone"),
        pytest.param({"a"}, {"a": "NONE"}, ("a",), set(), id="it stays after all"),
        pytest.param((), {}, ("a",), set(), id="others took it out, and it runs on"),
    ],
)
def test_a_member_that_was_on_its_way_out_was_not_let_go(
    before: Collection[str], members: Mapping[str, str], standing: Collection[str], left: set[str]
) -> None:
    known = {name: Member(name, "7", "z", "RUNNING", action, None) for name, action in members.items()}
    assert leaving_names(frozenset(before), known, frozenset(standing)) == left

"""Per-instance configurations of a simulated group, in a world whose time the test passes."""

from __future__ import annotations

import pytest

from provisioner.simulator.compute.instance_configs import config_document, stateful_document
from provisioner.simulator.compute.members import Member
from provisioner.simulator.compute.operations import Document
from tests.support.clouds.mig_cloud import ZONE, Cloud

STATE = {"metadata": {"request": "r-1"}}


def statuses(cloud: Cloud) -> dict[str, str]:
    return {member.name: config_document(member)["status"] for member in cloud.mig.members.values()}


def stateful(cloud: Cloud) -> tuple[bool, bool]:
    """Whether the group is stateful, and all its configurations are effective."""
    shown = stateful_document(cloud.mig.members.values())
    assert shown["isStateful"] == shown["hasStatefulConfig"]
    return shown["isStateful"], shown["perInstanceConfigs"]["allEffective"]


def test_a_configuration_applies_is_effective_and_goes_with_its_instance() -> None:
    cloud = Cloud()
    cloud.mig.create(["a", "b"], preserved={"a": STATE})
    cloud.pass_time(1.1)
    assert (statuses(cloud), stateful(cloud)) == ({"a": "APPLYING", "b": "APPLYING"}, (True, False))
    cloud.pass_time(11.0)
    assert (statuses(cloud), stateful(cloud)) == ({"a": "EFFECTIVE", "b": "EFFECTIVE"}, (True, True))
    cloud.delete("a")
    cloud.pass_time(1.1)
    assert (statuses(cloud), stateful(cloud)) == ({"a": "DELETING", "b": "EFFECTIVE"}, (False, False))
    cloud.pass_time(7.0)
    assert (statuses(cloud), stateful(cloud)) == ({"b": "EFFECTIVE"}, (False, True))


@pytest.mark.parametrize("other", [{}, {"metadata": {"request": "r-2"}}, STATE | {"disks": {"d": {}}}], ids=str)
def test_a_fingerprint_is_that_of_the_content(other: Document) -> None:
    def fingerprint(state: Document) -> str:
        return str(config_document(Member("a", ZONE, preserved=state))["fingerprint"])

    assert fingerprint(STATE) == fingerprint(dict(STATE))
    assert fingerprint(STATE) != fingerprint(other)

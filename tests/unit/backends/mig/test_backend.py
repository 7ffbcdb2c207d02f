"""Calls of the MIG backend: their request ids, and the members that a delete names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from provisioner.backends.mig import backend as migs
from provisioner.backends.mig.api import ComputeApi
from provisioner.backends.mig.backend import MigBackend, request_key
from provisioner.backends.mig.compute_fields import Member
from provisioner.backends.mig.shared_lists import Projects
from provisioner.model import Delete, DeleteReason
from provisioner.schema.setting_types import Site
from tests.support.clouds.mig_bench import REGIONAL, classes, name, pool


def test_a_request_id_depends_on_all_that_makes_a_request_another() -> None:
    group = ("mig", "None", "p", "us-central1-a", "hf-a")
    first = request_key(group, ["a", "b"])
    assert request_key(group, ["b", "a"]) == first
    assert len({first, request_key(group, ["a"]), request_key((*group[:-1], "hf-b"), ["a", "b"])}) == 3


def test_a_failed_create_has_another_request_id_and_only_so_many_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migs, "REMEMBERED_FAILURES", 2)
    backend = MigBackend(pool("http://127.0.0.1:9"), Projects(Site("demo", "hf")))
    keys = [request_key(("mig",), [name(number)]) for number in (1, 2, 3)]
    ids = [backend._request_id(key) for key in keys]
    assert ids == [backend._request_id(key) for key in keys]
    for key in keys:
        backend._note_failure(key)
    assert [backend._request_id(key) == id_ for key, id_ in zip(keys, ids, strict=True)] == [True, False, False]
    backend.close()


@pytest.mark.parametrize("action", ["DELETING", "ABANDONING"])
def test_a_member_that_leaves_already_is_not_asked_for(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend must send no delete for a member that the group already deletes or abandons."""
    backend = MigBackend(pool("http://127.0.0.1:9"), Projects(Site("demo", "hf")))
    leaving = Member(name(1), "7", "us-central1-a", "RUNNING", action, None)
    monkeypatch.setattr(backend, "_members", lambda: {name(1): leaving})
    assert classes(backend.delete([Delete(name(1), "m", DeleteReason.RETURNED, "7")], lambda: True)) == {name(1): None}
    backend.close()


def test_a_member_that_has_lost_its_instance_is_deleted_whatever_instance_was_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both deletes name instance 7. The member without an instance must be deleted, because the group would otherwise
    make another instance under its name. The member that has another instance must stay."""
    backend = MigBackend(pool("http://127.0.0.1:9"), Projects(Site("demo", "hf")))
    sent: list[str] = []
    members = {
        name(number): Member(name(number), id_, "z", "", "CREATING", None) for number, id_ in ((1, ""), (2, "8"))
    }
    monkeypatch.setattr(backend, "_members", lambda: members)
    monkeypatch.setattr(ComputeApi, "delete", lambda _api, _address, urls: sent.extend(urls) or {})
    deletes = [Delete(one, "m", DeleteReason.RETURNED, "7") for one in members]
    assert classes(backend.delete(deletes, lambda: True)) == dict.fromkeys(members)
    assert sent == [f"zones/z/instances/{name(1)}"]
    backend.close()


def test_members_without_a_zone_are_named_in_a_call_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member whose zone a regional group has not chosen yet can be named only by its bare name. Such members must be
    deleted in a call of their own, because Compute refuses a request that has both bare names and URLs of instances."""
    backend = MigBackend(pool("http://127.0.0.1:9", REGIONAL), Projects(Site("demo", "hf")))
    zones = {name(1): "us-central1-a", name(2): "", name(3): "us-central1-b"}
    members = {one: Member(one, "", zone, "", "CREATING", None) for one, zone in zones.items()}
    sent: list[list[str]] = []
    monkeypatch.setattr(backend, "_members", lambda: members)
    monkeypatch.setattr(ComputeApi, "delete", lambda _api, _address, urls: sent.append(list(urls)) or {})
    outcomes = backend.delete([Delete(one, "m", DeleteReason.TIMED_OUT) for one in zones], lambda: True)
    assert classes(outcomes) == dict.fromkeys(zones)
    addressed = [f"zones/us-central1-{zone}/instances/{name(number)}" for number, zone in ((1, "a"), (3, "b"))]
    assert sorted(sent) == sorted([addressed, [name(2)]])
    backend.close()


def test_an_observation_waits_for_a_part_of_the_pace_after_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [1000.0], list[float]()
    backend = MigBackend(pool("http://127.0.0.1:9", observe_seconds=30.0), Projects(Site("demo", "hf")))
    monkeypatch.setattr(migs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(backend._ending, "wait", waits.append)
    monkeypatch.setattr(backend._observer, "observe", lambda *_: None)
    for seconds in (4.0, 100.0, 0.0):
        backend.observe(1.0, {})
        now[0] += seconds
    assert waits == [0.0, migs.LEAST_PACE_PART * 30.0 - 4.0, 0.0]
    backend.close()

"""Intent from the requests' objects: what changes it, and what a restored etcd does to it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from provisioner.model import Brake, BrakeReason, Intent, Memory, Request, RequestRecord, ReturnRecord, ReturnRequest
from provisioner.state import intent_recovery
from provisioner.state.errors import Condition, StateError, StateMissing
from provisioner.state.kube.objects import ANSWERS, REQUESTS, RETURNS, STATES, body, collection, item, pack
from tests.support.kube_state_server import Call, Refusal
from tests.unit.state.kube.conftest import Site, answer


def test_intent_has_the_requests_in_their_order(site: Site) -> None:
    loop = site.open()
    site.now += 0.5
    first = site.request(3)
    site.now -= 0.25
    second = site.script.record_request("demo", "t", 1, created_wall=site.now, rc_account="finance").id
    back = site.give_back("m1", "m2")
    intent = loop.intent.read()
    assert list(intent.requests.values()) == [
        Request(second, "t", 1, site.now, "finance"),
        Request(first, "t", 3, site.now + 0.25),
    ]
    assert intent.returns == {back: ReturnRequest(back, ("m1", "m2"), site.now)}
    assert intent.provisioner == "demo"


def test_without_a_request_and_a_loop_there_is_no_intent(site: Site) -> None:
    """Machines that exist although no request was ever recorded may belong to another state. So the loop gets an error,
    and not an empty intent."""
    loop = site.open()
    assert loop.intent.signature() is None
    assert not loop.intent.existed()
    assert loop.intent.condition() is Condition.NEW
    with pytest.raises(StateMissing, match="no request here"):
        loop.intent.read_newest()
    calls = len(loop._api.calls)  # type: ignore[attr-defined]
    assert not loop.intent.existed()
    assert len(loop._api.calls) == calls + 2, "of the lists alone, because it is asked ten times a second"  # type: ignore[attr-defined]
    site.request()
    assert loop.intent.existed()
    loop.memory.write(Memory("demo", 1))
    loop.intent.remove(loop.intent.read().requests)
    assert site.open().intent.read().requests == {}


def test_only_requests_that_come_or_go_change_intent(site: Site) -> None:
    loop = site.loop()
    empty = loop.intent.signature()
    id_ = site.request()
    one = loop.intent.signature()
    assert one != empty
    loop.status.write({id_: answer(id_)}, {}, {})
    site.script.poll([id_])
    assert loop.intent.signature() == one
    before = loop.intent.read()
    assert before is loop.intent.read()
    loop.intent.remove([id_, "unknown"])
    assert loop.intent.read().generation > before.generation
    assert loop.intent.read().requests == {}


def test_the_generation_goes_on_in_the_next_process(site: Site) -> None:
    loop = site.open()
    for _ in range(3):
        site.request()
        loop.intent.read()
    loop.memory.write(Memory("demo", 1, loop.intent.read().generation))
    assert site.open().intent.read().generation == loop.intent.read().generation > 2


def test_a_record_goes_into_the_log_before_its_object_goes(site: Site) -> None:
    id_, loop = site.request(), site.open()
    memory = Memory("demo", 1, requests={id_: RequestRecord(id_, "t", 2, 0.0, 9.0, is_trimmed=True)})
    loop.memory.write(memory)
    loop.status.write({id_: answer(id_)}, {}, {})
    loop.memory.write(memory)

    def dies(call: Call) -> int | None:
        return 0 if call.method == "DELETE" else None

    loop._api.after = dies  # type: ignore[attr-defined]
    with pytest.raises(StateError):
        loop.intent.remove([id_])
    successor = site.open()
    assert successor.intent.read().requests == {}
    assert successor.memory.read() == memory
    assert successor.memory.condition() is Condition.FINE


def test_a_restored_etcd_makes_intent_old_until_an_operator_accepts_it(site: Site) -> None:
    loop = site.loop()
    old = site.server.snapshot()
    id_ = site.request()
    intent = loop.intent.read()
    before = loop.memory.signature(), loop.intent.signature()
    site.server.restore(old)
    assert loop.intent.signature() != before[1]
    restored, newest = loop.intent.read_newest()
    assert id_ not in restored.requests
    assert newest > restored.generation >= intent.generation
    assert loop.memory.signature() != before[0], "so that memory is written again"
    site.open().ask_release()
    assert loop.take_release()
    accepted, newest_accepted = loop.intent.read_newest()
    assert accepted.generation == newest_accepted > newest


def test_a_release_waits_for_a_watch_that_lags_behind_the_requests_of_a_recovery(site: Site) -> None:
    loop = site.loop()
    loop.intent.read()
    site.request()
    site.open().ask_release()
    cache = loop._caches[REQUESTS]
    with patch.object(cache, "check"):
        assert not loop.take_release()
        assert not loop.intent.is_accepted
    assert loop.release_asked()
    assert loop.take_release()


def test_a_release_that_a_restored_etcd_contains_accepts_no_old_intent(site: Site) -> None:
    loop = site.loop()
    loop.intent.read()
    site.open().ask_release()
    old = site.server.snapshot()
    site.patch(STATES, "demo", {"spec": {"release": None}})
    site.request()
    loop.intent.read()
    site.server.restore(old)
    assert loop.take_release(), "the old request for a release"
    intent, newest = loop.intent.read_newest()
    assert newest > intent.generation


def test_a_restore_is_noticed_by_a_standby_loop_after_later_versions(site: Site) -> None:
    site.loop()
    standby, old = site.open(), site.server.snapshot()
    site.request()
    standby.wait_synced()
    site.server.restore(old)
    standby.wait_synced()
    for _ in range(5):
        site.request()
    intent, newest = standby.intent.read_newest()
    assert newest > intent.generation


def test_an_old_intent_stays_old_in_the_next_process(site: Site) -> None:
    loop = site.open()
    brake = Brake(BrakeReason.INTENT_OLDER, 0.0, "restored")
    loop.memory.write(Memory("demo", 1, 5, brake=brake))
    intent, newest = site.open().intent.read_newest()
    assert (intent.generation, newest) == (5, 6)


def test_a_recovery_makes_requests_again_that_memory_has(site: Site) -> None:
    loop = site.open()
    old = site.server.snapshot()
    id_, back = site.request(3), site.give_back("m1")
    record = RequestRecord(id_, "t", 3, 0.0, 9.0, rc_account="finance")
    trimmed = RequestRecord("gone", "t", 3, 0.0, 9.0, is_trimmed=True)
    memory = Memory(
        "demo", 1, requests={id_: record, "gone": trimmed}, returns={back: ReturnRecord(back, ("m1",), 0, 9)}
    )
    site.server.restore(old)
    loop.memory.write(memory)
    operator = site.open()
    plan = intent_recovery.plan_recovery(intent_recovery.read_files(operator), (), "hf", "demo")
    assert (plan.writes, plan.latched) == (True, True)
    assert intent_recovery.apply_recovery(operator, plan) == ()
    operator.ask_release()
    assert loop.take_release()
    intent = loop.intent.read()
    assert intent.requests.keys() == {id_}
    assert intent.requests[id_].rc_account == "finance"
    assert intent.returns[back].names == ("m1",)
    loop.forget_release()
    assert not loop.release_asked()
    assert not operator.release_asked()


def test_a_request_that_the_server_refuses_is_not_lost_silently(site: Site) -> None:
    loop = site.loop()
    loop._api.before = lambda call: 422 if call.method == "POST" else None  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="422"):
        loop.intent.restore(Intent("demo", 1, {"r1": Request("r1", "t", 3, 5.0)}, {}))


def test_pieces_of_a_removed_request_are_removed(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    loop.memory._parts.split(f"{id_}.record", pack("long"), 0, {"epoch": 1, "generation": 1})
    assert len(loop.memory._parts.list()) == 2
    loop.intent.remove([id_])
    assert len(loop.memory._parts.list()) == 1
    assert (
        site.server.answer("GET", f"/apis/provisioner.hostfactory.dev/v1alpha1/namespaces/hf/{REQUESTS}")["items"] == []
    )


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        *((REQUESTS, name) for name in ("test", "my.request", "0a1b2c3d4e5", "ret-0a1b2c3d4e", "a" * 253)),
        *((RETURNS, name) for name in ("0a1b2c3d4e", "ret-1")),
        *((ANSWERS, name) for name in ("foo", "0a1b2c3d4e.x", "1a1b2c3d4e.0")),
    ],
)
def test_a_name_that_no_script_chooses_is_refused_by_the_server(site: Site, resource: str, name: str) -> None:
    """If the server accepted such a name, the loop would make machines that it could not recognize later, or would end
    each cycle with an error."""
    specs = {
        REQUESTS: {"template": "t", "count": 1, "created": 1.0},
        RETURNS: {"names": ["m"], "created": 1.0},
        ANSWERS: {"request": "0a1b2c3d4e", "kind": "Assumed"},
    }
    new = body(resource, name, {"provisioner": "demo", **specs[resource]})
    with pytest.raises(Refusal, match="the name of a"):
        site.server.answer("POST", collection("hf", resource), new)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_the_record_of_an_object_that_an_operator_has_deleted_stays_in_memory(
    site: Site, *, is_made_again: bool
) -> None:
    id_, loop = site.request(), site.loop()
    intent = loop.intent.read()
    memory = Memory("demo", 1, requests={id_: RequestRecord(id_, "t", 2, 0.0, 9.0)})
    loop.memory.write(memory)
    loop.memory.patch(id_, {"phase": "Running"})
    loop.memory.write(replace(memory, generation=2))
    site.server.answer("DELETE", item("hf", REQUESTS, id_))
    assert site.open().memory.condition() is Condition.OLDER, "only the object had the record"
    if is_made_again:
        site.open().intent.restore(intent)
    loop.intent.read()
    assert site.open().memory.condition() is Condition.FINE
    assert site.open().memory.read().requests == memory.requests
    loop.memory.patch(id_, {"phase": "Running"})
    assert site.open().memory.condition() is Condition.FINE

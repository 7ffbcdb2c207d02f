"""Published answers: what ``kubectl get`` shows, what is written, and answers that HF has read."""

from __future__ import annotations

import random
import string
from unittest.mock import patch

import pytest

from provisioner.hostfactory import Answer, Loss
from provisioner.model import Brake, BrakeReason, ErrorClass, Failure, Memory, PendingReason, Unmet, Window
from provisioner.state.errors import StateMissing, StateStale, StateUnreadable
from provisioner.state.kube import answers as answers_module
from provisioner.state.kube import memory as memory_module
from provisioner.state.kube.object_events import MOST
from provisioner.state.kube.objects import REQUESTS, RETURNS, STATES, pack, unpack
from provisioner.state.record_format import encode
from provisioner.telemetry.pool_status import PoolStatus
from tests.support.kube_state_server import Call
from tests.unit.state.kube.conftest import Site, answer


def test_the_status_shows_counts_reason_and_conditions(site: Site) -> None:
    id_, loop = site.request(4), site.loop()
    loop.status.write({id_: answer(id_, "running", "succeed", "executing", "fail", text="stockout: no room")}, {}, {})
    status = site.get(REQUESTS, id_)["status"]
    shown = {name: status[name] for name in ("phase", "requested", "running", "pending", "failed", "lost", "reason")}
    assert shown == {
        "phase": "Running", "requested": 4, "running": 1, "pending": 1, "failed": 1, "lost": 0,
        "reason": "stockout: no room",
    }  # fmt: skip
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert conditions == {"Complete": ("False", "MachinesMissing"), "Progressing": ("True", "MachinesMissing")}
    assert [one["text"] for one in status["timeline"]] == ["1 of 4 run, 1 failed"]


def test_a_request_waits_until_a_machine_runs(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    loop.status.write({id_: answer(id_, "running", "executing")}, {}, {})
    assert site.get(REQUESTS, id_)["status"]["phase"] == "Waiting"
    loop.status.write({id_: answer(id_, "running", "succeed")}, {}, {})
    assert site.get(REQUESTS, id_)["status"]["phase"] == "Running"


def test_a_return_shows_what_has_been_returned(site: Site) -> None:
    id_, loop = site.give_back("m1", "m2"), site.loop()
    loop.status.write({id_: answer(id_, "running", "succeed", "executing")}, {}, {})
    status = site.get(RETURNS, id_)["status"]
    assert (status["total"], status["returned"], status["failed"]) == (2, 1, 0)


def test_a_condition_keeps_its_time_while_its_status_stays(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    id_, loop = site.request(), site.loop()
    for minute, results in enumerate(([], ["succeed"], ["succeed", "succeed"])):
        monkeypatch.setattr(answers_module, "_moment", lambda minute=minute: f"2026-01-01T00:0{minute}:00Z")
        loop.status.write({id_: answer(id_, "complete" if len(results) > 1 else "running", *results)}, {}, {})
    status = site.get(REQUESTS, id_)["status"]
    times = {one["type"]: one["lastTransitionTime"][14:16] for one in status["conditions"]}
    assert times == {"Complete": "02", "Progressing": "02"}
    loop.status.write({id_: answer(id_, "complete", "succeed", "succeed", "fail")}, {}, {})
    status = site.get(REQUESTS, id_)["status"]
    assert {one["lastTransitionTime"][14:16] for one in status["conditions"]} == {"02"}
    assert len(status["timeline"]) == 4


def test_the_timeline_keeps_the_newest_entries(site: Site) -> None:
    id_, loop = site.request(20), site.loop()
    for number in range(13):
        loop.status.write({id_: answer(id_, "running", *["succeed"] * number)}, {}, {})
    timeline = site.get(REQUESTS, id_)["status"]["timeline"]
    assert [one["text"] for one in timeline] == [f"{number} of 20 run" for number in range(3, 13)]


def test_only_what_changed_is_written(site: Site) -> None:
    one, two, loop = site.request(), site.request(), site.loop()
    answers = {one: answer(one), two: answer(two)}
    loop.status.write(answers, {}, {})
    site.calls(loop)
    loop.status.write(answers, {}, {})
    assert site.calls(loop) == []
    loop.status.write(answers | {two: answer(two, "running", "succeed")}, {}, {"t": 3})
    assert site.calls(loop) == [f"PATCH machinerequests/{two}/status", "PATCH provisionerstates/demo/status"]
    successor = site.open()
    successor.memory.write(Memory("demo", 2))
    site.calls(successor)
    successor.status.write(answers | {two: answer(two, "running", "succeed")}, {}, {"t": 3})
    assert site.calls(successor) == []


def test_losses_and_free_numbers_are_published(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    with pytest.raises(StateMissing):
        loop.status.read_lost()
    assert not loop.status.exists()
    lost = {f"hf-{id_}-000000": Loss(0, "preempted"), "elsewhere": Loss(60, "expires")}
    loop.status.write({id_: answer(id_, "complete", "succeed", "succeed")}, lost, {"t": 3, "u": 4})
    assert site.get(REQUESTS, id_)["status"]["lost"] == 1
    assert site.get(STATES, "demo")["status"]["running"] == 1
    assert loop.status.read_lost() == lost
    assert site.script.lost(lost) == lost
    assert site.script.available() == {"t": 3, "u": 4}
    loop.status.write({id_: answer(id_, "complete", "succeed", "succeed")}, {}, {"u": 4})
    assert site.script.available() == {"u": 4}
    assert site.open().status.read_lost() == {}


def test_the_brake_is_shown(site: Site) -> None:
    loop = site.loop()
    loop.memory.write(Memory("demo", 1, brake=Brake(BrakeReason.MEMORY_LOST, 0.0, "it is gone")))
    loop.status.write({}, {}, {})
    assert site.get(STATES, "demo")["status"]["brake"] == "memory_lost: it is gone"
    latched = loop.status.signature()
    loop.memory.write(Memory("demo", 1))
    assert loop.status.signature() != latched, "so that the release is published though no answer changes"


def test_an_answer_that_hf_has_read_stays(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    first = answer(id_, "complete", "succeed", "succeed")
    loop.status.write({id_: first}, {}, {})
    assert site.get(REQUESTS, id_)["status"]["phase"] == "Ended"
    assert site.script.poll([id_]).answers == {id_: first}
    loop.beat()
    assert site.get(REQUESTS, id_)["status"]["phase"] == "Complete"
    site.calls(loop)
    loop.beat()
    assert site.calls(loop) == []
    loop.status.write({id_: answer(id_, "complete_with_error", "fail")}, {}, {})
    assert site.script.poll([id_]).answers == {id_: first}
    assert site.open().status.read_all() == {id_: first}


def test_a_revised_answer_is_published_until_a_script_has_settled_one(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    first, second = answer(id_, "complete", "succeed"), answer(id_, "complete_with_error", "fail", text="returned")
    loop.status.write({id_: first}, {}, {})
    assert loop.terminal_answers.settle_revised(id_, second.text)
    loop.status.write({id_: second}, {}, {})
    loop.beat()
    assert site.get(REQUESTS, id_)["status"]["phase"] == "Ended", "HF has not read it"
    assert site.script.poll([id_]).answers == {id_: second}
    assert not loop.terminal_answers.settle_revised(id_, first.text)
    loop.beat()
    status = site.get(REQUESTS, id_)["status"]
    assert (status["phase"], unpack(status["answer"])["text"]) == ("CompleteWithError", second.text)


def test_the_answer_that_was_reported_is_the_final_one(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    first, second = answer(id_, "complete", "succeed"), answer(id_, "complete_with_error", "fail")
    loop.status.write({id_: first}, {}, {})
    site.script.poll([id_])
    loop.status.write({id_: second}, {}, {})
    status = site.get(REQUESTS, id_)["status"]
    assert (status["phase"], unpack(status["answer"])["text"]) == ("Complete", first.text)


def test_an_answer_that_hf_reads_during_a_write_stays_however_late_the_loop_notices_the_poll(site: Site) -> None:
    ids, loop = [site.request() for _ in range(3)], site.loop()
    first, second = answer("r", "complete", "succeed"), answer("r", "complete_with_error", "fail")
    loop.status.write(dict.fromkeys(ids, first), {}, {})
    polls: list[object] = []

    def poll(call: Call) -> None:
        if call.method == "PATCH" and not polls:
            polls.append(site.script.poll(ids).answers)

    loop._api.after = poll  # type: ignore[attr-defined]
    with patch.object(loop._caches["machineanswers"], "check", lambda: None):  # no event comes
        loop.status.write(dict.fromkeys(ids, second), {}, {})
        loop.beat()
    polled = polls[0]
    assert isinstance(polled, dict)
    assert sorted(one.text for one in polled.values()) == sorted([second.text, first.text, first.text])
    assert {site.get(REQUESTS, id_)["status"]["phase"] for id_ in ids} == {"Ended"}
    assert site.script.poll(ids).answers == polled
    loop.beat()
    for id_ in ids:
        status = site.get(REQUESTS, id_)["status"]
        assert (status["phase"] in ("Complete", "CompleteWithError"), unpack(status["answer"])["text"]) == (
            True,
            polled[id_].text,
        )
    assert site.script.poll(ids).answers == polled


def test_an_announced_cancel_does_not_hide_a_reported_answer(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    first = answer(id_, "complete", "succeed")
    loop.status.write({id_: first}, {}, {})
    stale = site.open()
    stale.terminal_answers.ids()
    site.script.poll([id_])
    loop.status.write({id_: answer(id_, "running", "succeed")}, {}, {})
    assert site.get(REQUESTS, id_)["status"]["phase"] == "Ended"
    assert site.script.poll([id_]).answers == {id_: first}


def test_many_answers_are_listed_once(site: Site) -> None:
    """The answers must be listed once for all requests. A command has no watch, so it would otherwise get all answers
    once for each request."""
    loop, ids = site.loop(), [site.request() for _ in range(20)]
    for id_ in ids:
        loop.terminal_answers.assume_reported(id_)
    calls = loop._api.calls  # type: ignore[attr-defined]
    calls.clear()
    assert loop.terminal_answers.answers() == {}
    assert len([call for call in calls if "/machineanswers?" in call.path]) == 1


def test_the_settled_answers_are_listed_once_however_many_answers_have_ended(site: Site) -> None:
    loop, ids = site.loop(), [site.request(1) for _ in range(5)]
    calls = loop._api.calls  # type: ignore[attr-defined]
    calls.clear()
    loop.status.write({id_: answer(id_, "complete", "succeed") for id_ in ids}, {}, {})
    assert sum("/machineanswers?" in call.path for call in calls) == 1


def test_an_assumed_answer_is_final(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    loop.terminal_answers.assume_reported(id_)
    loop.status.write({id_: answer(id_, "complete", "succeed")}, {}, {})
    assert site.get(REQUESTS, id_)["status"]["phase"] == "Complete"


def test_a_long_answer_is_cut_to_fit_into_its_object(site: Site) -> None:
    id_, loop = site.request(5000), site.loop()
    chance = random.Random(1)
    texts = ["".join(chance.choices(string.ascii_letters, k=300)) for _ in range(5000)]
    long = answer(id_, "complete_with_error", *["fail"] * 5000)
    machines = ",".join(f'{{"name": "{text[:20]}", "result": "fail", "message": "{text}"}}' for text in texts)
    long = Answer(
        f'{{"requestId": "{id_}", "status": "complete_with_error", "message": "", "machines": [{machines}]}}', True
    )
    loop.status.write({id_: long}, {}, {})
    status = site.get(REQUESTS, id_)["status"]
    assert len(status["answer"]) <= 400_000
    assert unpack(status["answer"])["text"].count('"name"') == 5000
    site.calls(loop)
    loop.status.write({id_: long}, {}, {})
    assert site.calls(loop) == []


def test_a_stale_loop_publishes_nothing(site: Site) -> None:
    id_, stale = site.request(), site.loop()
    site.loop(2).status.write({id_: answer(id_, "running", "succeed")}, {}, {})
    before = site.server.version
    with pytest.raises(StateStale):
        stale.status.write({id_: answer(id_)}, {}, {})
    assert site.server.version == before


def test_an_answer_of_a_request_that_was_deleted_is_left_out(site: Site) -> None:
    one, two, loop = site.request(), site.request(), site.loop()
    loop.status.write({one: answer(one), two: answer(two)}, {}, {})
    loop.intent.remove([one])
    loop.status.write({one: answer(one, "running", "succeed"), two: answer(two)}, {}, {})
    assert loop.status.read_all().keys() == {two}


def test_damaged_answers_are_named(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    loop.status.write({id_: answer(id_)}, {"m": Loss(0)}, {})
    site.patch(REQUESTS, id_, {"status": {"answer": pack(["nothing"])}}, "status")
    with pytest.raises(StateUnreadable, match=id_):
        loop.status.read_all()
    site.patch(STATES, "demo", {"status": {"lost": "AAAA"}}, "status")
    with pytest.raises(StateUnreadable, match="lost"):
        site.open().status.read_lost()


def test_a_long_log_is_put_into_its_places_at_the_end_of_a_cycle(site: Site) -> None:
    id_, loop = site.request(), site.loop()
    loop.status.write({id_: answer(id_)}, {}, {})
    with patch.object(memory_module, "MOST_LOGGED", 0):
        loop.beat()
    assert "PATCH stateparts/demo.memory" in site.calls(loop)


def events(site: Site) -> list[tuple[str, str, str, str]]:
    """Return kind of object, type, reason and note of each Event, the oldest first."""
    found = site.server.answer("GET", "/apis/events.k8s.io/v1/namespaces/hf/events")["items"]
    found.sort(key=lambda one: int(one["metadata"]["resourceVersion"]))
    return [(one["regarding"]["kind"], one["type"], one["reason"], one["note"]) for one in found]


def test_a_change_for_the_worse_is_an_event_and_its_repetition_is_none(site: Site) -> None:
    id_, loop = site.request(2), site.loop()
    for results in (["executing"], ["succeed", "executing"], ["succeed", "executing", "fail"]):
        loop.status.write({id_: answer(id_, "running", *results, text="stockout: no room")}, {}, {})
    failed = answer(id_, "complete_with_error", "succeed", "fail", text="stockout: no room")
    for epoch in (2, 3):
        site.loop(epoch).status.write({id_: failed}, {}, {})
    assert events(site) == [
        ("MachineRequest", "Warning", "MachinesMissing", "stockout: no room"),
        ("MachineRequest", "Warning", "MachinesFailed", "1 of 2 run, 1 failed. stockout: no room"),
    ]


def test_the_brake_is_an_event_when_it_is_latched_and_when_it_is_released(site: Site) -> None:
    loop = site.loop()
    for brake in (None, Brake(BrakeReason.MEMORY_LOST, 1.0, "made again"), None):
        loop.memory.write(Memory("demo", 1, brake=brake))
        loop.status.write({}, {}, {})
    assert events(site) == [
        ("ProvisionerState", "Warning", "BrakeLatched", "memory_lost: made again"),
        ("ProvisionerState", "Normal", "BrakeReleased", "memory_lost: made again"),
    ]


def test_many_changes_at_once_are_few_events_and_a_refused_event_changes_nothing(site: Site) -> None:
    ids, loop = [site.request() for _ in range(12)], site.loop()
    loop.status.write({id_: answer(id_, "running", "executing", text="no room") for id_ in ids}, {}, {})
    assert len(events(site)) == MOST
    site.server.remove_kind("events")
    loop.status.write({id_: answer(id_, "complete_with_error", "fail", text="no room") for id_ in ids}, {}, {})
    assert {site.get(REQUESTS, id_)["status"]["phase"] for id_ in ids} == {"Ended"}


def test_the_status_names_the_reason_for_machines_that_no_answer_has_yet(site: Site) -> None:
    waits, starts, loop = site.request(), site.request(), site.loop()
    window = Window(1, level=1, failure=Failure(ErrorClass.STOCKOUT, "no room in zone a"))
    loop.memory.write(Memory("demo", 1, windows={("gke-main", "t"): window}))
    answers = {id_: answer(id_) for id_ in (waits, starts)}
    loop.status.write(answers, {}, {})
    unmet = {
        waits: [Unmet("gke-main", PendingReason.BACKOFF, 2)],
        starts: [Unmet("gke-main", PendingReason.STARTING, 2)],
    }
    for _ in range(2):
        loop.write_pool_status(encode(PoolStatus(unmet={id_: tuple(each) for id_, each in unmet.items()})))
        loop.status.write(answers, {}, {})
    reasons = [site.get(REQUESTS, id_)["status"]["reason"] for id_ in (waits, starts)]
    assert reasons == ["gke-main: backoff: stockout: no room in zone a", ""]
    loop.status.write({waits: answer(waits, "running", "succeed", "executing"), starts: answers[starts]}, {}, {})
    assert site.get(REQUESTS, waits)["status"]["reason"] == reasons[0]
    unmet[waits] = [Unmet("gke-main", PendingReason.PAUSED, 1)]
    loop.write_pool_status(encode(PoolStatus(unmet={id_: tuple(each) for id_, each in unmet.items()})))
    assert site.get(REQUESTS, waits)["status"]["reason"] == "gke-main: paused"
    loop.status.write({waits: answer(waits, "complete", "succeed", "succeed"), starts: answers[starts]}, {}, {})
    assert site.get(REQUESTS, waits)["status"]["reason"] == ""
    assert [event[2] for event in events(site)] == ["MachinesMissing"]

"""Tests of the five commands: their answers, refusals, records, and poll markers."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_scripts.commands import COMMANDS
from provisioner import model
from provisioner.hostfactory import Answer, Loss
from provisioner.names import short_name
from provisioner.state.poll_markers import Seen
from provisioner.state.refused_calls import SCRIPTS
from provisioner.state.status_file import StatusStore
from tests.support.hostfactory.in_process import Here, asking, call_here, entry, heartbeat_before, publish
from tests.support.hostfactory.provider import GOLDEN, TEMPLATES, golden, requesting
from tests.support.hostfactory.schemas import check_input, check_output, mistakes, parsed
from tests.support.hostfactory.wrong_texts import changed


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, capfd)


# --- getAvailableTemplates --------------------------------------------------------------------------------------------


def test_all_templates_are_printed_with_what_the_file_says(hf: Here) -> None:
    recorded = golden("getAvailableTemplates-output")
    hf.templates_file.write_text(json.dumps({"templates": recorded["templates"]}))
    assert hf.answer("getAvailableTemplates", golden("getAvailableTemplates-input")) == recorded


def big(name: str) -> dict[str, object]:
    return TEMPLATES["templates"][0] | {"templateId": name, "attributes": {"type": "X86_64", "ncpus": 64, "nram": 9000}}


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        pytest.param([], ["T1", "T2", "T0", "Big"], id="no filter"),
        pytest.param(None, ["T1", "T2", "T0", "Big"], id="null"),
        pytest.param([{"templateId": "T2"}, {"templateId": "T1"}, {"templateId": "none"}], ["T1", "T2"], id="by id"),
        pytest.param({"templateId": "T2"}, ["T2"], id="one object"),
        pytest.param([{"attributes": {"ncpus": ["Numeric", "64"]}}], ["Big"], id="by attribute"),
        pytest.param([{"attributes": {"ncpus": 4, "nram": None}}], ["T1", "T2", "T0"], id="bare and null attributes"),
        pytest.param([{"templateId": None, "attributes": None}], ["T1", "T2", "T0", "Big"], id="nulls ask for nothing"),
        pytest.param(
            [{"templateId": "T1", "attributes": {"ncpus": 64}}, {"templateId": "Big", "attributes": {"ncpus": 64}}],
            ["Big"],
            id="both have to fit",
        ),
        pytest.param([{"templateId": "T1", "maxNumber": 3, "pgrpName": "x"}], ["T1"], id="other keys do not matter"),
    ],
)
def test_a_filter_leaves_out_what_does_not_fit(hf: Here, filters: object, ids: list[str]) -> None:
    hf.templates_file.write_text(json.dumps({"templates": [*TEMPLATES["templates"], big("Big")]}))
    answer = hf.answer("getAvailableTemplates", {"templates": filters})
    assert [template["templateId"] for template in answer["templates"]] == ids


def test_what_the_caps_leave_is_shown_as_the_loop_published_it(hf: Here) -> None:
    assert all("availableNumber" not in one for one in hf.answer("getAvailableTemplates", {})["templates"])
    publish(hf, {}, available={"T1": 7, "T0": 0})
    shown = hf.answer("getAvailableTemplates", {})["templates"]
    assert [one.get("availableNumber") for one in shown] == [7, None, 0]


def test_an_unreadable_record_of_the_numbers_shown_is_kept_and_logged(hf: Here) -> None:
    note = hf.work / "announced.json"
    for content in ("[]", '{"T1": true}', "{"):
        note.write_text(content)
        assert hf.answer("getAvailableTemplates", {})["templates"][0]["maxNumber"] == 10
        assert hf.log[-2]["problem"].startswith(str(note))
        assert note.read_text() == content


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_a_number_that_is_none_in_json_is_refused_rather_than_printed(hf: Here, number: str) -> None:
    hf.templates_file.write_text(json.dumps(TEMPLATES).replace('"maxNumber": 10', f'"maxNumber": 10, "x": {number}'))
    assert hf.refusal("getAvailableTemplates", {}) == f"{hf.templates_file}: not JSON: {number} is not a JSON number"


def test_a_refusal_for_a_reason_of_the_site_leaves_a_trace_and_a_wrong_call_does_not(hf: Here) -> None:
    assert tuple(sorted(COMMANDS)) == tuple(sorted(SCRIPTS))
    hf.refusal("requestMachines", {"template": {"templateId": "unknown", "machineCount": 1}})
    assert hf.answer("requestMachines", requesting())
    assert not hf.state.refused.read()
    hf.state.intent.set_aside()
    refused = [hf.refusal("requestMachines", requesting()) for _ in range(2)]
    unread = hf.refusal("getRequestStatus", asking("a" * 10))
    valid = hf.templates_file.read_text()
    hf.templates_file.write_text("[")
    invalid = hf.refusal("getAvailableTemplates", {})
    assert {one.script: (one.total, one.text) for one in hf.state.refused.read()} == {
        "requestMachines": (2, refused[1]),
        "getRequestStatus": (1, unread),
        "getAvailableTemplates": (1, invalid),
    }
    hf.templates_file.write_text(valid)
    hf.refusal("getAvailableTemplates", {"templates": [{"templateId": "unknown"}]})
    assert hf.state.refused.read()[0].recent == 1, "a wrong call"
    hf.answer("getAvailableTemplates", {})
    assert [(one.total, one.recent) for one in hf.state.refused.read()] == [(1, 0), (2, 2), (1, 1)]


@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_a_trace_that_cannot_be_left_does_not_change_the_answer(
    hf: Here, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    hf.templates_file.write_text("[")
    expected = hf.refusal("getAvailableTemplates", {})
    shutil.rmtree(hf.state.refused.path)
    real = getattr(os, call)

    def full(target: Any, *arguments: Any, **options: Any) -> Any:
        if str(target).startswith(hf.state.refused.path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(target, *arguments, **options)

    monkeypatch.setattr(os, call, full)
    assert hf.refusal("getAvailableTemplates", {}) == expected
    monkeypatch.undo()
    assert not hf.state.refused.read()


def test_what_an_earlier_answer_said_of_its_moment_is_not_repeated(hf: Here) -> None:
    stale = {"availableNumber": 3, "requestedMachines": ["hf-aaaaaaaaaa-000000"]}
    hf.templates_file.write_text(json.dumps({"templates": [TEMPLATES["templates"][0] | stale]}))
    [shown] = hf.answer("getAvailableTemplates", {})["templates"]
    assert shown.keys() & stale.keys() == set()


def test_settings_without_use_are_logged_when_hf_asks_for_the_templates(hf: Here) -> None:
    (hf.conf / "demoinstprov_config.json").write_text('{"PUBSUB_TIMEOUT": 600, "COLOUR": "red"}')
    assert hf.answer("getAvailableTemplates", {})
    assert hf.answer("requestMachines", requesting())
    assert [line["keys"] for line in hf.log if "keys" in line] == [["PUBSUB_TIMEOUT", "COLOUR"]]


def test_templates_need_no_state_directory(hf: Here) -> None:
    assert hf.answer("getAvailableTemplates", {}, HF_PROVIDER_WORKDIR="/nowhere")["templates"]
    assert "/nowhere" in hf.log[-2]["problem"]


# --- requestMachines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "machines",
    [0.0, 1e20, float("inf"), float("nan"), "", "-3", "1.0", "²", True, [], {}, 100_001, 10**30, "9" * 50],
)
def test_a_count_that_is_no_whole_number_from_one_is_refused(hf: Here, machines: object) -> None:
    text = hf.refusal("requestMachines", requesting("T1", machines))
    assert text == (
        f"the argument: template.machineCount: expected a whole number from 1 to 100000, got {json.dumps(machines)}"
    )
    assert hf.recorded() == ({}, {})


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("getAvailableTemplates", "HF_PROVIDER_CONFDIR"),
        ("requestMachines", "HF_PROVIDER_CONFDIR"),
        ("getRequestStatus", "HF_PROVIDER_WORKDIR"),
        ("requestReturnMachines", "HF_PROVIDER_WORKDIR"),
        ("getReturnRequests", "HF_PROVIDER_WORKDIR"),
    ],
)
def test_a_missing_variable_is_named(name: str, variable: str, tmp_path: Path) -> None:
    documents = {"requestMachines": requesting(), "getRequestStatus": asking("r-1"), "getAvailableTemplates": {}}
    document = documents.get(name, {"machines": {"name": "a"}})
    given = {"HF_PROVIDER_NAME": "demoinst"} | ({} if "CONF" in variable else {"HF_PROVIDER_CONFDIR": str(tmp_path)})
    assert call_here(name, [json.dumps(document)], given).refusal.startswith(variable)


def test_lsf_s_variables_serve_too(hf: Here) -> None:
    (hf.work / hf.instance).mkdir()
    lsf = {"PROVIDER_NAME": hf.instance, "PRO_CONF_DIR": str(hf.conf), "PRO_DATA_DIR": str(hf.work)}
    lsf["PRO_LSF_LOGDIR"] = str(hf.logs)
    listed = call_here("getAvailableTemplates", ["{}"], lsf).document
    assert listed["templates"][0]["attributes"]["mem"] == ["Numeric", "8192"]
    assert call_here("requestMachines", [json.dumps(requesting())], lsf).document
    assert (hf.work / hf.instance / "intent.json").exists()
    assert {line["command"] for line in hf.log} == {"getAvailableTemplates", "requestMachines"}


def test_where_memory_is_left_a_missing_intent_is_not_made_anew(hf: Here) -> None:
    hf.state.memory.write(model.Memory(provisioner="demo"))
    for name, document in (("requestMachines", requesting()), ("requestReturnMachines", {"machines": {"name": "a"}})):
        assert "intent.json" in hf.refusal(name, document)
    assert not hf.state.intent.exists()


def test_another_instance_s_state_directory_is_refused(hf: Here) -> None:
    hf.state.intent.create("elsewhere")
    for name, document in (("requestMachines", requesting()), ("requestReturnMachines", {"machines": {"name": "a"}})):
        words = f"belongs to HF's provider instance 'elsewhere', not to '{hf.instance}'; no file was changed"
        assert words in hf.refusal(name, document)
    assert hf.recorded() == ({}, {})


def test_a_missing_state_directory_is_not_made(hf: Here) -> None:
    hf.work.rmdir()
    for name, document in (
        ("requestMachines", requesting()),
        ("requestReturnMachines", {"machines": {"name": "a"}}),
        ("getRequestStatus", asking("abcdefghij")),
        ("getReturnRequests", {}),
    ):
        assert str(hf.work) in hf.refusal(name, document)
    assert not hf.work.exists()


# --- requestReturnMachines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machines", "names"),
    [
        pytest.param([{"name": "HF-A-000001.c.p.internal"}], ("hf-a-000001",), id="full name in capitals"),
        pytest.param([{"name": "b.x", "machineId": "hf-a-000001"}], ("hf-a-000001",), id="the id wins"),
        pytest.param([{"name": "a", "machineId": None}, {"name": "", "machineId": "b"}], ("a", "b"), id="null"),
        pytest.param([{"name": "a"}, {"name": "a.x"}, {"machineId": "a"}, {"name": "b"}], ("a", "b"), id="each once"),
    ],
)  # fmt: skip
def test_the_named_machines_are_recorded(hf: Here, machines: object, names: tuple[str, ...]) -> None:
    answer = hf.answer("requestReturnMachines", {"machines": machines})
    assert answer["requestId"].startswith("ret-")
    assert set(answer) == {"message", "requestId"}
    assert hf.recorded() == ({}, {answer["requestId"]: names})


def test_a_pod_s_uid_is_passed_over_where_a_name_stands_beside_it(hf: Here) -> None:
    uid = "40212ef7-cca5-45a1-9e4d-6e3c1846d424"
    back = hf.answer("requestReturnMachines", {"machines": [{"name": "Sym-1.x", "machineId": uid}, {"machineId": uid}]})
    assert hf.recorded()[1] == {back["requestId"]: ("sym-1", uid)}


# --- getReturnRequests ------------------------------------------------------------------------------------------------


def hosts(*names: str) -> dict[str, object]:
    return {"machines": [{"name": name, "machineId": short_name(name)} for name in names]}


@pytest.mark.parametrize("document", [{"machines": {}}, {"machines": None}, {"machines": [{"name": "a"}]}])
def test_without_losses_the_list_is_there_and_empty(hf: Here, document: object) -> None:
    answer = hf.answer("getReturnRequests", document)
    assert (answer["status"], answer["requests"]) == ("complete", [])


def test_of_the_listed_hosts_the_lost_ones_are_reported_as_hf_named_them(hf: Here) -> None:
    publish(hf, {}, {"a": 0, "b": 25, "unlisted": 0})
    answer = hf.answer("getReturnRequests", hosts("healthy.x", "A.c.internal", "b"))
    assert answer["requests"] == [
        {"machine": "A.c.internal", "machineId": "a", "gracePeriod": 0},
        {"machine": "b", "machineId": "b", "gracePeriod": 25},
    ]


def test_the_message_says_why_of_the_first_twenty(hf: Here) -> None:
    names = [f"h{number:02}" for number in range(22)]
    publish(hf, {}, {})
    hf.state.status.write({}, dict.fromkeys(names, Loss(0, "preempted")))
    assert hf.answer("getReturnRequests", hosts("h00"))["message"] == "Hosts to return: 1. h00: preempted."
    message = hf.answer("getReturnRequests", hosts(*names))["message"]
    assert message.startswith("Hosts to return: 22. h00: preempted, h01: preempted, ")
    assert message.endswith("h19: preempted and 2 more.")


def test_a_host_that_is_listed_twice_is_reported_once(hf: Here) -> None:
    publish(hf, {}, {"a": 0})
    assert len(hf.answer("getReturnRequests", hosts("a.x", "a.x"))["requests"]) == 1


def test_what_hf_lists_is_noted_only_when_it_lists(hf: Here) -> None:
    hf.answer("getReturnRequests", {})
    assert hf.state.inventory.read() is None
    hf.answer("getReturnRequests", {"machines": [{"name": "A.x"}, {"name": "b", "machineId": "c"}]})
    inventory = hf.state.inventory.read()
    assert inventory is not None
    assert inventory[0] == ("a", "c")
    hf.answer("getReturnRequests", {"machines": []})
    emptied = hf.state.inventory.read()
    assert emptied is not None
    assert emptied[0] == ()


@pytest.mark.parametrize(
    ("lists", "noted"),
    [
        pytest.param(["ab", "cd"], "abcd", id="two parts"),
        pytest.param(["ab", "cd", "ab"], "ab", id="the next round begins"),
        pytest.param(["ab", "cd", "ab", "cd"], "abcd", id="the next round is whole"),
        pytest.param(["abc", "bcd"], "bcd", id="a whole list after another"),
        pytest.param(["ab", ""], "", id="no hosts any more"),
        pytest.param(["ab", "", "cd"], "cd", id="the first again"),
    ],
)
def test_the_parts_of_a_list_are_recorded_together_however_seldom_the_loop_reads(
    hf: Here, lists: list[str], noted: str
) -> None:
    for names in lists:
        hf.answer("getReturnRequests", {"machines": [{"name": name} for name in names]})
    assert (hf.state.inventory.read() or ((), 0))[0] == tuple(noted)


def test_a_damaged_list_makes_room_for_the_next(hf: Here) -> None:
    Path(hf.state.inventory.path).write_text("{")
    hf.answer("getReturnRequests", hosts("a.x"))
    assert (hf.state.inventory.read() or ((), 0))[0] == ("a",)


def test_an_answer_is_printed_whole_however_little_is_taken_at_a_time(
    hf: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hf.answer("getAvailableTemplates", {})
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7] if file == 1 else data))
    assert hf.answer("getAvailableTemplates", {}) == whole


# --- the schemas and the fixtures -------------------------------------------------------------------------------------


def recorded_names(kind: str) -> list[str]:
    """Return the names of the recorded documents, without the recorded failure. ``kind``: ``input`` or ``output``."""
    return sorted(file.stem for file in GOLDEN.glob(f"*-{kind}*.json") if not file.stem.endswith("failure"))


def test_every_recorded_document_passes_its_schema_but_the_recorded_failure() -> None:
    for name in recorded_names("output"):
        check_output(name.split("-")[0], golden(name))
    assert mistakes("out_accepted", golden("requestMachines-output-failure"))


@pytest.mark.parametrize("name", recorded_names("input"))
def test_every_recorded_input_is_answered(hf: Here, name: str) -> None:
    hf.templates_file.write_text(json.dumps({"templates": golden("getAvailableTemplates-output")["templates"]}))
    command = name.split("-")[0]
    check_input(command, golden(name))
    assert hf.answer(command, golden(name))


def test_the_published_text_is_printed_byte_for_byte(hf: Here) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
    text = entry(request, "complete", "é")[:-1] + ',  "extra":1.50}'
    publish(hf, {request: Answer(text, ended=True)})
    assert hf.ask("getRequestStatus", json.dumps(asking(request))) == (0, '{"requests": [' + text + "]}")


@pytest.mark.parametrize("name", ["/etc/passwd", "é", "\ud800", "x" * 5000])
def test_an_unknown_id_ends_with_an_error_and_leaves_no_trace(hf: Here, name: str) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
    hf.answer("getRequestStatus", asking(request))
    before = sorted(path for path in hf.work.rglob("*"))
    [answered] = hf.answer("getRequestStatus", asking(name))["requests"]
    assert (answered["requestId"], answered["status"], answered["machines"]) == (name, "complete_with_error", [])
    assert sorted(path for path in hf.work.rglob("*")) == before


LIST, REQUEST, POLL, GIVE_BACK = (name for name in COMMANDS if name != "getReturnRequests")
NO_LIST = "expected a list or an object, got"
WRONG = [
    (
        LIST,
        {"templates": [{"templateId": "none"}]},
        "templates: expected a filter that matches one of T1, T2, T0, got [{",
    ),
    (
        LIST,
        {"templates": [{"attributes": {"zone": "a"}}]},
        "templates: expected a filter that matches one of T1, T2, T0, got ",
    ),
    (LIST, {"templates": "T1"}, f'templates: {NO_LIST} "T1"'),
    (LIST, {"templates": [3]}, "templates[0]: expected an object, got 3"),
    (LIST, {"templates": [{"templateId": 7}]}, "templates[0].templateId: expected a text, got 7"),
    (LIST, {"templates": {"attributes": []}}, "templates.attributes: expected an object, got []"),
    (LIST, {"templates": [{"attributes": {"ncpus": "x"}}]}, "templates[0].attributes.ncpus: expected a number above 0"),
    (REQUEST, {"template": {"machineCount": 1}}, "template.templateId: is missing"),
    (REQUEST, requesting(7, 1), "template.templateId: expected a text, got 7"),
    (GIVE_BACK, {"machines": {}}, "machines: the list is empty"),
    (GIVE_BACK, {"machines": None}, f"machines: {NO_LIST} null"),
    (GIVE_BACK, {"machines": ["a"]}, 'machines[0]: expected an object, got "a"'),
    (GIVE_BACK, {"machines": {"name": 7}}, "machines.name: expected a host name, got 7"),
    (GIVE_BACK, {"machines": {"name": ""}}, "machines: name and machineId are missing"),
    (GIVE_BACK, {"machines": {"name": ".x"}}, 'machines.name: expected a host name, got ".x"'),
    (POLL, {"requests": None}, f"requests: {NO_LIST} null"),
    (POLL, {"requests": ["abc"]}, 'requests[0]: expected an object, got "abc"'),
    (POLL, {"requests": {}}, "requests: the list is empty"),
    (POLL, {"requests": {"requestId": ""}}, 'requests.requestId: expected a text, got ""'),
]
"""Documents in addition to the cases of tests/conformance."""


@pytest.mark.parametrize(("name", "document", "words"), WRONG, ids=[f"{name}: {words}" for name, _, words in WRONG])
def test_a_document_without_what_is_needed_is_refused_and_nothing_is_recorded(
    hf: Here, name: str, document: object, words: str
) -> None:
    assert hf.refusal(name, document).startswith(f"the argument: {words}")
    assert not hf.state.intent.exists()


def test_a_poll_is_noted_before_the_answer_is_read(hf: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
    events: list[str] = []
    read, touch = StatusStore.read_answers, Seen.touch

    def noted_read(status: StatusStore, identifiers: Iterable[str]) -> dict[str, Answer]:
        events.append("read")
        return read(status, identifiers)

    def noted_touch(seen: Seen, name: str) -> int:
        events.append("touch")
        return touch(seen, name)

    monkeypatch.setattr(StatusStore, "read_answers", noted_read)
    monkeypatch.setattr(Seen, "touch", noted_touch)
    hf.answer("getRequestStatus", asking(request))
    assert events == ["read", "touch", "read"], "at the first poll only a known id may be noted, and is read again"
    events.clear()
    hf.answer("getRequestStatus", asking(request))
    assert events == ["touch", "read"]


def test_an_answer_published_between_first_read_and_marker_is_printed(
    hf: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the loop publishes a newer answer after the script's first read and before the script writes its poll marker,
    the script must print the newer answer."""
    request = hf.answer("requestMachines", requesting())["requestId"]
    touch = Seen.touch

    def touch_late(seen: Seen, name: str) -> int:
        publish(hf, {name: Answer(entry(name, message="cancelling"), ended=False)})
        return touch(seen, name)

    monkeypatch.setattr(Seen, "touch", touch_late)
    assert hf.answer("getRequestStatus", asking(request))["requests"][0]["message"] == "cancelling"


def test_only_a_terminal_answer_is_settled_and_before_it_is_printed(hf: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, running = (hf.answer("requestMachines", requesting())["requestId"] for _ in range(2))
    publish(hf, {ended: Answer(entry(ended, "complete"), ended=True), running: Answer(entry(running), ended=False)})
    settled: list[frozenset[str]] = []
    write = os.write

    def printing(file: int, content: bytes) -> int:
        if file == 1:
            settled.append(hf.state.terminal_answers.ids())
        return write(file, content)

    monkeypatch.setattr(os, "write", printing)
    assert hf.answer("getRequestStatus", asking(ended, running, "nosuch"))
    assert settled == [{ended}]


def test_each_poll_moves_its_mark(hf: Here) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
    assert hf.state.seen.marks() == {}, "a call that makes a request is no poll of it"
    hf.answer("getRequestStatus", asking(request))
    os.utime(hf.work / "seen" / request, (1, 1))
    hf.answer("getRequestStatus", asking(request))
    assert hf.state.seen.marks()[request] > 2_000_000_000


def test_a_silent_loop_is_reported_in_the_message_of_requests_that_have_not_ended(hf: Here) -> None:
    ended, open_, unpublished = (hf.answer("requestMachines", requesting())["requestId"] for _ in range(3))
    machines = [{"machineId": "m", "name": "m", "result": "executing", "privateIpAddress": "", "launchtime": 0}]
    publish(
        hf,
        {
            ended: Answer(entry(ended, "complete", "done"), ended=True),
            open_: Answer(entry(open_, message="stock-out", machines=machines), ended=False),
        },
    )
    heartbeat_before(hf, 90)
    first, second, third = hf.answer("getRequestStatus", asking(ended, open_, unpublished))["requests"]
    assert (first["status"], first["message"]) == ("complete", "done")
    assert second == json.loads(entry(open_, message=second["message"], machines=machines))
    assert re.fullmatch(r"The provisioner has not run for \d+ s\. stock-out", second["message"])
    assert re.fullmatch(r"The provisioner has not run for \d+ s\. Waiting for the provisioner\.", third["message"])
    assert third["status"] == "running"


def test_requests_and_returns_tell_of_a_silent_loop_too(hf: Here) -> None:
    assert "has not run" not in hf.answer("requestMachines", requesting())["message"]
    heartbeat_before(hf, 120)
    for name, document in (("requestMachines", requesting()), ("requestReturnMachines", {"machines": {"name": "a"}})):
        assert hf.answer(name, document)["message"].startswith("The provisioner has not run for 1")


def test_an_unreadable_heartbeat_turns_no_record_into_a_failure(hf: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.state.heartbeat.touch()
    stat = os.lstat

    def refused(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if path == hf.state.heartbeat.path:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "lstat", refused)
    request = hf.answer("requestMachines", requesting())["requestId"]
    back = hf.answer("requestReturnMachines", {"machines": {"name": "a"}})["requestId"]
    assert [entry["status"] for entry in hf.answer("getRequestStatus", asking(request, back))["requests"]] == [
        "running",
        "running",
    ]


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"[]", b"{}", b'{"meta": {"state": {"schema": 99}}}'])
@pytest.mark.parametrize("file", ["status.json", "intent.json"])
def test_an_unreadable_state_is_exit_1_and_left_as_it_is(hf: Here, file: str, content: bytes) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
    if file == "status.json":
        publish(hf, {request: Answer(entry(request, "complete"), ended=True)})
    (hf.work / file).write_bytes(content)
    assert str(hf.work / file) in hf.refusal("getRequestStatus", asking(request))
    if file == "intent.json":
        assert file in hf.refusal("requestMachines", requesting())
        assert file in hf.refusal("requestReturnMachines", {"machines": {"name": "a"}})
    else:
        assert file in hf.refusal("getReturnRequests", {"machines": [{"name": "a"}]})
    assert (hf.work / file).read_bytes() == content


def test_of_an_id_like_ours_nothing_is_said_where_no_state_is(hf: Here) -> None:
    """A script records an id before it prints the id. So an id of our form can be unknown only if the state was lost or
    is not mounted. The script then refuses the call instead of reporting an end."""
    assert "intent.json" in hf.refusal("getRequestStatus", asking("abcdefghij"))
    [answered] = hf.answer("getRequestStatus", asking("r-010d8f03b13097efd"))["requests"]
    assert answered["status"] == "complete_with_error"


FUZZ = settings(
    max_examples=80,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

KEYS = st.sampled_from(
    (
        *("template", "templateId", "machineCount", "requests", "requestId", "machines", "name", "machineId"),
        *("templates", "attributes", "ncpus", "maxNumber", "rc_account", "userData", ""),
    )
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 3),
    st.sampled_from([10**30, -(10**400), 100_000, 100_001]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["T1", "T2", "T0", "3", "abcdefghij", "../x", "a.b", ".", "\ud800", "é\n", "\0", "x" * 300]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=3)
RECORDED = [json.loads(file.read_text()) for file in sorted(GOLDEN.glob("*-input*.json"))]


def judge(hf: Here, name: str, *arguments: str) -> None:
    """Call a script once, and check that it answers or refuses."""
    for file in ("intent.json", "intent.json.lock"):
        (hf.work / file).unlink(missing_ok=True)
    code, out = hf.ask(name, *arguments)
    requests, returns = hf.recorded()
    assert code in (0, 1)
    assert "\n" not in out
    if code == 1:
        assert out, "a refusal says why"
        assert (requests, returns) == ({}, {}), "a record without an answer"
        return
    answer = parsed(out)
    check_output(name, answer)
    records = [*requests, *returns]
    assert records == ([answer["requestId"]] if name.startswith("request") else []), "an answer without its record"


@FUZZ
@given(
    name=st.sampled_from(list(COMMANDS)),
    document=st.sampled_from([*RECORDED, requesting("T1", 3)]),
    chance=st.integers(0, 200),
    what=VALUES,
)
def test_a_recorded_document_with_one_thing_changed_is_answered_or_refused(
    hf: Here, name: str, document: object, chance: int, what: object
) -> None:
    judge(hf, name, json.dumps(changed(document, chance, what)))


@FUZZ
@given(
    name=st.sampled_from(list(COMMANDS)),
    document=st.sampled_from([*RECORDED, requesting()]),
    at=st.floats(0, 1),
    cut=st.integers(0, 9),
    put=st.binary(max_size=4),
)
def test_a_recorded_document_with_bytes_changed_is_answered_or_refused(
    hf: Here, name: str, document: object, at: float, cut: int, put: bytes
) -> None:
    text = json.dumps(document, indent="\t").encode()
    place = int(at * len(text))
    hf.input.write_bytes(text[:place] + put + text[place + cut :])
    judge(hf, name, "-f", str(hf.input))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("depth", [100, 990, 100_000])
def test_a_document_as_deep_as_it_may_be_is_answered_or_refused(hf: Here, name: str, depth: int) -> None:
    for key in ("template", "requests", "machines", "templates", "x"):
        judge(hf, name, f'{{"{key}": ' + "[" * depth + "]" * depth + "}")


@settings(FUZZ, max_examples=30)
@given(chance=st.integers(0, 200), what=VALUES, name=st.sampled_from(["getAvailableTemplates", "requestMachines"]))
def test_any_templates_file_is_used_or_refused(hf: Here, chance: int, what: object, name: str) -> None:
    (hf.work / "announced.json").unlink(missing_ok=True)
    hf.templates_file.write_text(json.dumps(changed(TEMPLATES, chance, what)))
    judge(hf, name, json.dumps(requesting("T1", 1) if name == "requestMachines" else {}))


CONFIG = {"LOG_LEVEL": "INFO", "LOG_MAX_FILE_SIZE": 1, "LOG_MAX_ROTATE": 2, "HF_LISTFILENAME": "", "LOGFILE": ""}


@settings(FUZZ, max_examples=30)
@given(chance=st.integers(0, 50), what=LEAVES | DOCUMENTS, name=st.sampled_from(list(COMMANDS)))
def test_any_provider_config_is_used_or_refused(hf: Here, chance: int, what: object, name: str) -> None:
    if what == "../x":  # a log's place is the site's choice, and it would be taken
        what = None
    (hf.conf / "demoinstprov_config.json").write_text(json.dumps(changed(CONFIG, chance, what)))
    documents = {"requestMachines": requesting("T1", 1), "getRequestStatus": asking("abcdefghij")}
    judge(hf, name, json.dumps(documents.get(name, {"machines": {"name": "a"}})))


DAMAGES = {
    "cut off": lambda content, at: content[:at],
    "a block of zeros": lambda content, at: content[:at] + b"\0" * 16 + content[at + 16 :],
    "zeros at its end": lambda content, at: content[:at].ljust(len(content), b"\0"),
    "its end twice": lambda content, at: content + content[at:],
}
"""Contents of a file after a crash, on a full disk, or after a careless copy."""


@pytest.mark.parametrize("file", ["status.json", "intent.json", "announced.json", "hf-inventory.json"])
@settings(FUZZ, max_examples=15)
@given(damage=st.sampled_from(list(DAMAGES)), share=st.floats(0, 0.999), name=st.sampled_from(list(COMMANDS)))
def test_a_damaged_state_file_is_exit_1_or_does_not_matter(
    hf: Here, file: str, damage: str, share: float, name: str
) -> None:
    for older in hf.work.glob("*.json*"):
        older.unlink()
    request = hf.answer("requestMachines", requesting())["requestId"]
    publish(hf, {request: Answer(entry(request, "complete"), ended=True)}, {"a": 0}, {"T1": 3})
    hf.answer("getAvailableTemplates", {})
    hf.answer("getReturnRequests", {"machines": [{"name": "a"}]})
    content = (hf.work / file).read_bytes()
    damaged = DAMAGES[damage](content, int(share * len(content)))
    (hf.work / file).write_bytes(damaged)
    documents = {"requestMachines": requesting(), "getRequestStatus": asking(request), "getAvailableTemplates": {}}
    code, out = hf.ask(name, json.dumps(documents.get(name, {"machines": {"name": "b"}})))
    if code == 0:
        check_output(name, parsed(out))
    else:
        assert (code, "\n" in out, file in out) == (1, False, True)
    if (name, file) != ("getReturnRequests", "hf-inventory.json"):
        assert (hf.work / file).read_bytes() == damaged

"""The commands that list templates, record requests and returns, and report losses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from provisioner import model
from provisioner.hostfactory.answer import Loss
from provisioner.names import REQUEST_ID_LENGTH, short_name
from tests.support.hostfactory.in_process import Here, asking, publish
from tests.support.hostfactory.provider import TEMPLATES, golden, requesting
from tests.support.hostfactory.schemas import check_input, check_output, mistakes


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


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ([{"templateId": "none"}], 'templates: expected what fits one of T1, T2, T0, got [{"templateId": "none"}]'),
        ([{"attributes": {"zone": "a"}}], "templates: expected what fits one of T1, T2, T0, got "),
        ("T1", 'templates: expected a list or an object, got "T1"'),
        ([3], "templates[0]: expected an object, got 3"),
        ([{"templateId": 7}], "templates[0].templateId: expected a text, got 7"),
        ({"attributes": []}, "templates.attributes: expected an object, got []"),
        ([{"attributes": {"ncpus": "many"}}], 'templates[0].attributes.ncpus: expected a number above 0, got "many"'),
    ],
)
def test_a_filter_that_fits_nothing_is_refused(hf: Here, filters: object, words: str) -> None:
    assert hf.refusal("getAvailableTemplates", {"templates": filters}).startswith(f"the argument: {words}")


def test_what_the_caps_leave_is_shown_as_the_loop_published_it(hf: Here) -> None:
    assert all("availableNumber" not in one for one in hf.answer("getAvailableTemplates", {})["templates"])
    publish(hf, {}, available={"T1": 7, "T0": 0})
    shown = hf.answer("getAvailableTemplates", {})["templates"]
    assert [one.get("availableNumber") for one in shown] == [7, None, 0]


def test_a_note_of_the_numbers_shown_that_cannot_be_read_is_left_and_told(hf: Here) -> None:
    note = hf.work / "announced.json"
    for content in ("[]", '{"T1": true}', "{"):
        note.write_text(content)
        assert hf.answer("getAvailableTemplates", {})["templates"][0]["maxNumber"] == 10
        assert hf.log[-2]["problem"].startswith(str(note))
        assert note.read_text() == content


@pytest.mark.parametrize(
    "content", ["", '{"templates": [', '{"templates": []}', '{"templates": [{"templateId": "x"}]}']
)
def test_without_one_usable_template_the_call_fails_rather_than_listing_none(hf: Here, content: str) -> None:
    hf.templates_file.write_text(content)
    assert hf.refusal("getAvailableTemplates", {}).startswith(f"{hf.templates_file}: ")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_in_json_is_refused_rather_than_printed(hf: Here, number: str) -> None:
    hf.templates_file.write_text(json.dumps(TEMPLATES).replace('"maxNumber": 10', f'"maxNumber": 10, "x": {number}'))
    assert hf.refusal("getAvailableTemplates", {}) == f"{hf.templates_file}: not JSON: {number} is no number of JSON"


def test_what_an_earlier_answer_said_of_its_moment_is_not_repeated(hf: Here) -> None:
    stale = {"availableNumber": 3, "requestedMachines": ["hf-aaaaaaaaaa-000000"]}
    hf.templates_file.write_text(json.dumps({"templates": [TEMPLATES["templates"][0] | stale]}))
    [shown] = hf.answer("getAvailableTemplates", {})["templates"]
    assert shown.keys() & stale.keys() == set()


def test_an_invalid_template_is_left_out_and_logged(hf: Here) -> None:
    hf.templates_file.write_text(json.dumps({"templates": [*TEMPLATES["templates"], {"templateId": "bad"}]}))
    assert len(hf.answer("getAvailableTemplates", {})["templates"]) == 3
    assert [(line["severity"], line.get("problem")) for line in hf.log] == [
        ("WARNING", f"{hf.templates_file}: templates[3].maxNumber: expected a whole number from -1 to 10000, got null"),
        ("INFO", None),
    ]


def test_settings_without_use_are_logged_when_hf_asks_for_the_templates(hf: Here) -> None:
    (hf.conf / "demoinstprov_config.json").write_text('{"PUBSUB_TIMEOUT": 600, "COLOUR": "red"}')
    assert hf.answer("getAvailableTemplates", {})
    assert hf.answer("requestMachines", requesting())
    assert [line["keys"] for line in hf.log if "keys" in line] == [["PUBSUB_TIMEOUT", "COLOUR"]]


def test_templates_need_no_state_directory(hf: Here) -> None:
    assert hf.answer("getAvailableTemplates", {}, HF_PROVIDER_WORKDIR="/nowhere")["templates"]
    assert "/nowhere" in hf.log[-2]["problem"]


# --- requestMachines --------------------------------------------------------------------------------------------------


def test_a_request_is_recorded_before_its_id_is_printed(hf: Here) -> None:
    answer = hf.answer("requestMachines", requesting("T1", 3))
    assert set(answer) == {"message", "requestId"}
    assert hf.recorded() == ({answer["requestId"]: ("T1", 3)}, {})
    assert len(answer["requestId"]) == REQUEST_ID_LENGTH


def test_two_equal_calls_are_two_requests(hf: Here) -> None:
    first, second = (hf.answer("requestMachines", requesting())["requestId"] for _ in range(2))
    assert hf.recorded() == ({first: ("T1", 3), second: ("T1", 3)}, {})


def test_more_than_max_number_and_ten_thousand_are_recorded(hf: Here) -> None:
    assert hf.answer("requestMachines", requesting("T1", 11))
    assert hf.answer("requestMachines", requesting("T2", 10_000))
    assert sorted(hf.recorded()[0].values()) == [("T1", 11), ("T2", 10_000)]


def test_lsf_s_account_is_recorded_and_its_user_data_accepted(hf: Here) -> None:
    document = golden("requestMachines-input-lsf")
    check_input("requestMachines", document)
    request = hf.answer("requestMachines", document | requesting("T1", 2))["requestId"]
    assert hf.state.intent.read().requests[request].rc_account == "default"


@pytest.mark.parametrize(
    "machines",
    [
        0,
        -1,
        1.5,
        0.0,
        1e20,
        float("inf"),
        float("nan"),
        "abc",
        "",
        "-3",
        "1.0",
        "²",
        None,
        True,
        [],
        {},
        100_001,
        10**30,
        "9" * 50,
    ],
)
def test_a_count_that_is_no_whole_number_from_one_is_refused(hf: Here, machines: object) -> None:
    text = hf.refusal("requestMachines", requesting("T1", machines))
    assert text == (
        f"the argument: template.machineCount: expected a whole number from 1 to 100000, got {json.dumps(machines)}"
    )
    assert hf.recorded() == ({}, {})


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param({}, "template: is missing", id="no template"),
        pytest.param({"template": "T1"}, 'template: expected an object, got "T1"', id="template is a text"),
        pytest.param({"template": {"machineCount": 1}}, "template.templateId: is missing", id="no id"),
        pytest.param(requesting("", 1), 'template.templateId: expected a text, got ""', id="empty id"),
        pytest.param(requesting(7, 1), "template.templateId: expected a text, got 7", id="id is a number"),
        pytest.param({"template": {"templateId": "T1"}}, "template.machineCount: is missing", id="no count"),
        pytest.param(requesting("nosuch"), 'template.templateId: expected one of T1, T2, T0, got "nosuch"',
                     id="unknown"),
        pytest.param(requesting("T0", 1), "template.templateId: maxNumber of T0 is 0: none may be requested",
                     id="none may"),
    ],
)  # fmt: skip
def test_a_wrong_template_is_refused_and_nothing_is_recorded(hf: Here, document: object, words: str) -> None:
    assert hf.refusal("requestMachines", document) == f"the argument: {words}"
    assert hf.recorded() == ({}, {})
    assert not hf.state.intent.exists()


def test_where_memory_is_left_a_missing_intent_is_not_made_anew(hf: Here) -> None:
    hf.state.memory.write(model.Memory(provisioner="demo"))
    for name, document in (("requestMachines", requesting()), ("requestReturnMachines", {"machines": {"name": "a"}})):
        assert "intent.json" in hf.refusal(name, document)
    assert not hf.state.intent.exists()


def test_another_instance_s_state_directory_is_refused(hf: Here) -> None:
    hf.state.intent.create("elsewhere")
    for name, document in (("requestMachines", requesting()), ("requestReturnMachines", {"machines": {"name": "a"}})):
        words = f"belongs to HF's provider instance 'elsewhere', not to '{hf.instance}'; nothing was changed"
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
        pytest.param({"name": "hf-a-000001"}, ("hf-a-000001",), id="one object"),
        pytest.param([{"name": "hf-a-000001"}], ("hf-a-000001",), id="name only"),
        pytest.param([{"machineId": "hf-a-000001"}], ("hf-a-000001",), id="id only"),
        pytest.param([{"name": "HF-A-000001.c.p.internal"}], ("hf-a-000001",), id="full name in capitals"),
        pytest.param([{"name": "b.x", "machineId": "hf-a-000001"}], ("hf-a-000001",), id="the id wins"),
        pytest.param([{"name": "a", "machineId": None}, {"name": "", "machineId": "b"}], ("a", "b"), id="null"),
        pytest.param([{"name": "a"}, {"name": "a.x"}, {"machineId": "a"}, {"name": "b"}], ("a", "b"), id="each once"),
        pytest.param([{"name": f"m{n}"} for n in range(1000)], tuple(f"m{n}" for n in range(1000)), id="a thousand"),
    ],
)  # fmt: skip
def test_the_named_machines_are_recorded(hf: Here, machines: object, names: tuple[str, ...]) -> None:
    answer = hf.answer("requestReturnMachines", {"machines": machines})
    assert answer["requestId"].startswith("ret-")
    assert set(answer) == {"message", "requestId"}
    assert hf.recorded() == ({}, {answer["requestId"]: names})


def test_the_same_machine_may_be_returned_twice(hf: Here) -> None:
    first, second = (hf.answer("requestReturnMachines", {"machines": {"name": "a"}})["requestId"] for _ in range(2))
    assert hf.recorded() == ({}, {first: ("a",), second: ("a",)})


def test_a_name_that_is_not_the_machine_s_id_is_logged(hf: Here) -> None:
    hf.answer(
        "requestReturnMachines", {"machines": [{"name": "b.x", "machineId": "a"}, {"name": "c", "machineId": "c"}]}
    )
    assert hf.log[-1]["name_is_not_machine_id"] == ["b.x"]


def test_a_pod_s_uid_is_passed_over_where_a_name_stands_beside_it(hf: Here) -> None:
    uid = "40212ef7-cca5-45a1-9e4d-6e3c1846d424"
    back = hf.answer("requestReturnMachines", {"machines": [{"name": "Sym-1.x", "machineId": uid}, {"machineId": uid}]})
    assert hf.recorded()[1] == {back["requestId"]: ("sym-1", uid)}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param({}, "machines: is missing", id="missing"),
        pytest.param({"machines": []}, "machines: the list is empty", id="empty"),
        pytest.param({"machines": {}}, "machines: the list is empty", id="empty object"),
        pytest.param({"machines": None}, "machines: expected a list or an object, got null", id="null"),
        pytest.param({"machines": ["a"]}, 'machines[0]: expected an object, got "a"', id="list of texts"),
        pytest.param({"machines": [{"name": "a"}, {}]}, "machines[1]: name and machineId are missing", id="neither"),
        pytest.param({"machines": {"name": 7}}, "machines.name: expected a host name, got 7", id="name is a number"),
        pytest.param({"machines": {"name": ""}}, "machines: name and machineId are missing", id="empty text"),
        pytest.param({"machines": {"name": ".x"}}, 'machines.name: expected a host name, got ".x"', id="only a domain"),
    ],
)  # fmt: skip
def test_a_return_of_nothing_is_refused(hf: Here, document: object, words: str) -> None:
    assert hf.refusal("requestReturnMachines", document) == f"the argument: {words}"
    assert not hf.state.intent.exists()


# --- getReturnRequests ------------------------------------------------------------------------------------------------


def hosts(*names: str) -> dict[str, object]:
    return {"machines": [{"name": name, "machineId": short_name(name)} for name in names]}


@pytest.mark.parametrize(
    "document", [{}, {"machines": []}, {"machines": {}}, {"machines": None}, {"machines": [{"name": "a"}]}]
)
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
    assert hf.answer("getReturnRequests", hosts("h00"))["message"] == "Lost hosts: 1. h00: preempted."
    message = hf.answer("getReturnRequests", hosts(*names))["message"]
    assert message.startswith("Lost hosts: 22. h00: preempted, h01: preempted, ")
    assert message.endswith("h19: preempted and 2 more.")


def test_the_recorded_loss_is_reported_as_it_was_recorded(hf: Here) -> None:
    document = golden("getReturnRequests-input")
    publish(hf, {}, {document["machines"][0]["machineId"]: 0})
    answer = hf.answer("getReturnRequests", document)
    recorded = golden("getReturnRequests-output")
    assert [entry | recorded["requests"][0] for entry in answer["requests"]] == answer["requests"]
    assert answer["status"] == recorded["status"]


def test_a_host_that_is_listed_twice_is_reported_once(hf: Here) -> None:
    publish(hf, {}, {"a": 0})
    assert len(hf.answer("getReturnRequests", hosts("a.x", "a.x"))["requests"]) == 1


def test_hosts_without_an_id_are_matched_by_name(hf: Here) -> None:
    publish(hf, {}, {"a": 0})
    answer = hf.answer("getReturnRequests", {"machines": [{"name": "A.x"}]})
    assert [entry["machine"] for entry in answer["requests"]] == ["A.x"]


def test_a_loss_is_reported_again_until_hf_gives_the_host_back(hf: Here) -> None:
    publish(hf, {}, {"a": 0})
    for _ in range(2):
        assert len(hf.answer("getReturnRequests", hosts("a.x"))["requests"]) == 1
    hf.answer("requestReturnMachines", hosts("a.x"))
    assert hf.answer("getReturnRequests", hosts("a.x"))["requests"] == []


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
def test_the_parts_of_a_list_are_noted_together_however_seldom_the_loop_looks(
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


def test_every_recorded_document_passes_its_schema_but_the_recorded_failure() -> None:
    for name in (
        "getAvailableTemplates-output",
        "requestMachines-output",
        "getRequestStatus-output",
        "requestReturnMachines-output",
        "requestReturnMachines-output-nothing-left",
        "getReturnRequests-output",
    ):
        check_output(name.split("-")[0], golden(name))
    assert mistakes("out_accepted", golden("requestMachines-output-failure"))


@pytest.mark.parametrize(
    "name",
    [
        "getAvailableTemplates-input",
        "getAvailableTemplates-input-filter",
        "requestMachines-input",
        "requestMachines-input-lsf",
        "getRequestStatus-input",
        "getRequestStatus-input-object",
        "requestReturnMachines-input",
        "requestReturnMachines-input-object",
        "getReturnRequests-input",
    ],
)
def test_every_recorded_input_is_answered(hf: Here, name: str) -> None:
    hf.templates_file.write_text(json.dumps({"templates": golden("getAvailableTemplates-output")["templates"]}))
    command = name.split("-")[0]
    check_input(command, golden(name))
    assert hf.answer(command, golden(name))

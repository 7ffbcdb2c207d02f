"""The five commands in process: what they take, what they print, what they record."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hf_scripts import commands, documents
from provisioner import model, store
from provisioner.store import Answer, Loss
from tests.hostfactory import TEMPLATES, HostFactory, golden
from tests.schemas import check_input, check_output, mistakes


class Here(HostFactory):
    """HostFactory whose scripts run in this process: the same answers, without a process each."""

    capture: pytest.CaptureFixture[str]

    def ask(self, name: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit code and stdout of a call."""
        self.capture.readouterr()
        code = commands.run(name, list(arguments), self.environment | environment)
        out, err = self.capture.readouterr()
        assert err == ""
        assert out.endswith("\n")
        return code, out[:-1]

    def answer(self, name: str, document: object, **environment: str) -> Any:
        """The document a command answers with, by its schema."""
        code, out = self.ask(name, json.dumps(document), **environment)
        assert code == 0, out
        check_output(name, json.loads(out))
        return json.loads(out)

    def refusal(self, name: str, document: object) -> str:
        """The line a command prints instead of an answer."""
        code, out = self.ask(name, json.dumps(document))
        assert code == 1
        assert "\n" not in out
        return out

    def recorded(self) -> tuple[dict[str, tuple[str, int]], dict[str, tuple[str, ...]]]:
        """Requests and returns as intent holds them."""
        if not self.state.intent.exists():
            return {}, {}
        intent = self.state.intent.read()
        requests = {name: (entry.template, entry.count) for name, entry in intent.requests.items()}
        return requests, {name: entry.names for name, entry in intent.returns.items()}


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    here = Here(tmp_path)
    here.capture = capfd
    return here


def wish(template: object = "T1", machines: object = 3) -> dict[str, object]:
    return {"template": {"templateId": template, "machineCount": machines}}


def asking(*requests: str) -> dict[str, object]:
    return {"requests": [{"requestId": request} for request in requests]}


def entry(request: str, status: str = "running", message: str = "", machines: object = ()) -> str:
    return json.dumps({"requestId": request, "status": status, "message": message, "machines": list(machines)})  # type: ignore[call-overload]


def publish(hf: Here, answers: dict[str, Answer], lost: dict[str, int] | None = None) -> None:
    """What the loop does in a cycle."""
    if not hf.state.intent.exists():
        hf.state.intent.create("demo")
    hf.state.status.write(answers, {name: Loss(grace) for name, grace in (lost or {}).items()})
    hf.state.heartbeat.touch()


def heartbeat_before(hf: Here, seconds: float) -> None:
    """The loop beat last so many seconds ago."""
    hf.state.heartbeat.touch()
    then = time.time() - seconds
    os.utime(hf.state.heartbeat.path, (then, then))


# --- input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in commands.COMMANDS if name != "getAvailableTemplates"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b" \n", "the file is empty", id="blank"),
        pytest.param(b'{"template":{', "not JSON", id="truncated"),
        pytest.param(b"[]", "expected a JSON object, got []", id="a list"),
        pytest.param(b'"x"', 'expected a JSON object, got "x"', id="a text"),
        pytest.param(b"null", "expected a JSON object, got null", id="null"),
        pytest.param(b"[" * 100_000, "not JSON", id="nested without end"),
        pytest.param(b'{"a": "\xff"}', "not JSON", id="not UTF-8"),
    ],
)
def test_a_file_that_is_no_json_object_is_refused_and_nothing_is_recorded(
    hf: Here, name: str, content: bytes, words: str
) -> None:
    hf.input.write_bytes(content)
    code, out = hf.ask(name, "-f", str(hf.input))
    assert code == 1
    assert out.startswith(f"{hf.input}: ")
    assert words in out
    assert list(hf.work.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\r\n", b"{\n}", b"{}", b"\xef\xbb\xbf{\r\n}\r\n"])
def test_get_available_templates_takes_an_empty_file_too(hf: Here, content: bytes) -> None:
    hf.input.write_bytes(content)
    code, out = hf.ask("getAvailableTemplates", "-f", str(hf.input))
    assert code == 0
    assert [template["templateId"] for template in json.loads(out)["templates"]] == ["T1", "T2", "T0"]


@pytest.mark.parametrize("content", [b"[]", b"null", b'{"a":'])
def test_get_available_templates_refuses_what_is_no_object(hf: Here, content: bytes) -> None:
    hf.input.write_bytes(content)
    assert hf.ask("getAvailableTemplates", "-f", str(hf.input))[0] == 1


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{\n\t"template":\t{\n\t\t"templateId":\t"T1",\n\t\t"machineCount":\t3\n\t}\n}', id="HF's"),
        pytest.param(b'\xef\xbb\xbf{"template": {"templateId": "T1", "machineCount": 3}}', id="byte order mark"),
        pytest.param(b'{\r\n"template": {"templateId": "T1",\r\n"machineCount": 3}}\r\n', id="CRLF"),
        pytest.param(b'{"x": [1], "template": {"y": null, "templateId": "T1", "machineCount": 3}}', id="unknown keys"),
        pytest.param(b'{"template": {"templateId": "T0", "templateId": "T1", "machineCount": 3}}', id="a key twice"),
        pytest.param(b'{"template": {"templateId": "T1", "machineCount": "3"}}', id="the count as text"),
    ],
)  # fmt: skip
def test_hf_s_ways_of_writing_are_understood(hf: Here, content: bytes) -> None:
    hf.input.write_bytes(content)
    code, out = hf.ask("requestMachines", "-f", str(hf.input))
    assert code == 0
    assert hf.recorded() == ({json.loads(out)["requestId"]: ("T1", 3)}, {})


def test_the_json_argument_wins_over_the_file(hf: Here) -> None:
    text = json.dumps(wish(machines=2))
    for arguments in ([text], ["-f", "/nowhere", text], [text, "-f", "/nowhere"]):
        code, out = hf.ask("requestMachines", *arguments)
        assert hf.recorded()[0][json.loads(out)["requestId"]] == ("T1", 2)
        assert code == 0


@pytest.mark.parametrize("name", commands.COMMANDS)
@pytest.mark.parametrize("arguments", [[], ["-f"], ["--file", "x"], ["-x"], ["{}", "{}"], ["-f", "a", "-h"]])
def test_wrong_arguments_are_answered_with_the_usage(hf: Here, name: str, arguments: list[str]) -> None:
    assert hf.ask(name, *arguments) == (1, f"usage: {name}.sh -f FILE, or {name}.sh JSON")
    assert list(hf.work.iterdir()) == []


def test_a_file_that_cannot_be_read_is_named_on_one_line(hf: Here) -> None:
    assert hf.ask("requestMachines", "-f", "/no\nsuch\udcff") == (1, "/no?such?: No such file or directory")
    assert hf.ask("requestMachines", "-f", str(hf.work)) == (1, f"{hf.work}: Is a directory")


# --- getAvailableTemplates --------------------------------------------------------------------------------------------


def test_all_templates_are_printed_with_what_the_file_says(hf: Here) -> None:
    recorded = golden("getAvailableTemplates-output")
    hf.templates_file.write_text(json.dumps({"templates": recorded["templates"]}))
    assert hf.answer("getAvailableTemplates", golden("getAvailableTemplates-input")) == recorded


def test_a_filter_leaves_out_the_others_only_when_it_matches(hf: Here) -> None:
    def ids(*wanted: object) -> list[str]:
        answer = hf.answer("getAvailableTemplates", {"templates": list(wanted)})
        return [template["templateId"] for template in answer["templates"]]

    assert ids({"templateId": "T2"}, {"templateId": "T1"}, {"templateId": "none"}) == ["T1", "T2"]
    assert ids({"templateId": "none"}) == ids() == ids(3, {"templateId": 7}) == ["T1", "T2", "T0"]
    assert len(hf.answer("getAvailableTemplates", {"templates": "T1"})["templates"]) == 3


@pytest.mark.parametrize(
    "content", ["", '{"templates": [', '{"templates": []}', '{"templates": [{"templateId": "x"}]}']
)
def test_without_one_usable_template_the_call_fails_rather_than_listing_none(hf: Here, content: str) -> None:
    hf.templates_file.write_text(content)
    assert hf.refusal("getAvailableTemplates", {}).startswith(f"{hf.templates_file}: ")


def test_an_invalid_template_is_left_out_and_logged(hf: Here) -> None:
    hf.templates_file.write_text(json.dumps({"templates": [*TEMPLATES["templates"], {"templateId": "bad"}]}))
    assert len(hf.answer("getAvailableTemplates", {})["templates"]) == 3
    assert [(line["level"], line.get("problem")) for line in hf.log] == [
        ("WARNING", f"{hf.templates_file}: templates[3].maxNumber: expected a whole number from -1 to 10000, got null"),
        ("INFO", None),
    ]


def test_settings_without_use_are_logged_when_hf_asks_for_the_templates(hf: Here) -> None:
    (hf.conf / "demoinstprov_config.json").write_text('{"PUBSUB_TIMEOUT": 600, "COLOUR": "red"}')
    assert hf.answer("getAvailableTemplates", {})
    assert hf.answer("requestMachines", wish())
    assert [line["keys"] for line in hf.log if "keys" in line] == [["PUBSUB_TIMEOUT", "COLOUR"]]


def test_templates_need_no_state_directory(hf: Here) -> None:
    assert hf.answer("getAvailableTemplates", {}, HF_PROVIDER_WORKDIR="/nowhere")["templates"]


# --- requestMachines --------------------------------------------------------------------------------------------------


def test_a_request_is_recorded_before_its_id_is_printed(hf: Here) -> None:
    answer = hf.answer("requestMachines", wish("T1", 3))
    assert set(answer) == {"message", "requestId"}
    assert hf.recorded() == ({answer["requestId"]: ("T1", 3)}, {})
    assert len(answer["requestId"]) == model.REQUEST_ID_LENGTH


def test_two_equal_calls_are_two_requests(hf: Here) -> None:
    first, second = (hf.answer("requestMachines", wish())["requestId"] for _ in range(2))
    assert hf.recorded() == ({first: ("T1", 3), second: ("T1", 3)}, {})


def test_more_than_max_number_and_ten_thousand_are_recorded(hf: Here) -> None:
    assert hf.answer("requestMachines", wish("T1", 11))
    assert hf.answer("requestMachines", wish("T2", 10_000))
    assert sorted(hf.recorded()[0].values()) == [("T1", 11), ("T2", 10_000)]


def test_lsf_s_account_is_recorded_and_its_user_data_accepted(hf: Here) -> None:
    document = golden("requestMachines-input-lsf")
    check_input("requestMachines", document)
    request = hf.answer("requestMachines", document | wish("T1", 2))["requestId"]
    assert hf.state.intent.read().requests[request].rc_account == "default"


@pytest.mark.parametrize(
    "machines", [0, -1, 1.5, 3.0, "abc", "", "-3", "1.0", "²", None, True, [], {}, 100_001, 10**30, "9" * 50]
)
def test_a_count_that_is_no_whole_number_from_one_is_refused(hf: Here, machines: object) -> None:
    text = hf.refusal("requestMachines", wish("T1", machines))
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
        pytest.param(wish("", 1), 'template.templateId: expected a text, got ""', id="empty id"),
        pytest.param(wish(7, 1), "template.templateId: expected a text, got 7", id="id is a number"),
        pytest.param({"template": {"templateId": "T1"}}, "template.machineCount: is missing", id="no count"),
        pytest.param(wish("nosuch"), 'template.templateId: expected one of T1, T2, T0, got "nosuch"', id="unknown"),
        pytest.param(wish("T0", 1), "template.templateId: maxNumber of T0 is 0: none may be requested", id="none may"),
    ],
)  # fmt: skip
def test_a_wrong_template_is_refused_and_nothing_is_recorded(hf: Here, document: object, words: str) -> None:
    assert hf.refusal("requestMachines", document) == f"the argument: {words}"
    assert hf.recorded() == ({}, {})
    assert not hf.state.intent.exists()


def test_where_memory_is_left_a_missing_intent_is_not_made_anew(hf: Here) -> None:
    hf.state.memory.write(model.Memory(provisioner="demo"))
    for name, document in (("requestMachines", wish()), ("requestReturnMachines", {"machines": {"name": "a"}})):
        assert "intent.json" in hf.refusal(name, document)
    assert not hf.state.intent.exists()


def test_a_missing_state_directory_is_not_made(hf: Here) -> None:
    hf.work.rmdir()
    for name, document in (
        ("requestMachines", wish()),
        ("requestReturnMachines", {"machines": {"name": "a"}}),
        ("getRequestStatus", asking("abcdefghij")),
        ("getReturnRequests", {}),
    ):
        assert str(hf.work) in hf.refusal(name, document)
    assert not hf.work.exists()


# --- getRequestStatus -------------------------------------------------------------------------------------------------


def test_a_recorded_request_without_an_answer_is_running(hf: Here) -> None:
    request = hf.answer("requestMachines", wish())["requestId"]
    back = hf.answer("requestReturnMachines", {"machines": {"name": "a"}})["requestId"]
    assert hf.answer("getRequestStatus", asking(request, back))["requests"] == [
        json.loads(entry(name, message="Waiting for the provisioner.")) for name in (request, back)
    ]


def test_the_published_text_is_printed_byte_for_byte(hf: Here) -> None:
    request = hf.answer("requestMachines", wish())["requestId"]
    text = entry(request, "complete", "é")[:-1] + ',  "extra":1.50}'
    publish(hf, {request: Answer(text, ended=True)})
    assert hf.ask("getRequestStatus", json.dumps(asking(request))) == (0, '{"requests": [' + text + "]}")


def test_the_recorded_status_is_printed_as_it_was_recorded(hf: Here) -> None:
    recorded = golden("getRequestStatus-output")
    back = hf.answer("requestReturnMachines", golden("requestReturnMachines-input"))["requestId"]
    text = json.dumps(recorded["requests"][0] | {"requestId": back})
    publish(hf, {back: Answer(text, ended=True)})
    for form in ({"requestId": back}, [{"requestId": back}]):
        assert hf.answer("getRequestStatus", {"requests": form})["requests"] == [json.loads(text)]


def test_each_id_is_answered_once_in_the_order_asked(hf: Here) -> None:
    first, second = (hf.answer("requestMachines", wish())["requestId"] for _ in range(2))
    publish(hf, {first: Answer(entry(first, "complete"), ended=True)})
    answered = hf.answer("getRequestStatus", asking(second, first, "nosuch", second))["requests"]
    assert [(one["requestId"], one["status"]) for one in answered] == [
        (second, "running"),
        (first, "complete"),
        ("nosuch", "complete_with_error"),
    ]


@pytest.mark.parametrize(
    "name",
    ["abcdefghij", "ret-abcdefghij", "r-010d8f03b13097efd", "../intent.json", "/etc/passwd", "é", "\ud800", "x" * 5000],
)  # fmt: skip
def test_an_unknown_id_ends_with_an_error_and_leaves_no_trace(hf: Here, name: str) -> None:
    known = hf.answer("requestMachines", wish())["requestId"]
    hf.answer("getRequestStatus", asking(known))
    before = sorted(path for path in hf.work.rglob("*"))
    [answered] = hf.answer("getRequestStatus", asking(name))["requests"]
    assert (answered["requestId"], answered["status"], answered["machines"]) == (name, "complete_with_error", [])
    assert sorted(path for path in hf.work.rglob("*")) == before


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param({}, "requests: is missing", id="missing"),
        pytest.param({"requests": []}, "requests: the list is empty", id="empty"),
        pytest.param({"requests": None}, "requests: expected a list or an object, got null", id="null"),
        pytest.param({"requests": "abc"}, 'requests: expected a list or an object, got "abc"', id="text"),
        pytest.param({"requests": ["abc"]}, 'requests[0]: expected an object, got "abc"', id="list of texts"),
        pytest.param({"requests": {}}, "requests.requestId: is missing", id="object without id"),
        pytest.param({"requests": [{"requestId": "a"}, {}]}, "requests[1].requestId: is missing", id="one without"),
        pytest.param({"requests": {"requestId": None}}, "requests.requestId: expected a text, got null", id="id null"),
        pytest.param({"requests": {"requestId": 7}}, "requests.requestId: expected a text, got 7", id="id a number"),
        pytest.param({"requests": {"requestId": ""}}, 'requests.requestId: expected a text, got ""', id="id empty"),
    ],
)  # fmt: skip
def test_a_status_call_without_ids_is_refused(hf: Here, document: object, words: str) -> None:
    assert hf.refusal("getRequestStatus", document) == f"the argument: {words}"


def test_a_poll_is_noted_before_the_answer_is_read(hf: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    request = hf.answer("requestMachines", wish())["requestId"]
    events: list[str] = []
    read, touch = store.StatusStore.read_answers, store.Seen.touch

    def noted_read(status: store.StatusStore, identifiers: Iterable[str]) -> dict[str, Answer]:
        events.append("read")
        return read(status, identifiers)

    def noted_touch(seen: store.Seen, name: str) -> int:
        events.append("touch")
        return touch(seen, name)

    monkeypatch.setattr(store.StatusStore, "read_answers", noted_read)
    monkeypatch.setattr(store.Seen, "touch", noted_touch)
    hf.answer("getRequestStatus", asking(request))
    assert events == ["read", "touch", "read"], "at the first poll only a known id may be noted, and is read again"
    events.clear()
    hf.answer("getRequestStatus", asking(request))
    assert events == ["touch", "read"]


def test_what_the_loop_publishes_between_first_look_and_note_is_what_is_printed(
    hf: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop publishes that it cancels, then looks at ``seen``: HF must not be told the older answer then."""
    request = hf.answer("requestMachines", wish())["requestId"]
    touch = store.Seen.touch

    def touch_late(seen: store.Seen, name: str) -> int:
        publish(hf, {name: Answer(entry(name, message="cancelling"), ended=False)})
        return touch(seen, name)

    monkeypatch.setattr(store.Seen, "touch", touch_late)
    assert hf.answer("getRequestStatus", asking(request))["requests"][0]["message"] == "cancelling"


def test_each_poll_moves_its_mark(hf: Here) -> None:
    request = hf.answer("requestMachines", wish())["requestId"]
    assert hf.state.seen.marks() == {}, "a call that makes a request is no poll of it"
    hf.answer("getRequestStatus", asking(request))
    os.utime(hf.work / "seen" / request, (1, 1))
    hf.answer("getRequestStatus", asking(request))
    assert hf.state.seen.marks()[request] > 2_000_000_000


def test_a_silent_loop_is_told_in_the_message_of_what_has_not_ended(hf: Here) -> None:
    ended, open_, unpublished = (hf.answer("requestMachines", wish())["requestId"] for _ in range(3))
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
    assert second["message"] == "The provisioner has not run for 90 s. stock-out"
    assert third["message"] == "The provisioner has not run for 90 s. Waiting for the provisioner."
    assert third["status"] == "running"


def test_a_loop_that_beat_within_a_minute_is_not_called_silent(hf: Here) -> None:
    request = hf.answer("requestMachines", wish())["requestId"]
    publish(hf, {request: Answer(entry(request), ended=False)})
    heartbeat_before(hf, 55)
    assert hf.answer("getRequestStatus", asking(request))["requests"] == [json.loads(entry(request))]


def test_requests_and_returns_tell_of_a_silent_loop_too(hf: Here) -> None:
    assert "has not run" not in hf.answer("requestMachines", wish())["message"]
    heartbeat_before(hf, 120)
    for name, document in (("requestMachines", wish()), ("requestReturnMachines", {"machines": {"name": "a"}})):
        assert hf.answer(name, document)["message"].startswith("The provisioner has not run for 120 s. ")


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"{", b"[]", b"{}", b'{"meta": {"state": {"schema": 99}}}'])
@pytest.mark.parametrize("file", ["status.json", "intent.json"])
def test_an_unreadable_state_is_exit_1_and_left_as_it_is(hf: Here, file: str, content: bytes) -> None:
    request = hf.answer("requestMachines", wish())["requestId"]
    if file == "status.json":
        publish(hf, {request: Answer(entry(request, "complete"), ended=True)})
    (hf.work / file).write_bytes(content)
    assert str(hf.work / file) in hf.refusal("getRequestStatus", asking(request))
    if file == "intent.json":
        assert file in hf.refusal("requestMachines", wish())
        assert file in hf.refusal("requestReturnMachines", {"machines": {"name": "a"}})
    else:
        assert file in hf.refusal("getReturnRequests", {"machines": [{"name": "a"}]})
    assert (hf.work / file).read_bytes() == content


def test_of_an_id_like_ours_nothing_is_said_where_no_state_is(hf: Here) -> None:
    """Ours was recorded before it was printed: without intent.json the state is lost or not mounted."""
    assert "intent.json" in hf.refusal("getRequestStatus", asking("abcdefghij"))
    [answered] = hf.answer("getRequestStatus", asking("r-010d8f03b13097efd"))["requests"]
    assert answered["status"] == "complete_with_error"


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


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param({}, "machines: is missing", id="missing"),
        pytest.param({"machines": []}, "machines: the list is empty", id="empty"),
        pytest.param({"machines": None}, "machines: expected a list or an object, got null", id="null"),
        pytest.param({"machines": ["a"]}, 'machines[0]: expected an object, got "a"', id="list of texts"),
        pytest.param({"machines": [{"name": "a"}, {}]}, "machines[1]: name and machineId are missing", id="neither"),
        pytest.param({"machines": {"name": 7}}, "machines.name: expected a text, got 7", id="name is a number"),
        pytest.param({"machines": {"name": ""}}, "machines: name and machineId are missing", id="empty text"),
        pytest.param({"machines": {"name": ".x"}}, 'machines.name: expected a host name, got ".x"', id="only a domain"),
    ],
)  # fmt: skip
def test_a_return_of_nothing_is_refused(hf: Here, document: object, words: str) -> None:
    assert hf.refusal("requestReturnMachines", document) == f"the argument: {words}"
    assert not hf.state.intent.exists()


# --- getReturnRequests ------------------------------------------------------------------------------------------------


def listing(*names: str) -> dict[str, object]:
    return {"machines": [{"name": name, "machineId": documents.short_name(name)} for name in names]}


@pytest.mark.parametrize("document", [{}, {"machines": []}, {"machines": None}, {"machines": [{"name": "a"}]}])
def test_without_losses_the_list_is_there_and_empty(hf: Here, document: object) -> None:
    answer = hf.answer("getReturnRequests", document)
    assert (answer["status"], answer["requests"]) == ("complete", [])


def test_of_the_listed_hosts_the_lost_ones_are_reported_as_hf_named_them(hf: Here) -> None:
    publish(hf, {}, {"a": 0, "b": 25, "unlisted": 0})
    answer = hf.answer("getReturnRequests", listing("healthy.x", "A.c.internal", "b"))
    assert answer["requests"] == [
        {"machine": "A.c.internal", "machineId": "a", "gracePeriod": 0},
        {"machine": "b", "machineId": "b", "gracePeriod": 25},
    ]


def test_the_recorded_loss_is_reported_as_it_was_recorded(hf: Here) -> None:
    document = golden("getReturnRequests-input")
    publish(hf, {}, {document["machines"][0]["machineId"]: 0})
    answer = hf.answer("getReturnRequests", document)
    recorded = golden("getReturnRequests-output")
    assert [entry | recorded["requests"][0] for entry in answer["requests"]] == answer["requests"]
    assert answer["status"] == recorded["status"]


def test_a_host_that_is_listed_twice_is_reported_once(hf: Here) -> None:
    publish(hf, {}, {"a": 0})
    assert len(hf.answer("getReturnRequests", listing("a.x", "a.x"))["requests"]) == 1


def test_hosts_without_an_id_are_matched_by_name(hf: Here) -> None:
    publish(hf, {}, {"a": 0})
    answer = hf.answer("getReturnRequests", {"machines": [{"name": "A.x"}]})
    assert [entry["machine"] for entry in answer["requests"]] == ["A.x"]


def test_a_loss_is_reported_again_until_hf_gives_the_host_back(hf: Here) -> None:
    publish(hf, {}, {"a": 0})
    for _ in range(2):
        assert len(hf.answer("getReturnRequests", listing("a.x"))["requests"]) == 1
    hf.answer("requestReturnMachines", listing("a.x"))
    assert hf.answer("getReturnRequests", listing("a.x"))["requests"] == []


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


def test_short_names_are_made_as_the_loop_makes_them() -> None:
    for host in ("a", "A.b.c", "Hf-X.Y", ""):
        assert documents.short_name(host) == model.short_name(host)

"""getRequestStatus: what the loop published, noted as polled before it is read."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from provisioner.hostfactory.answer import Answer
from provisioner.state.hf_signals import Seen
from provisioner.state.status import StatusStore
from tests.support.hostfactory.in_process import Here, asking, entry, heartbeat_before, publish
from tests.support.hostfactory.provider import golden, requesting


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, capfd)


def test_a_recorded_request_without_an_answer_is_running(hf: Here) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
    back = hf.answer("requestReturnMachines", {"machines": {"name": "a"}})["requestId"]
    assert hf.answer("getRequestStatus", asking(request, back))["requests"] == [
        json.loads(entry(name, message="Waiting for the provisioner.")) for name in (request, back)
    ]


def test_the_published_text_is_printed_byte_for_byte(hf: Here) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
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
    first, second = (hf.answer("requestMachines", requesting())["requestId"] for _ in range(2))
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
    request = hf.answer("requestMachines", requesting())["requestId"]
    hf.answer("getRequestStatus", asking(request))
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
        pytest.param({"requests": {}}, "requests: the list is empty", id="empty object"),
        pytest.param({"requests": {"x": 1}}, "requests.requestId: is missing", id="object without id"),
        pytest.param({"requests": [{"requestId": "a"}, {}]}, "requests[1].requestId: is missing", id="one without"),
        pytest.param({"requests": {"requestId": None}}, "requests.requestId: expected a text, got null", id="id null"),
        pytest.param({"requests": {"requestId": 7}}, "requests.requestId: expected a text, got 7", id="id a number"),
        pytest.param({"requests": {"requestId": ""}}, 'requests.requestId: expected a text, got ""', id="id empty"),
    ],
)  # fmt: skip
def test_a_status_call_without_ids_is_refused(hf: Here, document: object, words: str) -> None:
    assert hf.refusal("getRequestStatus", document) == f"the argument: {words}"


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


def test_what_the_loop_publishes_between_first_look_and_note_is_what_is_printed(
    hf: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop publishes that it cancels, then looks at ``seen``: HF must not be told the older answer then."""
    request = hf.answer("requestMachines", requesting())["requestId"]
    touch = Seen.touch

    def touch_late(seen: Seen, name: str) -> int:
        publish(hf, {name: Answer(entry(name, message="cancelling"), ended=False)})
        return touch(seen, name)

    monkeypatch.setattr(Seen, "touch", touch_late)
    assert hf.answer("getRequestStatus", asking(request))["requests"][0]["message"] == "cancelling"


def test_a_terminal_answer_is_noted_as_told_before_it_is_printed_and_no_other_is(
    hf: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, running = (hf.answer("requestMachines", requesting())["requestId"] for _ in range(2))
    publish(hf, {ended: Answer(entry(ended, "complete"), ended=True), running: Answer(entry(running), ended=False)})
    told: list[frozenset[str]] = []
    write = os.write

    def printing(file: int, content: bytes) -> int:
        if file == 1:
            told.append(hf.state.told.ids())
        return write(file, content)

    monkeypatch.setattr(os, "write", printing)
    assert hf.answer("getRequestStatus", asking(ended, running, "nosuch"))
    assert told == [{ended}]


def test_each_poll_moves_its_mark(hf: Here) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
    assert hf.state.seen.marks() == {}, "a call that makes a request is no poll of it"
    hf.answer("getRequestStatus", asking(request))
    os.utime(hf.work / "seen" / request, (1, 1))
    hf.answer("getRequestStatus", asking(request))
    assert hf.state.seen.marks()[request] > 2_000_000_000


def test_a_silent_loop_is_told_in_the_message_of_what_has_not_ended(hf: Here) -> None:
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
    assert re.fullmatch(r"The provisioner has not run for 9\d s\. stock-out", second["message"])
    assert re.fullmatch(r"The provisioner has not run for 9\d s\. Waiting for the provisioner\.", third["message"])
    assert third["status"] == "running"


def test_a_loop_that_beat_within_a_minute_is_not_called_silent(hf: Here) -> None:
    request = hf.answer("requestMachines", requesting())["requestId"]
    publish(hf, {request: Answer(entry(request), ended=False)})
    heartbeat_before(hf, 52)
    assert hf.answer("getRequestStatus", asking(request))["requests"] == [json.loads(entry(request))]


def test_requests_and_returns_tell_of_a_silent_loop_too(hf: Here) -> None:
    assert "has not run" not in hf.answer("requestMachines", requesting())["message"]
    heartbeat_before(hf, 120)
    for name, document in (("requestMachines", requesting()), ("requestReturnMachines", {"machines": {"name": "a"}})):
        assert hf.answer(name, document)["message"].startswith("The provisioner has not run for 12")


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_a_heartbeat_that_cannot_be_looked_at_turns_no_record_into_a_failure(
    hf: Here, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    hf.state.heartbeat.touch()
    stat = os.lstat

    def refused(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if path == hf.state.heartbeat.path:
            raise OSError(code, os.strerror(code), path)
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "lstat", refused)
    request = hf.answer("requestMachines", requesting())["requestId"]
    back = hf.answer("requestReturnMachines", {"machines": {"name": "a"}})["requestId"]
    assert [entry["status"] for entry in hf.answer("getRequestStatus", asking(request, back))["requests"]] == [
        "running",
        "running",
    ]


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"{", b"[]", b"{}", b'{"meta": {"state": {"schema": 99}}}'])
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
    """Ours was recorded before it was printed: without intent.json the state is lost or not mounted."""
    assert "intent.json" in hf.refusal("getRequestStatus", asking("abcdefghij"))
    [answered] = hf.answer("getRequestStatus", asking("r-010d8f03b13097efd"))["requests"]
    assert answered["status"] == "complete_with_error"

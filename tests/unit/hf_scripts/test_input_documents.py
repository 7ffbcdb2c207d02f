"""Tests of HostFactory's documents: any form is accepted, and a wrong meaning is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hf_scripts import input_documents
from tests.support.hostfactory.in_process import Here
from tests.support.hostfactory.provider import requesting


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, capfd)


@pytest.mark.parametrize("name", ["requestMachines", "requestReturnMachines"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b" \n", "the file is empty", id="blank"),
        pytest.param(b"[]", "expected a JSON object, got []", id="a list"),
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
    assert out.startswith(f"{hf.input}: {words}")
    assert list(hf.work.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\r\n", b"\xef\xbb\xbf{\r\n}\r\n"])
def test_get_available_templates_takes_an_empty_file_too(hf: Here, content: bytes) -> None:
    hf.input.write_bytes(content)
    code, out = hf.ask("getAvailableTemplates", "-f", str(hf.input))
    assert code == 0
    assert [template["templateId"] for template in json.loads(out)["templates"]] == ["T1", "T2", "T0"]


def test_a_count_with_a_point_is_understood(hf: Here) -> None:
    hf.input.write_bytes(b'{"template": {"templateId": "T1", "machineCount": 3.0}}')
    code, out = hf.ask("requestMachines", "-f", str(hf.input))
    assert code == 0
    assert hf.recorded() == ({json.loads(out)["requestId"]: ("T1", 3)}, {})


def test_the_json_argument_wins_over_the_file(hf: Here) -> None:
    text = json.dumps(requesting(machines=2))
    for arguments in ([text], ["-f", "/nowhere", text], [text, "-f", "/nowhere"]):
        code, out = hf.ask("requestMachines", *arguments)
        assert hf.recorded()[0][json.loads(out)["requestId"]] == ("T1", 2)
        assert code == 0


@pytest.mark.parametrize("arguments", [[], ["-f"], ["--file", "x"], ["-x"], ["{}", "{}"], ["-f", "a", "-h"]])
def test_wrong_arguments_are_answered_with_the_usage(hf: Here, arguments: list[str]) -> None:
    name = "requestMachines"
    assert hf.ask(name, *arguments) == (1, input_documents.USAGE.format(command=name))
    assert list(hf.work.iterdir()) == []


@pytest.fixture
def sent() -> Iterator[Callable[[bytes], None]]:
    """Replace standard input by a pipe. Yield a function that writes into the pipe and closes it."""
    before, (reader, writer) = os.dup(0), os.pipe()
    os.dup2(reader, 0)
    os.close(reader)

    def send(content: bytes) -> None:
        os.write(writer, content)
        os.close(writer)

    yield send
    os.dup2(before, 0)
    os.close(before)


def test_json_on_standard_input_is_understood(hf: Here, sent: Callable[[bytes], None]) -> None:
    sent(json.dumps(requesting(machines=2)).encode())
    code, out = hf.ask("requestMachines")
    assert (code, hf.recorded()) == (0, ({json.loads(out)["requestId"]: ("T1", 2)}, {}))


def test_a_mistake_on_standard_input_is_named_as_that(hf: Here, sent: Callable[[bytes], None]) -> None:
    sent(b"[]")
    assert hf.ask("requestMachines") == (1, "standard input: expected a JSON object, got []")


@pytest.mark.parametrize("content", [b"", b"{}", None], ids=["empty", "an object", "a pipe that stays open"])
def test_get_available_templates_answers_without_an_argument(
    hf: Here, sent: Callable[[bytes], None], content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_documents, "OPTIONAL_INPUT_SECONDS", 0.0)
    if content is not None:
        sent(content)
    code, out = hf.ask("getAvailableTemplates")
    assert (code, len(json.loads(out)["templates"])) == (0, 3)


def test_a_closed_standard_input_is_no_input(hf: Here) -> None:
    before = os.dup(0)
    os.close(0)
    try:
        assert hf.ask("requestMachines") == (1, input_documents.USAGE.format(command="requestMachines"))
    finally:
        os.dup2(before, 0)
        os.close(before)


def a_device(path: Path) -> None:
    """Make a device that returns bytes for ever."""
    path.symlink_to("/dev/zero")


NO_FILES = pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, a_device], ids=["a FIFO", "a directory", "a device"])


def test_a_file_that_cannot_be_read_is_named_on_one_line(hf: Here) -> None:
    assert hf.ask("requestMachines", "-f", "/no\nsuch\udcff") == (1, "/no such?: No such file or directory")


LONG = "x" * (input_documents.NAME_BYTES + 1)


@pytest.mark.parametrize(
    ("command", "document", "refusal"),
    [
        ("requestMachines", requesting(template=LONG), "template.templateId: expected at most 255 bytes, got "),
        ("requestMachines", requesting() | {"rc_account": LONG}, "rc_account: expected at most 255 bytes, got "),
        ("requestReturnMachines", {"machines": [{"name": "a"}, {"name": LONG}]}, "machines[1].name: expected at most"),
        ("requestReturnMachines", {"machines": {"name": "é" * 128}}, "machines.name: expected at most 255 bytes, got "),
        ("requestReturnMachines", {"machines": [{"machineId": LONG}]}, "machines[0].machineId: expected at most 255"),
        ("getReturnRequests", {"machines": [{"name": LONG}]}, "machines[0].name: expected at most 255 bytes, got "),
        (
            "requestReturnMachines",
            {"machines": [{"name": f"h{number}"} for number in range(input_documents.MAX_NAMES + 1)]},
            "machines: has 100001 entries, and at most 100000 can be returned at once",
        ),
    ],
)  # fmt: skip
def test_what_would_fill_the_state_is_refused(hf: Here, command: str, document: object, refusal: str) -> None:
    hf.input.write_text(json.dumps(document))
    code, out = hf.ask(command, "-f", str(hf.input))
    assert (code, len(out) < 500) == (1, True)
    assert out.startswith(f"{hf.input}: {refusal}")
    assert not hf.state.intent.exists()


def test_names_of_the_longest_kind_are_taken(hf: Here) -> None:
    names = [f"{'h' * 240}{number:06d}" for number in range(1000)]
    assert hf.answer("requestReturnMachines", {"machines": [{"name": name} for name in names]})["requestId"]


@pytest.mark.parametrize("command", ["requestReturnMachines", "getReturnRequests"])
def test_as_many_machines_as_a_return_may_name_fit_into_a_document(hf: Here, command: str) -> None:
    names = [f"{'h' * 44}{number:06d}" for number in range(input_documents.MAX_NAMES)]
    hf.input.write_text(json.dumps({"machines": [{"name": name, "machineId": name} for name in names]}))
    code, out = hf.ask(command, "-f", str(hf.input))
    assert code == 0, out


def test_the_page_names_the_limits_of_the_code() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "hostfactory.md").read_text().split())
    limits = f"{input_documents.DOCUMENT_BYTES:,} bytes, a list of machines {input_documents.MAX_NAMES:,} entries"
    assert f"{limits}, a name or id {input_documents.NAME_BYTES} bytes" in page


def test_a_document_of_more_values_than_a_list_has_is_refused(hf: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_documents, "MOST_VALUES", 100)
    hf.input.write_text('{"machines": [' + "[]," * 60 + "[]]}")
    assert hf.ask("getReturnRequests", "-f", str(hf.input)) == (1, f"{hf.input}: has more than 100 values")


def test_a_document_that_would_fill_memory_is_refused(
    hf: Here, sent: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(os.open(hf.input, os.O_WRONLY | os.O_CREAT), input_documents.DOCUMENT_BYTES + 1)
    for command in ("requestMachines", "requestReturnMachines", "getReturnRequests"):
        refusal = f"{hf.input}: has more than {input_documents.DOCUMENT_BYTES} bytes"
        assert hf.ask(command, "-f", str(hf.input)) == (1, refusal)
    monkeypatch.setattr(input_documents, "DOCUMENT_BYTES", 10)
    sent(b"{" + b" " * 10)
    assert hf.ask("requestMachines") == (1, "standard input: has more than 10 bytes")


@NO_FILES
def test_an_input_that_is_no_regular_file_is_refused_at_once(hf: Here, make: Callable[[Path], None]) -> None:
    make(hf.input)
    assert hf.ask("requestMachines", "-f", str(hf.input)) == (1, f"{hf.input}: is no regular file")
    assert list(hf.work.iterdir()) == []


@NO_FILES
def test_a_templates_file_that_is_no_regular_file_is_named(hf: Here, make: Callable[[Path], None]) -> None:
    hf.templates_file.unlink()
    make(hf.templates_file)
    assert hf.refusal("requestMachines", requesting()) == f"{hf.templates_file}: is no regular file"


@NO_FILES
def test_a_log_or_a_trace_that_is_no_regular_file_stops_nothing(hf: Here, make: Callable[[Path], None]) -> None:
    trace = hf.input.with_name("trace")
    make(hf.logs / f"{hf.instance}-provider.master1.log")
    make(trace)
    assert hf.ask("requestMachines", json.dumps(requesting()), "--record", str(trace))[0] == 0

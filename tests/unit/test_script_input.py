"""What the commands take from HostFactory: liberal in the writing, strict in the meaning, one line when refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_scripts import commands
from tests.support.hostfactory.in_process import Here
from tests.support.hostfactory.provider import requesting


@pytest.fixture
def hf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, capfd)


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
        pytest.param(b'{"template": {"templateId": "T1", "machineCount": 3.0}}', id="the count with a point"),
    ],
)  # fmt: skip
def test_hf_s_ways_of_writing_are_understood(hf: Here, content: bytes) -> None:
    hf.input.write_bytes(content)
    code, out = hf.ask("requestMachines", "-f", str(hf.input))
    assert code == 0
    assert hf.recorded() == ({json.loads(out)["requestId"]: ("T1", 3)}, {})


def test_the_json_argument_wins_over_the_file(hf: Here) -> None:
    text = json.dumps(requesting(machines=2))
    for arguments in ([text], ["-f", "/nowhere", text], [text, "-f", "/nowhere"]):
        code, out = hf.ask("requestMachines", *arguments)
        assert hf.recorded()[0][json.loads(out)["requestId"]] == ("T1", 2)
        assert code == 0


@pytest.mark.parametrize("name", commands.COMMANDS)
@pytest.mark.parametrize("arguments", [[], ["-f"], ["--file", "x"], ["-x"], ["{}", "{}"], ["-f", "a", "-h"]])
def test_wrong_arguments_are_answered_with_the_usage(hf: Here, name: str, arguments: list[str]) -> None:
    assert hf.ask(name, *arguments) == (1, f"usage: {name}.sh [--record TRACE] -f FILE, or {name}.sh JSON")
    assert list(hf.work.iterdir()) == []


def test_a_file_that_cannot_be_read_is_named_on_one_line(hf: Here) -> None:
    assert hf.ask("requestMachines", "-f", "/no\nsuch\udcff") == (1, "/no?such?: No such file or directory")
    assert hf.ask("requestMachines", "-f", str(hf.work)) == (1, f"{hf.work}: is no regular file")

"""What the commands take from HostFactory: liberal in the writing, strict in the meaning, piece by piece."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_scripts import documents
from hf_scripts.documents import Document, Refused
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
    assert hf.ask(name, *arguments) == (1, documents.USAGE.format(command=name))
    assert list(hf.work.iterdir()) == []


@pytest.fixture
def sent() -> Iterator[Callable[[bytes], None]]:
    """A function that writes into the pipe that is standard input from now on, and closes it."""
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
    monkeypatch.setattr(documents, "OPTIONAL_INPUT_SECONDS", 0.0)
    if content is not None:
        sent(content)
    code, out = hf.ask("getAvailableTemplates")
    assert (code, len(json.loads(out)["templates"])) == (0, 3)


def test_a_closed_standard_input_is_no_input(hf: Here) -> None:
    before = os.dup(0)
    os.close(0)
    try:
        assert hf.ask("requestMachines") == (1, documents.USAGE.format(command="requestMachines"))
    finally:
        os.dup2(before, 0)
        os.close(before)


def a_device(path: Path) -> None:
    """Make a device that gives bytes for ever."""
    path.symlink_to("/dev/zero")


NO_FILES = pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, a_device], ids=["a FIFO", "a directory", "a device"])


def test_a_file_that_cannot_be_read_is_named_on_one_line(hf: Here) -> None:
    assert hf.ask("requestMachines", "-f", "/no\nsuch\udcff") == (1, "/no such?: No such file or directory")


LONG = "x" * (documents.NAME_BYTES + 1)


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
            {"machines": [{"name": f"h{number}"} for number in range(documents.MAX_NAMES + 1)]},
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
    names = [f"{'h' * 44}{number:06d}" for number in range(documents.MAX_NAMES)]
    hf.input.write_text(json.dumps({"machines": [{"name": name, "machineId": name} for name in names]}))
    code, out = hf.ask(command, "-f", str(hf.input))
    assert code == 0, out


def filled(begin: str, entry: str, end: str) -> bytes:
    """A document of almost the greatest size: the entry as often as it fits in."""
    count = (documents.DOCUMENT_BYTES - len((begin + end).encode())) // len(entry.encode())
    return (begin + count * entry + end).encode()


WIDE = "\N{GRINNING FACE}"
"""A character by which each one of a text takes four bytes in memory."""

LARGE = {
    "a name without end": lambda: filled('{"machines":[{"name":"', "a", WIDE + '"}]}'),
    "names that are too long": lambda: filled('{"machines":[', f'{{"name":"{WIDE}{4000 * "a"}"}},', '{"name":"a"}]}'),
    "the longest names": lambda: filled('{"machines":[', f'{{"name":"{WIDE}{240 * "a"}"}},', '{"name":"a"}]}'),
    "as many objects as there may be": lambda: filled(
        f'{{"x":"{WIDE}","machines":[',
        f'{{"a":"{(2 * documents.DOCUMENT_BYTES // documents.MOST_VALUES - 7) * "a"}"}},',
        "{}]}",
    ),
}


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_a_document_takes_ten_times_its_greatest_size_in_memory_at_most(large: Callable[[], bytes]) -> None:
    document = documents.Document("the file", large())
    tracemalloc.start()
    try:
        with suppress(Refused):
            documents.hosts(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * documents.DOCUMENT_BYTES


def test_the_page_names_the_limits_of_the_code() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "hostfactory.md").read_text().split())
    limits = f"{documents.DOCUMENT_BYTES:,} bytes, a list of machines {documents.MAX_NAMES:,} entries"
    assert f"{limits}, a name or id {documents.NAME_BYTES} bytes" in page


def test_a_document_of_more_values_than_a_list_has_is_refused(hf: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_VALUES", 100)
    hf.input.write_text('{"machines": [' + "[]," * 60 + "[]]}")
    assert hf.ask("getReturnRequests", "-f", str(hf.input)) == (1, f"{hf.input}: has more than 100 values")


def test_a_document_that_would_fill_memory_is_refused(
    hf: Here, sent: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(os.open(hf.input, os.O_WRONLY | os.O_CREAT), documents.DOCUMENT_BYTES + 1)
    for command in ("requestMachines", "requestReturnMachines", "getReturnRequests"):
        refusal = f"{hf.input}: has more than {documents.DOCUMENT_BYTES} bytes"
        assert hf.ask(command, "-f", str(hf.input)) == (1, refusal)
    monkeypatch.setattr(documents, "DOCUMENT_BYTES", 10)
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


TEXTS = st.text(st.sampled_from('ab.-"\\{}[],:\n é\ud800'), max_size=5) | st.sampled_from(
    ["},{", "]}", '"},{"', "machines"]
)
LEAVES = st.none() | st.booleans() | st.integers(0, 3) | TEXTS
ENTRIES = st.fixed_dictionaries(
    {"name": TEXTS | LEAVES, "machineId": TEXTS},
    optional={"tags": st.lists(st.dictionaries(TEXTS, LEAVES, max_size=2), max_size=3), "x": LEAVES},
)
HOSTS = st.fixed_dictionaries({"name": st.just("a.x"), "machineId": st.sampled_from(["b", "c-1", "d" * 40])})
GRIDS = st.fixed_dictionaries(
    {"machines": st.lists(HOSTS, max_size=12) | st.lists(HOSTS | ENTRIES | LEAVES, max_size=8) | LEAVES},
    optional={"x": st.lists(ENTRIES, max_size=2), "z": LEAVES, "[": LEAVES},
)


def written(grid: object, *, indent: object, ascii_only: bool, encoding: str) -> bytes:
    """The list as HostFactory writes it, or otherwise."""
    return json.dumps(grid, indent=indent, ensure_ascii=ascii_only).encode(encoding, "surrogatepass")  # type: ignore[arg-type]


def taken(content: bytes, piece: int, take: Callable[[Document], Any]) -> object:
    """What is taken from a document, or why it is refused, when so many bytes are parsed at a time."""
    before, documents.PIECE = documents.PIECE, piece
    try:
        return take(documents.Document("the file", content))
    except Refused as error:
        return str(error)
    finally:
        documents.PIECE = before


@settings(max_examples=120, deadline=None, database=None, derandomize=True)
@given(
    grid=GRIDS,
    indent=st.sampled_from(["\t", 1, None]),
    ascii_only=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"]),
    at=st.floats(0, 1),
    cut=st.integers(0, 3),
    put=st.sampled_from([b"", b"", b",", b"]", b"[", b"},", b'"', b"{}", b"\xff", b"\0"]),
    piece=st.sampled_from([1, 30, 60, 200]),
)
def test_a_list_in_pieces_is_understood_or_refused_as_the_whole_document(
    grid: object, indent: object, ascii_only: bool, encoding: str, at: float, cut: int, put: bytes, piece: int
) -> None:
    content = written(grid, indent=indent, ascii_only=ascii_only, encoding=encoding)
    place = int(at * len(content))
    for given_content in (content, content[:place] + put + content[place + cut :]):
        for take in (documents.hosts, documents.listed):
            whole = taken(given_content, 10**9, take)
            assert taken(given_content, piece, take) == whole


HOST = '{"name": "a.x", "machineId": "b"}'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"machines": [HOST,HOST,HOST,]}', id="a comma without an entry"),
        pytest.param('{"machines": [HOST,HOST,3,HOST]}', id="an entry that is no object"),
        pytest.param('{"machines": [HOST,HOST,{},HOST]}', id="an entry without a name"),
        pytest.param('{"machines": [{},HOST,HOST,HOST', id="cut off behind what is wrong as well"),
        pytest.param('{"machines": 3, "x": [HOST,HOST,HOST]}', id="another list"),
        pytest.param('[HOST,HOST,HOST]', id="no object"),
        pytest.param('{"machines": [HOST,HOST], "machines": [HOST,HOST]}', id="the list twice"),
        pytest.param('{"machines": ["},", "},", HOST,HOST,HOST]}', id="texts that look like cuts"),
        pytest.param('{"a": "[", "machines": [HOST,HOST,HOST], "b": "]"}', id="brackets in texts"),
        pytest.param('{"machines": "]EIGHTY["}', id="brackets the wrong way round"),
    ],
)  # fmt: skip
def test_what_looks_like_a_long_list_and_is_none_is_judged_as_a_whole(text: str) -> None:
    content = text.replace("HOST", HOST).replace("EIGHTY", " " * 80).encode()
    for take in (documents.hosts, documents.listed):
        for piece in (34, 40, 50, 75, 80):
            assert taken(content, piece, take) == taken(content, 10**9, take)


@pytest.mark.parametrize("indent", ["\t", None])
def test_the_usual_long_list_is_never_parsed_as_a_whole(indent: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {
        "machines": [{"name": f"hf-{number}.c.demo.internal", "machineId": f"hf-{number}"} for number in range(3000)]
    }
    document = documents.Document("the file", json.dumps(grid, indent=indent).encode())
    loads, longest = json.loads, 0

    def noting(content: bytes) -> Any:
        nonlocal longest
        longest = max(longest, len(content))
        return loads(content)

    monkeypatch.setattr(json, "loads", noting)
    parsed = documents.listed(document)
    assert parsed is not None
    assert parsed.machines == [f"hf-{number}" for number in range(3000)]
    assert parsed.names[-1] == "hf-2999.c.demo.internal"
    assert longest <= documents.PIECE + 2


def test_a_grid_of_hosts_takes_no_more_memory_than_its_names() -> None:
    names = [f"hf-0123456789-{number:06d}" for number in range(20_000)]
    grid = {"machines": [{"name": f"{name}.c.demo.internal", "machineId": name} for name in names]}
    document = documents.Document("the file", json.dumps(grid).encode())
    tracemalloc.start()
    try:
        parsed = documents.hosts(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert parsed.machines == names
    assert peak < 250 * len(names), "bytes: two texts and two references for each host, and one piece"

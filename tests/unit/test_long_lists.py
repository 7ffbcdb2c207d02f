"""A list of hosts of a whole grid: taken a piece at a time, and whatever it holds understood as if read at once."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_scripts import documents
from hf_scripts.documents import Document, Refused
from provisioner.hostfactory.answer import Answer, Loss
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateUnreadable

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


@settings(max_examples=400, deadline=None, database=None, derandomize=True)
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
        pytest.param('{"machines": [HOST,HOST,,HOST]}', id="two commas"),
        pytest.param('{"machines": [HOST,HOST,3,HOST]}', id="an entry that is no object"),
        pytest.param('{"machines": [HOST,HOST,{},HOST]}', id="an entry without a name"),
        pytest.param('{"machines": [HOST,HOST,HOST, ]}', id="a comma without an entry, far behind"),
        pytest.param('{"machines": [{},HOST,HOST,HOST', id="cut off behind what is wrong as well"),
        pytest.param('{"machines": [{},HOST,HOST,,HOST]}', id="no JSON behind what is wrong as well"),
        pytest.param('{"machines": [{},HOST,HOST,3]}', id="no object behind what is wrong as well"),
        pytest.param('{"machines": 3, "x": [HOST,HOST,HOST]}', id="another list"),
        pytest.param('{"x": [HOST,HOST,HOST]}', id="only another list"),
        pytest.param('[HOST,HOST,HOST]', id="no object"),
        pytest.param('{"machines": [HOST,HOST], "machines": [HOST,HOST]}', id="the list twice"),
        pytest.param('{"machines": [HOST,HOST,HOST], "machines": null}', id="taken back"),
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


# --- what is lost, in a status with many answers ----------------------------------------------------------------------

ODD_NAMES = ["answers", ',"answers":{', '"},"answers":{', "é", "}}"]
"""Hosts that look like the place where the answers begin."""


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def publish(state: StateDir, lost: dict[str, Loss], answers: int = 3) -> None:
    texts = {f"r{number}": Answer(json.dumps({"machines": ["x" * 100]}), ended=True) for number in range(answers)}
    state.status.write(texts, lost, {"T": 7})


def test_what_is_lost_is_read_without_the_answers(state: StateDir) -> None:
    publish(state, {"a": Loss(3, "node")}, answers=20_000)
    tracemalloc.start()
    try:
        read = (state.status.read_lost(), state.status.read_available())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == ({"a": Loss(3, "node")}, {"T": 7})
    assert peak < 500_000 < Path(state.status.path).stat().st_size / 5


@pytest.mark.parametrize("hosts", [[], ODD_NAMES, *([name] for name in ODD_NAMES), [f"h{n}" for n in range(5000)]])
@pytest.mark.parametrize("answers", [0, 1, 2000])
def test_what_is_lost_is_found_however_many_and_whatever_they_are_called(
    state: StateDir, hosts: list[str], answers: int
) -> None:
    lost = {name: Loss(number) for number, name in enumerate(hosts)}
    publish(state, lost, answers)
    assert state.status.read_lost() == lost
    assert state.status.read_available() == {"T": 7}


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda tables: json.dumps(tables, separators=(",", ":")), id="answers first, as it once was"),
        pytest.param(lambda tables: json.dumps(tables, indent=2), id="by hand"),
        pytest.param(lambda tables: json.dumps(tables) + "\n", id="with an empty line"),
    ],
)
def test_a_status_that_others_wrote_is_read_as_well(state: StateDir, write: Callable[[object], str]) -> None:
    publish(state, {"a": Loss(1)})
    tables = json.loads(Path(state.status.path).read_bytes())
    order = ("meta", "answers", "lost", "available")
    Path(state.status.path).write_text(write({name: tables[name] for name in order}))
    assert state.status.read_lost() == {"a": Loss(1)}
    assert state.status.read_available() == {"T": 7}


def test_a_status_that_was_cut_off_tells_of_no_loss(state: StateDir) -> None:
    publish(state, {"a": Loss(1)}, answers=1)
    content = Path(state.status.path).read_bytes()
    for at in range(len(content)):
        Path(state.status.path).write_bytes(content[:at])
        for read in (state.status.read_lost, state.status.read_available):
            with pytest.raises(StateUnreadable, match="not valid JSON"):
                read()

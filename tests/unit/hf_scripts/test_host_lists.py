"""Tests of lists of hosts: a document that is parsed in pieces gives the same result as a document that is parsed
whole, with less memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_scripts import host_lists, input_documents
from hf_scripts.input_documents import Document, Refused


def filled(begin: str, entry: str, end: str) -> bytes:
    """Return a document of almost the greatest allowed size. It repeats the entry as often as fits."""
    count = (input_documents.DOCUMENT_BYTES - len((begin + end).encode())) // len(entry.encode())
    return (begin + count * entry + end).encode()


WIDE = "\N{GRINNING FACE}"
"""A character because of which each character of its text takes four bytes in memory."""

LARGE = {
    "a name without end": lambda: filled('{"machines":[{"name":"', "a", WIDE + '"}]}'),
    "names that are too long": lambda: filled('{"machines":[', f'{{"name":"{WIDE}{4000 * "a"}"}},', '{"name":"a"}]}'),
    "the longest names": lambda: filled('{"machines":[', f'{{"name":"{WIDE}{240 * "a"}"}},', '{"name":"a"}]}'),
    "as many objects as there may be": lambda: filled(
        f'{{"x":"{WIDE}","machines":[',
        f'{{"a":"{(2 * input_documents.DOCUMENT_BYTES // input_documents.MOST_VALUES - 7) * "a"}"}},',
        "{}]}",
    ),
}


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_a_document_takes_ten_times_its_greatest_size_in_memory_at_most(large: Callable[[], bytes]) -> None:
    document = Document("the file", large())
    tracemalloc.start()
    try:
        with suppress(Refused):
            host_lists.returned(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * input_documents.DOCUMENT_BYTES


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
    """Return the list as HostFactory writes it, or in another form."""
    return json.dumps(grid, indent=indent, ensure_ascii=ascii_only).encode(encoding, "surrogatepass")  # type: ignore[arg-type]


def taken(content: bytes, piece: int, take: Callable[[Document], Any]) -> object:
    """Return the hosts of a document, or the text of the refusal. ``piece``: bytes that are parsed at a time."""
    before, host_lists.PIECE = host_lists.PIECE, piece
    try:
        return take(Document("the file", content))
    except Refused as error:
        return str(error)
    finally:
        host_lists.PIECE = before


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
        for take in (host_lists.returned, host_lists.listed):
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
def test_a_text_that_resembles_a_long_list_is_judged_as_a_whole(text: str) -> None:
    content = text.replace("HOST", HOST).replace("EIGHTY", " " * 80).encode()
    for take in (host_lists.returned, host_lists.listed):
        for piece in (34, 40, 50, 75, 80):
            assert taken(content, piece, take) == taken(content, 10**9, take)


@pytest.mark.parametrize("indent", ["\t", None])
def test_the_usual_long_list_is_never_parsed_as_a_whole(indent: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {
        "machines": [{"name": f"hf-{number}.c.demo.internal", "machineId": f"hf-{number}"} for number in range(3000)]
    }
    document = Document("the file", json.dumps(grid, indent=indent).encode())
    loads, longest = json.loads, 0

    def noting(content: bytes) -> Any:
        nonlocal longest
        longest = max(longest, len(content))
        return loads(content)

    monkeypatch.setattr(json, "loads", noting)
    parsed = host_lists.listed(document)
    assert parsed is not None
    assert parsed.machines == [f"hf-{number}" for number in range(3000)]
    assert parsed.names[-1] == "hf-2999.c.demo.internal"
    assert longest <= host_lists.PIECE + 2


def test_a_grid_of_hosts_takes_no_more_memory_than_its_names() -> None:
    names = [f"hf-0123456789-{number:06d}" for number in range(20_000)]
    grid = {"machines": [{"name": f"{name}.c.demo.internal", "machineId": name} for name in names]}
    document = Document("the file", json.dumps(grid).encode())
    tracemalloc.start()
    try:
        parsed = host_lists.returned(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert parsed.machines == names
    assert peak < 250 * len(names), "bytes: two texts and two references for each host, and one piece"

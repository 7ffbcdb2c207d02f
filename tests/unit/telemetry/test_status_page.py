"""The status page without a browser: its contents, its links and its escaping."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import jsonschema
import pytest

from provisioner.model import Memory
from provisioner.state.directory import StateDir
from provisioner.state.journal import format_time
from provisioner.telemetry import status_page as pages
from provisioner.telemetry.machine_plots import Samples
from provisioner.telemetry.status_page import StatusPage, clip
from tests.support.parts import alter
from tests.support.status_page import HOSTILE, TIDY, grid, hours, leave, page
from tests.unit.core import NOW, REQUEST, memory, name, record, running, slot

SCHEMA = Path(__file__).parents[3] / "docs" / "status.schema.json"


class Read(HTMLParser):
    """A page as a browser reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self) -> list[str]:
        return [href for tag, attributes in self.tags if tag == "a" and (href := attributes.get("href"))]


def text_of(shown: StatusPage, path: str, query: str = "", status: int = 200) -> str:
    response = shown.respond(path, query)
    assert response is not None
    assert response.status == status
    return response.body.decode()


@pytest.fixture
def shown(tmp_path: Path) -> StatusPage:
    return page(tmp_path, *grid())


PATHS = [
    "/",
    f"/pool/{TIDY}",
    f"/template/{TIDY}",
    f"/request/{REQUEST}",
    "/request/ret-aaaaaaaaaa",
    f"/machine/{name(1)}",
]


@pytest.mark.parametrize("path", PATHS)
def test_each_page_has_a_language_a_title_headings_scoped_heads_and_links_that_lead_somewhere(
    shown: StatusPage, path: str
) -> None:
    read = Read(text_of(shown, path))
    tags = [tag for tag, _ in read.tags]
    assert ("html", {"lang": "en"}) in read.tags
    assert (tags.count("title") - tags.count("svg"), tags.count("h1"), tags.count("main")) == (1, 1, 1)
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in read.tags if tag == "th")
    assert all("style" not in attributes for _, attributes in read.tags)
    assert not {"script", "iframe", "img", "object"} & set(tags)
    assert ("meta", {"http-equiv": "refresh", "content": "10"}) in read.tags
    assert "http-equiv" not in text_of(shown, path, "still")
    for link in read.links():
        parts = urlsplit(urljoin(f"http://here{path}", link))
        response = shown.respond(parts.path, parts.query)
        assert response is not None, link
        assert response.status == 200 or "/machine/gke-main" in parts.path, link


def test_a_plot_has_a_description_in_words(shown: StatusPage) -> None:
    read = Read(text_of(shown, f"/pool/{TIDY}"))
    svg = next(attributes for tag, attributes in read.tags if tag == "svg")
    ids = {attributes.get("id") for _, attributes in read.tags}
    assert svg["role"] == "img"
    assert set((svg["aria-labelledby"] or "").split()) <= ids
    assert re.search(r"Machines of pool gke-main from \d\d:\d\d to \d\d:\d\d: wanted \d+ at first", read.text)


def test_the_first_page_has_the_content_of_status(shown: StatusPage) -> None:
    text = Read(text_of(shown, "/")).text
    for words in (
        "needs an operator",
        "BRAKE too_many_orphans",
        "PLANNING STOPPED",
        "PAUSED pool gke-main",
        "REFUSED",
        "1 lost in gke-main since ",
    ):
        assert words in text
    assert "1 set aside" in text
    assert "STUCK" in text
    assert f"Costs {TIDY} used budget forecast per hour 7.50 0.5 –" in re.sub(
        r"(\s*<[^>]+>)+\s*|\s+", " ", text_of(shown, "/")
    )


def test_the_page_of_a_machine_shows_its_facts_in_memory_also_for_an_orphan(shown: StatusPage, tmp_path: Path) -> None:
    text = Read(text_of(shown, f"/machine/{name(1)}")).text
    for words in ("pending", "stockout: no room", "create sent", REQUEST):
        assert words in text
    remembered = memory(time=NOW, orphans={"hf-zzzzzzzzzz-000000": NOW})
    orphan = page(tmp_path, remembered, grid()[1])
    assert "The machine has no request" in text_of(orphan, "/machine/hf-zzzzzzzzzz-000000")


@pytest.mark.parametrize("kind", ["pool", "template", "request", "machine"])
def test_an_unknown_name_has_a_page_that_says_so(shown: StatusPage, kind: str) -> None:
    text = Read(text_of(shown, f"/{kind}/%3Cb%3Enothing", status=404)).text
    assert f"No such {kind}" in text
    assert "'<b>nothing'" in text


def test_an_unknown_path_has_no_page(shown: StatusPage) -> None:
    paths = ("/nothing", "/pool", "/pool/", "/metrics/x", "//", "/static/../x")
    assert [shown.respond(path, "") for path in paths] == [None] * len(paths)


def test_a_directory_without_files_has_a_page_that_says_so(tmp_path: Path) -> None:
    empty = StatusPage(StateDir(tmp_path), lambda: None, Samples())
    assert "intent.json" in text_of(empty, "/", status=503)


def test_a_loop_that_stands_by_shows_the_content_of_the_files(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    remembered, pool_status = grid()
    leave(state, remembered, pool_status)
    state.memory.write(remembered)
    text = Read(text_of(StatusPage(state, lambda: None, Samples()), "/")).text
    assert REQUEST in text
    assert "A plot follows with the first cycle" in text


# --- hostile names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", HOSTILE.values(), ids=HOSTILE)
def test_foreign_texts_are_shown_as_text_alone(tmp_path: Path, word: str) -> None:
    remembered, pool_status = grid(word)
    state = StateDir(tmp_path)
    leave(
        state,
        remembered,
        replace(pool_status, pools={}, refused=[], paused=[], orphans={}) if "\ud800" in word else pool_status,
    )
    shown = StatusPage(state, lambda: remembered, hours(remembered))
    plain = {
        tag
        for path in ("/", f"/request/{quote(word, safe='', errors='replace')}")
        for tag, _ in Read(text_of_any(shown, path)).tags
    }
    assert not {"script", "img", "iframe"} & plain
    for kind in ("pool", "template", "request", "machine"):
        text = text_of_any(shown, f"/{kind}/{quote(word, safe='', errors='replace')}")
        assert "<script" not in text
        assert 'onerror="' not in text
        assert "49" not in re.findall(r"<h1>.*?</h1>", text, re.DOTALL)[0]
        assert max(map(len, re.findall(r"\S+", Read(text).text))) < 2000


def text_of_any(shown: StatusPage, path: str) -> str:
    response = shown.respond(path, "")
    assert response is not None
    assert response.status in (200, 404)
    return response.body.decode()


# --- long lists -------------------------------------------------------------------------------------------------------


@pytest.fixture
def long(tmp_path: Path) -> StatusPage:
    """Return a page of three hundred requests, the first with three hundred machines."""
    ids = [f"r{number:09d}" for number in range(300)]
    first = record(
        *(running(n, request=ids[0], pool=TIDY) for n in range(299)), slot(299, request=ids[0], pool=TIDY), id_=ids[0]
    )
    remembered = alter(memory(first, *(record(id_=id_, count=1) for id_ in ids[1:])), time=NOW)
    return page(tmp_path, remembered, grid()[1])


def test_a_long_list_is_cut_with_the_number_left_and_a_filter_finds_the_rest(long: StatusPage) -> None:
    assert "and 200 more requests" in text_of(long, "/")
    assert "r000000299" in text_of(long, "/", "find=0299")
    assert "r000000050" not in text_of(long, "/", "find=0299")
    assert "r000000299" not in text_of(long, "/")


def test_machines_that_do_not_run_come_first(long: StatusPage) -> None:
    text = text_of(long, "/request/r000000000")
    assert "and 200 more machines" in text
    assert text.index("000299") < text.index("000000-000000")
    assert "hf-r000000000-000150" in text_of(long, "/request/r000000000", "find=000150")


# --- programs ---------------------------------------------------------------------------------------------------------


def test_status_json_fits_its_schema(shown: StatusPage) -> None:
    document = json.loads(text_of(shown, "/status.json"))
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)
    assert set(schema["properties"]) == set(document) == set(schema["required"])


def test_many_readers_at_once_cost_one_reading(shown: StatusPage, monkeypatch: pytest.MonkeyPatch) -> None:
    observations: list[object] = []
    whole = pages.read_status_inputs

    def counted(state: StateDir, remembered: Memory | None) -> object:
        observations.append(remembered)
        return whole(state, remembered)

    monkeypatch.setattr(pages, "read_status_inputs", counted)
    monkeypatch.setattr(pages, "FRESH", 60.0)
    for path in PATHS:
        text_of(shown, path)
    assert len(observations) == 1


def test_a_pool_a_request_and_a_machine_have_a_timeline(tmp_path: Path) -> None:
    remembered, pool_status = grid()
    state = StateDir(tmp_path)
    leave(state, remembered, pool_status)
    refused = {"event": "create", "result": "quota", "machine": name(1), "pool": TIDY, "text": "<b>no"}
    hold = {"event": "hold", "hold": "drain", "result": "set", "pool": TIDY, "who": "ann", "text": "<i>ill"}
    state.journal.append({"time": format_time(time.time()), "cycle": 1, **line} for line in (refused, hold))
    status_page = StatusPage(state, lambda: remembered, Samples())
    for path in (f"/machine/{name(1)}", f"/request/{REQUEST}", f"/pool/{TIDY}"):
        assert f"refused 1 create of {name(1)}: quota: “&lt;b&gt;no”." in text_of(status_page, path)
    assert "Drain in pool gke-main set by ann: &lt;i&gt;ill." in text_of(status_page, f"/pool/{TIDY}")
    assert "Timeline" not in text_of(status_page, "/") + text_of(status_page, f"/template/{TIDY}")


def test_a_long_text_is_cut_on_one_line() -> None:
    assert (clip("a\n b"), clip("x" * 5, 4), clip("x" * 4, 4)) == ("a b", "xxx…", "xxxx")

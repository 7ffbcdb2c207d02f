"""Sources that know only numbers: what counts as a number, windows of a timetable, and results of Prometheus.

The forms of Prometheus' responses are those of its documentation (prometheus.io/docs/prometheus/latest/querying/api).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from provisioner.demand.simple_sources import Command, Fixed, Prometheus, Schedule, Url, Window, read_query_result
from provisioner.demand.sources import Fleet, Shape, SourceError, SourceSettings

SHAPE = Shape(4, 16_000, 0)
FLEET = Fleet(1_800_000_000.0, {"Small": SHAPE, "Large": SHAPE}, {})
ZURICH = ZoneInfo("Europe/Zurich")


def at(text: str) -> float:
    """Return the epoch seconds of a moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


# --- numbers ----------------------------------------------------------------------------------------------------------


def output(document: object, template: str | None = "Small") -> Mapping[str, int]:
    """Return the wanted machines if a source's program prints the document."""
    reading = Command(argv=("wanted",), template=template).reading(document, FLEET)
    assert reading.idle is None
    assert not reading.unfit
    return reading.wanted


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (3, {"Small": 3}),
        (0, {"Small": 0}),
        (2.1, {"Small": 3}),
        (3.0000000001, {"Small": 3}),
        ({"Large": 2, "Small": 0.5}, {"Large": 2, "Small": 1}),
        ({}, {}),
    ],
)
def test_a_number_is_rounded_up_and_belongs_to_the_set_template(document: object, expected: object) -> None:
    assert output(document) == expected


@pytest.mark.parametrize(
    "document", [-1, 10**9 + 1, math.nan, math.inf, True, None, "3", [3], {"Small": "3"}, {"Small": -1}]
)
def test_anything_else_is_a_failed_read(document: object) -> None:
    with pytest.raises(SourceError, match="expected a number of machines of Small, got"):
        output(document)


def test_an_object_with_a_name_twice_is_a_failed_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an object has a name twice, the read must fail, because one of the two numbers would be lost. This happens
    where a program joins the outputs of two clusters."""
    monkeypatch.setattr(Url, "fetch", lambda *_: b'{"Small": 3, "Large": 1, "Small": 0}')
    with pytest.raises(SourceError, match=r"got \[\('Small', 3\), \('Large', 1\), \('Small', 0\)\]"):
        Url(url="http://page.example/", template="Small").read(FLEET)


def test_a_number_without_a_set_template_is_a_failed_read() -> None:
    assert output({"Large": 1}, None) == {"Large": 1}
    with pytest.raises(SourceError, match="no template is set"):
        output(3, None)


def test_a_number_for_an_unknown_template_is_unfit() -> None:
    reading = Command(argv=("wanted",)).reading({"Smal": 3, "Old": 0, "Small": 1}, FLEET)
    assert reading.wanted == {"Small": 1}
    assert reading.unfit == {"machines of the unknown template Smal": 3}


def test_a_constant_is_wanted_at_any_time() -> None:
    assert Fixed(template="Small", machines=5).read(FLEET).wanted == {"Small": 5}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (Fixed(template="Small", machines=5), {"Small"}),
        (Command(argv=("wanted",), template="Small"), {"Small"}),
        (Command(argv=("wanted",)), set()),
    ],
)
def test_settings_name_their_template(settings: SourceSettings, named: set[str]) -> None:
    assert settings.templates() == named


def test_the_address_of_a_page_holds_no_login() -> None:
    Url(url="https://page.example:8443/wanted?grid=1")
    for address in ("ftp://page.example", "https://user:secret@page.example/", "page.example", "http://page?grid=1"):
        with pytest.raises(ValidationError):
            Url(url=address)


@pytest.mark.parametrize(
    "address", ["http://page:many/", "http://[::1", "http://::1/", "http://page:123456/", "http://:80/"]
)
def test_an_address_that_no_client_can_use_is_refused_before_the_start(address: str) -> None:
    Url(url="http://[::1]:8080/wanted")
    with pytest.raises(ValidationError):
        Url(url=address)


@pytest.mark.parametrize("content", ["s3cret\n# renewed in May", "s3cret more", "s3cretä", "", "\n"])
def test_a_token_that_is_no_token_is_refused_without_showing_it(content: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(content)
    with pytest.raises(SourceError, match=f"token_file {token} cannot be read: ") as refused:
        Url(url="http://127.0.0.1:1/", template="Small", token_file=token).read(FLEET)
    assert "s3cret" not in str(refused.value)


# --- windows ----------------------------------------------------------------------------------------------------------


def covers(moment: str, begin: str, end: str, days: str = "mon-sun") -> bool:
    return Window(days=days, begin=begin, end=end, machines=1).covers(at(moment), ZURICH)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-11-27T16:59:59", False),
        ("2026-11-27T17:00", True),
        ("2026-11-28T04:59:59", True),
        ("2026-11-28T05:00", False),
        ("2026-11-28T17:00", False),
        ("2026-11-29T23:00", False),
        ("2026-11-30T04:00", False),
        ("2026-11-30T17:00", True),
    ],
    ids=[
        *("before it on Friday", "its begin", "after midnight, on Saturday", "its end", "Saturday evening"),
        *("Monday after midnight", "early on Monday, after Sunday", "Monday evening"),
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins(moment: str, expected: bool) -> None:
    """A window over midnight must belong to the day on which it begins. The moments are in UTC, an hour behind Zurich.
    The 27th of November 2026 is a Friday."""
    assert covers(moment, "18:00", "06:00", "mon-fri") is expected


def test_a_window_follows_the_wall_clock_through_the_year() -> None:
    assert not covers("2026-07-01T05:59", "08:00", "18:00")
    assert covers("2026-07-01T06:00", "08:00", "18:00"), "summer: UTC+2"
    assert not covers("2026-01-15T06:59", "08:00", "18:00")
    assert covers("2026-01-15T07:00", "08:00", "18:00"), "winter: UTC+1"


def test_equal_times_are_a_whole_day() -> None:
    assert covers("2026-11-27T12:00", "00:00", "00:00", "fri")
    assert not covers("2026-11-28T12:00", "00:00", "00:00", "fri")


@pytest.mark.parametrize(
    ("days", "day"),
    [("sat,mon", "2026-11-28"), ("sat, mon", "2026-11-30"), ("sat-mon", "2026-11-29"), ("fri", "2026-11-27")],
)
def test_days_are_single_days_or_ranges_also_over_the_weekend(days: str, day: str) -> None:
    assert covers(f"{day}T12:00", "08:00", "18:00", days)
    assert not covers("2026-12-01T12:00", "08:00", "18:00", days), "Tuesday"


def spans(begin: str, end: str, day: str) -> list[tuple[str, str]]:
    """Return the parts of a day in UTC that a window covers, minute by minute."""
    start, found, was = at(day), list[tuple[str, str]](), False
    for minute in range(24 * 60 + 1):
        text = datetime.fromtimestamp(start + 60 * minute, UTC).strftime("%H:%M")
        covered = Window(begin=begin, end=end, machines=1).covers(start + 60 * minute, ZURICH)
        if covered and not was:
            found.append((text, ""))
        elif was and not covered:
            found[-1] = (found[-1][0], text)
        was = covered
    return found


def test_clocks_that_go_back_make_no_gap_in_a_window() -> None:
    """If the clocks go back, a window must have no gap. On 25 October 2026 at 1:00 UTC, 3:00 becomes 2:00 in Zurich. So
    2:30 is at 0:30 and at 1:30 UTC."""
    assert spans("01:00", "02:30", "2026-10-25") == [("00:00", "01:30"), ("00:00", "")], "from 23:00 UTC on"
    assert spans("02:30", "03:00", "2026-10-25") == [("00:30", "02:00")]


def test_clocks_that_go_forward_leave_out_no_window() -> None:
    """If the clocks go forward, no window may be left out. On 29 March 2026 at 1:00 UTC, 2:00 becomes 3:00 in Zurich.
    So 2:15 and 2:45 do not exist."""
    assert spans("02:15", "02:45", "2026-03-29") == [("00:15", "01:45")]
    assert spans("01:00", "02:30", "2026-03-29") == [("00:00", "01:30"), ("23:00", "")]


any_time = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))


@given(any_time, any_time, st.integers(0, 366 * 24 * 60))
def test_a_window_on_each_day_covers_exactly_its_wall_times(begin: str, end: str, minute: int) -> None:
    now = at("2026-01-01T00:00") + 60 * minute
    wall = datetime.fromtimestamp(now, ZURICH)
    if wall.date().isoformat() in ("2026-03-29", "2026-10-25"):
        return
    text = wall.strftime("%H:%M")
    expected = begin <= text < end if begin < end else text >= begin or text < end
    assert Window(begin=begin, end=end, machines=1).covers(now, ZURICH) is expected


def test_the_largest_of_overlapping_windows_counts() -> None:
    windows = (
        {"machines": 5, "begin": "08:00", "end": "18:00"},
        {"machines": 9, "begin": "12:00", "end": "13:00"},
        {"machines": 7, "begin": "12:00", "end": "14:00"},
    )
    schedule = Schedule(template="Small", zone="UTC", windows=windows)

    def wanted(moment: str) -> int:
        return schedule.read(FLEET._replace(now=at(moment))).wanted["Small"]

    assert [wanted(f"2026-11-27T{hour}:30") for hour in ("07", "08", "12", "13", "18")] == [0, 5, 9, 7, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"days": "someday"},
        {"days": ""},
        {"days": "mon-"},
        {"days": "-fri"},
        {"begin": "24:00"},
        {"begin": "8:00"},
        {"begin": 1080},
        {"machines": -1},
    ],
)
def test_a_wrong_window_is_refused(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Window.model_validate({"machines": 1, **wrong})


@pytest.mark.parametrize("zone", ["Europe/Zurch", "", "../etc/passwd", "/etc/passwd", "Europe"])
def test_a_zone_that_the_host_does_not_know_is_refused(zone: str) -> None:
    with pytest.raises(ValidationError):
        Schedule(template="Small", zone=zone, windows=(Window(machines=1),))


# --- Prometheus -------------------------------------------------------------------------------------------------------


def answer(kind: str, result: object, **more: object) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}, **more}


def series(value: str, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1435781451.781, value]}


def result(document: Mapping[str, Any]) -> Mapping[str, int]:
    settings = Prometheus(url="http://prometheus:9090", query="jobs", template="Small")
    return settings.reading(read_query_result(document), FLEET).wanted


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (answer("scalar", [1435781451.781, "3"]), {"Small": 3}),
        (answer("vector", [series("3", job="queue")]), {"Small": 3}),
        (answer("vector", [series("0")]), {"Small": 0}),
        (answer("vector", [series("2.5", template="Large")]), {"Large": 3}),
        (answer("vector", [series("2", template="Large"), series("0", template="Small")]), {"Large": 2, "Small": 0}),
        (answer("scalar", [0, "3"], infos=["PromQL info: metric might not be a counter"]), {"Small": 3}),
        (answer("scalar", [0, "3"], warnings=[], isPartial=False), {"Small": 3}),
    ],
)
def test_a_result_is_a_number_or_has_a_number_for_each_template(
    document: Mapping[str, Any], expected: Mapping[str, int]
) -> None:
    assert result(document) == expected


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (answer("vector", []), "no series"),
        (answer("scalar", [0, "NaN"]), "expected a number of machines of Small, got nan"),
        (answer("vector", [series("+Inf")]), "expected a number of machines of Small, got inf"),
        (answer("vector", [series("-1")]), "expected a number of machines"),
        (answer("vector", [series("3")], warnings=["remote read failed"]), "incomplete: .'remote read failed'"),
        (answer("vector", [series("3")], isPartial=True), "incomplete"),
        (answer("vector", [series("1", queue="a"), series("2", queue="b")]), "sum by .template."),
        (answer("vector", [series("1", template="Small"), series("2")]), "sum by .template."),
        (answer("vector", [series("1", template="Small", q="a"), series("2", template="Small", q="b")]), "sum by"),
        (answer("matrix", []), "scalar or an instant vector"),
        (answer("string", [0, "3"]), "scalar or an instant vector"),
        ({"status": "error", "errorType": "bad_data", "error": "parse error"}, "the query failed: parse error"),
    ],
)
def test_an_empty_incomplete_or_ambiguous_result_is_a_failed_read(document: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        result(document)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"<html>",
        json.dumps(answer("vector", [{"metric": {}, "histogram": [0, {}]}])).encode(),
        json.dumps(answer("scalar", "3")).encode(),
        json.dumps(answer("scalar", [0, "three"])).encode(),
    ],
)
def test_a_response_of_another_form_is_a_failed_read(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prometheus, "fetch", lambda *_: body)
    with pytest.raises(SourceError):
        Prometheus(url="http://prometheus:9090", query="jobs", template="Small").read(FLEET)


def test_a_query_goes_to_the_api_and_its_result_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fetch(_: Prometheus, url: str) -> bytes:
        calls.append(url)
        return json.dumps(answer("scalar", [0, "3"])).encode()

    monkeypatch.setattr(Prometheus, "fetch", fetch)
    for url in ("http://prometheus:9090", "http://prometheus:9090/"):
        assert Prometheus(url=url, query="sum(jobs)", template="Small").read(FLEET).wanted == {"Small": 3}
    assert calls == ["http://prometheus:9090/api/v1/query?query=sum%28jobs%29"] * 2


def test_a_template_whose_series_is_gone_is_a_failed_read(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [[series("2", template="Large"), series("3", template="Small")], [series("2", template="Large")]]
    results += [[*results[1], series("0", template="Small")]]
    bodies = iter([json.dumps(answer("vector", one)).encode() for one in results])
    monkeypatch.setattr(Prometheus, "fetch", lambda *_: next(bodies))
    source = Prometheus(url="http://prometheus:9090", query="sum by (template) (jobs)")
    assert source.read(FLEET).wanted == {"Small": 3, "Large": 2}
    remedy = 'or label_replace(vector(0), "template", "Small", "", "")'
    with pytest.raises(SourceError, match=f"no series for template Small.*append '{re.escape(remedy)}'"):
        source.read(FLEET)
    assert source.read(FLEET).wanted == {"Small": 0, "Large": 2}


def test_a_template_that_hostfactory_does_not_have_may_lose_its_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """A series may vanish without an error if HostFactory does not have its template, for example because the template
    was renamed or belongs to another site."""
    results = [[series("2", template="Large"), series("3", template="Old")], [series("2", template="Large")]]
    bodies = iter([json.dumps(answer("vector", one)).encode() for one in results])
    monkeypatch.setattr(Prometheus, "fetch", lambda *_: next(bodies))
    source = Prometheus(url="http://prometheus:9090", query="sum by (template) (jobs)")
    assert source.read(FLEET).unfit == {"machines of the unknown template Old": 3}
    assert source.read(FLEET).wanted == {"Large": 2}

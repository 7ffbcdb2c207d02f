"""Scenario files: a mistake is reported with its field or line, and with its value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.files.config_error import ConfigError
from provisioner.lab.virtual.scenario_file import read
from tests.unit.lab.virtual.test_true_events import TINY

# A document of its own, which holds one scenario by the file's name or several scenarios by their names.


def problem(file: Path, text: str) -> str:
    """Return the only problem of a file with this text."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(file)
    (only,) = caught.value.problems
    return str(only)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"bogus": 1}, "own.bogus: unknown setting; "),
        ({"hours": "ten"}, "own.hours: expected a number > 0, got 'ten'"),
        ({"pools": {}}, "own.pools: none; name one"),
        (
            {"pools": {"a": {"boot_second": 1}}},
            "own.pools.a.boot_second: unknown setting; did you mean 'boot_seconds'?",
        ),
        ({"pools": {"a": {"hangs": 2}}}, "own.pools.a.hangs: expected a number from 0 to 1, got 2"),
        ({"demand": [{"machines": -1}]}, "own.demand.0.machines: expected a whole number ≥ 0, got -1"),
        ({"demand": [{"machines": 1, "template": "U"}]}, "own.demand.0.template: unknown template 'U'; there are 'T'"),
        ({"templates": {"T": {"pools": ["b"]}}}, "own.templates.T.pools: unknown pool 'b'; there are 'a'"),
        ({"events": [{"at_minutes": 1, "pools": ["b"]}]}, "own.events.0.pools: unknown pool 'b'; there are 'a'"),
        ({"events": [{"at_minutes": 1, "do": "kil"}]}, "own.events.0.do: expected one of preempt, "),
        (
            {"events": [{"at_minutes": 1, "change": {"boot_seconds": "x"}}]},
            "own.events.0.change.boot_seconds: expected a number ≥ 0, got 'x'",
        ),
        ({"settings": {"lop": {}}}, "own.settings.lop: unknown setting; did you mean 'loop'?"),
        (
            {"settings": {"loop": {"interval_secs": 1}}},
            "own.settings.loop.interval_secs: unknown setting; did you mean 'interval_seconds'?",
        ),
        (
            {"settings": {"loop": {"interval_seconds": "1x"}}},
            "own.settings.loop.interval_seconds: expected a number > 0, at most 15, got '1x'",
        ),
        ({"settings": {"loop": 3}}, "own.settings.loop: expected a mapping of settings, got 3"),
        (
            {"settings": {"orphan_grace_minutes": -1}},
            "own.settings.orphan_grace_minutes: expected a number > 0, got -1",
        ),
        ({"settings": {"pools": {}}}, "own.settings.pools: the scenario defines this itself; leave it out"),
        ({"goals": {"t9": 3}}, "own.goals.t9: unknown measure; did you mean 't90'?"),
        ({"goals": {"t90": "x"}}, "own.goals.t90: expected a number for each measure, got 'x'"),
        ({"reason": "stokout"}, "own.reason: unknown reason 'stokout'; did you mean 'stockout'?"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_mistake_in_a_file_is_reported_with_its_place_and_value(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    assert problem(tmp_path / "own.yaml", yaml.safe_dump({**TINY, **more})).startswith(words)


def test_mistakes_in_settings_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    given = ["template_limits", "id", "pools", "templates", "instance"]
    sections = ["server", "loop", "events", "backoff", "compute", "budget"]
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({**TINY, "settings": dict.fromkeys([*given, *sections], 3)}, sort_keys=False))
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert [one.where for one in caught.value.problems] == [f"own.settings.{name}" for name in (*given, *sections)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no scenario; write one, or several by name"),
        ("x: 3", "x: expected a mapping of settings, got 3"),
        ("x: {", "line 1, column 5: "),
        ("- x", "expected a mapping of settings, got ['x']"),
    ],
)
def test_a_file_without_a_scenario_is_reported(tmp_path: Path, text: str, words: str) -> None:
    assert problem(tmp_path / "own.yaml", text).startswith(words)


def test_settings_of_the_provisioner_are_read(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({**TINY, "settings": {"loop": {"interval_seconds": 10.0}}}))
    (scenario,) = read(file).values()
    assert scenario.settings == {"loop": {"interval_seconds": 10.0}}

"""Which side has read which content of HostFactory's files: what proves a difference, and who is newer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from provisioner.hostfactory import templates
from provisioner.hostfactory.digest import Digests, digest_of_templates
from provisioner.state.config_marks import KEPT, ConfigMarks, Difference, ReadContent, Side, differences
from provisioner.telemetry.config_watch import sentence

A, B, C = (Digests("00000000", digit * 8) for digit in "abc")
OTHER = Digests("11111111", "a" * 8)


def read(**contents: list[tuple[int, Digests]]) -> dict[Side, list[ReadContent]]:
    made = {side: sorted((ReadContent(*one) for one in told), reverse=True) for side, told in contents.items()}
    return {"scripts": made.get("scripts", []), "loop": made.get("loop", [])}


TEMPLATES = "templates"
CASES = {
    "nobody has read": (read(), []),
    "the loop alone has read": (read(loop=[(1, A)]), []),
    "the scripts alone have read": (read(scripts=[(1, A)]), []),
    "both have read the same": (read(scripts=[(2, A)], loop=[(1, A)]), []),
    "the scripts have read nothing since the loop's changed": (read(scripts=[(2, A)], loop=[(1, A), (3, B)]), []),
    "the scripts read the old one still": (
        read(scripts=[(4, A)], loop=[(1, A), (3, B)]),
        [Difference(TEMPLATES, "loop")],
    ),
    "the scripts read a new one": (read(scripts=[(1, A), (4, B)], loop=[(2, A)]), [Difference(TEMPLATES, "scripts")]),
    "both were changed apart": (read(scripts=[(1, A), (4, B)], loop=[(1, A), (3, C)]), [Difference(TEMPLATES, None)]),
    "they never were the same": (read(scripts=[(4, B)], loop=[(3, C)]), [Difference(TEMPLATES, None)]),
    "the scripts go back to what the loop had": (
        read(scripts=[(2, B), (5, A)], loop=[(1, A), (3, B)]),
        [Difference(TEMPLATES, None)],
    ),
    "the other file differs": (read(scripts=[(1, A), (4, OTHER)], loop=[(2, A)]), [Difference("config", "scripts")]),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_difference(case: str) -> None:
    contents, found = CASES[case]

    assert differences(contents) == found


@pytest.mark.parametrize(("newer", "words"), [("scripts", "configmap"), ("loop", "HostFactory's host"), (None, "both")])
def test_a_difference_says_what_to_do(newer: Side | None, words: str) -> None:
    text = sentence(Difference(TEMPLATES, newer))

    assert "templates file" in text
    assert (words if newer else "compare the two") in text


def test_what_was_noted_is_read_and_what_is_old_is_forgotten(tmp_path: Path) -> None:
    marks = ConfigMarks(str(tmp_path / "config"))
    assert marks.read() == {"scripts": [], "loop": []}
    for number in range(KEPT + 2):
        digests = Digests("00000000", str(number) * 8)
        marks.note("loop", digests)
        os.utime(tmp_path / "config" / "-".join(("loop", *digests)), ns=(number, number))
    marks.note("scripts", A)
    (tmp_path / "config" / "loop-else").touch()
    marks.forget_old()

    assert [one.digests.templates[0] for one in marks.read()["loop"]] == ["4", "3", "2"]
    assert [one.digests for one in marks.read()["scripts"]] == [A]


def test_a_content_that_is_read_again_is_the_newest(tmp_path: Path) -> None:
    marks = ConfigMarks(str(tmp_path / "config"))
    for digests in (A, B):
        marks.note("scripts", digests)
        os.utime(tmp_path / "config" / "-".join(("scripts", *digests)), ns=(1, 1))
    marks.note("scripts", A)

    assert marks.read()["scripts"][0].digests == A


# --- the digest -------------------------------------------------------------------------------------------------------

ATTRIBUTES = {
    "type": ["String", "X86_64"],
    "ncpus": ["Numeric", "4"],
    "ncores": ["Numeric", "1"],
    "nram": ["Numeric", "8192"],
}
ENTRY = {"templateId": "T", "maxNumber": 5, "attributes": ATTRIBUTES, "pools": ["a"]}


def loaded(directory: Path, text: str, config: str = "{}") -> Digests:
    directory.mkdir(exist_ok=True)
    (directory / "demoprov_templates.json").write_text(text)
    (directory / "demoprov_config.json").write_text(config)
    return templates.load(directory, {}).digests


def test_space_order_and_what_is_of_a_moment_change_nothing(tmp_path: Path) -> None:
    first = loaded(tmp_path, json.dumps({"templates": [ENTRY]}))
    entry = {**dict(reversed(ENTRY.items())), "availableNumber": 3, "requestedMachines": []}

    assert loaded(tmp_path, json.dumps([entry], indent=4)) == first
    assert digest_of_templates([{**ENTRY, "maxNumber": 6}]) != first.templates


def test_each_file_has_a_digest_of_its_own(tmp_path: Path) -> None:
    text = json.dumps([ENTRY])
    first, second = loaded(tmp_path, text), loaded(tmp_path, text, '{"LOG_LEVEL": "DEBUG"}')

    assert first.templates == second.templates
    assert first.config != second.config


def test_no_config_is_an_empty_one(tmp_path: Path) -> None:
    empty = loaded(tmp_path, json.dumps([ENTRY]))
    (tmp_path / "demoprov_config.json").unlink()

    assert templates.load(tmp_path, {}).digests == empty

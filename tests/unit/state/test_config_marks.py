"""Which side has read which content of HostFactory's files: what proves a difference, and who is newer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioner.hostfactory.instance import Digests
from provisioner.state.markers import KEPT, ConfigMarks, Difference, ReadContent, Side, differences
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
    marks.note("loop", Digests("00000000", "2" * 8))
    assert [one.digests.templates[0] for one in marks.read()["loop"]] == ["2", "4", "3"], "read again: the newest"

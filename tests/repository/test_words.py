"""The rules about the words of our docstrings and names. ``make lint`` counts the breaches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import words
from tests.words import KINDS, findings, numbers

SIXTY = " ".join(["word"] * 60)


def found(root: Path, text: str, package: str = "provisioner") -> list[tuple[str, str]]:
    (root / package).mkdir()
    (root / package / "one.py").write_text(text)
    return [(one.kind, one.place) for one in findings(root)]


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        pytest.param('"""What it holds."""\n', "headless docstrings", 1, id="a question word"),
        pytest.param('A = 1\n"""Of all, the ``first``."""\n', "headless docstrings", 2, id="of a constant"),
        pytest.param(f'"""Return {SIXTY}."""\n', "long docstrings", 1, id="more than 60 words in a paragraph"),
        pytest.param("from loop import HeldLevers\n", "private words", 1, id="a part of a name"),
        pytest.param("answered_by = 1\n", "private words", 1, id="a name of two parts"),
        pytest.param('text = f"somebody {0}"\n', "private words", 1, id="in a text"),
    ],
)
def test_a_broken_rule_is_found_with_its_place(text: str, kind: str, line: int, tmp_path: Path) -> None:
    assert found(tmp_path, text) == [(kind, f"provisioner/one.py:{line}")]


@pytest.mark.parametrize("package", ["hf_scripts", "tests", "deploy"])
def test_all_code_is_read(package: str, tmp_path: Path) -> None:
    assert found(tmp_path, '"""Whose."""\nstory = 1\n', package) == [("private words", f"{package}/one.py:2")]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('"""Return what it holds."""\n', id="a verb and its object"),
        pytest.param(f'"""{SIXTY}\n\n{SIXTY}\n"""\n', id="two paragraphs, each within the limit"),
        pytest.param('who = "nobody"\n', id="the Unix user nobody"),
        pytest.param("withhold = cleverly = 1\n", id="another word that holds a private one"),
    ],
)
def test_plain_words_are_no_findings(text: str, tmp_path: Path) -> None:
    assert found(tmp_path, text) == []


def test_pages_are_read_and_each_kind_has_a_number(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("One.\nPull the lever.\n")
    assert numbers(findings(tmp_path)) == {"headless docstrings": 0, "long docstrings": 0, "private words": 1}
    assert [one.place for one in words.findings(tmp_path)] == ["docs/a.md:2"]
    assert set(KINDS) == set(numbers([]))


def test_the_architecture_is_read_in_one_go() -> None:
    text = (words.ROOT / "ARCHITECTURE.md").read_text()
    glossary = re.findall(r"^\| (?!word).+ \|$", text.partition("## The words")[2].partition("\n## ")[0], re.MULTILINE)
    assert len(text.split()) <= 3_500
    assert 30 < len(glossary) <= 40

"""The rule of ``make house`` for docstrings: two sentences, beside what is a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import long_docstrings

THREE = "It opens a slot. It closes one. It waits."


@pytest.mark.parametrize(
    "docstring",
    [
        pytest.param("It opens a slot. It closes one.", id="two sentences"),
        pytest.param("It opens e.g. A slot. Then it waits.", id="an abbreviation ends none"),
        pytest.param("It opens. It closes. Raises StateError.", id="what is raised is no sentence"),
        pytest.param("It opens. It closes. Pure: no I/O, no clock.", id="what is promised is no sentence"),
        pytest.param(
            "It opens. It closes.\n\n``now``: loop time. ``a`` (None: any), ``b``: both.", id="what names mean"
        ),
        pytest.param("It opens. It closes. Modes:\n\n* It opens. It waits.\n* It closes.", id="a list"),
    ],
)
def test_two_sentences_and_lists_pass(tmp_path: Path, docstring: str) -> None:
    assert _judged(tmp_path, f'"""{docstring}"""\n') == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(f'"""{THREE}"""\n', 1, id="of a module"),
        pytest.param(f'def f():\n    """{THREE}"""\n', 2, id="of a function"),
        pytest.param(f'LIMIT = 3\n"""{THREE}"""\n', 2, id="of a constant"),
        pytest.param('"""It opens ``a``.\n\n``b`` is closed. (It waits.)"""\n', 1, id="in quotes and parentheses"),
    ],
)
def test_three_sentences_are_told_with_their_line(tmp_path: Path, text: str, line: int) -> None:
    assert _judged(tmp_path, text) == [(f"provisioner.loop.cycle:{line}", 3)]


def test_settings_are_a_page_and_may_say_more(tmp_path: Path) -> None:
    assert _judged(tmp_path, f'"""{THREE}"""\n', "provisioner.settings.tree") == []


def _judged(directory: Path, text: str, module: str = "provisioner.loop.cycle") -> list[tuple[str, int]]:
    file = directory / "module.py"
    file.write_text(text)
    return [(size.name, size.size) for size in long_docstrings(module, file)]

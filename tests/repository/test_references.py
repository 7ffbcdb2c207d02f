"""The code and the tests refer by name to laws in ARCHITECTURE.md, facts in docs/, and files in the tree. Each of these
names must exist there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LAWS = set(re.findall(r"^\* \*\*(.+?)\.?\*\*", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
FACTS = set(re.findall(r"^\*\*(.+?)\.\*\*", (ROOT / "docs" / "hostfactory.md").read_text(), re.MULTILINE))
SOURCES = [path for top in ("provisioner", "hf_scripts", "tests") for path in (ROOT / top).rglob("*.py")]


def referred(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield each name that the pattern finds in our Python files, together with the file's path. A name may continue in
    the next line of a comment."""
    for path in SOURCES:
        for name in re.findall(pattern, re.sub(r"\n\s*(?:# )?", " ", path.read_text())):
            yield str(path.relative_to(ROOT)), name


def test_each_law_is_stated_under_the_name_that_is_referred_to() -> None:
    named = [(file, name) for file, names in referred(r"\(laws?: ([^)]+)\)") for name in names.split("; ")]
    assert len(named) > 10
    assert [(file, name) for file, name in named if name.lower() not in {law.lower() for law in LAWS}] == []


def test_each_law_that_a_run_can_break_is_stated() -> None:
    named = re.findall(r'"law: (.+)"', (ROOT / "tests" / "simulation" / "laws.py").read_text())
    assert len(named) > 5
    assert set(named) <= {law.lower() for law in LAWS}


def test_each_fact_of_hostfactory_is_stated_under_the_name_that_is_referred_to() -> None:
    named = list(referred(r"docs/hostfactory\.md: ([^),;`]+)[),;`]"))
    assert len(named) > 5
    assert [(file, name) for file, name in named if name not in FACTS | {"NAME"}] == []


def test_nothing_is_referred_to_by_a_number_that_no_page_defines() -> None:
    numbered = re.compile(r"\blaws? \d|interface §|\bDESIGN\b")
    here = Path(__file__)
    assert [str(path) for path in SOURCES if path != here and numbered.search(path.read_text())] == []


def test_each_file_that_a_page_names_is_there() -> None:
    """The named file must exist. Its path may begin at the root, in ``provisioner``, or in
    ``provisioner/lab/cloud``."""
    missing = []
    for page in PAGES:
        for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|sh|md|yaml))`", page.read_text()):
            if not any((top / name).exists() for top in (ROOT, ROOT / "provisioner", ROOT / "provisioner/lab/cloud")):
                missing.append((page.name, name))
    assert missing == []

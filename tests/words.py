"""Count breaches of the project's language rules: headless docstrings, long docstrings, and private words.

A docstring is headless if its first word is a question word or a pronoun. A private word has a plain word instead.

``make lint`` fails if there are more breaches than ``[words]`` in ``setup.cfg`` allows. ``python -m tests.words``
prints each breach with its place.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CODE = ("provisioner", "hf_scripts", "tests", "deploy")
OWN = ("tests/words.py", "tests/repository/test_words.py")
"""Files that name the private words."""
TEXTS = (
    *("README.md", "ARCHITECTURE.md", "docs/*.md", "config/**/*.yaml", "provisioner/**/*.html"),
    *(f"deploy/**/*.{end}" for end in ("md", "sh", "tf", "yaml")),
)

HEADLESS = frozenset(["what", "how", "of", "whether", "where", "which", "one", "those", "why", "when", "that"])
LONGEST = 60
"""Words of a docstring."""

PRIVATE = frozenset(
    [
        "answered_by",
        "astray",
        "clash",
        "doubt",
        "doubts",
        "edition",
        "evidence",
        "heed",
        "heeds",
        "intake",
        "learned",
        "lesson",
        "lever",
        "levers",
        "lifted",
        "looks",
        "mend",
        "mended",
        "mends",
        "namesake",
        "namesakes",
        "nobody",
        "notebook",
        "overtaken",
        "overview",
        "people",
        "person",
        "persons",
        "postings",
        "pressures",
        "presume",
        "presumed",
        "relocation",
        "remains",
        "respecified",
        "settlement",
        "settlements",
        "shortage",
        "shortages",
        "somebody",
        "stories",
        "story",
        "stranger",
        "strangers",
        "told",
        "unobserved",
    ]
)
"""Words, and parts of names, that the project does not use."""

WORD = re.compile(r"answered_by|[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
UNIX_USER = re.compile(r"""(?:user |["'`])nobody\b""")

KINDS = ("headless docstrings", "long docstrings", "private words")


class Finding(NamedTuple):
    """A place and what is wrong there."""

    kind: str
    place: str
    text: str


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return line and text of each docstring, also those of constants and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def of_docstring(place: str, text: str) -> Iterator[Finding]:
    """Judge one docstring."""
    words = text.split()
    first = words[0].strip("`,.:;").lower() if words else ""
    if first in HEADLESS:
        yield Finding("headless docstrings", place, " ".join(words[:8]))
    longest = max((len(part.split()) for part in re.split(r"\n\s*\n|\n\s*[*-] ", text)), default=0)
    if longest > LONGEST:
        yield Finding("long docstrings", place, f"{longest} words")


def private(place: str, text: str) -> Iterator[Finding]:
    """Find the private words of a text, by line."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORD.findall(UNIX_USER.sub("", line)):
            if word.lower() in PRIVATE:
                yield Finding("private words", f"{place}:{number}", word)


def findings(root: Path = ROOT) -> Iterator[Finding]:
    """Find all that breaks a rule below ``root``."""
    for package in CODE:
        for path in sorted((root / package).rglob("*.py")):
            text, place = path.read_text(), str(path.relative_to(root))
            if place in OWN:
                continue
            for line, docstring in docstrings(ast.parse(text)):
                yield from of_docstring(f"{place}:{line}", docstring)
            yield from private(place, text)
    for pattern in TEXTS:
        for path in sorted(root.glob(pattern)):
            yield from private(str(path.relative_to(root)), path.read_text())


def numbers(found: Iterable[Finding]) -> Mapping[str, int]:
    """Count the findings of each kind, also of a kind without any."""
    counts = Counter(one.kind for one in found)
    return {kind: counts[kind] for kind in KINDS}


if __name__ == "__main__":
    for finding in findings():
        print(f"{finding.place}: {finding.kind}: {finding.text}")

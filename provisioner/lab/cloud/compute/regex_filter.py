"""The older of Compute Engine's two filter languages.

A filter is ``FIELD eq REGEX`` or ``FIELD ne REGEX``, or several of these conditions in parentheses. Inside quotes, a
backslash escapes only the quote itself.

Regular expressions follow RE2. Syntax that RE2 refuses is refused. Syntax that Python would read differently is
translated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DEEPEST = 32
"""The deepest nesting of parentheses. Deeper nesting is a mistake."""

_BEGIN = re.compile(r"[\s(]*[A-Za-z_][\w.-]*\s+(?:eq|ne)\b")
_CONDITION = re.compile(r"\s*(?P<field>[A-Za-z_][\w.-]*)\s+(?P<operator>eq|ne)\s+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """A comparison with a regular expression."""

    field: str
    is_negative: bool
    """True for ``ne``: the condition holds if no value matches."""
    pattern: re.Pattern[str]
    """The pattern, which has to match the whole value."""


def is_regex_filter(text: str) -> bool:
    """Return True if a filter is in the older language. Such a filter begins with ``FIELD eq`` or ``FIELD ne``."""
    return _BEGIN.match(text) is not None


def conditions(text: str) -> list[Condition]:
    """Return the conditions that must all hold. Raise ValueError with the position of a mistake."""
    reader = _Reader(text)
    conditions = list(reader.conditions(0))
    if reader.rest():
        raise ValueError(f"unexpected '{reader.rest()}'; one of several conditions stands in parentheses")
    return conditions


class _Reader:
    """A reader that passes through the text once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def rest(self) -> str:
        """Return the part of the text that is still to be read."""
        return self._text[self._at :].strip()

    def conditions(self, depth: int) -> Iterator[Condition]:
        """Yield one condition, or the conditions in parentheses. ``depth``: number of open parentheses."""
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} parentheses within each other")
        if not self._skip("("):
            yield self._condition()
            return
        while True:
            yield from self.conditions(depth + 1)
            if not self._skip(")"):
                raise ValueError(f"a parenthesis is not closed before '{self.rest()}'")
            if not self._skip("("):
                return

    def _skip(self, character: str) -> bool:
        """If this character comes next, skip it and return True. If not, return False."""
        match = re.compile(r"\s*").match(self._text, self._at)
        begin = match.end() if match else self._at
        if not self._text.startswith(character, begin):
            return False
        self._at = begin + len(character)
        return True

    def _condition(self) -> Condition:
        match = _CONDITION.match(self._text, self._at)
        if match is None:
            raise ValueError(f"expected FIELD eq REGEX or FIELD ne REGEX at '{self.rest()}'")
        self._at = match.end()
        return Condition(match["field"], match["operator"] == "ne", compile_re2(self._literal()))

    def _literal(self) -> str:
        quoted = _QUOTED.match(self._text, self._at)
        end = quoted.end() if quoted else self._bare_end()
        literal = self._text[self._at : end]
        if not literal or (literal[0] in "\"'" and quoted is None):
            raise ValueError(f"expected a regular expression at '{self.rest()}'")
        self._at = end
        return literal[1:-1] if quoted else literal

    def _bare_end(self) -> int:
        """Return the index where a literal without quotes ends: at a space, or at a closing parenthesis that was not
        opened in the literal."""
        depth, at = 0, self._at
        while at < len(self._text) and not self._text[at].isspace():
            depth += {"(": 1, ")": -1}.get(self._text[at], 0)
            if depth < 0:
                break
            at += 2 if self._text[at] == "\\" else 1
        return min(at, len(self._text))


# --- RE2 --------------------------------------------------------------------------------------------------------------

_PIECE = re.compile(
    r"""(?P<literal>\\Q.*?(?:\\E|$))
      | (?P<escape>\\.)
      | (?P<group>\(\?(?:P=|<[=!]|[=!>(\#]))
      | (?P<possessive>[*+?}]\+)
      | (?P<set>\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\])
      | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r"\t ",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


def compile_re2(pattern: str) -> re.Pattern[str]:
    """Return a Python pattern that means the same as ``pattern`` means in RE2. Raises ValueError for syntax that RE2
    refuses."""
    translated = "".join(_translate(match) for match in _PIECE.finditer(pattern))
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"'{pattern}' is no regular expression of RE2: {error}") from error


def _translate(match: re.Match[str]) -> str:
    piece, kind = match[0], match.lastgroup
    if kind in ("group", "possessive"):
        raise ValueError(f"'{piece}' in '{match.string}' is not in the syntax of RE2")
    if kind == "literal":
        return re.escape(piece[2:].removesuffix("\\E"))
    if kind == "set":
        return _set(match)
    return _escape(match) if kind == "escape" else piece


def _escape(match: re.Match[str]) -> str:
    r"""Translate ``\z`` to Python's ``\Z``. Raise ValueError for back references and for escapes that only Python
    has."""
    letter = match[0][1]
    if letter == "z":
        return r"\Z"
    if letter in "123456789ZuUN":
        raise ValueError(f"'{match[0]}' in '{match.string}' is not in the syntax of RE2")
    return match[0]


def _set(match: re.Match[str]) -> str:
    """Return a set in brackets with translated names of POSIX's character classes.

    Python would read the letters of such a name as members of the set.
    """

    def inner(part: re.Match[str]) -> str:
        if not part["name"]:
            return part[0] if part[0].startswith("\\") else f"\\{part[0]}"
        if part["name"] not in _CLASSES:
            raise ValueError(f"'{part[0]}' in '{match.string}' is no class of characters")
        return _CLASSES[part["name"]]

    begin = 2 if match[0].startswith("[^") else 1
    body = re.sub(r"\[:(?P<name>\^?\w+):\]|\\.|[\[&~|]", inner, match[0][begin:-1], flags=re.DOTALL)
    return f"{match[0][:begin]}{body}]"

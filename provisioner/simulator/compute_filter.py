"""Compute Engine's ``filter`` (AIP-160, or ``name eq REGEX``), ``orderBy`` and partial responses (``fields``).

A mistake is a ValueError with the place where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Predicate = Callable[[Mapping[str, Any]], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<punct>[()])
        |(?P<op>!=|<=|>=|=|<|>|:|eq\b|ne\b)
        |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
        |(?P<word>[^\s()=<>:!"']+))""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


@lru_cache(maxsize=256)
def compile_filter(text: str) -> Predicate:
    """A test for one resource, from a ``filter`` parameter."""
    parser = _Parser(_tokens(text))
    predicate = parser.alternatives()
    if parser.peek() is not None:
        raise ValueError(f"Invalid list filter expression: unexpected '{parser.take().text}'")
    if {"eq", "ne"} & parser.operators and parser.operators - {"eq", "ne"}:
        raise ValueError("Invalid list filter expression: eq and ne do not mix with other operators")
    return predicate


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise ValueError(f"Invalid list filter expression: at '{text[position:]}'")
        position = match.end()
        kind = str(match.lastgroup)
        value = match[kind]
        yield _Token(kind, re.sub(r"\\(.)", r"\1", value[1:-1]) if kind == "quoted" else value)


class _Parser:
    """Recursive descent: OR binds tighter than AND in AIP-160, and standing side by side means AND."""

    def __init__(self, tokens: Iterator[_Token]) -> None:
        self._tokens = list(tokens)
        self._next = 0
        self.operators: set[str] = set()

    def peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def take(self) -> _Token:
        token = self.peek()
        if token is None:
            raise ValueError("Invalid list filter expression: it ends too early")
        self._next += 1
        return token

    def alternatives(self) -> Predicate:
        """Everything up to a closing parenthesis or the end."""
        parts = [self._either()]
        while (token := self.peek()) is not None and token != _Token("punct", ")"):
            if token == _Token("word", "AND"):
                self.take()
            parts.append(self._either())
        return parts[0] if len(parts) == 1 else lambda document: all(part(document) for part in parts)

    def _either(self) -> Predicate:
        parts = [self._term()]
        while self.peek() == _Token("word", "OR"):
            self.take()
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else lambda document: any(part(document) for part in parts)

    def _term(self) -> Predicate:
        token = self.take()
        if token in (_Token("word", "NOT"), _Token("word", "-")):
            inner = self._term()
            return lambda document: not inner(document)
        if token == _Token("punct", "("):
            group = self.alternatives()
            if self.take() != _Token("punct", ")"):
                raise ValueError("Invalid list filter expression: a parenthesis is not closed")
            return group
        if token.kind != "word":
            raise ValueError(f"Invalid list filter expression: unexpected '{token.text}'")
        return self._comparison(token.text)

    def _comparison(self, field: str) -> Predicate:
        operator = self.take()
        if operator.kind != "op":
            raise ValueError(f"Invalid list filter expression: expected an operator, got '{operator.text}'")
        value = self.take()
        if value.kind == "punct":
            raise ValueError(f"Invalid list filter expression: expected a value, got '{value.text}'")
        self.operators.add(operator.text)
        negative = field.startswith("-")
        path = field.removeprefix("-").split(".")
        matches = _matcher(operator.text, value.text)
        negative ^= operator.text in ("!=", "ne")
        return lambda document: any(map(matches, _values(document, path))) != negative


def _values(document: object, path: Sequence[str]) -> list[object]:
    """All values at a dotted path; a list stands for each of its entries."""
    if isinstance(document, list):
        return [value for entry in document for value in _values(entry, path)]
    if not path:
        return [document]
    if isinstance(document, Mapping) and path[0] in document:
        return _values(document[path[0]], path[1:])
    return []


def _matcher(operator: str, wanted: str) -> Callable[[object], bool]:
    if operator in ("eq", "ne"):
        try:
            pattern = re.compile(wanted)
        except re.error as error:
            raise ValueError(f"Invalid list filter expression: not a regular expression: {error}") from error
        return lambda value: pattern.fullmatch(_text(value)) is not None
    if operator in ("=", "!=", ":"):
        return _text_matcher(operator, wanted)
    return lambda value: _ordered(operator, _number(value), _number(wanted))


def _text_matcher(operator: str, wanted: str) -> Callable[[object], bool]:
    if "*" in wanted:
        pattern = re.compile(".*".join(map(re.escape, wanted.split("*"))), re.IGNORECASE | re.DOTALL)
        return lambda value: pattern.fullmatch(_text(value)) is not None
    if operator == ":":
        return lambda value: wanted.lower() in _text(value).lower()
    return lambda value: _text(value).lower() == wanted.lower()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: object) -> float | str:
    try:
        return float(str(value))
    except ValueError:
        return str(value)


def _ordered(operator: str, left: float | str, right: float | str) -> bool:
    if type(left) is not type(right):
        left, right = str(left), str(right)
    below, equal = left < right, left == right  # type: ignore[operator]
    return {"<": below, "<=": below or equal, ">": not below and not equal, ">=": not below}[operator]


# --- partial responses ------------------------------------------------------------------------------------------------

Mask = Mapping[str, "Mask | None"]
"""Fields to keep; None: the whole value."""


@lru_cache(maxsize=256)
def compile_fields(text: str) -> Mask:
    """From a ``fields`` parameter: ``items(name,networkInterfaces/networkIP),nextPageToken``; ``.`` works as ``/``."""
    mask, rest = _mask(text.replace(" ", ""))
    if rest:
        raise ValueError(f"Invalid field selection {text}: unexpected '{rest}'")
    return mask


def _mask(text: str) -> tuple[dict[str, Any], str]:
    """Selections separated by commas, and what is left behind them."""
    mask: dict[str, Any] = {}
    while True:
        match = re.match(r"[^,()/.]+(?:[/.][^,()/.]+)*", text)
        if not match:
            raise ValueError(f"Invalid field selection: expected a name at '{text}'")
        text = text[match.end() :]
        inner: dict[str, Any] | None = None
        if text.startswith("("):
            inner, text = _mask(text[1:])
            if not text.startswith(")"):
                raise ValueError("Invalid field selection: a parenthesis is not closed")
            text = text[1:]
        _merge(mask, re.split(r"[/.]", match[0]), inner)
        if not text.startswith(","):
            return mask, text
        text = text[1:]


def _merge(mask: dict[str, Any], path: Sequence[str], inner: dict[str, Any] | None) -> None:
    """Add one selection; a whole field wins over parts of it."""
    for name in reversed(path[1:]):
        inner = {name: inner}
    name = path[0]
    if name not in mask:
        mask[name] = inner
    elif mask[name] is None or inner is None:
        mask[name] = None
    else:
        for key, value in inner.items():
            _merge(mask[name], [key], value)


def select(value: Any, mask: Mask | None) -> Any:
    """The part of a document that the mask names. ``zones`` also stands for all keys like ``zones/us-central1-a``."""
    if mask is None:
        return value
    if isinstance(value, list):
        return [select(entry, mask) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, inner in value.items():
        name = key if key in mask else key.partition("/")[0]
        if name not in mask:
            name = "*"
        if name in mask:
            part = select(inner, mask[name])
            if part != {}:
                kept[key] = part
    return kept

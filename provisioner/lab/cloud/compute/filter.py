"""The ``filter`` of Compute Engine's lists: AIP-160, or ``FIELD eq REGEX`` (``regex_filter.py``).

The functions raise ValueError, with the position, if a filter cannot be parsed. They also raise ValueError if a filter
names a field that the resource does not have. The API then responds with 400, as Google does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from provisioner.lab.cloud.compute.operations import BASE
from provisioner.lab.cloud.compute.regex_filter import DEEPEST, Condition, conditions, is_regex_filter
from provisioner.lab.cloud.compute.schema import Field, FieldType, field_at

Predicate = Callable[[Mapping[str, Any]], bool]

_KEYWORDS = ("AND", "OR", "NOT")

_TOKEN = re.compile(
    r"""\s*(?:(?P<punct>[()])
        |(?P<op>!=|<=|>=|=|<|>|:)
        |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
        |(?P<word>[\w.*/+-]+))""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


@lru_cache(maxsize=256)
def compile_filter(text: str, resource: str, base: str = BASE) -> Predicate:
    """Parse a ``filter`` parameter, and return a predicate for documents.

    ``resource``: the documents' type, which is a message of ``schema.py``. ``base``: start of every URL that the caller
    gets. The documents contain ``BASE`` instead, and the predicate compares them as the caller gets them.
    """
    try:
        if is_regex_filter(text):
            return _all([_regex(condition, resource, base) for condition in conditions(text)])
        parser = _Parser(_tokens(text), resource, base)
        predicate = parser.alternatives(0)
        if parser.peek() is not None:
            raise ValueError(f"unexpected '{parser.next_token().text}'")
    except ValueError as error:
        raise ValueError(f"Invalid list filter expression: {error}") from error
    return predicate


def _regex(condition: Condition, resource: str, base: str) -> Predicate:
    path = condition.field.split(".")
    entry = field_at(resource, path)
    if entry.kind in (FieldType.OBJECT, FieldType.MAP):
        raise ValueError(f"'{condition.field}' is an object, which no regular expression matches")
    matches = condition.pattern.fullmatch
    return _compared(path, lambda value: matches(_text(value, base)) is not None, condition.is_negative)


def _compared(path: Sequence[str], matches: Callable[[object], bool], negative: bool) -> Predicate:
    return lambda document: any(map(matches, _values(document, path))) != negative


def _all(parts: Sequence[Predicate]) -> Predicate:
    return parts[0] if len(parts) == 1 else lambda document: all(part(document) for part in parts)


# --- AIP-160 ----------------------------------------------------------------------------------------------------------


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise ValueError(f"at '{text[position:].strip()}'")
        position = match.end()
        kind = str(match.lastgroup)
        yield _Token(kind, _unquote(match[kind]) if kind == "quoted" else match[kind])


def _unquote(text: str) -> str:
    r"""Return the text without escapes. Only a quote or a backslash can be escaped; any other escape, as in a Windows
    path, is a mistake."""
    for escape in re.findall(r"\\.", text):
        if escape[1] not in "\"'\\":
            raise ValueError(f"'{escape}' in {text}: only a quote or a backslash can be escaped")
    return re.sub(r"\\(.)", r"\1", text[1:-1])


class _Parser:
    """A recursive descent parser of AIP-160.

    In AIP-160, OR binds tighter than AND. AND also joins terms without an operator between them.
    """

    def __init__(self, tokens: Iterator[_Token], resource: str, base: str) -> None:
        self._tokens = list(tokens)
        self._next = 0
        self._resource = resource
        self._base = base

    def peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def next_token(self) -> _Token:
        token = self.peek()
        if token is None:
            raise ValueError("it ends too early")
        self._next += 1
        return token

    def alternatives(self, depth: int) -> Predicate:
        """Parse up to a closing parenthesis or the end of the text. Return the predicate that holds if all parts hold.

        AND or a space joins the parts. A part may consist of several terms that OR joins. ``depth``: number of open
        parentheses.
        """
        parts = [self._either(depth)]
        while (token := self.peek()) is not None and token != _Token("punct", ")"):
            if token == _Token("word", "AND"):
                self.next_token()
            parts.append(self._either(depth))
        return _all(parts)

    def _either(self, depth: int) -> Predicate:
        parts = [self._term(depth)]
        while self.peek() == _Token("word", "OR"):
            self.next_token()
            parts.append(self._term(depth))
        return parts[0] if len(parts) == 1 else lambda document: any(part(document) for part in parts)

    def _term(self, depth: int) -> Predicate:
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} parentheses or negations within each other")
        token = self.next_token()
        if token in (_Token("word", "NOT"), _Token("word", "-")):
            inner = self._term(depth + 1)
            return lambda document: not inner(document)
        if token == _Token("punct", "("):
            group = self.alternatives(depth + 1)
            if self.next_token() != _Token("punct", ")"):
                raise ValueError("a parenthesis is not closed")
            return group
        if token.kind != "word" or token.text in _KEYWORDS:
            raise ValueError(f"unexpected '{token.text}'")
        return self._comparison(token.text)

    def _comparison(self, field: str) -> Predicate:
        operator = self.next_token()
        if operator.text in ("eq", "ne"):
            raise ValueError(f"'{operator.text}' does not mix with other operators")
        if operator.kind != "op":
            raise ValueError(f"expected an operator behind '{field}', got '{operator.text}'")
        value = self.next_token()
        if value.kind not in ("word", "quoted"):
            raise ValueError(f"expected a value behind '{field}{operator.text}', got '{value.text}'")
        path = field.removeprefix("-").split(".")
        matches = _matcher(field_at(self._resource, path), field, operator.text, value.text, self._base)
        return _compared(path, matches, field.startswith("-") != (operator.text == "!="))


def _values(document: object, path: Sequence[str]) -> list[object]:
    """Return all values at a dotted path. If a value on the path is a list, follow the path in each entry."""
    if isinstance(document, list):
        return [value for entry in document for value in _values(entry, path)]
    if not path:
        return [document]
    if isinstance(document, Mapping) and path[0] in document:
        return _values(document[path[0]], path[1:])
    return []


def _matcher(field: Field, name: str, operator: str, wanted: str, base: str) -> Callable[[object], bool]:
    """Return the predicate that tests a single value of the field."""
    if wanted == "*" and operator in ("=", "!=", ":"):
        return lambda value: value != {}
    if field.kind is FieldType.MAP and operator == ":":
        return lambda value: isinstance(value, Mapping) and wanted in value
    if field.kind in (FieldType.MAP, FieldType.OBJECT):
        raise ValueError(f"'{name}' is an object: it can only be asked for by ':*', or by one of its fields")
    if field.kind is FieldType.TEXT:
        return _text_matcher(operator, wanted, base)
    if field.kind is FieldType.TRUTH and operator not in ("=", "!=", ":"):
        raise ValueError(f"'{name}' is true or false, which has no order for '{operator}'")
    goal = _parsed(field.kind, name, wanted)
    return lambda value: _holds(operator, _parsed(field.kind, name, str(value)), goal)


def _text_matcher(operator: str, wanted: str, base: str) -> Callable[[object], bool]:
    if operator not in ("=", "!=", ":"):
        return lambda value: _holds(operator, _text(value, base), wanted)
    if "*" in wanted:
        pattern = re.compile(".*".join(map(re.escape, wanted.split("*"))), re.IGNORECASE | re.DOTALL)
        return lambda value: pattern.fullmatch(_text(value, base)) is not None
    if operator == ":":
        return lambda value: wanted.lower() in _text(value, base).lower()
    return lambda value: _text(value, base).lower() == wanted.lower()


def _text(value: object, base: str) -> str:
    """Return the value in the form in which responses show it."""
    return str(value).lower() if isinstance(value, bool) else str(value).replace(BASE, base)


def _parsed(kind: FieldType, name: str, text: str) -> Any:
    """Return the number, truth value or time that ``text`` contains. A date without a time means midnight UTC. Raise
    ValueError if ``text`` does not have the type ``kind``."""
    if kind is FieldType.NUMBER and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", text, re.ASCII):
        return Decimal(text)
    if kind is FieldType.TRUTH and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is FieldType.TIME:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    words = {FieldType.NUMBER: "a number", FieldType.TRUTH: "true or false", FieldType.TIME: "a time (RFC 3339)"}
    raise ValueError(f"'{name}' is {words[kind]}, got '{text}'")


def _holds(operator: str, left: Any, right: Any) -> bool:
    below, equal = left < right, left == right
    return bool({"<": below, "<=": below or equal, ">": not below and not equal, ">=": not below}.get(operator, equal))

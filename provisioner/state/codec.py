"""The model's types as documents and back: pure functions. The scripts do not import this.

* The rules are made from the model's own type hints, so a field added there with a default is stored at once, and a
  file from before stays readable.
* Fields that have their default are left out. What is frequent (slots) is stored as rows: a field of theirs is added
  after all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from itertools import chain
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints

from provisioner.model import (
    Deletion,
    Failure,
    Fingerprint,
    Intent,
    Life,
    Notice,
    Observed,
    Request,
    RequestRecord,
    ReturnRequest,
    Slot,
    Tries,
)
from provisioner.names import SLOT_BLOCK

Decode = Callable[[Any], Any]
Document = dict[str, Any]
Tables = Mapping[str, Mapping[str, Any]]

ROWS = (Slot, Observed, Life, Deletion, Tries, Fingerprint, Failure, Notice)
"""Stored as lists without field names, trailing defaults left out: ten thousand of them may be in each write."""

MACHINE_COUNTS = ((Request, "count"), (RequestRecord, "count"))
"""Fields for which a slot each is made: more machines than ``SLOT_BLOCK`` would end the loop."""

LARGEST_WHOLE = 2**53
"""All whole numbers that we store are below it; JSON's readers disagree on larger ones."""

LONGEST_TEXT = 65_536
"""Characters of a text that we store at most: a cloud's words are cut to some hundred."""

SCALARS: Mapping[type, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}
"""Types that are the same in JSON, and what JSON's readers make of them."""

PLAIN = frozenset((*SCALARS, NoneType))


class RecordError(ValueError):
    """A document does not fit the model."""


# --- to JSON ----------------------------------------------------------------------------------------------------------


@cache
def _defaults(kind: type[Any]) -> Mapping[str, Any]:
    """The fields of a dataclass or a named tuple with their defaults; MISSING for one that has none."""
    if not is_dataclass(kind):
        return {name: kind._field_defaults.get(name, MISSING) for name in kind._fields}
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)
    }


def encode(value: Any) -> Any:
    """Return what JSON knows of a value. Raises TypeError for a type that has no rule."""
    kind: Any = type(value)
    if kind in PLAIN or isinstance(value, Enum):
        return value
    if kind in ROWS:
        return _row(value, _defaults(kind))
    if is_dataclass(value):
        return {
            name: encode(held) for name, default in _defaults(kind).items() if (held := getattr(value, name)) != default
        }
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _as_text(key): encode(held) for key, held in value.items()}
    if isinstance(value, tuple):
        return [*map(encode, value)]
    raise TypeError(f"no rule to store {kind}")


def _row(value: Any, defaults: Mapping[str, Any]) -> list[Any]:
    """The values of the fields without trailing ones that have their defaults."""
    held = [*value] if isinstance(value, tuple) else [getattr(value, name) for name in defaults]
    standard = [*defaults.values()]
    while held and held[-1] == standard[len(held) - 1]:
        held.pop()
    return [each if type(each) in PLAIN else encode(each) for each in held]


def _as_text(key: Any) -> str:
    """A key as JSON text: JSON knows only text as keys."""
    return json.dumps(key, separators=(",", ":"))


# --- from JSON --------------------------------------------------------------------------------------------------------


def decode(hint: Any, value: Any) -> Any:
    """Return the value of that type. Raises RecordError, and TypeError for a hint that has no rule."""
    return _rule(hint)(value)


@cache
def _rule(hint: Any) -> Decode:
    """The rule of a type, made from its type hints."""
    origin, parts = get_origin(hint), get_args(hint)
    if NoneType in parts:
        (inner,) = (_rule(part) for part in parts if part is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        each, length = _rule(parts[0]), None if parts[-1] is Ellipsis else len(parts)
        return lambda value: tuple(map(each, _list(value, length)))
    if origin is Mapping:
        return _mapping(*parts)
    if is_dataclass(hint) or hasattr(hint, "_field_defaults"):
        return _row_rule(hint) if hint in ROWS else _record(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if hint in SCALARS:
        return _scalar(hint)
    raise TypeError(f"no rule to store {hint}")


def _mapping(key: Any, kind: Any) -> Decode:
    of_key, of_value = _rule(key), _rule(kind)
    is_text = isinstance(key, type) and issubclass(key, str)
    return lambda value: {
        of_key(each if is_text else _parsed(each)): _decode_at(each, of_value, held)
        for each, held in _object(value).items()
    }


def _fields(kind: type) -> dict[str, Decode]:
    hints = get_type_hints(kind)
    rules = {name: _rule(hints[name]) for name in _defaults(kind)}
    return rules | {name: _machine_count for each, name in MACHINE_COUNTS if each is kind}


def _row_rule(kind: type) -> Decode:
    rules = [*_fields(kind).values()]

    def decode(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > len(rules):
            raise RecordError(f"{kind.__name__}: expected a list of up to {len(rules)} values")
        return _made(kind, *[rule(held) for rule, held in zip(rules, value, strict=False)])

    return decode


def _record(kind: type) -> Decode:
    rules = _fields(kind)

    def decode(value: Any) -> Any:
        document = _decode_at(kind.__name__, _object, value)
        if unknown := [name for name in document if name not in rules]:
            raise RecordError(f"{kind.__name__}: unknown field {', '.join(map(repr, unknown))}")
        return _made(kind, **{name: _decode_at(name, rules[name], held) for name, held in document.items()})

    return decode


def _decode_at(place: str, rule: Decode, value: Any) -> Any:
    """The value, where an error names its place."""
    try:
        return rule(value)
    except RecordError as error:
        raise RecordError(f"{place[:60]}: {error}") from error


def _made(kind: type, /, *values: Any, **named: Any) -> Any:
    try:
        return kind(*values, **named)
    except TypeError as error:
        raise RecordError(str(error)) from error


def _scalar(kind: type) -> Decode:
    allowed = SCALARS[kind]

    def decode(value: Any) -> Any:
        if type(value) not in allowed or (len(value) > LONGEST_TEXT if kind is str else not abs(value) < LARGEST_WHOLE):
            raise RecordError(f"expected {kind.__name__}, got {str(value)[:40]!r}")
        return value

    return decode


def _machine_count(value: Any) -> int:
    if not 0 <= (count := decode(int, value)) <= SLOT_BLOCK:
        raise RecordError(f"expected a number from 0 to {SLOT_BLOCK}, got {count}")
    return cast(int, count)


def _enum(kind: type[Enum]) -> Decode:
    members = {member.value: member for member in kind}

    def decode(value: Any) -> Enum:
        try:
            return members[value]
        except (KeyError, TypeError) as error:
            raise RecordError(f"{kind.__name__} has no {str(value)[:40]!r}") from error

    return decode


def _list(value: Any, length: int | None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise RecordError(f"expected a list{'' if length is None else f' of {length}'}, got {str(value)[:40]!r}")
    return value


def _object(value: Any) -> Document:
    if not isinstance(value, dict):
        raise RecordError(f"expected an object, got {str(value)[:40]!r}")
    return value


def _parsed(key: str) -> Any:
    """A key that is JSON text."""
    try:
        return json.loads(key)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"key {key[:40]!r} is not JSON") from error


# --- intent -----------------------------------------------------------------------------------------------------------

INTENT_TABLES: Mapping[str, type] = {"requests": Request, "returns": ReturnRequest}
"""What the documents of a table are. The id of a document is its key."""


def intent_of(tables: Tables) -> Intent:
    """The intent that tables hold. Raises RecordError, which names the document."""
    meta = tables["meta"]["state"]
    facts = {name: decode(kind, meta[name]) for name, kind in (("generation", int), ("provisioner", str))}
    for name, kind in INTENT_TABLES.items():
        rule = partial(decode, kind)
        documents = tables.get(name, {}).items()
        facts[name] = {key: _decode_at(f"{name}.{key}", rule, {**document, "id": key}) for key, document in documents}
    return Intent(**facts)


def intent_documents(intent: Intent) -> Mapping[str, Mapping[str, Document]]:
    """Requests and returns as the documents of their tables."""
    documents = {name: encode(getattr(intent, name)) for name in INTENT_TABLES}
    for document in chain.from_iterable(table.values() for table in documents.values()):
        del document["id"]
    return documents


def readable_rows(table: str, documents: Document) -> Document:
    """Those of the documents of a table of intent that fit the model."""
    return {key: document for key, document in documents.items() if _is_readable(table, key, document)}


def _is_readable(table: str, key: str, document: Document) -> bool:
    try:
        decode(INTENT_TABLES[table], {**document, "id": key})
    except RecordError:
        return False
    return True

"""Encoding of the model's types as documents, and decoding. The functions are pure. Scripts do not import this module.

* The rules follow from the model's type hints. A new field with a default needs no further code, and older files stay
  readable.
* A field with its default value is left out. Frequent types (slots) are stored as rows. So a new field of such a type
  must come after its other fields.
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

from provisioner import model
from provisioner.names import SLOT_BLOCK

Decode = Callable[[Any], Any]
Document = dict[str, Any]
Tables = Mapping[str, Mapping[str, Any]]

SLOT_ROWS = (model.Slot, model.Observed, model.Life, model.Deletion, model.Tries)
ROWS = (*SLOT_ROWS, model.Fingerprint, model.Failure, model.Notice)
"""Types that are stored as lists, without field names and trailing defaults, because a write may contain ten
thousand of them."""

MACHINE_COUNTS = ((model.Request, "count"), (model.RequestRecord, "count"))
"""Fields that contain a number of slots to make. A number above ``SLOT_BLOCK`` is refused, because the loop could not
handle it."""

LARGEST_WHOLE = 2**53
"""Largest whole number that is stored. Readers of JSON treat larger numbers differently."""

LONGEST_TEXT = 65_536
"""Maximum number of characters in a text that is stored. The messages of clouds are much shorter, because they are cut
to some hundred characters."""

SCALARS: Mapping[type, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}
"""Types that JSON has too, each with the Python types that a JSON reader returns for them."""

PLAIN = frozenset((*SCALARS, NoneType))


class RecordError(ValueError):
    """A document that does not fit the model."""


# --- to JSON ----------------------------------------------------------------------------------------------------------


@cache
def _defaults(kind: type[Any]) -> Mapping[str, Any]:
    """Return the fields of a dataclass or a named tuple with their defaults; MISSING for a field without a default."""
    if not is_dataclass(kind):
        return {name: kind._field_defaults.get(name, MISSING) for name in kind._fields}
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)
    }


def encode(value: Any) -> Any:
    """Return a value in JSON types. Raises TypeError for a type that cannot be stored."""
    kind: Any = type(value)
    if kind in PLAIN or isinstance(value, Enum):
        return value
    if kind in ROWS:
        return _row(value, _defaults(kind))
    if is_dataclass(value):
        return {
            name: encode(item) for name, default in _defaults(kind).items() if (item := getattr(value, name)) != default
        }
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _format_key(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [*map(encode, value)]
    raise TypeError(f"no rule to store {kind}")


def _row(value: Any, defaults: Mapping[str, Any]) -> list[Any]:
    """Return the values of the fields, without trailing values that equal their defaults."""
    values = [*value] if isinstance(value, tuple) else [getattr(value, name) for name in defaults]
    standard = [*defaults.values()]
    while values and values[-1] == standard[len(values) - 1]:
        values.pop()
    return [each if type(each) in PLAIN else encode(each) for each in values]


def _format_key(key: Any) -> str:
    """Return a key as JSON text, because JSON accepts only text as keys."""
    return json.dumps(key, separators=(",", ":"))


# --- from JSON --------------------------------------------------------------------------------------------------------


def decode(hint: Any, value: Any) -> Any:
    """Return the value of type ``hint`` from its JSON form. Raises RecordError if the form does not fit the type.
    Raises TypeError for a type that cannot be stored."""
    return _rule(hint)(value)


@cache
def _rule(hint: Any) -> Decode:
    """Return the function that decodes values of this type."""
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
    decode_key, decode_item = _rule(key), _rule(kind)
    is_text = isinstance(key, type) and issubclass(key, str)
    return lambda value: {
        decode_key(each if is_text else _parse_key(each)): _decode_at(each, decode_item, item)
        for each, item in _object(value).items()
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
        return _construct(kind, *[rule(item) for rule, item in zip(rules, value, strict=False)])

    return decode


def _record(kind: type) -> Decode:
    rules = _fields(kind)

    def decode(value: Any) -> Any:
        document = _decode_at(kind.__name__, _object, value)
        if unknown := [name for name in document if name not in rules]:
            raise RecordError(f"{kind.__name__}: unknown field {', '.join(map(repr, unknown))}")
        return _construct(kind, **{name: _decode_at(name, rules[name], item) for name, item in document.items()})

    return decode


def _decode_at(place: str, rule: Decode, value: Any) -> Any:
    """Apply a decoding function to a value. ``place``: the name of the value in an error, for example the field's
    name."""
    try:
        return rule(value)
    except RecordError as error:
        raise RecordError(f"{place[:60]}: {error}") from error


def _construct(kind: type, /, *values: Any, **named: Any) -> Any:
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


def _parse_key(key: str) -> Any:
    """Parse a key that is JSON text."""
    try:
        return json.loads(key)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"key {key[:40]!r} is not JSON") from error


# --- intent -----------------------------------------------------------------------------------------------------------

INTENT_TABLES: Mapping[str, type] = {"requests": model.Request, "returns": model.ReturnRequest}
"""Type of the documents in each table. The key of a document is its id."""


def decode_intent(tables: Tables) -> model.Intent:
    """Return the intent that the tables contain. Raises RecordError, which names the document."""
    meta = tables["meta"]["state"]
    facts = {name: decode(kind, meta[name]) for name, kind in (("generation", int), ("provisioner", str))}
    for name, kind in INTENT_TABLES.items():
        rule = partial(decode, kind)
        documents = tables.get(name, {}).items()
        facts[name] = {key: _decode_at(f"{name}.{key}", rule, {**document, "id": key}) for key, document in documents}
    return model.Intent(**facts)


def intent_documents(intent: model.Intent) -> Mapping[str, Mapping[str, Document]]:
    """Return requests and returns as the documents of their tables."""
    documents = {name: encode(getattr(intent, name)) for name in INTENT_TABLES}
    for document in chain.from_iterable(table.values() for table in documents.values()):
        del document["id"]
    return documents


def readable_rows(table: str, documents: Document) -> Document:
    """Return those documents of a table of intent that fit the model."""
    return {key: document for key, document in documents.items() if _is_readable(table, key, document)}


def _is_readable(table: str, key: str, document: Document) -> bool:
    try:
        decode(INTENT_TABLES[table], {**document, "id": key})
    except RecordError:
        return False
    return True

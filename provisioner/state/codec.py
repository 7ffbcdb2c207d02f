"""Intent and memory as documents and back: pure functions on the model's types. Only the loop imports this.

* The rules are made from the model's own type hints, so a field added there with a default is stored at once, and a
  file from before stays readable.
* Fields that have their default are left out. What is frequent (slots) is stored as rows, whose columns the file names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from types import NoneType
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

from provisioner.model import (
    Failure,
    Fingerprint,
    Intent,
    Memory,
    Notice,
    Request,
    RequestRecord,
    ReturnRequest,
    Slot,
)
from provisioner.names import SLOT_BLOCK

Convert = Callable[[Any], Any]
Document = Mapping[str, Any]
Tables = Mapping[str, Mapping[str, Any]]

ROWS = (Slot, Fingerprint, Failure, Notice)
"""Stored as lists without field names: there may be ten thousand of them in each write."""

OWN_TABLES = ("requests", "returns", "pressures")
"""Fields of Memory that are tables of their own, as ``USAGE`` is; the others make up one document."""

USAGE = "usage"
"""A table that is left out while it is empty."""


Cells = Mapping[tuple[str, str, str], int]
"""A day of ``Memory.usage``."""


RANGES: Mapping[tuple[type, str], range] = {
    (Request, "count"): range(SLOT_BLOCK + 1),
    (RequestRecord, "count"): range(SLOT_BLOCK + 1),
}
"""The values of a field for which a slot each is made: more machines than these would end the loop."""

LARGEST_WHOLE = 2**53
"""All whole numbers that we store are below it; JSON's readers disagree on larger ones."""


LONGEST_TEXT = 65_536
"""Characters of a text that we store at most: a cloud's words are cut to some hundred."""


class RecordError(ValueError):
    """A document does not fit the model."""


class Rule(NamedTuple):
    """How values of one type become JSON and come back."""

    encode: Convert
    decode: Convert


def as_is(value: Any) -> Any:
    """The value itself, for what is the same in JSON."""
    return value


class Shape:
    """How one record (a dataclass or a named tuple) is stored: its columns, their rules and their defaults."""

    def __init__(self, kind: type, columns: Sequence[str], rules: Rules) -> None:
        self._kind = kind
        hints = get_type_hints(kind)
        defaults = _defaults(kind)
        if unknown := [name for name in columns if name not in defaults]:
            raise RecordError(f"{kind.__name__} has unknown fields: {', '.join(unknown)}")
        self.columns = tuple(columns)
        self._rules = {name: _within(rules.rule(hints[name]), kind, name) for name in columns}
        self._encoders = [self._rules[name].encode for name in columns]
        self._decoders = [self._rules[name].decode for name in columns]
        self._defaults = [defaults[name] for name in columns]

    def row(self, value: Any) -> list[Any]:
        """The values in the order of the columns; trailing defaults left out."""
        values = [getattr(value, name) for name in self.columns]
        while values and values[-1] == self._defaults[len(values) - 1]:
            values.pop()
        return [encode(held) for encode, held in zip(self._encoders, values, strict=False)]

    def from_row(self, row: Any) -> Any:
        """The value of a row. Raises RecordError."""
        if not isinstance(row, list) or len(row) > len(self.columns):
            raise RecordError(f"{self._kind.__name__}: expected a list of up to {len(self.columns)} values")
        facts = zip(self.columns, self._decoders, row, strict=False)
        return self._make({field: decode(held) for field, decode, held in facts})

    def document(self, value: Any) -> dict[str, Any]:
        """The values by the names of the columns; defaults left out."""
        held = [getattr(value, name) for name in self.columns]
        facts = zip(self.columns, self._encoders, held, self._defaults, strict=True)
        return {name: encode(each) for name, encode, each, default in facts if each != default}

    def from_document(self, document: Any) -> Any:
        """The value of a document. Raises RecordError."""
        if not isinstance(document, dict):
            raise RecordError(f"{self._kind.__name__}: expected an object")
        values = {}
        for name, held in document.items():
            if name not in self._rules:
                raise RecordError(f"{self._kind.__name__}: unknown field {name!r}")
            try:
                values[name] = self._rules[name].decode(held)
            except RecordError as error:
                raise RecordError(f"{name}: {error}") from error
        return self._make(values)

    def _make(self, values: dict[str, Any]) -> Any:
        try:
            return self._kind(**values)
        except TypeError as error:
            raise RecordError(str(error)) from error


def _within(rule: Rule, kind: type, field: str) -> Rule:
    """The rule of a field, with its range if it has one."""
    if (kind, field) not in RANGES:
        return rule
    allowed = RANGES[kind, field]

    def decode(value: Any) -> Any:
        if (number := rule.decode(value)) not in allowed:
            raise RecordError(f"expected a number from {allowed.start} to {allowed.stop - 1}, got {number}")
        return number

    return Rule(rule.encode, decode)


def _is_record(hint: Any) -> bool:
    return is_dataclass(hint) or hasattr(hint, "_field_defaults")


def _defaults(kind: type) -> dict[str, Any]:
    """The fields of a dataclass or a named tuple with their defaults; MISSING for one that has none."""
    if not is_dataclass(kind):
        own: type[Any] = kind
        return {name: own._field_defaults.get(name, MISSING) for name in own._fields}
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)
    }


class Rules:
    """The rules of all types, made from type hints on first use. ``columns``: those a file names for its rows."""

    def __init__(self, columns: Mapping[str, Sequence[str]] | None = None) -> None:
        self._columns = columns or {}
        self._shapes: dict[type, Shape] = {}

    def shape(self, kind: type) -> Shape:
        """How a record is stored."""
        if kind not in self._shapes:
            columns = self._columns.get(kind.__name__, [*_defaults(kind)])
            self._shapes[kind] = Shape(kind, columns, self)
        return self._shapes[kind]

    def columns(self) -> dict[str, list[str]]:
        """The columns of all rows, to be stored beside them."""
        return {kind.__name__: list(self.shape(kind).columns) for kind in ROWS}

    def rule(self, hint: Any) -> Rule:
        """How values of a type hint are stored. Raises TypeError for a hint that has no rule."""
        origin, parts = get_origin(hint), get_args(hint)
        if NoneType in parts:
            (inner,) = (part for part in parts if part is not NoneType)
            return _optional(self.rule(inner))
        if origin is tuple:
            return self._tuple(parts)
        if origin is Mapping:
            key = self.rule(parts[0])
            return _mapping(key if _is_text(parts[0]) else _text_key(key), self.rule(parts[1]))
        if _is_record(hint):
            shape = self.shape(cast(type, hint))
            return Rule(shape.row, shape.from_row) if hint in ROWS else Rule(shape.document, shape.from_document)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return Rule(as_is, _enum(hint))
        if hint in _SCALARS:
            return Rule(as_is, _scalar(hint))
        raise TypeError(f"no rule to store {hint}")

    def _tuple(self, parts: tuple[Any, ...]) -> Rule:
        encode, decode = self.rule(parts[0])
        length = None if parts[-1] is Ellipsis else len(parts)
        return Rule(lambda value: list(map(encode, value)), lambda value: tuple(map(decode, _list(value, length))))


_SCALARS: dict[type, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}


def _is_text(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, str)


def _is_small(number: float) -> bool:
    return -LARGEST_WHOLE < number < LARGEST_WHOLE


def _scalar(kind: type) -> Convert:
    allowed = _SCALARS[kind]

    def decode(value: Any) -> Any:
        is_sound = len(value) <= LONGEST_TEXT if type(value) is str else type(value) in allowed and _is_small(value)
        if type(value) not in allowed or not is_sound:
            raise RecordError(f"expected {kind.__name__}, got {str(value)[:40]!r}")
        return value

    return decode


def _enum(kind: type[Enum]) -> Convert:
    members = {member.value: member for member in kind}

    def decode(value: Any) -> Enum:
        if not isinstance(value, str) or value not in members:
            raise RecordError(f"{kind.__name__} has no {str(value)[:40]!r}")
        return members[value]

    return decode


def _optional(inner: Rule) -> Rule:
    encode, decode = inner
    return Rule(
        lambda value: None if value is None else encode(value),
        lambda value: None if value is None else decode(value),
    )


def _list(value: Any, length: int | None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise RecordError(f"expected a list{'' if length is None else f' of {length}'}, got {str(value)[:40]!r}")
    return value


def _mapping(key: Rule, value: Rule) -> Rule:
    def encode(held: Mapping[Any, Any]) -> dict[str, Any]:
        return {key.encode(each): value.encode(it) for each, it in held.items()}

    def decode(held: Any) -> dict[Any, Any]:
        if not isinstance(held, dict):
            raise RecordError(f"expected an object, got {str(held)[:40]!r}")
        decoded, each = {}, ""
        try:
            for each, it in held.items():
                decoded[key.decode(each)] = value.decode(it)
        except RecordError as error:
            raise RecordError(f"{each[:60]}: {error}") from error
        return decoded

    return Rule(encode, decode)


def _text_key(inner: Rule) -> Rule:
    """JSON knows only text as keys: other keys become JSON text."""

    def decode(text: str) -> Any:
        try:
            return inner.decode(json.loads(text))
        except json.JSONDecodeError as error:
            raise RecordError(f"key {text[:40]!r} is not JSON") from error

    return Rule(lambda key: json.dumps(inner.encode(key), separators=(",", ":")), decode)


class MemoryCodec:
    """Memory as tables and back. Keeps what it encoded last, so that only changed records are encoded again."""

    def __init__(self) -> None:
        self._rules = Rules()
        self._requests: dict[str, tuple[RequestRecord, dict[str, Any]]] = {}
        self._usage: dict[str, tuple[Cells, dict[str, Any]]] = {}

    def encode(self, memory: Memory) -> dict[str, dict[str, Any]]:
        """The tables of a memory. The documents of unchanged records are those of the call before."""
        whole = self._rules.shape(Memory).document(replace(memory, requests={}, usage={}))
        tables = {name: whole.pop(name, {}) for name in OWN_TABLES}
        self._requests = {key: (record, self._request(key, record)) for key, record in memory.requests.items()}
        tables["requests"] = {key: document for key, (_, document) in self._requests.items()}
        self._usage = {day: (cells, self._day(day, cells)) for day, cells in memory.usage.items()}
        if self._usage:
            tables[USAGE] = {day: document for day, (_, document) in self._usage.items()}
        tables["memory"] = {"memory": whole, "columns": self._rules.columns()}
        return tables

    def _day(self, day: str, cells: Cells) -> dict[str, Any]:
        """A day's document; that of the call before for a day to which nothing was added."""
        before, stored = self._usage.get(day, (None, {}))
        return stored if before is cells else self._rules.rule(Cells).encode(cells)

    def _request(self, key: str, record: RequestRecord) -> dict[str, Any]:
        """A record's document; rows of slots that are the same objects as before are taken over."""
        before, stored = self._requests.get(key, (None, {}))
        if before is record:
            return stored
        document = self._rules.shape(RequestRecord).document(replace(record, slots={}))
        old_slots = before.slots if before else {}
        old_rows = stored.get("slots", {})
        row = self._rules.shape(Slot).row
        rows = {
            str(number): old_rows[str(number)] if old_slots.get(number) is slot else row(slot)
            for number, slot in record.slots.items()
        }
        return document | {"slots": rows} if rows else document

    def decode(self, tables: Tables) -> Memory:
        """The memory that tables hold. Raises RecordError, which names the document."""
        rules = Rules(_columns(tables.get("memory", {}).get("columns", {})))
        whole = dict(tables.get("memory", {}).get("memory", {}))
        whole |= {name: dict(tables.get(name, {})) for name in (*OWN_TABLES, USAGE)}
        memory = cast(Memory, rules.shape(Memory).from_document(whole))
        keyed: list[tuple[str, Mapping[Any, Any]]] = [("id", memory.requests), ("id", memory.returns)]
        for name, held in keyed + [("number", record.slots) for record in memory.requests.values()]:
            for key, record in held.items():
                if getattr(record, name) != key:
                    raise RecordError(f"{str(key)[:60]}: has the {name} {str(getattr(record, name))[:60]!r}")
        return memory


def _columns(named: Mapping[str, Any]) -> Mapping[str, list[str]]:
    for name, columns in named.items():
        if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
            raise RecordError(f"columns of {name}: expected a list of names")
    return named


def intent_of(tables: Tables) -> Intent:
    """The intent that tables hold. Raises RecordError, which names the document."""
    rules = Rules()
    meta = tables["meta"]["state"]
    _scalar(int)(meta["generation"])
    _scalar(str)(meta["provisioner"])
    requests = _by_id(rules.shape(Request), tables, "requests")
    returns = _by_id(rules.shape(ReturnRequest), tables, "returns")
    return Intent(provisioner=meta["provisioner"], generation=meta["generation"], requests=requests, returns=returns)


def intent_documents(intent: Intent) -> dict[str, dict[str, Any]]:
    """Requests and returns as the documents of their tables."""
    rules = Rules()
    kinds: tuple[tuple[str, type, Mapping[str, Any]], ...] = (
        ("requests", Request, intent.requests),
        ("returns", ReturnRequest, intent.returns),
    )
    return {name: _documents(rules.shape(kind), held) for name, kind, held in kinds}


def _documents(shape: Shape, held: Mapping[str, Any]) -> dict[str, Any]:
    """The values' documents; the id is the key."""
    return {
        key: {name: fact for name, fact in shape.document(value).items() if name != "id"} for key, value in held.items()
    }


def unreadable_rows(tables: Tables) -> dict[str, set[str]]:
    """The ids of intent's tables whose documents do not fit the model, by table."""
    found: dict[str, set[str]] = {}
    for name, kind in (("requests", Request), ("returns", ReturnRequest)):
        shape = Rules().shape(kind)
        for key, document in tables.get(name, {}).items():
            try:
                _by_id(shape, {name: {key: document}}, name)
            except RecordError:
                found.setdefault(name, set()).add(key)
    return found


def _by_id(shape: Shape, tables: Tables, name: str) -> dict[str, Any]:
    records = {}
    for key, document in tables.get(name, {}).items():
        try:
            records[key] = shape.from_document({**document, "id": key})
        except RecordError as error:
            raise RecordError(f"{name}.{key}: {error}") from error
    return records

"""The custom resources of the state as an API server checks them: pruning, defaults, limits, and the rules in CEL."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Document = dict[str, Any]

CRDS = Path(__file__).parents[2] / "deploy/kustomize/components/kubernetes-state/crds.yaml"

ENDED = ("Complete", "CompleteWithError")


KEEPS_ANSWER = (
    "!(oldSelf.phase in ['Complete', 'CompleteWithError']) || (self.phase == oldSelf.phase && "
    "has(self.answer) == has(oldSelf.answer) && (!has(self.answer) || self.answer == oldSelf.answer))"
)


def _keeps_answer(new: Any, old: Any) -> bool:
    return old["phase"] not in ENDED or (new["phase"] == old["phase"] and new.get("answer") == old.get("answer"))


def is_named(new: Any, pattern: str) -> bool:
    """Return True if the object's name matches the pattern."""
    return re.fullmatch(pattern, new["metadata"]["name"]) is not None


RULES: dict[str, Callable[[Any, Any], bool]] = {
    "!has(oldSelf.status) || has(self.status)": lambda new, old: "status" not in old or "status" in new,
    "!has(self.hosts) || !has(self.demand)": lambda new, old: "hosts" not in new or "demand" not in new,
    "self.metadata.name.matches('^[a-z0-9]{10}$')": lambda new, old: is_named(new, "[a-z0-9]{10}"),
    "self.metadata.name.matches('^ret-[a-z0-9]{10}$')": lambda new, old: is_named(new, "ret-[a-z0-9]{10}"),
    "self.metadata.name.matches('^(ret-)?[a-z0-9]{10}[.][0-9]{1,9}$') "
    "&& self.metadata.name.startsWith(self.spec.request + '.')": lambda new, old: (
        is_named(new, r"(ret-)?[a-z0-9]{10}[.][0-9]{1,9}")
        and new["metadata"]["name"].startswith(f"{new['spec']['request']}.")
    ),
    "self.provisioner == oldSelf.provisioner": lambda new, old: new["provisioner"] == old["provisioner"],
    "self == oldSelf": lambda new, old: new == old,
    "self.epoch >= oldSelf.epoch": lambda new, old: new["epoch"] >= old["epoch"],
    "self.generation >= oldSelf.generation": lambda new, old: new["generation"] >= old["generation"],
    KEEPS_ANSWER: _keeps_answer,
    "!(self.phase in ['Ended', 'Complete', 'CompleteWithError']) || has(self.answer)": lambda new, old: (
        new["phase"] not in ("Ended", *ENDED) or "answer" in new
    ),
    "self.kind == 'Assumed' || has(self.answer)": lambda new, old: new["kind"] == "Assumed" or "answer" in new,
}
"""Each rule of the definitions, by its text, as a function of the new value and the old one."""

IGNORED = {"description", "x-kubernetes-list-map-keys", "title"}
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


class Cause(NamedTuple):
    """A reason for a refusal, in the form in which the server lists it."""

    field: str
    reason: str
    message: str

    def is_blocking(self) -> bool:
        """Return True if the server does not check the rules of an object that has this cause."""
        return self.reason not in ("FieldValueInvalid", "FieldValueDuplicate")


def _is_moment(value: str) -> bool:
    try:
        return bool(re.fullmatch(r"\d{4}-\d\d-\d\d[Tt].*", value) and datetime.datetime.fromisoformat(value).tzinfo)
    except ValueError:
        return False


FORMATS: dict[str, Callable[[Any], bool]] = {
    "date-time": _is_moment,
    "int32": lambda value: -(2**31) <= value < 2**31,
    "int64": lambda value: -(2**63) <= value < 2**63,
    "double": lambda value: True,
}

INVALID = "FieldValueInvalid"
LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": (INVALID, lambda value, limit: value >= limit),
    "maximum": (INVALID, lambda value, limit: value <= limit),
    "minLength": (INVALID, lambda value, limit: len(value) >= limit),
    "maxLength": ("FieldValueTooLong", lambda value, limit: len(value) <= limit),
    "minItems": (INVALID, lambda value, limit: len(value) >= limit),
    "maxItems": ("FieldValueTooMany", lambda value, limit: len(value) <= limit),
    "maxProperties": ("FieldValueTooMany", lambda value, limit: len(value) <= limit),
    "minProperties": (INVALID, lambda value, limit: len(value) >= limit),
    "enum": ("FieldValueNotSupported", lambda value, limit: value in limit),
    "pattern": (INVALID, lambda value, limit: re.search(limit, value) is not None),
    "format": ("FieldValueTypeInvalid", lambda value, limit: FORMATS[limit](value)),
}


class Schema:
    """A structural schema. An unknown keyword or rule raises ValueError, so that each limit in the definitions is
    checked."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        given = dict(definition)
        self.type = given.pop("type", None)
        self.default = given.pop("default", None)
        self.required = given.pop("required", [])
        self.nullable = given.pop("nullable", False)
        self.keeps_unknown = given.pop("x-kubernetes-preserve-unknown-fields", False)
        self.keys = given.get("x-kubernetes-list-map-keys") if given.pop("x-kubernetes-list-type", "") == "map" else []
        self.properties = {name: Schema(one) for name, one in given.pop("properties", {}).items()}
        more = given.pop("additionalProperties", None)
        self.more = Schema(more) if isinstance(more, dict) else None
        items = given.pop("items", None)
        self.items = Schema(items) if items else None
        self.rules = [(_rule(one), "oldSelf" in one["rule"], one) for one in given.pop("x-kubernetes-validations", ())]
        self.limits = [(limit, *LIMITS[name]) for name in LIMITS if (limit := given.pop(name, None)) is not None]
        if unknown := given.keys() - IGNORED:
            raise ValueError(f"the server in memory does not know these keywords of a schema: {sorted(unknown)}")

    def has_rules(self) -> bool:
        """Return True if the schema, or any part of it, has a rule."""
        parts = [*self.properties.values(), self.more, self.items]
        return bool(self.rules) or any(part.has_rules() for part in parts if part)

    def prune(self, value: Any) -> Any:
        """Return the value without fields that the schema does not have, and with its defaults."""
        if isinstance(value, list) and self.items:
            return [self.items.prune(one) for one in value]
        if not isinstance(value, dict) or self.keeps_unknown:
            return value
        pruned = {}
        for name, one in value.items():
            inner = self.properties.get(name, self.more)
            if inner and (one is not None or inner.nullable):
                pruned[name] = inner.prune(one)
        for name, inner in self.properties.items():
            if inner.default is not None:
                pruned.setdefault(name, inner.default)
        return pruned

    def causes(self, value: Any, at: str = "") -> Iterator[Cause]:
        """Yield every breach of the limits."""
        if value is None and self.nullable:
            return
        if self.type and not TYPES[self.type](value):
            yield Cause(at, "FieldValueTypeInvalid", f"must be of type {self.type}")
            return
        for limit, reason, holds in self.limits:
            if not holds(value, limit):
                yield Cause(at, reason, f"breaks the limit {limit}")
        if self.type == "object":
            for name in self.required:
                if name not in value:
                    yield Cause(_join(at, name), "FieldValueRequired", "Required value")
            for name, one in value.items():
                if inner := self.properties.get(name, self.more):
                    yield from inner.causes(one, _join(at, name))
        elif self.items:
            seen = []
            for index, one in enumerate(value):
                yield from self.items.causes(one, f"{at}[{index}]")
                if self.keys:
                    key = [one.get(name) for name in self.keys]
                    if key in seen:
                        yield Cause(f"{at}[{index}]", "FieldValueDuplicate", f"Duplicate value: {key}")
                    seen.append(key)

    def broken_rules(self, new: Any, old: Any, at: str = "") -> Iterator[Cause]:
        """Yield a cause for every rule that the new value breaks. ``old``: the value before; None if there was none."""
        for holds, compares, rule in self.rules:
            if not (compares and old is None) and not holds(new, old):
                yield Cause(at or "<nil>", rule.get("reason", INVALID), f'Invalid value: "object": {rule["message"]}')
        if isinstance(new, dict):
            for name, one in new.items():
                if inner := self.properties.get(name, self.more):
                    yield from inner.broken_rules(one, old.get(name) if old else None, _join(at, name))
        elif isinstance(new, list) and self.items:
            for index, one in enumerate(new):
                yield from self.items.broken_rules(one, None, f"{at}[{index}]")


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _rule(definition: Mapping[str, Any]) -> Callable[[Any, Any], bool]:
    text = " ".join(definition["rule"].split())
    if text not in RULES or definition.keys() - {"rule", "message", "reason"}:
        raise ValueError(f"the server in memory does not know this rule: {definition}. Add it to RULES")
    return RULES[text]


class Kind(NamedTuple):
    """A kind of object that the API server stores."""

    group: str
    version: str
    kind: str
    resource: str
    schema: Schema | None
    """The schema without apiVersion, kind and metadata; None for a Lease."""
    has_status: bool
    selectable: frozenset[str]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", None, False, frozenset())
ANYTHING = Schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
EVENT = Kind("events.k8s.io", "v1", "Event", "events", ANYTHING, False, frozenset())


@cache
def kinds(path: Path = CRDS) -> tuple[Kind, ...]:
    """Return the kinds in the CustomResourceDefinitions of the state, with Lease and Event."""
    found = [LEASE, EVENT]
    for crd in yaml.safe_load_all(path.read_text()):
        for version in crd["spec"]["versions"]:
            names = crd["spec"]["names"]
            fields = frozenset(one["jsonPath"].lstrip(".") for one in version.get("selectableFields", ()))
            schema = Schema(version["schema"]["openAPIV3Schema"])
            has_status = "status" in version.get("subresources", {})
            group = crd["spec"]["group"]
            found.append(Kind(group, version["name"], names["kind"], names["plural"], schema, has_status, fields))
    return tuple(found)

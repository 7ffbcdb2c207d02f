"""Label and field selectors, parsed once. The functions have no side effects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from provisioner.lab.cloud.kubernetes.errors import bad_request
from provisioner.lab.cloud.kubernetes.store import Match, Stored

Labels = Mapping[str, str]
LabelTest = Callable[[Labels], bool]

_KEY = r"(?:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_EQUALITY = re.compile(rf"(?P<key>{_KEY})\s*(?P<op>==|=|!=)\s*(?P<value>{_VALUE})")
_SET = re.compile(rf"(?P<key>{_KEY})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_ORDER = re.compile(rf"(?P<key>{_KEY})\s*(?P<op>[<>])\s*(?P<value>-?[0-9]+)")
_EXISTS = re.compile(rf"(?P<op>!?)\s*(?P<key>{_KEY})")

_COMMON_FIELDS = {"metadata.name", "metadata.namespace"}
_FIELDS = {
    "pods": _COMMON_FIELDS
    | {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork"}
    | {"status.phase", "status.podIP", "status.nominatedNodeName"},
    "events": _COMMON_FIELDS
    | {f"involvedObject.{key}" for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")}
    | {"involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"},
    "nodes": {"metadata.name", "spec.unschedulable"},
    "namespaces": {"metadata.name", "status.phase"},
}
"""The fields by which the real server can select, by resource. A selector with any other field gets 400."""


def selector(resource: str, labels: str, fields: str) -> Match | None:
    """Return the predicate for objects of a resource; None if every object matches. Raise 400 for a mistake."""
    if not labels and not fields:
        return None
    label_tests = parse_labels(labels)
    field_tests = parse_fields(resource, fields)

    def match(stored: Stored) -> bool:
        return all(test(stored.labels) for test in label_tests) and all(test(stored.document) for test in field_tests)

    return match


@lru_cache(maxsize=256)
def parse_labels(text: str) -> tuple[LabelTest, ...]:
    """Return a test for each requirement of a label selector."""
    return tuple(_label_test(part.strip(), text) for part in _split_outside_brackets(text) if part.strip())


def _split_outside_brackets(text: str) -> list[str]:
    return re.split(r",(?![^()]*\))", text)


def _label_test(requirement: str, text: str) -> LabelTest:
    if parts := _EQUALITY.fullmatch(requirement):
        return _equality(parts["key"], parts["op"], parts["value"])
    if parts := _SET.fullmatch(requirement):
        values = frozenset(value.strip() for value in parts["values"].split(","))
        return _membership(parts["key"], parts["op"], values)
    if parts := _ORDER.fullmatch(requirement):
        return _order(parts["key"], parts["op"], int(parts["value"]))
    if parts := _EXISTS.fullmatch(requirement):
        return _existence(parts["key"], not parts["op"])
    raise bad_request(f'unable to parse requirement: "{requirement}" in selector "{text}"')


def _equality(key: str, operator: str, value: str) -> LabelTest:
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def _membership(key: str, operator: str, values: frozenset[str]) -> LabelTest:
    if operator == "in":
        return lambda labels: labels.get(key) in values
    return lambda labels: labels.get(key) not in values


def _order(key: str, operator: str, limit: int) -> LabelTest:
    def test(labels: Labels) -> bool:
        value = labels.get(key, "")
        if not re.fullmatch(r"-?[0-9]+", value):
            return False
        return int(value) > limit if operator == ">" else int(value) < limit

    return test


def _existence(key: str, wanted: bool) -> LabelTest:
    return lambda labels: (key in labels) is wanted


FieldTest = Callable[[Mapping[str, Any]], bool]


@lru_cache(maxsize=256)
def parse_fields(resource: str, text: str) -> tuple[FieldTest, ...]:
    """Return a test for each term of a field selector."""
    return tuple(_field_test(resource, term, text) for term in re.split(r"(?<!\\),", text) if term)


def _field_test(resource: str, term: str, text: str) -> FieldTest:
    parts = re.fullmatch(r"\s*(?P<key>[A-Za-z.]+)\s*(?P<op>==|=|!=)(?P<value>.*)", term, re.DOTALL)
    if parts is None:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
    key, value = parts["key"], re.sub(r"\\([\\,=])", r"\1", parts["value"])
    if key not in _FIELDS[resource]:
        raise bad_request(f"field label not supported: {key}")
    path, wanted = tuple(key.split(".")), parts["op"] != "!="
    return lambda document: (_field(document, path) == value) is wanted


def _field(document: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """Return the value that a selector compares, as text; empty if the document lacks the field."""
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if path == ("source",):
        return str((value or {}).get("component", ""))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)

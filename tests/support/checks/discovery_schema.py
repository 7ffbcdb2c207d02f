"""Check responses against the official discovery document of the Compute Engine API, without our own code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import googleapiclient

INVENTED = re.compile(r"SOME_NEW_[A-Z]+|someNew[A-Za-z]+")
"""Invented words of the simulator's fault ``unknown_words``, like words that Google may add to its schema any day."""


RECORDED = {("InstanceGroupManagerStatusStateful", "isStateful"), ("InstanceGroupManagerUpdatePolicy", "minReadySec")}
"""Fields of recorded groups that only the document of the beta API describes."""


@cache
def discovery(version: str = "v1") -> dict[str, Any]:
    """Return the document that google-api-python-client ships."""
    folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    document: dict[str, Any] = json.loads((folder / f"compute.{version}.json").read_text())
    return document


@cache
def _methods() -> list[tuple[dict[str, Any], re.Pattern[str]]]:
    """Return every method with the pattern of its paths."""
    return [
        (method, re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(method["path"]))))
        for resource in discovery()["resources"].values()
        for method in resource.get("methods", {}).values()
    ]


def problems_of_call(verb: str, path: str, names: Iterable[str], status: int, document: Any) -> list[str]:
    """Return the reasons why the official schema does not allow a call and its response; empty if it does.

    ``verb``, ``path`` and ``names`` (of the query) describe the call; ``path`` starts at ``projects/``. ``status`` and
    ``document`` are the response. A call of an unknown method is allowed if the response is an error.
    """
    method = _method_of(verb, path)
    if status >= 400:
        problems = [*_query_problems(method, names), *_error_problems(document, status)]
    elif method:
        problems = [*_query_problems(method, names), *_problems(document, {"$ref": method["response"]["$ref"]}, "")]
    else:
        problems = ["no method of the Compute Engine API"]
    return [f"{method['id'].partition('.')[2] if method else f'{verb} {path}'}: {problem}" for problem in problems]


@cache
def _method_of(verb: str, path: str) -> dict[str, Any] | None:
    """Return the official method behind a request."""
    for method, pattern in _methods():
        if method["httpMethod"] == verb and pattern.fullmatch(path):
            return method
    return None


def _query_problems(method: dict[str, Any] | None, names: Iterable[str]) -> Iterator[str]:
    parameters = {*discovery()["parameters"], *(method or {}).get("parameters", {})}
    return (f"unknown parameter {name}" for name in names if method and name not in parameters)


def _error_problems(document: Any, status: int) -> Iterator[str]:
    error = document.get("error", {})
    if error.get("code") != status:
        yield f"error.code: {error.get('code')!r} in an answer {status}"
    if not isinstance(error.get("message"), str):
        yield "error.message: not a text"
    if not error.get("errors"):
        yield "error.errors: empty"
    for entry in error.get("errors", []):
        if set(entry) != {"message", "domain", "reason"}:
            yield f"error.errors: {entry!r}"


def _problems(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    while "$ref" in schema:
        schema = discovery()["schemas"][schema["$ref"]]
    kind = schema.get("type", "any")
    check = {"object": _object_problems, "array": _array_problems, "any": _nothing}.get(kind, _scalar_problems)
    yield from check(value, schema, path)


def _nothing(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    return iter(())


def _object_problems(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: expected an object, got {value!r}"
        return
    for key, inner in value.items():
        described = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if (name := schema.get("id"), key) in RECORDED:
            described = discovery("beta")["schemas"][name]["properties"][key]
        if described is None and not INVENTED.fullmatch(key):
            yield f"{path}.{key}: unknown field"
        elif described is not None:
            yield from _problems(inner, described, f"{path}.{key}")


def _array_problems(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: expected a list, got {value!r}"
        return
    for index, inner in enumerate(value):
        yield from _problems(inner, schema["items"], f"{path}[{index}]")


_FORMATS: dict[str, re.Pattern[str]] = {
    "uint64": re.compile(r"[0-9]{1,20}"),
    "int64": re.compile(r"-?[0-9]{1,19}"),
    "byte": re.compile(r"[A-Za-z0-9+/_-]*=*"),
}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}


def _scalar_problems(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    kind = schema["type"]
    if not isinstance(value, _TYPES[kind]) or (kind != "boolean" and isinstance(value, bool)):
        yield f"{path}: expected {kind}, got {value!r}"
        return
    if schema.get("enum") and value not in schema["enum"] and not INVENTED.fullmatch(value):
        yield f"{path}: {value!r} is not one of {schema['enum']}"
    if isinstance(value, str):
        yield from _text_problems(value, schema.get("format", ""), path)


def _text_problems(value: str, form: str, path: str) -> Iterator[str]:
    if form in _FORMATS and not _FORMATS[form].fullmatch(value):
        yield f"{path}: {value!r} is no {form}"
    if re.search(r"(^|\.)(timestamp|\w+Timestamp|\w+Time)$", path) and not _RFC3339.fullmatch(value):
        yield f"{path}: {value!r} is no RFC 3339 time"

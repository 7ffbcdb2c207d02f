"""Validation of a configuration. All mistakes are reported at once, each with file, setting, expected value and actual
value.

The functions use no network and no clock, and do not log.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from provisioner.files.config_error import ConfigError as ConfigError
from provisioner.files.config_error import Problem as Problem
from provisioner.files.yaml_text import format_read_error, format_syntax_error, join, parse, read_text

LONGEST_QUOTE = 60
"""Maximum number of characters of a wrong value that a message shows: enough to find the value, and too few for a whole
section or key."""

NAMES_SHOWN = 25
"""Maximum number of names that a message about an unknown machine, request or pool lists, because there may be
thousands of names."""


@dataclass(frozen=True, slots=True)
class Expects:
    """Metadata of a setting's type: the description of a valid value. In messages it follows the word "expected"."""

    words: str


UNITS = {"_seconds": 1, "_minutes": 60, "_hours": 3600}
"""Suffixes of settings' names, with the number of seconds in their unit."""

SomeLimits = TypeVar("SomeLimits")


class Section(BaseModel):
    """Settings that are read once and never change. An unknown setting is a mistake. A value of another type is a
    mistake, too, and is not converted."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def as_limits(self, kind: type[SomeLimits], **given: Any) -> SomeLimits:
        """Return limits of the type ``kind``. If ``given`` contains a field, the field has this value. Any other field
        has the value of the setting with the same name.

        A setting in minutes or hours is converted to seconds. A field without a setting keeps its default.
        """
        for name in kind.__annotations__.keys() - given.keys():
            base, is_duration, _ = name.removeprefix("is_").partition("_seconds")
            for unit, seconds in UNITS.items() if is_duration else [("", 1)]:
                if hasattr(self, base + unit):
                    value = getattr(self, base + unit)
                    given[name] = value if value is None or seconds == 1 else seconds * value
        return kind(**given)


SomeSection = TypeVar("SomeSection", bound=Section)


def quote(value: object) -> str:
    """Return a wrong value for a message, in quotes if the value is a text. A long value is shortened. YAML's null
    becomes "nothing"."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…"


def format_expected(words: str, value: object) -> str:
    """Return the message about a value that does not match the description ``words``."""
    return f"expected {words}, got {quote(value)}"


def suggestion(word: str, names: Collection[str], *, many: bool = False) -> str:
    """Return the last part of a message about an unknown word. This part names the known name with the most similar
    spelling. If no name is similar, this part lists the known names.

    ``many``: True if there may be thousands of names. Only the beginning of the list is then shown.
    """
    if near := difflib.get_close_matches(word, names, n=1):
        return f"; did you mean {near[0]!r}?"
    shown = [*names][: NAMES_SHOWN if many else None]
    more = " and more" if len(shown) < len(names) else ""
    return f"; there are {', '.join(map(repr, shown))}{more}" if names else ""


def words_of(model: type[Section], setting: str) -> str:
    """Return the description that ``Expects`` gives in the type of a setting of ``model``."""
    field = model.model_fields[setting]
    if get_origin(field.annotation) is Literal:
        return " or ".join(repr(word) for word in get_args(field.annotation))
    return next((note.words for note in all_notes(field) if isinstance(note, Expects)), "a mapping of settings")


def all_notes(field: FieldInfo) -> list[object]:
    """Return the metadata of a setting's type and of the type's parts."""
    return [*field.metadata, *_nested_notes(field.annotation)]


def _nested_notes(annotation: object) -> Iterator[object]:
    for part in get_args(annotation):
        yield from getattr(part, "__metadata__", ())
        yield from _nested_notes(part)


def validate(
    model: type[SomeSection], body: Mapping[str, object], file: str, where: str, around: object = None, **given: object
) -> tuple[SomeSection | None, list[Problem]]:
    """Return ``body`` as a ``model``, and the problems of ``body``. An invalid ``body`` is returned as None.

    ``where``: path of the section in ``file``. ``around``: the ``Surroundings`` to which paths are relative. ``given``:
    fields that the program fills in. If the file contains such a field, the problems report this field as unknown.
    """
    settable = [name for name in model.model_fields if name not in given]
    problems = [
        Problem(file, join(where, name), "unknown setting" + suggestion(str(name), settable))
        for name in body
        if name not in settable
    ]
    settings = {name: value for name, value in body.items() if name in settable}
    try:
        return model.model_validate({**settings, **given}, context=around), problems
    except ValidationError as error:
        # A list counts as too short if it has only invalid parts, and these have problems of their own.
        details = [one for one in error.errors(include_url=False) if one["type"] != "too_short" or not one["input"]]
        return None, [*problems, *(_explain(model, detail, file, where) for detail in details)]


def _explain(model: type[Section], detail: ErrorDetails, file: str, where: str) -> Problem:
    path = join(where, *detail["loc"])
    model, setting = _innermost(model, detail["loc"])
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        section = section_in(model.model_fields[setting].annotation) or model
        return Problem(file, path, "unknown setting" + suggestion(str(detail["loc"][-1]), section.model_fields))
    if detail["type"] == "missing":
        return Problem(file, path, f"missing; expected {words_of(model, setting)}")
    return Problem(file, path, format_expected(words_of(model, setting), detail["input"]))


def _innermost(model: type[Section], place: Sequence[int | str]) -> tuple[type[Section], str]:
    """Return the innermost section on the path to a value, and the setting of this section through which the path
    leads."""
    setting = str(place[0])
    for part in place[1:]:
        section = section_in(model.model_fields[setting].annotation)
        if section is not None and part in section.model_fields:
            model, setting = section, str(part)
    return model, setting


def section_in(hint: object) -> type[Section] | None:
    """Return the section in a type; None if the type contains no section."""
    if isinstance(hint, type) and issubclass(hint, Section):
        return hint
    return next(filter(None, map(section_in, get_args(hint))), None)


def read_mapping(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Return the YAML mapping in a file, and the problems of the file as a whole. For an empty file, return an empty
    mapping."""
    file = str(path)
    try:
        document, repeated = parse(read_text(path))
    except FileNotFoundError:
        return {}, [Problem(file, "", "no such file")]
    except (OSError, ValueError) as error:
        return {}, [Problem(file, "", f"cannot be read: {format_read_error(error)}")]
    except yaml.YAMLError as error:
        return {}, [Problem(file, "", format_syntax_error(error))]
    problems = [Problem(file, where, reason) for where, reason in repeated]
    document = {} if document is None else document
    if not isinstance(document, dict):
        return {}, [*problems, Problem(file, "", format_expected("a mapping of settings", document))]
    odd = [Problem(file, quote(key), "a setting's name has to be a text") for key in document if type(key) is not str]
    return {key: value for key, value in document.items() if type(key) is str}, [*problems, *odd]

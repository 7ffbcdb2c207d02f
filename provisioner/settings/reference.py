"""Every setting of provisioner.yaml, as a page for people and as a JSON schema for editors, from the types themselves.

Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from provisioner.backends.kind import Kind
from provisioner.schema.pool import LABEL_VALUE, Pool
from provisioner.schema.problems import Section, words_of
from provisioner.settings.definitions import SECTIONS, Settings, TemplateSettings

Json = dict[str, Any]

SECTION_NAMES = (*SECTIONS, "pools", "templates")
"""Settings that hold others."""
NOT_WRITTEN = {"name", "template_limits", "instance", "digests"}
"""Fields that the program fills in itself: as settings of the file these are unknown."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
HEAD = """# Settings

`provisioner settings` prints this page, and `provisioner settings -o schema` the same as a JSON schema for editors
([config/provisioner.schema.json](../config/provisioner.schema.json)). `provisioner check` reads a file and says every
mistake in it at once. Times are in the unit that the name of a setting ends in; paths are relative to the directory of
provisioner.yaml. Where it says so, HostFactory's own files or the environment give what is not written here.

Whole files, with comments that say why: [config/production](../config/production/provisioner.yaml) to begin from, and
[config/demoinst](../config/demoinst/provisioner.yaml), whose short times are those of a demonstration.
"""


def page(kinds: Iterable[Kind[Any]]) -> str:
    """The reference in Markdown: a table per section, and one per kind of place."""
    parts = [HEAD, *_part("The file provisioner.yaml", Settings, (*NOT_WRITTEN, *SECTION_NAMES))]
    for name, model in SECTIONS.items():
        parts += _part(f"`{name}`", model)
    parts += _part("`pools`: what every pool has", Pool, (*NOT_WRITTEN, "kind"))
    for kind in kinds:
        own = kind.pool.model_fields
        same = {name for name, field in Pool.model_fields.items() if _said(field) == _said(own[name])}
        parts += _part(f"`pools`: kind `{kind.name}`", kind.pool, same)
    parts += _part("`templates`", TemplateSettings)
    return "\n".join(parts) + "\n"


def _said(field: FieldInfo) -> tuple[object, ...]:
    return (field.default, field.description)


def _part(title: str, model: type[Section], without: Iterable[str] = ()) -> Iterator[str]:
    yield f"\n## {title}\n\n{_one_line(model.__doc__).partition('. ')[0].rstrip('.')}.\n"
    yield "| setting | what it has to be | default | meaning |\n|---|---|---|---|"
    for name, field in model.model_fields.items():
        if name not in without:
            cells = (f"`{name}`", words_of(model, name), _default(field), field.description)
            yield f"| {' | '.join(_one_line(cell).replace('|', '&#124;') for cell in cells)} |"


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default in (None, ()):
        return ""
    value = field.default
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`")


class _Untitled(GenerateJsonSchema):
    """Names of settings are their own titles."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Never."""
        return False

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        """Settings stay in the order in which the page has them."""
        return value


def schema(kinds: Sequence[Kind[Any]]) -> Json:
    """The JSON schema of provisioner.yaml; settings that HF's files or the environment may give are not required."""
    models: list[type[Section]] = [*SECTIONS.values(), TemplateSettings, *(kind.pool for kind in kinds)]
    root = _object(Settings)
    root["properties"] |= {name: _or_nothing(_reference(model)) for name, model in SECTIONS.items()}
    root["properties"]["pools"] = _named(_pool(kinds)) | {"propertyNames": {"pattern": f"^{LABEL_VALUE.pattern}$"}}
    root["properties"]["templates"] = _or_nothing(_named(_reference(TemplateSettings)))
    return {
        "$schema": DIALECT,
        "title": "provisioner.yaml",
        **root,
        "$defs": {model.__name__: _object(model) for model in models},
    }


def _object(model: type[Section]) -> Json:
    """The settings that the file gives for a model."""
    whole = model.model_json_schema(schema_generator=_Untitled)
    properties = {name: whole["properties"][name] for name in model.model_fields if name not in NOT_WRITTEN}
    return {
        "type": "object",
        "description": _one_line(model.__doc__),
        "properties": {
            name: one | {"description": _one_line(one.get("description"))} for name, one in properties.items()
        },
        "required": [name for name in properties if _is_needed(model.model_fields[name])],
        "additionalProperties": False,
    }


def _is_needed(field: FieldInfo) -> bool:
    """Return True if neither HF's files nor the environment can give it: its docstring says so."""
    return field.is_required() and "No default." in (field.description or "")


def _pool(kinds: Sequence[Kind[Any]]) -> Json:
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": [kind.name for kind in kinds]}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind.name}}}, "then": _reference(kind.pool)} for kind in kinds
        ],
    }


def _reference(model: type[Section]) -> Json:
    return {"$ref": f"#/$defs/{model.__name__}"}


def _or_nothing(value: Json) -> Json:
    """YAML's empty value is a section that is not there."""
    return {"anyOf": [value, {"type": "null"}]}


def _named(value: Json) -> Json:
    return {"type": "object", "additionalProperties": value}

"""Every setting of provisioner.yaml, as a page for operators and as a JSON schema for editors. The functions make both
from the types of the settings.

The functions are pure: no I/O, clock or logger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from provisioner.backends.kind import Kind
from provisioner.schema.setting_types import LABEL_VALUE, Pool
from provisioner.schema.validation import Section, section_in, words_of
from provisioner.settings.definitions import SECTIONS, Settings, TemplateSettings

Json = dict[str, Any]

SECTION_NAMES = (*SECTIONS, "pools", "templates")
"""Settings that contain other settings."""
NOT_WRITTEN = {"name", "template_limits", "instance", "digests"}
"""Fields that the program fills in itself. If the file contains such a field, it is reported as unknown."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
HEAD = """# Settings

`provisioner settings` prints this page, and `provisioner settings -o schema` the same as a JSON schema for editors
([config/provisioner.schema.json](../config/provisioner.schema.json)). `provisioner check` reads a file and reports all
mistakes in it at once. Times have the unit at the end of the setting's name; paths are relative to the directory of
provisioner.yaml. If a default is empty, the setting's text explains it. HF is HostFactory;
[ARCHITECTURE.md](../ARCHITECTURE.md#the-words) explains other words, such as window, place and orphan.

Complete files with reasons as comments: [config/production](../config/production/provisioner.yaml) to start from, and
[config/demoinst](../config/demoinst/provisioner.yaml), which has short times for a demonstration.
"""


def page(kinds: Iterable[Kind[Any]]) -> str:
    """Return the page of settings in Markdown. The page has a table for each section and each kind."""
    parts = [HEAD, *_part("The file provisioner.yaml", Settings, (*NOT_WRITTEN, *SECTION_NAMES))]
    for name, model in SECTIONS.items():
        parts += _part(f"`{name}`", model)
    parts += _part("`pools`: what every pool has", Pool, (*NOT_WRITTEN, "kind"))
    for kind in kinds:
        own = kind.pool.model_fields
        same = {name for name, field in Pool.model_fields.items() if _explained(field) == _explained(own[name])}
        parts += _part(f"`pools`: kind `{kind.name}`", kind.pool, same)
        parts += [f"\nMore about the kind: {kind.docs}"] * bool(kind.docs)
        for name, model in _inner(kind.pool).items():
            parts += _part(f"`pools`: kind `{kind.name}`: `{name}`", model)
    parts += _part("`templates`", TemplateSettings)
    return "\n".join(parts) + "\n"


def _explained(field: FieldInfo) -> tuple[object, ...]:
    return (field.default, field.description)


def _part(title: str, model: type[Section], without: Iterable[str] = ()) -> Iterator[str]:
    yield f"\n## {title}\n\n{_one_line(model.__doc__).partition('. ')[0].rstrip('.')}.\n"
    yield "| setting | allowed values | default | meaning |\n|---|---|---|---|"
    for name, field in model.model_fields.items():
        if name not in without:
            cells = (f"`{name}`", words_of(model, name), _default(field), field.description)
            yield "| " + " | ".join(_one_line(cell).replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default_factory is not None or field.default in (None, ()):
        return ""
    value = field.default
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`")


class _Untitled(GenerateJsonSchema):
    """A schema generator without titles, because titles would only repeat the names of settings."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False for every field."""
        return False

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        """Return the schema unsorted, so that its settings keep the order of the page."""
        return value


def schema(kinds: Sequence[Kind[Any]]) -> Json:
    """Return the JSON schema of provisioner.yaml. A setting is optional if HF's files or the environment may give
    it."""
    models: list[tuple[str, type[Section]]] = [*(("", model) for model in SECTIONS.values()), ("", TemplateSettings)]
    for kind in kinds:
        models += [(_prefix(kind), model) for model in (kind.pool, *_inner(kind.pool).values())]
    root = _object(Settings)
    root["properties"] |= {name: _or_null(_reference(model)) for name, model in SECTIONS.items()}
    root["properties"]["pools"] = _mapping_of(_pool(kinds)) | {"propertyNames": {"pattern": f"^{LABEL_VALUE.pattern}$"}}
    root["properties"]["templates"] = _or_null(_mapping_of(_reference(TemplateSettings)))
    definitions = {prefix + model.__name__: _object(model, prefix) for prefix, model in models}
    return {"$schema": DIALECT, "title": "provisioner.yaml", **root, "$defs": definitions}


def _inner(model: type[Section]) -> dict[str, type[Section]]:
    """Return the section types that are nested in a section. The key of each type is the dotted name of the first
    setting that has this type."""
    found: dict[str, type[Section]] = {}
    for name, field in model.model_fields.items():
        section = section_in(field.annotation)
        if section is not None and section not in found.values():
            found |= {name: section, **{f"{name}.{inner}": one for inner, one in _inner(section).items()}}
    return found


def _prefix(kind: Kind[Any]) -> str:
    """Return the text with which the schema begins the names of a kind's definitions.

    Our own kinds need no such prefix. A kind from another distribution has its name as prefix, because classes in two
    distributions may have the same names.
    """
    return "" if type(kind).__module__.startswith("provisioner.") else f"{kind.name}."


def _object(model: type[Section], prefix: str = "") -> Json:
    """Return the schema of those settings of a model that the file may contain. ``prefix``: the beginning of the
    definitions' names."""
    whole = model.model_json_schema(schema_generator=_Untitled, ref_template=f"#/$defs/{prefix}{{model}}")
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
    """Return True if the file must contain the setting. The text "No default." in its docstring shows that HF's files
    and the environment cannot give it."""
    return field.is_required() and "No default." in (field.description or "")


def _pool(kinds: Sequence[Kind[Any]]) -> Json:
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": [kind.name for kind in kinds]}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind.name}}}, "then": _reference(kind.pool, _prefix(kind))}
            for kind in kinds
        ],
    }


def _reference(model: type[Section], prefix: str = "") -> Json:
    return {"$ref": f"#/$defs/{prefix}{model.__name__}"}


def _or_null(value: Json) -> Json:
    """Return a schema that also accepts YAML's empty value, which means that the section is absent."""
    return {"anyOf": [value, {"type": "null"}]}


def _mapping_of(value: Json) -> Json:
    return {"type": "object", "additionalProperties": value}

"""The settings file of ``provisioner render-hf``: its keys, and those problems that can be found without other files.

The module reads the settings file. It uses neither network, clock nor log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, StringConstraints

from provisioner.files.yaml_text import join
from provisioner.hostfactory.provider_config import TEMPLATE_ID, format_expected
from provisioner.schema.validation import ConfigError, Expects, Problem, Section, read_mapping, validate

HfName = Annotated[str, StringConstraints(pattern=rf"^{TEMPLATE_ID}$"), Expects("1 to 64 letters, digits, '_' or '-'")]
Mode = Annotated[Literal["POLL", "REST", "REST_MANUAL"], Expects("POLL, REST or REST_MANUAL")]


def _with_mode(written: object) -> object:
    """Return the settings of a requestor. If the settings are only a text, the text is the mode."""
    return {"mode": written} if isinstance(written, str) else written


class Requestor(Section):
    """The settings of a requestor that may request machines from the instance."""

    mode: Mode | None = None
    """POLL, REST or REST_MANUAL. Default: the mode in hostRequestors.json, or POLL for a new requestor."""
    enabled: Annotated[bool | None, Expects("true or false")] = None
    """True enables and false disables an existing requestor; default unchanged. A new requestor is enabled by
    default."""
    providers: Annotated[list[HfName] | None, Expects("a list of provider instances")] = None
    """All provider instances from which the requestor may request; default its present instances and this instance."""


class HostFactorySettings(Section):
    """The settings file of ``render-hf``."""

    instance: HfName
    """Name of the provider instance, which HostFactory passes to the scripts in HF_PROVIDER_NAME. No default."""
    plugin: HfName = "provisioner"
    """Name of the provider plug-in; default provisioner."""
    scripts: Annotated[str | None, Expects("a path")] = None
    """Directory of the scripts, as HostFactory finds it; default the directory of the plug-in below HF_TOP."""
    requestors: Annotated[
        Mapping[HfName, Annotated[Requestor, BeforeValidator(_with_mode)]],
        Expects("requestors, each with POLL, REST or REST_MANUAL, or with mode, enabled and providers"),
    ] = {"symAinst": Requestor(mode="POLL"), "admin": Requestor(mode="REST_MANUAL")}
    """Requestors that may request from this instance, each with its mode or with a ``Requestor``; default symAinst:
    POLL, admin: REST_MANUAL."""
    config: Annotated[Mapping[str, JsonValue], Expects("keys with values of JSON (a date in quotes)")] = {}
    """Keys and values of the provider config, which are written unchanged. They take precedence over keys of
    ``merge``."""
    templates: Annotated[
        list[dict[str, JsonValue]], Expects("a list of templates with values of JSON (a date in quotes)")
    ] = Field(default=[])
    """HF's templates, which are written unchanged. They replace templates of ``merge`` with the same templateId."""
    pools: Annotated[Mapping[str, Any], Expects("pools by name")] = {}
    """Pools of the rendered provisioner.yaml, which are written unchanged. They replace pools of ``merge`` with the
    same name."""
    provisioner: Annotated[Mapping[str, Any], Expects("a mapping of settings")] = {}
    """Other settings of the rendered provisioner.yaml, which take precedence over settings of ``merge``. Without
    ``provisioner``, ``pools`` and ``merge`` no provisioner.yaml is rendered, and an existing provisioner.yaml stays."""
    files: Annotated[list[str], Expects("a list of files and directories beside the settings file")] = Field(default=[])
    """Files that the pools name, such as pod specs. They are copied to the same relative path in the instance's
    directory."""
    merge: Annotated[list[str], Expects("a list of directories")] = Field(default=[])
    """Configuration directories of provider instances that this instance replaces, relative to the settings file. The
    replaced instances stay registered. Disable them before this instance runs."""


def read_settings(file: Path) -> HostFactorySettings:
    """Read the settings file. Raises ConfigError."""
    document, problems = read_mapping(file)
    if not document and problems:
        raise ConfigError(problems)
    settings, wrong = validate(HostFactorySettings, document, str(file), "")
    if settings is None or problems or wrong:
        raise ConfigError([*problems, *wrong])
    return settings


def own_problems(settings: HostFactorySettings, file: str) -> Iterator[Problem]:
    """Yield those problems of the settings file that can be found without other files."""
    for requestor, given in settings.requestors.items():
        if given.providers is not None and settings.instance not in given.providers:
            words = format_expected(f"a list that names {settings.instance}", given.providers)
            yield Problem(file, join("requestors", requestor, "providers"), words)
    if "pools" in settings.provisioner:
        yield Problem(file, "provisioner.pools", "write `pools` beside `provisioner` in this file, not below it")
    first: dict[object, int] = {}
    for index, entry in enumerate(settings.templates):
        name = entry.get("templateId")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            text = f"{name!r} is also the id of templates.{first[name]}; rename one of them"
            yield Problem(file, join("templates", index, "templateId"), text)

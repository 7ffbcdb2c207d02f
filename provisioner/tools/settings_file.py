"""The settings file of ``provisioner render-hf``: its keys, and what is wrong with it by itself.

Reads the file; no network, no clock, no logger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, StringConstraints

from provisioner.files.yaml_text import join
from provisioner.hostfactory.instance import TEMPLATE_ID, expected
from provisioner.schema.problems import ConfigError, Expects, Problem, Section, read_mapping, validate

HfName = Annotated[str, StringConstraints(pattern=rf"^{TEMPLATE_ID}$"), Expects("1 to 64 letters, digits, '_' or '-'")]
Mode = Annotated[Literal["POLL", "REST", "REST_MANUAL"], Expects("POLL, REST or REST_MANUAL")]


def _with_mode(written: object) -> object:
    """A requestor of which its mode alone is given."""
    return {"mode": written} if isinstance(written, str) else written


class Requestor(Section):
    """The settings of a requestor that may ask the instance."""

    mode: Mode | None = None
    """POLL, REST or REST_MANUAL; default: that of hostRequestors.json, else POLL."""
    enabled: Annotated[bool | None, Expects("true or false")] = None
    """False disables, true enables a requestor that is there; default: as it is, and enabled if it is new."""
    providers: Annotated[list[HfName] | None, Expects("a list of provider instances")] = None
    """All provider instances that it may ask; default: those that it has, and this one."""


class HostFactorySettings(Section):
    """The settings file of ``render-hf``."""

    instance: HfName
    """Name of the provider instance: HF_PROVIDER_NAME of its scripts. No default."""
    plugin: HfName = "provisioner"
    """Name of the provider plug-in; default provisioner."""
    scripts: Annotated[str | None, Expects("a path")] = None
    """Directory of the scripts, as HostFactory finds it; default the plug-in's own below HF_TOP."""
    requestors: Annotated[
        Mapping[HfName, Annotated[Requestor, BeforeValidator(_with_mode)]],
        Expects("requestors, each with POLL, REST or REST_MANUAL, or with mode, enabled and providers"),
    ] = {"symAinst": Requestor(mode="POLL"), "admin": Requestor(mode="REST_MANUAL")}
    """Requestors that may ask this instance, each with its mode or a ``Requestor``; default symAinst: POLL, admin:
    REST_MANUAL."""
    config: Annotated[Mapping[str, JsonValue], Expects("keys with values of JSON (a date in quotes)")] = Field(
        default_factory=dict
    )
    """Keys of the provider config, as they stand in the file; before those of ``merge``."""
    templates: Annotated[
        list[dict[str, JsonValue]], Expects("a list of templates with values of JSON (a date in quotes)")
    ] = Field(default_factory=list)
    """HF's templates, as they stand in the file; before those of ``merge`` with the same templateId."""
    pools: Annotated[Mapping[str, Any], Expects("pools by name")] = Field(default_factory=dict)
    """Pools of the provisioner.yaml that is made, as they stand in it; before those of ``merge`` with the same name."""
    provisioner: Annotated[Mapping[str, Any], Expects("a mapping of settings")] = Field(default_factory=dict)
    """The other settings of the provisioner.yaml that is made; before those of ``merge``. Without these, ``pools`` and
    ``merge`` none is made, and one that is there stays."""
    files: Annotated[list[str], Expects("a list of files and directories beside the settings file")] = Field(
        default_factory=list
    )
    """What the pools name, such as pod specs: copied into the instance's directory, by the same relative path."""
    merge: Annotated[list[str], Expects("a list of directories")] = Field(default_factory=list)
    """Configuration directories of provider instances that become this one, relative to the settings file. What is
    registered of those instances stays so: disable them before this one runs."""


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
    """The problems that the settings file has by itself."""
    for requestor, given in settings.requestors.items():
        if given.providers is not None and settings.instance not in given.providers:
            words = expected(f"a list that names {settings.instance}", given.providers)
            yield Problem(file, join("requestors", requestor, "providers"), words)
    if "pools" in settings.provisioner:
        yield Problem(file, "provisioner.pools", "pools stand beside provisioner in this file, not in it; move them")
    first: dict[object, int] = {}
    for index, entry in enumerate(settings.templates):
        name = entry.get("templateId")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            text = f"{name!r} is that of templates.{first[name]} too; rename one"
            yield Problem(file, join("templates", index, "templateId"), text)

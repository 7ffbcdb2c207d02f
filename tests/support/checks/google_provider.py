"""The arguments that Terraform's Google provider accepts for the resources of ``deploy/terraform``.

The arguments are in ``google_provider.json``. ``python -m tests.support.checks.google_provider WHEEL`` writes this
file. WHEEL is the wheel of ``cdktf-cdktf-provider-google`` (``pip download --no-deps``). Its version 16.12.1 describes
the provider 6.50.0.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).with_suffix(".json")
VERSION = "6.50.0"
USED = (
    "google_artifact_registry_repository",
    "google_compute_firewall",
    "google_compute_instance_group_manager",
    "google_compute_instance_template",
    "google_compute_network",
    "google_compute_region_instance_group_manager",
    "google_compute_subnetwork",
    "google_container_cluster",
    "google_container_node_pool",
    "google_filestore_instance",
    "google_logging_project_sink",
    "google_project_iam_custom_role",
    "google_project_iam_member",
    "google_project_service",
    "google_pubsub_subscription",
    "google_pubsub_subscription_iam_member",
    "google_pubsub_topic",
    "google_pubsub_topic_iam_member",
    "google_secret_manager_secret",
    "google_secret_manager_secret_iam_member",
    "google_service_account",
    "google_service_account_iam_member",
    "data.google_project",
)
"""Names of the resources that ``deploy/terraform`` uses; the names of data sources begin with ``data.``."""

_WORD = re.compile(r"(?<=[a-z0-9])([A-Z])")
_CDKTF_S = frozenset({"fqn", "internalValue", "tfResourceType"})
_TYPES = {"string": "string", "number": "number", "boolean": "bool", "cdktf.IResolvable": "bool"}
_MAPS = {"cdktf.StringMap": "string", "cdktf.NumberMap": "number", "cdktf.BooleanMap": "bool"}
_TERRAFORM_S = frozenset({"connection", "count", "depends_on", "for_each", "lifecycle", "provider", "provisioners"})


def load() -> dict[str, dict[str, Any]]:
    """Return the ``arguments`` of each resource.

    An argument is ``required``, ``computed`` or neither. It has a ``type`` in Terraform's syntax, or a ``block`` that
    may be ``single``.
    """
    schema: dict[str, dict[str, Any]] = json.loads(SCHEMA.read_text())
    return schema


class Description:
    """The types of the provider's Python package, read from the ``.jsii`` file in its wheel, which describes each
    type."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".jsii.tgz")]
            package = archive.read(name)
        with tarfile.open(fileobj=io.BytesIO(package)) as files:
            described = files.extractfile("package/.jsii")
            assert described is not None
            self._types: Mapping[str, Any] = json.load(described)["types"]

    def resource(self, name: str) -> dict[str, Any]:
        """Return the arguments of one resource, and its computed attributes."""
        words = name.replace("data.google", "data_google").removeprefix("google_").split("_")
        kind = "".join(word.capitalize() for word in words)
        base = f"@cdktf/provider-google.{kind[0].lower()}{kind[1:]}.{kind}"
        return {"arguments": self._computed(base) | self._arguments(f"{base}Config")}

    def _arguments(self, type_: str) -> dict[str, Any]:
        properties = sorted(self._types[type_].get("properties", ()), key=lambda one: str(one["name"]))
        given = {self._name(one): self._argument(one) for one in properties}
        return {name: argument for name, argument in given.items() if name not in _TERRAFORM_S}

    def _argument(self, described: Mapping[str, Any]) -> dict[str, Any]:
        argument: dict[str, Any] = {"required": not described.get("optional", False)}
        inner = [name for name in _named(described["type"]) if name.startswith("@cdktf/")]
        if inner and described["docs"].get("summary", "").endswith(" block."):
            argument["block"] = self._computed(f"{inner[0]}OutputReference") | self._arguments(inner[0])
            argument["single"] = '"array"' not in json.dumps(described["type"])
        else:
            argument["type"] = terraform_type(described["type"])
        return argument

    def _computed(self, type_: str) -> dict[str, Any]:
        """Return those attributes of a resource or a block that only Google sets."""
        properties = {one["name"]: one for one in self._types.get(type_, {}).get("properties", ())}
        return {
            snake(name): {"required": False, "computed": True, "type": terraform_type(one["type"])}
            for name, one in sorted(properties.items())
            if f"{name}Input" not in properties and not name.endswith("Input") and name not in _CDKTF_S
        }

    @staticmethod
    def _name(described: Mapping[str, Any]) -> str:
        """Return the argument's name in Terraform. It is the last part of the link in the description or, without a
        link, made from the described name."""
        found = re.search(r"#(\w+) ", described["docs"].get("remarks", ""))
        return found[1] if found else snake(str(described["name"]))


def snake(name: str) -> str:
    """Return a name like ``selfLink`` in Terraform's spelling: ``self_link``."""
    return _WORD.sub(r"_\1", name).lower()


def terraform_type(type_: Any) -> Any:
    """Return a described type in Terraform's syntax. Return ``dynamic`` for an object type, because our files set no
    such argument."""
    if "union" in type_:
        chosen = [one for one in type_["union"]["types"] if one.get("fqn") != "cdktf.IResolvable"]
        return terraform_type(chosen[0])
    if "collection" in type_:
        kind = {"array": "list", "map": "map"}[type_["collection"]["kind"]]
        inner = terraform_type(type_["collection"]["elementtype"])
        return "dynamic" if inner == "dynamic" else [kind, inner]
    name = type_.get("primitive") or type_.get("fqn", "")
    return ["map", _MAPS[name]] if name in _MAPS else _TYPES.get(name, "dynamic")


def _named(type_: Any) -> Iterator[str]:
    """Yield the name of every type that occurs in a described type."""
    if isinstance(type_, dict):
        if "fqn" in type_:
            yield type_["fqn"]
        for inner in type_.values():
            yield from _named(inner)
    elif isinstance(type_, list):
        for inner in type_:
            yield from _named(inner)


def main(wheel: str) -> None:
    """Write ``google_provider.json`` from a wheel."""
    description = Description(Path(wheel))
    schema = {name: description.resource(name) for name in USED}
    lines = (f"{json.dumps(name)}:{json.dumps(schema[name], separators=(',', ':'))}" for name in USED)
    SCHEMA.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main(sys.argv[1])

"""What Terraform's Google provider takes, of the resources that ``deploy/terraform`` uses: ``google_provider.json``.

``python -m tests.support.checks.google_provider WHEEL`` makes the file again, from the wheel of the distribution
``cdktf-cdktf-provider-google`` (``pip download --no-deps``): its 16.12.1 describes provider 6.50.0.
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
    "google_service_account",
    "google_service_account_iam_member",
    "data.google_project",
)
"""The resources, and after ``data.`` the data sources."""

_WORD = re.compile(r"(?<=[a-z0-9])([A-Z])")
_TERRAFORM_S = frozenset({"connection", "count", "depends_on", "for_each", "lifecycle", "provider", "provisioners"})


def load() -> dict[str, dict[str, Any]]:
    """By resource: its ``arguments`` (``required`` or not, those of a block under ``block``) and its ``attributes``."""
    schema: dict[str, dict[str, Any]] = json.loads(SCHEMA.read_text())
    return schema


class Description:
    """The types of the distribution, as its description for other languages names them."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".jsii.tgz")]
            package = archive.read(name)
        with tarfile.open(fileobj=io.BytesIO(package)) as files:
            described = files.extractfile("package/.jsii")
            assert described is not None
            self._types: Mapping[str, Any] = json.load(described)["types"]

    def resource(self, name: str) -> dict[str, Any]:
        """Arguments and attributes of one resource."""
        words = name.replace("data.google", "data_google").removeprefix("google_").split("_")
        kind = "".join(word.capitalize() for word in words)
        module = kind[0].lower() + kind[1:]
        base = f"@cdktf/provider-google.{module}.{kind}"
        arguments = self._arguments(f"{base}Config")
        names = {snake(one["name"]) for one in self._types[base]["properties"]}
        attributes = {name for name in names if not name.endswith("_input")}
        return {"arguments": arguments, "attributes": sorted(attributes | set(arguments))}

    def _arguments(self, type_: str) -> dict[str, Any]:
        properties = self._types[type_].get("properties", ())
        arguments = {}
        for one in sorted(properties, key=lambda one: str(one["name"])):
            name = self._name(one)
            if name not in _TERRAFORM_S:
                arguments[name] = self._argument(one)
        return arguments

    def _argument(self, described: Mapping[str, Any]) -> dict[str, Any]:
        argument: dict[str, Any] = {"required": not described.get("optional", False)}
        inner = [name for name in _named(described["type"]) if name.startswith("@cdktf/")]
        if inner and described["docs"].get("summary", "").endswith(" block."):
            argument["block"] = self._arguments(inner[0])
        return argument

    @staticmethod
    def _name(described: Mapping[str, Any]) -> str:
        """The name in Terraform, which the link to the registry ends in."""
        said = re.search(r"#(\w+) ", described["docs"].get("remarks", ""))
        return said[1] if said else snake(str(described["name"]))


def snake(name: str) -> str:
    """``selfLink`` as Terraform writes it."""
    return _WORD.sub(r"_\1", name).lower()


def _named(type_: Any) -> Iterator[str]:
    """Every type that a description names."""
    if isinstance(type_, dict):
        if "fqn" in type_:
            yield type_["fqn"]
        for inner in type_.values():
            yield from _named(inner)
    elif isinstance(type_, list):
        for inner in type_:
            yield from _named(inner)


def main(wheel: str) -> None:
    """Write the file."""
    description = Description(Path(wheel))
    schema = {name: description.resource(name) for name in USED}
    lines = (f"{json.dumps(name)}:{json.dumps(schema[name], separators=(',', ':'))}" for name in USED)
    SCHEMA.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main(sys.argv[1])

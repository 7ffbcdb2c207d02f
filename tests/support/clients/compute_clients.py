"""Three clients of the Compute API by other authors, each behind the same few methods."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import googleapiclient.discovery
import googleapiclient.errors
import googleapiclient.http
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.server import Simulator
from tests.support.waiting import PATIENCE

ABSENT = "not found"


class Client(Protocol):
    """A client of the Compute API, for one managed instance group."""

    def create(self, name: str) -> str:
        """Create an instance by name, and wait for the operation. Return the error; empty if the operation
        succeeded."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete instances by name."""

    def members(self) -> dict[str, tuple[str, str]]:
        """Return the current action and the status of each managed instance."""

    def target_size(self, group: str = "") -> int | str:
        """Return the target size of this group or of another group; ``ABSENT`` if there is none."""

    def errors(self) -> list[str]:
        """Return the error codes that the method listErrors lists."""

    def addresses(self) -> dict[str, str]:
        """Return the internal address of each instance of the project."""


class CloudLibrary:
    """A client that uses the library google-cloud-compute."""

    def __init__(self, simulator: Simulator, spec: MigSpec, _directory: Path) -> None:
        options = {
            "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
            "client_options": ClientOptions(api_endpoint=simulator.address),  # type: ignore[no-untyped-call]
        }
        kind = "Region" if spec.region else ""
        self._groups = getattr(compute_v1, f"{kind}InstanceGroupManagersClient")(**options)
        self._operations = getattr(compute_v1, f"{kind or 'Zone'}OperationsClient")(**options)
        self._instances = compute_v1.InstancesClient(**options)
        self._kind, self._spec = kind, spec
        self._place = {"project": spec.project, **({"region": spec.region} if spec.region else {"zone": spec.zone})}
        self._where = {"instance_group_manager": spec.name, "timeout": 10, **self._place}

    def create(self, name: str) -> str:
        body = self._body("CreateInstances", instances=[compute_v1.PerInstanceConfig(name=name)])
        operation = self._groups.create_instances_unary(**body, **self._where)
        done = self._operations.wait(operation=operation.name, timeout=10, **self._place)
        return " ".join(f"{error.code}: {error.message}" for error in done.error.errors)

    def delete(self, names: Sequence[str]) -> None:
        urls = [entry.instance for entry in self._listed() if entry.name in names]
        body = self._body("DeleteInstances", instances=urls, skip_instances_on_validation_error=True)
        self._groups.delete_instances_unary(**body, **self._where)

    def members(self) -> dict[str, tuple[str, str]]:
        return {entry.name: (entry.current_action, entry.instance_status) for entry in self._listed()}

    def target_size(self, group: str = "") -> int | str:
        try:
            return int(
                self._groups.get(**self._where | {"instance_group_manager": group or self._spec.name}).target_size
            )
        except GoogleAPICallError as error:
            return ABSENT if error.code == 404 else str(error)

    def errors(self) -> list[str]:
        return [entry.error.code for entry in self._groups.list_errors(**self._where)]

    def addresses(self) -> dict[str, str]:
        pages = self._instances.aggregated_list(project=self._spec.project, timeout=10)
        return {vm.name: vm.network_interfaces[0].network_i_p for _, scope in pages for vm in scope.instances}

    def _listed(self) -> list[Any]:
        return list(self._groups.list_managed_instances(**self._where))

    def _body(self, method: str, **content: Any) -> dict[str, Any]:
        made = getattr(compute_v1, f"{self._kind}InstanceGroupManagers{method}Request")(**content)
        words = "create_instances" if method == "CreateInstances" else "delete_instances"
        prefix = "region_" if self._kind else ""
        return {f"{prefix}instance_group_managers_{words}_request_resource": made}


class ApiLibrary:
    """A client that uses google-api-python-client, with the library's own copy of the discovery document."""

    def __init__(self, simulator: Simulator, spec: MigSpec, _directory: Path) -> None:
        self._service = googleapiclient.discovery.build(
            "compute",
            "v1",
            http=googleapiclient.http.build_http(),
            static_discovery=True,
            client_options=ClientOptions(api_endpoint=simulator.compute),  # type: ignore[no-untyped-call]
        )
        service, regional = self._service, bool(spec.region)
        self._groups = service.regionInstanceGroupManagers() if regional else service.instanceGroupManagers()
        self._operations = service.regionOperations() if regional else service.zoneOperations()
        self._spec = spec
        self._place = {"project": spec.project, **({"region": spec.region} if regional else {"zone": spec.zone})}
        self._where = {"instanceGroupManager": spec.name, **self._place}

    def create(self, name: str) -> str:
        operation = self._groups.createInstances(body={"instances": [{"name": name}]}, **self._where).execute()
        done = self._operations.wait(operation=operation["name"], **self._place).execute()
        return " ".join(f"{error['code']}: {error['message']}" for error in done.get("error", {}).get("errors", []))

    def delete(self, names: Sequence[str]) -> None:
        urls = [entry["instance"] for entry in self._listed() if entry["name"] in names]
        body = {"instances": urls, "skipInstancesOnValidationError": True}
        self._groups.deleteInstances(body=body, **self._where).execute()

    def members(self) -> dict[str, tuple[str, str]]:
        return {entry["name"]: (entry["currentAction"], entry.get("instanceStatus", "")) for entry in self._listed()}

    def target_size(self, group: str = "") -> int | str:
        try:
            where = self._where | {"instanceGroupManager": group or self._spec.name}
            return int(self._groups.get(**where).execute()["targetSize"])
        except googleapiclient.errors.HttpError as error:
            return ABSENT if error.status_code == 404 else str(error)

    def errors(self) -> list[str]:
        return [entry["error"]["code"] for entry in self._groups.listErrors(**self._where).execute().get("items", [])]

    def addresses(self) -> dict[str, str]:
        scopes = self._service.instances().aggregatedList(project=self._spec.project).execute()["items"].values()
        vms = [vm for scope in scopes for vm in scope.get("instances", [])]
        return {vm["name"]: vm["networkInterfaces"][0].get("networkIP", "") for vm in vms}

    def _listed(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (
            self._groups.listManagedInstances(**self._where).execute().get("managedInstances", [])
        )
        return listed


class Gcloud:
    """A client that runs gcloud. It has no account, and begins with an empty configuration."""

    def __init__(self, simulator: Simulator, spec: MigSpec, directory: Path) -> None:
        self._spec = spec
        self._place = f"--region {spec.region}" if spec.region else f"--zone {spec.zone}"
        self._environment = os.environ | {
            "CLOUDSDK_CONFIG": str(directory),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": simulator.compute,
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_PROJECT": spec.project,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }

    def create(self, name: str) -> str:
        done = self.run(f"instance-groups managed create-instance {self._spec.name} --instance {name} {self._place}")
        return done.stderr if done.returncode else ""

    def delete(self, names: Sequence[str]) -> None:
        command = f"instance-groups managed delete-instances {self._spec.name} --instances {','.join(names)}"
        done = self.run(f"{command} {self._place}")
        assert done.returncode == 0, done.stderr

    def members(self) -> dict[str, tuple[str, str]]:
        listed = self._read(f"instance-groups managed list-instances {self._spec.name} {self._place}")
        return {entry["name"]: (entry["currentAction"], entry.get("instanceStatus", "")) for entry in listed}

    def target_size(self, group: str = "") -> int | str:
        if not group:
            groups = {entry["name"]: entry for entry in self._read("instance-groups managed list")}
            return int(groups[self._spec.name]["targetSize"])
        done = self.run(f"instance-groups managed describe {group} {self._place}")
        return ABSENT if done.returncode and "was not found" in done.stderr else done.stdout

    def errors(self) -> list[str]:
        listed = self._read(f"instance-groups managed list-errors {self._spec.name} {self._place}")
        return [entry["error"]["code"] for entry in listed]

    def addresses(self) -> dict[str, str]:
        return {vm["name"]: vm["networkInterfaces"][0].get("networkIP", "") for vm in self._read("instances list")}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run ``gcloud compute`` with these words."""
        arguments = ["gcloud", "compute", *command.split()]
        return subprocess.run(
            arguments, env=self._environment, capture_output=True, text=True, timeout=60 * PATIENCE, check=False
        )

    def _read(self, command: str) -> Any:
        done = self.run(f"{command} --format=json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

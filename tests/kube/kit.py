"""Our manifests on a real API server, with the loop's pod.

kwok runs no containers, so it only reports that the pod runs. A process on this host does the pod's work, with the
pod's account and files.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import yaml

from provisioner.hostfactory.script_calls import HostFactory
from tests.kube.client import Client, Refused
from tests.kube.definitions import published
from tests.support.manifests import (
    KUSTOMIZE,
    ROOT,
    Manifest,
    container,
    entry_point,
    only,
    pods,
    schemas,
    write_configuration,
)
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE, until

ACCOUNT_FILES = "/var/run/secrets/kubernetes.io/serviceaccount"
START_SECONDS = 90.0
PROGRAM = f"""mkdir /mnt/bin /mnt/python
mount --bind {sys.base_prefix} /mnt/python
cat >/mnt/bin/provisioner <<'END'
#!/bin/sh
LD_LIBRARY_PATH=/mnt/python/lib exec /mnt/python/bin/{Path(sys.executable).resolve().name} -m provisioner "$@"
END
chmod 755 /mnt/bin/provisioner"""
"""Lines of shell that give the pod's user our Python, and the program that Python runs."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Kit:
    """Manifests for one API server. An administrator's account applies them."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin
        self._resources: dict[tuple[str, str], dict[str, Any]] = {}
        self._applied: dict[str, Manifest] = {}

    def define(self) -> None:
        """Create a definition for each kind of which we have a schema.

        A published definition is used if there is one. All other definitions are made from our schemas.
        """
        own = {kind: _definition(version, kind, schema) for (version, kind), schema in schemas().items()}
        definitions = {**own, **published()}
        for definition in definitions.values():
            self.admin.create(CRDS, definition)
        served = [f"{CRDS}/{definition['metadata']['name']}" for definition in definitions.values()]
        until(lambda: all(is_established(self.admin, path) for path in served), 60, what="the server serves our kinds")

    def apply(self, manifest: Manifest, *, trial: bool = False) -> Manifest:
        """Apply a manifest by server-side apply. The server refuses unknown fields. A ``trial`` changes nothing."""
        query = {"fieldManager": "kit", "force": "true", "fieldValidation": "Strict"}
        trying = {"dryRun": "All"} if trial else {}
        path = self.path_of(manifest)
        if not trial:
            self._applied[path] = manifest
        return self.admin.call("PATCH", path, manifest, kind="application/apply-patch+yaml", query=query | trying)

    @contextmanager
    def deploying(self, manifests: Sequence[Manifest]) -> Iterator[None]:
        """Apply the manifests. For each volume claim that names no volume, make a volume. Delete all of these objects
        at the end, except namespaces."""
        before = set(self._applied)
        try:
            for manifest in manifests:
                self.apply(manifest)
                if manifest["kind"] == "PersistentVolumeClaim" and "volumeName" not in manifest["spec"]:
                    self.apply(_volume(manifest))
            yield
        finally:
            ours = [path for path, one in self._applied.items() if path not in before and one["kind"] != "Namespace"]
            for path in ours:
                del self._applied[path]
                with suppress(Refused):  # it was not taken
                    self.admin.delete(path)
            until(lambda: not any(map(self._exists, ours)), 90, every=0.2, what="what was applied is gone")

    def path_of(self, manifest: Manifest) -> str:
        """Return the URL path at which the server keeps the manifest's object."""
        version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._resources:
            for one in self.admin.get(root)["resources"]:
                if "/" not in one["name"]:
                    self._resources[version, one["kind"]] = one
        resource = self._resources[version, kind]
        space = f"/namespaces/{metadata['namespace']}" if resource["namespaced"] else ""
        return f"{root}{space}/{resource['name']}/{metadata['name']}"

    def _exists(self, path: str) -> bool:
        try:
            self.admin.get(path)
        except Refused as refused:
            if refused.status != 404:
                raise
            return False
        return True


def is_established(admin: Client, path: str) -> bool:
    """Return True if the server serves the kind that a definition defines."""
    conditions = admin.get(path).get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def define_state_kinds(admin: Client) -> list[str]:
    """Create the definitions of the kinds that store the state. Return the paths of the definitions."""
    definitions = [*yaml.safe_load_all((KUSTOMIZE / "components/kubernetes-state/crds.yaml").read_text())]
    for definition in definitions:
        admin.create(CRDS, definition)
    served = [f"{CRDS}/{one['metadata']['name']}" for one in definitions]
    until(lambda: all(is_established(admin, path) for path in served), 60, what="the server serves the kinds")
    return served


def _volume(claim: Manifest) -> Manifest:
    """Return a volume for the claim, in place of a volume that a storage class would make."""
    spec = {
        "capacity": claim["spec"]["resources"]["requests"],
        "accessModes": claim["spec"]["accessModes"],
        "hostPath": {"path": "/nowhere"},
        "claimRef": {key: claim["metadata"][key] for key in ("namespace", "name")},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": claim["metadata"]["name"]},
        "spec": spec,
    }


def _plural(kind: str) -> str:
    return kind.lower() + ("es" if kind.endswith("s") else "s")


def _definition(version: str, kind: str, schema: Manifest) -> Manifest:
    """Return the definition of a kind, made from our schema of the kind."""
    group, _, number = version.partition("/")
    scope = "Namespaced" if "namespace" in schema["properties"]["metadata"]["properties"] else "Cluster"
    plain = {key: value for key, value in schema.items() if not key.startswith("$")}
    structural = _structural(plain)
    structural["properties"] |= {name: {"type": "string"} for name in ("apiVersion", "kind")}
    structural["properties"]["metadata"] = {"type": "object"}
    one = {"name": number, "served": True, "storage": True, "schema": {"openAPIV3Schema": structural}}
    names = {"plural": _plural(kind), "singular": kind.lower(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{_plural(kind)}.{group}"},
        "spec": {"group": group, "scope": scope, "names": names, "versions": [one]},
    }


def _structural(schema: Any) -> Any:
    """Return a schema in the form that the server accepts.

    A ban of unknown fields is left out, because the server removes these fields anyway. A value that is an integer or a
    string is marked by Kubernetes' own keyword.
    """
    if isinstance(schema, list):
        return [_structural(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema:
        return {"x-kubernetes-int-or-string": True}
    return {key: _structural(value) for key, value in schema.items() if (key, value) != ("additionalProperties", False)}


class LoopPod:
    """The pod of the Deployment as a process: command, environment, user, mounts, read-only root, and account.

    A context manager that ends the process. The process has its own mount namespace, so it finds the pod's paths.
    """

    def __init__(
        self,
        kit: Kit,
        manifests: Sequence[Manifest],
        directory: Path,
        ca: Path,
        *,
        group: int | None = None,
        surroundings: Mapping[str, str] | None = None,
    ) -> None:
        """``group``: the group of an exported state directory. ``surroundings``: further environment variables."""
        self._one, pod = container(manifests), pods(manifests)["Deployment"]
        self.account = only(manifests, "Deployment")["metadata"]["namespace"], pod["serviceAccountName"]
        self._process: subprocess.Popen[bytes] | None = None
        self.conf, self.state, self._mine = (directory / name for name in ("conf", "state", "account"))
        self.log = directory / "loop.log"
        self._mounted = 0
        self.mount(only(manifests, "ConfigMap"))
        self._mine.mkdir()
        shutil.copy(ca, self._mine / "ca.crt")
        self.token = _token(kit, *self.account)
        (self._mine / "token").write_text(self.token)
        (self._mine / "namespace").write_text(self.account[0])
        self.host = directory / "host"
        write_configuration(manifests, self.host)
        self.state.mkdir()
        if group is not None:
            os.chown(self.state, 0, group)
        os.chmod(self.state, 0o2770)
        server, (self.port,) = urlsplit(kit.admin.server), free_ports(1)
        volumes = {"config": self.conf, "state": self.state}
        self._inside = Inside(pod, volumes, {ACCOUNT_FILES: self._mine}, exported=exported(manifests))
        self._environment = self._inside.environment() | {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
            **(surroundings or {}),
        }
        self.hf = HostFactory(
            {
                "HF_PROVIDER_NAME": self._environment["HF_PROVIDER_NAME"],
                "HF_PROVIDER_CONFDIR": str(self.host),
                "HF_PROVIDER_WORKDIR": str(self.state),
                "HF_PROVIDER_LOGDIR": str(directory),
                "HF_PYTHON": sys.executable,
            }
        )

    def __enter__(self) -> Self:
        (port,) = self._one["ports"]
        arguments = [argument.replace(f":{port['containerPort']}", f":{self.port}") for argument in self._one["args"]]
        command = self._inside.command(*self._one.get("command", entry_point()), *arguments)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd="/",
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process = self._process
        probe = self._one["startupProbe"]["httpGet"]["path"]
        until(lambda: process.poll() is not None or self.answers(probe), START_SECONDS, what="the start-up probe")
        assert process.poll() is None, self.log.read_text()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30 * PATIENCE)
            finally:
                self._process.kill()
                self._process.wait()
        if error is not None:
            print(self.log.read_text()[-5000:])

    def kill(self) -> None:
        """End the process at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def mount(self, configuration: Manifest) -> None:
        """Give the pod these configuration files as the kubelet does: each file is a link to a link ``..data``, so that
        one rename changes all files at once."""
        self._mounted += 1
        whole = self.conf / f"..{self._mounted}"
        whole.mkdir(parents=True)
        for name, content in configuration["data"].items():
            (whole / name).write_text(content)
            if not (self.conf / name).is_symlink():
                (self.conf / name).symlink_to(f"..data/{name}")
        (self.conf / "..data_tmp").symlink_to(whole.name)
        (self.conf / "..data_tmp").rename(self.conf / "..data")

    def answers(self, path: str) -> bool:
        """Return whether a probe of the loop's server succeeds."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5 * PATIENCE) as response:
                return bool(response.status == 200)
        except OSError:
            return False


@dataclass(frozen=True)
class Inside:
    """The surroundings of a pod's container: its mounts, environment, user and file system."""

    pod: Manifest
    volumes: Mapping[str, Path]
    """Directories of ours in the place of volumes, by name."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Further mounted files, by their path in the container."""
    network: bool = True
    exported: Collection[str] = ()
    """Volumes that no kubelet gives to the pod's group."""

    @property
    def container(self) -> Manifest:
        """Return the pod's only container."""
        (one,) = self.pod["containers"]
        return dict(one)

    def environment(self) -> dict[str, str]:
        """Return the container's environment. Its paths lead to this source's program, for any user."""
        own = {entry["name"]: entry["value"] for entry in self.container["env"]}
        program = {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}", "PYTHONDONTWRITEBYTECODE": "1"}
        return own | program | {"PATH": "/mnt/bin:/usr/bin:/bin"}

    def command(self, *words: str) -> list[str]:
        """Return a command that runs the words as the pod's user, in a mount namespace of its own.

        Skip the test if the host allows no mount namespaces.
        """
        space = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
            pytest.skip("needs mount namespaces (unshare -rm)")
        alone = [] if self.network else ["-n"]
        return [*space, *alone, "sh", "-ec", self._mounts() + 'exec "$@"', "pod", *self._as_user(), *words]

    def _mounts(self) -> str:
        """Return lines of shell that make the kubelet's mounts. Everything else is read-only."""
        chosen = [one for one in self.container["volumeMounts"] if one["name"] in self.volumes]
        mounts = {one["mountPath"]: self.volumes[one["name"]] for one in chosen}
        lines = ["mount --make-rprivate /", "mount -t tmpfs -o mode=755 kit /mnt", PROGRAM]
        places = {Path(os.path.realpath(path)): source for path, source in {**mounts, **self.files}.items()}
        above = {place: next(parent for parent in place.parents if parent.is_dir()) for place in places}
        for number, place in enumerate(sorted(places, key=lambda one: len(above[one].parts))):  # none hides another
            upper, work = f"/mnt/{number}/upper", f"/mnt/{number}/work"
            options = f"lowerdir={above[place]},upperdir={upper},workdir={work}"
            lines += [f"mkdir -p {upper} {work}", f"mount -t overlay -o {options} kit {above[place]}"]
            lines += [f"mkdir -p {place}", f"mount --bind {places[place]} {place}"]
        read_only = self.container["securityContext"]["readOnlyRootFilesystem"]
        return "\n".join([*lines, "mount -o remount,ro,bind /" if read_only else "", ""])

    def _as_user(self) -> list[str]:
        """Return the words that run a command as the pod's user and groups. Return no words if the test does not run as
        root.

        The volumes that are not exported get the pod's group.
        """
        security = self.pod["securityContext"]
        if os.geteuid():
            return []
        own = [security["fsGroup"]] if "fsGroup" in security else []
        for name, directory in self.volumes.items():
            if own and name not in self.exported:
                os.chown(directory, -1, *own)
        groups = ",".join(map(str, [*own, *security.get("supplementalGroups", ())]))
        who = [f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}", f"--groups={groups}"]
        return ["setpriv", *who, "--no-new-privs", "--inh-caps=-all"]


def exported(manifests: Sequence[Manifest]) -> set[str]:
    """Return the loop's volumes that an NFS server exports. The kubelet does not change the owners of their files."""
    exports = {
        one["metadata"]["name"] for one in manifests if one["kind"] == "PersistentVolume" and "nfs" in one["spec"]
    }
    claims = {
        one["metadata"]["name"]
        for one in manifests
        if one["kind"] == "PersistentVolumeClaim" and one["spec"].get("volumeName") in exports
    }
    volumes = pods(manifests)["Deployment"]["volumes"]
    return {one["name"] for one in volumes if one.get("persistentVolumeClaim", {}).get("claimName") in claims}


def _token(kit: Kit, space: str, account: str) -> str:
    path = f"/api/v1/namespaces/{space}/serviceaccounts/{account}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    return str(kit.admin.create(path, asked)["status"]["token"])

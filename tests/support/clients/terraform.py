"""Run Terraform on the part of the module that needs no provider: HostFactory's files of an example.

``python -m tests.support.clients.terraform`` writes the files of ``deploy/terraform/examples/grid.tfvars`` again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.checks.terraform import Module, plain
from tests.support.clients.provider_plugin import install
from tests.support.waiting import PATIENCE

TERRAFORM = Path(__file__).parents[3] / "deploy" / "terraform"
SETTINGS = TERRAFORM / "modules" / "settings"
EXAMPLE = TERRAFORM / "examples" / "grid.tfvars"
RENDERED = TERRAFORM / "examples" / "grid"
ENDPOINT = "https://203.0.113.7"
"""An address that Google could have assigned to the example's cluster as its public endpoint."""


def terraform(*words: str, directory: Path, settings: Path = Path(os.devnull)) -> subprocess.CompletedProcess[str]:
    """Run Terraform in a directory, offline. ``settings``: file with the settings of Terraform's user; by default there
    are none."""
    environment = os.environ | {
        "TF_CLI_CONFIG_FILE": str(settings),
        "CHECKPOINT_DISABLE": "1",
        "TF_IN_AUTOMATION": "1",
        "TF_DISABLE_PLUGIN_TLS": "1",
    }
    return subprocess.run(
        ["terraform", *words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120 * PATIENCE,
    )


def copied(directory: Path) -> Path:
    """Copy the module that renders settings, initialize the copy, and return its directory."""
    copy = directory / "settings"
    shutil.copytree(SETTINGS, copy)
    done = terraform("init", "-no-color", "-input=false", directory=copy)
    assert done.returncode == 0, done.stderr
    return copy


def whole(directory: Path, module: Path = TERRAFORM) -> tuple[Path, Path]:
    """Return an initialized copy of a whole module, and the file of Terraform's settings.

    The provider is our plug-in.
    """
    copy, mirror, settings = directory / "terraform", directory / "mirror", directory / "terraformrc"
    shutil.copytree(module, copy)
    install(mirror)
    settings.write_text(f'provider_installation {{\n  filesystem_mirror {{\n    path = "{mirror}"\n  }}\n}}\n')
    done = terraform("init", "-no-color", "-input=false", directory=copy, settings=settings)
    assert done.returncode == 0, done.stderr
    return copy, settings


def rendered(
    example: Path, directory: Path, *, endpoint: str | None = None, authority: str | None = None
) -> Mapping[str, str]:
    """Return the files that the module makes for an example, by name.

    The provider's name, the prefix and the subscription are the defaults of the whole module. ``endpoint`` and
    ``authority`` belong to the cluster; both are None if the loop is a pod.
    """
    copy, root = copied(directory), Module(TERRAFORM)
    given = {name: root.default(name) for name in ("provider_name", "name_prefix")}
    given["subscription"] = plain(root.locals["events_name"]).replace("${var.name_prefix}", given["name_prefix"])
    given |= {"endpoint": endpoint, "ca_certificate": authority}
    options = [f"-var={name}={value}" for name, value in given.items() if value is not None]
    done = terraform("apply", "-no-color", "-auto-approve", f"-var-file={example}", *options, directory=copy)
    assert done.returncode == 0, done.stderr
    files: dict[str, str] = json.loads(terraform("output", "-json", "files", directory=copy).stdout)
    return files


def main() -> None:
    """Write the files of the example."""
    with tempfile.TemporaryDirectory() as directory:
        authority = (RENDERED / "cluster-ca.crt").read_text()
        files = rendered(EXAMPLE, Path(directory), endpoint=ENDPOINT, authority=authority)
    shutil.rmtree(RENDERED, ignore_errors=True)
    for name, text in files.items():
        path = RENDERED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()

"""The packages that pip installs are exactly those that our modules import. The scripts need only one package. If a
package is missing, the program names the extra to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from provisioner.lab.cloud.kubernetes.kubeconfig import kubeconfig
from provisioner.optional_packages import MissingExtra, require_packages
from tests.support.environments import build_ours, environment
from tests.support.hostfactory.provider import ROOT, HostFactory
from tests.support.hostfactory.sites import Site, small_site

# --- one part lacks its packages --------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = small_site(tmp_path)
    made.settings["pools"] = dict(reversed(made.settings["pools"].items()))  # the group first
    made.settings["events"] = {"project": "demo-project", "subscription": "ours"}
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig("http://127.0.0.1:1", "grid", {})))
    (tmp_path / "state").mkdir()
    made.write()
    return made


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("yaml", ["check"], "loop"),
        ("provisioner.lab", ["replay", "trace"], "loop"),
        ("provisioner.lab", ["simulator", "--help"], "demo"),
        ("google.cloud.pubsub_v1", ["events", "--seconds", "1"], "events"),
        pytest.param("pydantic", ["check"], "loop", marks=pytest.mark.slow),
        pytest.param("kubernetes", ["check", "--live"], "gke", marks=pytest.mark.slow),
        pytest.param("urllib3", ["plan", "--state-dir", "state"], "mig", marks=pytest.mark.slow),
        pytest.param("google.auth", ["plan", "--state-dir", "state"], "mig", marks=pytest.mark.slow),
        pytest.param("aiohttp", ["simulator"], "demo", marks=pytest.mark.slow),
        pytest.param("rich", ["demo"], "demo", marks=pytest.mark.slow),
        pytest.param("matplotlib", ["simulate", "few", "--out", "out"], "simulate", marks=pytest.mark.slow),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_command_that_lacks_a_package_says_what_to_install(
    site: Site, package: str, arguments: list[str], extra: str
) -> None:
    hidden = f"import sys; sys.modules[{package!r}] = None"
    code = f"{hidden}; sys.argv[1:] = {arguments!r}; from provisioner.__main__ import main; main()"
    places = {"HF_PROVIDER_CONFDIR": str(site.directory), "KUBECONFIG": str(site.directory / "kubeconfig")}
    environment = {"HF_PROVIDER_NAME": "t", "PYTHONPATH": str(ROOT), **places}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=site.directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].endswith(f": pip install 'hostfactory-provisioner[{extra}]'"), done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_of_our_own_that_is_absent_is_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError), require_packages("anything"):
        import provisioner.nothing_of_this_name  # noqa: F401


def test_a_package_that_is_absent_names_what_brings_it() -> None:
    with (
        pytest.raises(MissingExtra, match=r"'nowhere'\): pip install 'yard-provisioner'$"),
        require_packages("yard-provisioner"),
    ):
        import nowhere  # noqa: F401


# --- nothing but the base is installed --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the packages that pip installs without an extra."""
    directory = tmp_path_factory.mktemp("base")
    return environment(directory / "venv", [build_ours(directory)])


@pytest.mark.slow
def test_the_base_is_enough_for_the_scripts_and_the_loop_says_which_extra_it_lacks(base: Path, tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    (scripts,) = base.glob("lib/python3.*/site-packages/hf_scripts")
    for name, document in (
        ("getAvailableTemplates", {}),
        ("requestMachines", {"template": {"templateId": "T1", "machineCount": 2}}),
    ):
        command = [str(scripts / f"{name}.sh"), *hf.command(name, document)[1:]]
        assert hf.run(command).document
    assert len(hf.state.intent.read().requests) == 1
    libraries = {path.name for path in scripts.parent.iterdir() if path.is_dir() and "dist-info" not in path.name}
    assert libraries == {"provisioner", "hf_scripts", "tinydb"}
    packed = {path.name for path in (scripts.parent / "provisioner" / "telemetry" / "templates").iterdir()}
    assert packed == {path.name for path in (ROOT / "provisioner" / "telemetry" / "templates").iterdir()}
    (hf.conf / "provisioner.yaml").write_text(yaml.safe_dump({"id": "demo", "pools": {}}))
    done = hf.run([str(base / "bin" / "provisioner"), "run"])
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(": pip install 'hostfactory-provisioner[loop]'\n")

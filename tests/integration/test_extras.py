"""The installed packages are the packages in use: scripts need one, and a program that lacks more names it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from provisioner.lab.cloud.kubernetes.kubeconfig import kubeconfig
from provisioner.optional_packages import MissingExtra, require_packages
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


OFFLINE = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with what pip installs when no extra is asked for; nothing is downloaded."""
    directory = tmp_path_factory.mktemp("base")
    source, wheels, environment = (directory / name for name in ("source", "wheels", "venv"))
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("provisioner", "hf_scripts"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    _pip("wheel", *OFFLINE, "--no-build-isolation", "-w", wheels, source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    _pip("--python", environment / "bin" / "python", "install", *OFFLINE, *wheels.glob("*"))
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (installed,) = importlib.metadata.distributions(name="hostfactory-provisioner", path=[str(site_packages)])
    for requirement in installed.requires or ():
        if "extra ==" not in requirement:
            _copy(requirement.partition(">")[0], site_packages)
    return environment


def _pip(*arguments: str | Path) -> None:
    """Run pip as one who sees nothing of our clone: neither by PYTHONPATH nor by this directory."""
    subprocess.run([sys.executable, "-I", "-m", "pip", *arguments], env={"PATH": os.environ["PATH"]}, check=True)


def _copy(name: str, site_packages: Path) -> None:
    """Copy a distribution that is installed here, instead of a download by pip."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        if ".." not in file.parts:
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(distribution.locate_file(file), target)


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

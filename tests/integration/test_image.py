"""The container image: the Dockerfile says what it should, and what a rootless builder makes of it works."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.ego import put_programs
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
MACHINE = ROOT / "deploy" / "machine"
HADOLINT = Path(sys.executable).with_name("hadolint")


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, cwd=ROOT, timeout=280
    )


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continuation lines joined."""
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name.upper(), " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in lines)]


def last_stage() -> dict[str, str]:
    names = [name for name, _ in instructions()]
    return dict(instructions()[max(number for number, name in enumerate(names) if name == "FROM") :])


def copied() -> set[str]:
    """What the build takes from the source tree."""
    sources: set[str] = set()
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            sources |= set(rest.split()[:-1])
    return sources


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


# --- the Dockerfile ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", [DOCKER, MACHINE], ids=["loop", "machine"])
def test_hadolint_finds_no_fault(directory: Path, tmp_path: Path) -> None:
    worse = tmp_path / "Dockerfile"
    worse.write_text((directory / "Dockerfile").read_text() + "RUN cd /tmp && pip install rich\n")
    good, bad = run(HADOLINT, directory / "Dockerfile"), run(HADOLINT, worse)

    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    assert "DL3013" in bad.stdout


def test_the_image_is_built_in_two_stages_and_runs_without_rights() -> None:
    last = last_stage()

    assert [name for name, _ in instructions()].count("FROM") == 2
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    assert "PYTHONDONTWRITEBYTECODE=1" in last["ENV"]
    assert json.loads(last["ENTRYPOINT"]) == ["provisioner"]
    assert json.loads(last["CMD"])[0] == "run"


def test_the_base_is_pinned_by_digest_and_runs_a_python_that_the_package_takes() -> None:
    least = tuple(int(part) for part in setup()["options"]["python_requires"].removeprefix(">=").split("."))
    arguments = dict(rest.split("=", 1) for name, rest in instructions() if name == "ARG" and "=" in rest)
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    base = re.fullmatch(r"python:(\d+)\.(\d+)-slim-\w+@sha256:[0-9a-f]{64}", arguments["BASE"])

    assert bases == ["${REGISTRY}/${BASE}"] * 2
    assert base is not None
    assert (int(base[1]), int(base[2])) >= least


def test_the_base_is_named_in_one_place() -> None:
    """Elsewhere it would stay behind when it is renewed; a worker's base is the site's own, and has no default."""
    (ours,) = re.findall(r"(?m)^ARG BASE=(\S+)$", (DOCKER / "Dockerfile").read_text())
    texts = [ROOT / "Makefile", ROOT / "README.md", *(ROOT / ".ci").iterdir(), *(ROOT / "docs").glob("*.md")]
    texts += [path for path in (ROOT / "deploy").rglob("*") if path.suffix in ("", ".sh", ".yaml", ".tf", ".spec")]
    named = {
        (path.relative_to(ROOT), name)
        for path in texts
        if path.is_file()
        for name in re.findall(r"[\w./:-]+@sha256:[0-9a-f]{64}|\bpython:\d[\w.-]*", path.read_text())
    }

    assert named == {(Path("deploy/docker/Dockerfile"), ours)}
    assert re.findall(r"(?m)^ARG BASE.*$", (MACHINE / "Dockerfile").read_text()) == ["ARG BASE"]


@pytest.mark.parametrize(
    ("answer", "renewed"),
    [("echo sha256:" + "a" * 64, True), ("echo MANIFEST unknown", False), ("exit 1", False)],
    ids=["a digest", "no digest", "a registry that fails"],
)
def test_the_digest_of_the_base_is_renewed_by_what_the_registry_says_or_stays(
    tmp_path: Path, answer: str, renewed: bool
) -> None:
    """With a stand-in for docker, as no registry can be asked."""
    dockerfile = tmp_path / "deploy" / "docker" / "Dockerfile"
    dockerfile.parent.mkdir(parents=True)
    shutil.copy(DOCKER / "Dockerfile", dockerfile)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n{answer}\n')
    docker.chmod(0o755)
    before = dockerfile.read_text()
    (tag, digest) = re.findall(r"(?m)^ARG BASE=(.*)@(.*)$", before)[0]
    done = subprocess.run(
        ["make", "--file", ROOT / "Makefile", "image-base"],
        env=os.environ | {"PATH": f"{docker.parent}:{os.environ['PATH']}", "REGISTRY": "mirror.example.com/library"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (tmp_path / "asked").read_text().split()[-1] == f"mirror.example.com/library/{tag}"
    assert (done.returncode == 0) is renewed, done.stderr
    assert dockerfile.read_text() == (before.replace(digest, "sha256:" + "a" * 64) if renewed else before)


def test_the_build_copies_all_that_the_package_is_made_of() -> None:
    parser = setup()
    packages = {name.split(".")[0] for name in parser["options.packages.find"]["include"].replace("*", "").split()}
    texts = {parser["metadata"]["long_description"].removeprefix("file: "), parser["metadata"]["license_files"]}
    build = {"deploy/docker/environment.sh", "deploy/requirements"}

    assert copied() == {"setup.cfg", "pyproject.toml", *packages, *texts, *build}
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()


def test_the_health_check_asks_the_port_that_is_listened_on() -> None:
    image = last_stage()
    command = json.loads(image["HEALTHCHECK"].partition("CMD ")[2])

    compile(command[-1], "HEALTHCHECK", "exec")
    assert f"127.0.0.1:{image['EXPOSE']}/healthz" in command[-1]
    assert json.loads(image["CMD"])[-1].endswith(f":{image['EXPOSE']}")


def test_the_image_s_user_is_the_pod_s_user() -> None:
    deployment = yaml.safe_load((ROOT / "deploy" / "kustomize" / "base" / "deployment.yaml").read_text())
    security = deployment["spec"]["template"]["spec"]["securityContext"]

    assert last_stage()["USER"] == f"{security['runAsUser']}:{security['runAsGroup']}"


# --- the environment that the build makes -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_build_s_step_makes_an_environment_that_runs_and_its_sbom(tmp_path: Path) -> None:
    """The one RUN of the build, outside a container; the environment is moved as COPY --from moves it."""
    made, sbom = tmp_path / "made", tmp_path / "sbom.cdx.json"
    done = run(DOCKER / "environment.sh", made, sbom, PYTHON=sys.executable)
    assert (done.returncode, done.stderr) == (0, "")
    moved = made.rename(tmp_path / "moved")
    python = moved / "bin" / "python"
    listed = {
        (part["name"].lower().replace("_", "-"), part["version"]) for part in json.loads(sbom.read_text())["components"]
    }
    listing = "import importlib.metadata as all; [print(each.name, each.version) for each in all.distributions()]"
    installed = {
        (name.lower().replace("_", "-"), version)
        for name, version in (line.split() for line in run(python, "-I", "-c", listing).stdout.splitlines())
    }

    assert run(python, "-I", "-m", "provisioner", "--version").stdout.startswith("provisioner ")
    assert listed == installed
    assert ("google-cloud-compute", dict(installed)["google-cloud-compute"]) in listed
    assert "pip" not in dict(installed)


# --- the image, built -------------------------------------------------------------------------------------------------

BUILDERS = pytest.mark.skipif(
    not all(map(shutil.which, ("buildah", "podman", "debootstrap"))),
    reason="needs buildah, podman and debootstrap (Debian packages)",
)
OPTIONS = "--quiet --no-cache --pull=never --isolation chroot --volume /etc/ssl/certs:/etc/ssl/certs:ro"
PIP = {name: value for name, value in os.environ.items() if name in ("PIP_INDEX_URL", "PIP_TRUSTED_HOST")}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Images of our own; in them ``localhost/python:base``, made of Debian packages, as no registry can be asked."""
    directory = tmp_path_factory.mktemp("images")
    (directory / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n'
    )
    environment = {"CONTAINERS_STORAGE_CONF": str(directory / "storage.conf")}
    base = directory / "base"
    assert run("debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", base).returncode == 0
    (base / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
    container = run("buildah", "from", "scratch", **environment).stdout.strip()
    assert run("buildah", "copy", "--quiet", container, base, "/", **environment).returncode == 0
    assert (
        run("buildah", "commit", "--quiet", "--rm", container, "localhost/python:base", **environment).returncode == 0
    )
    shutil.rmtree(base)
    yield environment
    run("buildah", "rm", "--all", **environment)
    run("buildah", "rmi", "--all", "--force", **environment)


def built(builder: str, storage: dict[str, str]) -> str:
    """Builds the image as ``make image`` does, named after its builder; returns its layers."""
    name = f"localhost/provisioner:{builder}"
    base = {"REGISTRY": "localhost", "BASE": "python:base", "SOURCE_DATE_EPOCH": "1700000000"}
    done = run(DOCKER / "image.sh", name, BUILDER=builder, BUILD_OPTIONS=OPTIONS, **base, **PIP, **storage)
    assert done.returncode == 0, done.stderr
    layers = run("buildah", "inspect", "--type", "image", "--format", "{{.Docker.RootFS.DiffIDs}}", name, **storage)
    return layers.stdout


@BUILDERS
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_image_is_the_same_by_each_builder_and_runs_as_its_user_without_writing(storage: dict[str, str]) -> None:
    assert built("buildah", storage) == built("podman", storage)
    container = run("buildah", "from", "--pull-never", "localhost/provisioner:podman", **storage).stdout.strip()
    inside = ["buildah", "run", "--isolation", "chroot", container, "--"]
    probe = (
        "id -u; id -g; find / -xdev -writable -not -type l -not -path '/proc/*' -not -path '/sys/*' -not -path '/dev/*'"
    )
    identity, group, *writable = run(*inside, "sh", "-c", f"{probe} 2>/dev/null", **storage).stdout.splitlines()
    sbom = run(*inside, "cat", "/usr/share/sbom/hostfactory-provisioner.cdx.json", **storage).stdout
    labels = run("buildah", "inspect", "--format", "{{.Docker.Config.Labels}}", container, **storage).stdout

    assert (identity, group) == ("10001", "10001")
    assert set(writable) <= {"/var/lib/hostfactory", "/tmp", "/var/tmp", "/run/lock"}
    assert run(*inside, "provisioner", "--version", **storage).stdout.startswith("provisioner ")
    checked = run(*inside, "provisioner", "check", **storage)
    assert (checked.returncode, checked.stdout) == (2, "")
    assert "HF_PROVIDER_NAME" in checked.stderr
    assert "hostfactory-provisioner" in {part["name"] for part in json.loads(sbom)["components"]}
    assert "org.opencontainers.image.version:" in labels
    assert "org.opencontainers.image.revision:" in labels


@BUILDERS
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_s_image_joins_ego_as_its_user_and_leaves_at_sigterm(storage: dict[str, str], tmp_path: Path) -> None:
    put_programs(tmp_path / "bin")
    ego = tmp_path / "ego"
    ego.mkdir()
    ego.chmod(0o777)
    options = ("--build-arg", "BASE=localhost/python:base", "--build-arg", "EGO_UID=4711")
    done = run("buildah", "build", *OPTIONS.split(), *options, "--tag", "localhost/worker", MACHINE, **storage)
    assert done.returncode == 0, done.stderr
    container = run("buildah", "from", "--pull-never", "localhost/worker", **storage).stdout.strip()
    told = {
        "HF_EGO_MASTER": "master1",
        "HF_MACHINE_NAME": "hf-a-000001",
        "HF_MACHINE_ADDRESS": "10.1.2.3",
        "EGO": "/ego",
    }
    inside = [
        *(
            "buildah",
            "run",
            "--isolation",
            "chroot",
            "--volume",
            f"{ego}:/ego",
            "--volume",
            f"{tmp_path}/bin:/usr/local/sbin",
        ),
        *(word for name, value in told.items() for word in ("--env", f"{name}={value}")),
        *(container, "--"),
    ]
    entry = json.loads(run("buildah", "inspect", container, **storage).stdout)["Docker"]["config"]["Entrypoint"]
    noted = [*inside, "sh", "-c", 'echo $$ >/ego/pid; exec "$@"', "sh", *entry]
    with subprocess.Popen(noted, env=os.environ | storage, stderr=subprocess.PIPE, text=True) as running:
        try:
            ready = [*inside, "test", "-e", "/run/hf/ready"]
            until(lambda: run(*ready, **storage).returncode == 0, 60, every=0.5, what="the ready file is there")
            worker = int((ego / "pid").read_text())
            assert Path(f"/proc/{worker}").stat().st_uid == 4711
            os.kill(worker, signal.SIGTERM)
            assert running.wait(60) == 0
        finally:
            running.kill()
            said = running.stderr.read() if running.stderr else ""
    calls = (ego / "calls").read_text().splitlines()
    assert calls[:2] == ["egoconfig join master1 -f", "egosh ego start"], said
    assert calls[-2:] == ["egosh resource close hf-a-000001", "egosh ego shutdown -f"], said
    assert run(*ready, **storage).returncode == 1

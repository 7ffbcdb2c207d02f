"""The container images. Some tests read the Dockerfiles. Others build the loop's image once with buildah, and run it as
a pod does."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from provisioner import __version__
from provisioner.files.version import full_version
from tests.support.ego import put_programs
from tests.support.hosts import tools
from tests.support.images import Index, Registry, Running, debian, driver_of, forget, run, storage_with
from tests.support.network.authority import Authority
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
MACHINE = ROOT / "deploy" / "machine"
HADOLINT = Path(sys.executable).with_name("hadolint")


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions. Join the lines of an instruction that has several."""
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name.upper(), " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in lines)]


def last_stage() -> dict[str, str]:
    names = [name for name, _ in instructions()]
    return dict(instructions()[max(number for number, name in enumerate(names) if name == "FROM") :])


def copied() -> set[str]:
    """Return the files that the build copies from the source tree."""
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


@pytest.mark.parametrize("directory", [DOCKER, MACHINE, MACHINE / "htcondor"], ids=["loop", "machine", "pilot"])
def test_hadolint_finds_no_fault(directory: Path) -> None:
    done = run(HADOLINT, directory / "Dockerfile")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
    """The base of the loop's image is named only in its Dockerfile, because a second place could keep an old base. The
    machine's Dockerfile names no base, because a site chooses it."""
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
    """Use a stand-in for docker, because the test may have no registry."""
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
        timeout=60 * PATIENCE,
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


def test_the_health_check_asks_the_port_that_is_listened_on_and_the_image_s_user_is_the_pod_s() -> None:
    image = last_stage()
    command = json.loads(image["HEALTHCHECK"].partition("CMD ")[2])
    deployment = yaml.safe_load((ROOT / "deploy" / "kustomize" / "base" / "deployment.yaml").read_text())
    security = deployment["spec"]["template"]["spec"]["securityContext"]

    compile(command[-1], "HEALTHCHECK", "exec")
    assert f"127.0.0.1:{image['EXPOSE']}/healthz" in command[-1]
    assert json.loads(image["CMD"])[-1].endswith(f":{image['EXPOSE']}")
    assert image["USER"] == f"{security['runAsUser']}:{security['runAsGroup']}"


# --- the image, built -------------------------------------------------------------------------------------------------

BUILDERS = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "docker-registry", "ip", "apt-cache"))),
    reason="needs root, and a Debian with the packages buildah, docker-registry, iproute2 and python3-venv",
)


def built(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that builds an image or runs a built one."""
    return BUILDERS(pytest.mark.slow(pytest.mark.timeout(900)(test)))


OPTIONS = "--quiet --no-cache --isolation chroot"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the certificate authority that signed the certificates of the registry and the package index. This host
    does not trust the authority."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Registry]:
    with Registry(tmp_path_factory.mktemp("registry"), authority) as serving:
        yield serving


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> Iterator[dict[str, str]]:
    """Yield the environment variables that select a store for images and give access to the registry. The store has
    layers if this host permits them."""
    directory = tmp_path_factory.mktemp("images")
    environment = storage_with("overlay", directory) | registry.trusted(directory)
    if run("buildah", "info", **environment).returncode:
        environment |= storage_with("vfs", directory)
    yield environment
    forget(environment)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, storage: dict[str, str], registry: Registry) -> str:
    """Push a base image to the registry, and remove it from this host. Return its name with its digest."""
    directory = tmp_path_factory.mktemp("base")
    debian(directory)
    container = run("buildah", "from", "scratch", **storage).stdout.strip()
    assert run("buildah", "copy", "--quiet", container, directory, "/", **storage).returncode == 0
    shutil.rmtree(directory)
    made = run("buildah", "commit", "--quiet", "--rm", container, **storage)
    assert made.returncode == 0, made.stderr
    name = registry.push(made.stdout.strip(), "library/python:base", **storage)
    assert run("buildah", "rmi", made.stdout.strip(), **storage).returncode == 0
    return name


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Index]:
    """Yield a package index that has only the locked packages, as at a site without internet access."""
    directory = tmp_path_factory.mktemp("index")
    for name in ("build", "loop"):
        options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", directory)
        lock = ROOT / "deploy" / "requirements" / f"{name}.lock"
        done = run(tools(), "-m", "pip", "download", *options, "--requirement", lock)
        assert done.returncode == 0, done.stderr
    with Index(directory, authority) as serving:
        yield serving


@pytest.fixture(scope="module")
def pushed(
    storage: dict[str, str],
    base: str,
    registry: Registry,
    index: Index,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """Build and push the image as deploy-banks.md describes, once for all tests. Return its name in the registry, with
    its digest."""
    directory = tmp_path_factory.mktemp("builder")
    (directory / "password").write_text(registry.PASSWORD)
    page = (ROOT / "docs" / "deploy-banks.md").read_text()
    (program,) = re.findall(r"(?m)^      install .*\n(?:      .*\n)+", page)
    ours = {
        "/etc/pki/bank/all.pem": authority.file,
        "/run/bank/password": directory / "password",
        "https://pypi.bank.example/simple": index.address,
        "registry.bank.example": registry.name,
        "provisioner.digest": directory / "digest",
        "VERSION": __version__,
    }
    for theirs, one in ours.items():
        assert theirs in program
        program = program.replace(theirs, str(one))
    chosen = {"BUILDER": "buildah", "BUILD_OPTIONS": OPTIONS, "BASE": base.rpartition("/")[2]}
    done = run("sh", "-ec", program, **storage | registry.home(directory) | chosen)
    assert done.returncode == 0, done.stderr
    return f"{registry.name}/grid/provisioner@{(directory / 'digest').read_text()}"


@pytest.fixture(scope="module")
def image(pushed: str) -> str:
    """Return the name that the pushed image has on the host where it was built."""
    assert pushed
    return f"localhost/hostfactory-provisioner:{__version__}"


@pytest.fixture(scope="module")
def pod(image: str, storage: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a pod that runs the image's own command, which is ready. An embedded cloud runs in the same pod."""
    with Running(image, storage, tmp_path_factory.mktemp("pod")) as running:
        simulator = ("provisioner", "simulator", "--config", "/etc/hostfactory/provisioner.yaml", "--port", "8001")
        cloud = running.begin(
            "cloud", *simulator, "--kubeconfig", "/tmp/kubeconfig", "--faults", "/etc/hostfactory/cloud.json"
        )
        until(lambda: "kubeconfig" in cloud.read_text(), 60, every=0.2, what="the cloud answers")
        clouds = {
            "KUBECONFIG": "/tmp/kubeconfig",
            "PROVISIONER_COMPUTE_ENDPOINT": "http://127.0.0.1:8001/compute/v1/",
        }
        running.begin("loop", *running.config["Entrypoint"], *running.config["Cmd"], **clouds)
        until(lambda: running.health().returncode == 0, 60, every=0.5, what="the health check is content")
        yield running


@built
@pytest.mark.usefixtures("pushed")
def test_the_build_asks_only_the_given_registry_and_index(base: str, registry: Registry, index: Index) -> None:
    digest = base.rpartition("@")[2]

    assert f"GET /v2/library/python/manifests/{digest}" in registry.asked
    assert {"/simple/google-auth/", "/simple/cyclonedx-bom/"} <= index.asked
    assert sum(path.endswith(".whl") for path in index.asked) > 40


@built
def test_the_image_holds_its_sbom_and_its_labels_and_nothing_that_its_user_may_write(
    image: str, storage: dict[str, str]
) -> None:
    container = run("buildah", "from", "--pull-never", image, **storage).stdout.strip()
    inside = ["buildah", "run", "--isolation", "chroot", container, "--"]
    probe = (
        "id -u; id -g; find / -xdev -writable -not -type l -not -path '/proc/*' -not -path '/sys/*' -not -path '/dev/*'"
    )
    identity, group, *writable = run(*inside, "sh", "-c", f"{probe} 2>/dev/null", **storage).stdout.splitlines()
    sbom = json.loads(run(*inside, "cat", "/usr/share/sbom/hostfactory-provisioner.cdx.json", **storage).stdout)
    listing = "import importlib.metadata as all; [print(each.name, each.version) for each in all.distributions()]"
    printed = run(*inside, "python", "-I", "-c", listing, **storage).stdout
    installed = {tuple(line.lower().replace("_", "-").split()) for line in printed.splitlines()}
    labels = run("buildah", "inspect", "--format", "{{.Docker.Config.Labels}}", container, **storage).stdout

    assert (identity, group) == ("10001", "10001")
    assert set(writable) <= {"/var/lib/hostfactory", "/tmp", "/var/tmp", "/run/lock"}
    assert {(part["name"].lower().replace("_", "-"), part["version"]) for part in sbom["components"]} == installed
    assert {"hostfactory-provisioner", "google-cloud-pubsub"} <= {name for name, _ in installed}
    assert "pip" not in {name for name, _ in installed}
    assert "org.opencontainers.image.version:" in labels
    assert "org.opencontainers.image.revision:" in labels


@built
def test_its_command_rents_machines_and_its_health_check_tells_whether_it_runs(pod: Running) -> None:
    """Run the command as the image's user on a read-only root. HostFactory calls a script of the image and gets an
    answer."""
    document = json.dumps({"template": {"templateId": "GkePod", "machineCount": 2}})
    scripts = {"HF_PROVIDER_LOGDIR": "/tmp"}
    asked = pod.do("/opt/provisioner/hf_scripts/requestMachines.sh", document, **scripts)
    assert (asked.returncode, asked.stderr) == (0, "")
    id_ = json.dumps({"requests": [{"requestId": json.loads(asked.stdout)["requestId"]}]})

    def machines() -> list[str]:
        done = pod.do("/opt/provisioner/hf_scripts/getRequestStatus.sh", id_, **scripts)
        (request,) = json.loads(done.stdout)["requests"]
        return [one["name"] for one in request["machines"]] if request["status"] == "complete" else []

    assert len(until(machines, 90, every=0.5, what="the request is complete")) == 2
    assert (pod.health().returncode, (pod.state / "memory.json").stat().st_uid) == (0, 10001)
    assert "Read-only file system" in pod.do("touch", "/opt/provisioner/mine").stderr
    assert "Permission denied" not in (pod.state.parent / "loop.log").read_text()


@built
def test_in_the_pod_the_page_s_command_finds_nothing_to_fix(pod: Running) -> None:
    """Run the command of docs/deploy-gke.md that starts check_install.sh in the pod. It must check the state directory
    of the loop, and find no fault."""
    page = (ROOT / "docs" / "deploy-gke.md").read_text()
    (command,) = re.findall(
        r"kubectl -n hostfactory exec deploy/provisioner -- \\\n\s+(.*check_install.sh)$", page, re.M
    )
    done = pod.do(*command.split())
    lines = done.stdout.splitlines()

    assert [line for line in lines if not line.startswith("fine: ")] == []
    assert (done.returncode, done.stderr) == (0, "")
    place = "fine: /var/lib/hostfactory:"
    assert {
        f"{place} locks of one process are seen by another",
        f"{place} a file is replaced by renaming, durably",
        f"{place} only one of two processes can create a file",
        f"{place} the loop runs",
    } <= {*lines}


@pytest.fixture
def another(tmp_path: Path, storage: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield the environment variables of an empty store for images, which stands for another host."""
    environment = storage_with(driver_of(storage), tmp_path)
    yield environment
    forget(environment)


@built
def test_who_knows_the_authority_and_the_login_pulls_the_image_by_its_digest_and_runs_it(
    pushed: str, registry: Registry, another: dict[str, str], tmp_path: Path
) -> None:
    known = registry.trusted(tmp_path)
    no_login = tmp_path / "none.json"
    no_login.write_text("{}")
    pull = ("buildah", "pull", "--quiet", pushed)
    other = run(*pull, **another | known | {"HOME": str(tmp_path / "other")})
    unauthenticated = run(*pull, **another | known | {"REGISTRY_AUTH_FILE": str(no_login)})
    pulled = run(*pull, **another | known)

    assert 0 not in (other.returncode, unauthenticated.returncode)
    assert "certificate signed by unknown authority" in other.stderr
    assert "authentication required" in unauthenticated.stderr
    assert pulled.returncode == 0, pulled.stderr
    with Running(pushed, another, tmp_path) as running:
        version, check = running.do("provisioner", "--version"), running.do("provisioner", "check", "/etc/hostfactory")
    assert version.stdout.split() == ["provisioner", full_version()]
    assert (check.returncode, check.stderr) == (0, ""), check.stdout


@built
def test_a_worker_s_image_joins_ego_as_its_user_and_leaves_at_sigterm(
    storage: dict[str, str], base: str, tmp_path: Path
) -> None:
    """A machine's image must build on a base that sets a user of its own. The machine must join EGO as EGO's user, and
    leave at SIGTERM."""
    put_programs(tmp_path / "bin")
    ego = tmp_path / "ego"
    ego.mkdir()
    ego.chmod(0o777)
    (ego / "name").write_text("hf-a-000001")
    symphony = run("buildah", "from", base, **storage).stdout.strip()
    assert run("buildah", "config", "--user", "65534", symphony, **storage).returncode == 0
    assert run("buildah", "commit", "--quiet", "--rm", symphony, "localhost/symphony", **storage).returncode == 0
    options = ("--build-arg", "BASE=localhost/symphony", "--build-arg", "EGO_UID=4711")
    done = run("buildah", "build", *OPTIONS.split(), *options, "--tag", "localhost/worker", MACHINE, **storage)
    assert done.returncode == 0, done.stderr
    container = run("buildah", "from", "--pull-never", "localhost/worker", **storage).stdout.strip()
    variables = {
        "HF_EGO_MASTER": "master1",
        "HF_MACHINE_NAME": "hf-a-000001",
        "HF_MACHINE_ADDRESS": "10.1.2.3",
        "EGO": "/ego",
    }
    inside = [
        *("buildah", "run", "--isolation", "chroot"),
        *("--volume", f"{ego}:/ego", "--volume", f"{tmp_path}/bin:/usr/local/sbin"),
        *(word for name, value in variables.items() for word in ("--env", f"{name}={value}")),
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
            assert running.wait(60 * PATIENCE) == 0
        finally:
            running.kill()
            errors = running.stderr.read() if running.stderr else ""
    calls = (ego / "calls").read_text().splitlines()
    assert calls[:2] == ["egoconfig join master1 -f", "egosh ego start"], errors
    assert calls[-2:] == ["egosh resource close hf-a-000001", "egosh ego shutdown -f"], errors
    assert run(*ready, **storage).returncode == 1

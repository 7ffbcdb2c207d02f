"""A walk through docs/first-machine.md. The page's blocks of commands run unchanged and in order, as the users that the
blocks name.

The host is this machine with file systems of its own mounted over it. So install.sh can really make users, directories
and programs. A stand-in replaces each program that a test cannot use. REPLACED names these programs and the reasons.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
import yaml

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from provisioner.settings import loader
from tests.support.broken_libraries import broken_libraries
from tests.support.clients.terraform import rendered
from tests.support.hostfactory.symphony import SHIPPED, installed, profile_of
from tests.support.hosts import PYTHON, ROOT, python_version, tools
from tests.support.machine import Machine
from tests.support.metadata_server import MetadataServer, account
from tests.support.network.authority import Authority
from tests.support.network.proxy import Proxy
from tests.support.pages import blocks_of
from tests.support.scratch_host import ScratchHost
from tests.support.waiting import until

PAGE = (ROOT / "docs" / "first-machine.md").read_text()
TIMES = ROOT / "config" / "demoinst" / "cloud.json"
"""Durations of the cloud, in seconds instead of minutes."""

CLONE, ROOT_USER, HF_USER = "in a clone of this repository", "as root on HostFactory's host", "as HostFactory's user"
HOME = {CLONE: "/home/clone", ROOT_USER: "/root", HF_USER: "/home/egoadmin"}
"""The users who type blocks, and their home directories."""

PROXIED, OUTSIDE, BY_GCLOUD = "behind a proxy", "outside of Google", "without Terraform"
"""Words after a comma in a block's first line, which name the only sites that need the block. The host of this test is
behind a proxy. test_google_setup.py runs the blocks of BY_GCLOUD."""

HF_TOP = "/home/egoadmin/ego/hostfactory"

ACCOUNT = "hostfactory-provisioner@my-grid-project.iam.gserviceaccount.com"
"""The service account of the loop, which is attached to HostFactory's host."""

CLUSTER = "203.0.113.7"
"""The address of the cluster. Only the proxy can reach it."""

REPLACED = {
    # No Google can be reached. Terraform itself makes the instance's files of the page's grid.tfvars, in Walk.cloud;
    # that it takes the whole module is test_terraform.py's. Google refuses a template whose image is not there.
    "terraform": """test -e /home/cloud/login-of-terraform
    case "$*" in
        *"output -json files") cat /home/cloud/files.json ;;
        *" apply -var-file=$PWD/grid.tfvars") test -f grid.tfvars; test -e /home/cloud/boot-image ;;
        *" init" | *" destroy -var-file=$PWD/grid.tfvars") test -f grid.tfvars ;;
        *) exit 64 ;;
    esac""",
    # Here is no Google. That gcloud knows the lines is test_pages_run.py's.
    "gcloud": """cd /home/cloud
    case "$*" in
        "auth login") touch login; exit ;;
        "auth application-default login") touch login-of-terraform; exit ;;
    esac
    test -e login
    case "$*" in
        "container clusters get-credentials "*) touch login-of-kubectl ;;
        "compute instances stop "*) touch stopped ;;
        "compute instances set-service-account "*) test -e stopped; echo "$*" >attached ;;
        "compute instances start "*) rm stopped ;;
        "auth configure-docker "*) echo "$3" >login-of-docker ;;
        "artifacts docker images describe "*) grep -qx "$5" pushed ;;
        "services enable compute.googleapis.com "*) touch api ;;
        "compute images create "*) test -e api; echo "$*" >boot-image ;;
        *) exit 64 ;;
    esac""",
    # It has no daemon, and no base. That a builder takes the Dockerfile is test_image.py's.
    "docker": """case "$1" in
        build)
            while [ $# -gt 1 ]; do
                case "$1" in
                    --build-arg) grep -q "^ARG ${2%%=*}\\b" "${@: -1}/Dockerfile" ;;
                    --tag) echo "$2" >/home/cloud/built ;;
                esac
                shift
            done ;;
        push)
            grep -qx "${2%%/*}" /home/cloud/login-of-docker
            grep -x "$2" /home/cloud/built >>/home/cloud/pushed ;;
        *) exit 64 ;;
    esac""",
    # The embedded cloud has no rights. That kubectl knows the line is test_pages_run.py's, the Role tests/kube's.
    "kubectl": """test -e /home/cloud/login-of-kubectl
    case "$*" in
        "create rolebinding "*) [ "${@: -1}" = ACCOUNT ] ;;
        *--filename*) test -f "${@: -1}" ;;
        "create namespace "* | "label namespace "*) ;;
        *) exit 64 ;;
    esac""",
    # There is one host here.
    "scp": 'cp -r "${@:2:$#-2}" /home/egoadmin && chown -R egoadmin /home/egoadmin',
    # EGO needs a licence. A restart takes a while, and ends all logins; the service
    # starts with EGO if its definition says so.
    "egosh": """case "$*" in
        "user logon -u Admin") [ ! -e ~/.ego-restarts ]; touch ~/.ego-logon ;;
        "service stop HostFactory") test -e ~/.ego-logon; rm -f ~/.ego-hostfactory ;;
        "ego restart")
            rm ~/.ego-logon; touch ~/.ego-restarts
            grep -q "<sc:StartType>AUTOMATIC</sc:StartType>" ~/ego/eservice/esc/conf/services/hostfactory.xml
            touch ~/.ego-hostfactory ;;
        "ego info") [ ! -e ~/.ego-restarts ] || { rm ~/.ego-restarts; exit 1; } ;;
        "service list") test -e ~/.ego-logon; test -e ~/.ego-hostfactory ;;
        *) exit 64 ;;
    esac""",
    # The unit under systemd is tests/vm's. Here its command runs as its user, with its environment and mask.
    "systemctl": r"""[ "$*" = "enable --now provisioner provisioner-backup.timer" ] || exit 64
        test -f /usr/lib/systemd/system/provisioner-backup.timer
        of_unit() { sed -n "s/^$1=//p" /usr/lib/systemd/system/provisioner.service; }
        umask "$(of_unit UMask)"
        setsid setpriv --reuid "$(of_unit User)" --regid "$(of_unit Group)" --init-groups env -i \
            $(of_unit Environment) bash -c 'set -a; . /etc/default/provisioner; set +a; exec "$0" "$@"' \
            $(of_unit ExecStart) --listen 127.0.0.1:0 \
            </dev/null >/var/log/service.log 2>&1 &
        echo $! >/var/service.pid""",
}
"""Programs that stand in for others, by their names."""

NOT_WALKED = {
    "kubectl get pods --namespace symphony --selector hf-provisioner/id=gcpinst": "help for when it did not work",
}
"""The first lines of blocks that are no step."""

REQUESTS = {"Large": "k2v9x0a7qd", "Small": "m7q4t1b8xe"}
"""The ids of requests on the page, by template."""

PODS_ALONE = re.compile(rf"kubectl |gcloud container|docker |{REQUESTS['Small']}")
"""Texts that mark a block for grids with pods. A grid that has only instances leaves the block out."""

KINDS = {"Large": "mig", "Small": "gke"}
"""The kind of place of each template's machines."""


def sections() -> list[tuple[str, str]]:
    """Return title and text of every section of the page."""
    return [(text.splitlines()[0], text) for text in re.split(r"(?m)^## ", PAGE)[1:]]


class Walk(ScratchHost):
    """The clone, HostFactory's host, and a cloud, as a context manager. At its end, all processes end and all files are
    removed."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._simulator: Simulator | None = None
        self._metadata: MetadataServer | None = None
        self.proxy: Proxy | None = None
        """The only way out of HostFactory's host."""
        self._groups = ""
        self._open = ExitStack()
        self.ids: dict[str, str] = {}
        """Ids of requests and machines: the page's id → the id in this test."""

    def __enter__(self) -> Self:
        tools()
        super().__enter__()
        self.run("useradd --create-home --shell /bin/bash egoadmin; mkdir -p /home/clone/build /home/cloud")
        installed(self.path("/home/egoadmin/ego"))
        broken_libraries(self.path("/home/egoadmin/libraries"), few=True)  # `cp` of the user's own shell works
        self.run("chown -R egoadmin:egoadmin /home/egoadmin/ego")
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and path.name != "build":
                (self.path("/home/clone") / path.name).symlink_to(path)
        self.path("/home/clone/build/tools").symlink_to(ROOT / "build" / "tools")
        for name, lines in REPLACED.items():
            program_file = self.path("/usr/local/sbin") / name
            program_file.write_text(f"#!/bin/bash\nset -eu\n{lines.replace('ACCOUNT', ACCOUNT)}\n")
            program_file.chmod(0o755)
        path = f"/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin:{os.environ['PATH']}"
        index = {
            name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()
        }
        self._variables = {
            CLONE: {"PATH": path, "DIST_ARGS": f"--python {python_version()}", "PYTHON": PYTHON, **index},
            ROOT_USER: {"PATH": path},
            HF_USER: profile_of("/home/egoadmin/ego", path, "/home/egoadmin/libraries"),
        }
        self.log_in()
        return self

    def log_in(self) -> None:
        """Open a new terminal for each user, with the user's present groups."""
        for home in HOME.values():
            self.path(home).joinpath(".terminal").unlink(missing_ok=True)
        self._groups = self.run("id -G egoadmin").strip().replace(" ", ",")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.path("/var/log/service.log").exists():
            print(self.path("/var/log/service.log").read_text()[-5000:])
        self.stop_service()
        self._open.close()
        super().__exit__(kind, error, trace)

    def type(self, who: str, lines: str) -> str:
        """Run lines in a user's terminal, and return the output. The terminal keeps its variables and its directory for
        the next lines."""
        terminal = f'{HOME[who]}/.terminal; if [ -e "$t" ]; then . "$t"; cd "$PWD"; fi'
        words = [f"{name}={value}" for name, value in {**self._variables[who], "HOME": HOME[who]}.items()]
        user = ["setpriv", "--reuid", "egoadmin", "--regid", "egoadmin", "--groups", self._groups]
        mask = "" if who == CLONE else "umask 077"
        typed = f't={terminal}\n{mask}\n{lines}\nexport -p >"$t"'
        return self.run(typed, *(user if who == HF_USER else []), "env", "-i", *words, directory=HOME[who])

    def cloud(self) -> None:
        """Make the instance's files from the page's grid.tfvars, as Terraform does. Make an embedded cloud with the
        pools of these files.

        The cluster has its own address and authority. A metadata server identifies HostFactory's host.
        """
        authority = Authority(self._directory, "Cluster")
        metadata = self._metadata = self._open.enter_context(MetadataServer({}))
        tfvars = self._directory / "grid.tfvars"
        tfvars.write_text(self.path("/home/clone/grid.tfvars").read_text())
        files = rendered(tfvars, self._directory, endpoint=f"https://{CLUSTER}", authority=authority.file.read_text())
        files["provisioner.yaml"] = without_lag(files["provisioner.yaml"])
        self.path("/home/cloud/files.json").write_text(json.dumps(files))
        conf = self._directory / "conf"
        for name, text in files.items():
            (conf / name).parent.mkdir(parents=True, exist_ok=True)
            (conf / name).write_text(text)
        settings = loader.load(conf / "provisioner.yaml", {})
        self._simulator = self._open.enter_context(Simulator(settings, conditions=Conditions.read(TIMES)))
        address = urlsplit(self._simulator.address)
        target = (str(address.hostname), int(address.port or 0)), authority.context(CLUSTER)
        self.proxy = self._open.enter_context(Proxy({CLUSTER: target}))
        self.ids["http://proxy.bank.example:3128"] = self.proxy.url
        around = {
            "PROVISIONER_COMPUTE_ENDPOINT": self._simulator.compute,
            "GCE_METADATA_HOST": metadata.host,
            "GCE_METADATA_IP": metadata.host,
            "PUBSUB_EMULATOR_HOST": "127.0.0.1:9",  # no server: Google must get no token of ours
        }
        file = self.path("/etc/default/provisioner")
        file.write_text("".join(f"{name}={value}\n" for name, value in around.items()))
        file.chmod(0o600)  # as by a root with umask 077

    def attach(self) -> None:
        """Let the metadata server return the service account that a line of the page has attached to HostFactory's
        host."""
        words = shlex.split(self.path("/home/cloud/attached").read_text())
        given = dict(pairwise(words))
        assert given["--scopes"].split(",") == ["cloud-platform", "userinfo-email"]
        assert self._metadata is not None
        self._metadata.values |= account(given["--service-account"], "of-the-vm")

    def outside(self, lines: str) -> None:
        """Run the lines that only a host outside of Google needs. They let it log in by a federation. Then undo them,
        because the host of this test counts as a host at Google."""
        file = self.path("/etc/default/provisioner")
        before = file.read_text()
        self.type(ROOT_USER, lines)
        assert "GOOGLE_APPLICATION_CREDENTIALS=" in file.read_text()
        named = self.type(HF_USER, ". ~/gcpinst.env\nprintenv GOOGLE_APPLICATION_CREDENTIALS GOOGLE_CLOUD_PROJECT")
        assert named.split() == ["/etc/hostfactory/federation.json", "my-grid-project"]
        file.write_text(before)
        self.log_in()

    def machines(self) -> dict[str, str]:
        """Return the machines of the clouds, each with its kind."""
        assert self._simulator is not None
        return {machine["name"]: machine["kind"] for machine in self._simulator.state()["machines"]}

    def joins(self, spec: dict[str, Any]) -> None:
        """Start a machine from this pod spec, and check that it becomes ready. The machine's probe succeeds only after
        the entry point has joined."""
        directory = self._directory / f"machine-{len(list(self._directory.iterdir()))}"
        directory.mkdir()
        machine = Machine(directory)
        try:
            assert machine.is_ready_as(spec)
        finally:
            machine.end()

    def status(self) -> str:
        """Return the output of ``provisioner status`` for HostFactory's user."""
        return self.type(HF_USER, "provisioner status")

    def with_own_ids(self, lines: str) -> str:
        """Replace the ids of the page by the ids of this test. Return the changed lines."""
        for documented in sorted(self.ids, key=len, reverse=True):
            lines = lines.replace(documented, self.ids[documented])
        return lines

    def stop_service(self) -> None:
        """End the loop, as ``systemctl stop`` does."""
        file = self.path("/var/service.pid")
        if file.exists():
            number = int(file.read_text())
            file.unlink()
            os.kill(number, signal.SIGTERM)
            until(lambda: not Path(f"/proc/{number}/fd").exists(), 60, what="the loop has ended")


def parts_of(block: str) -> tuple[str, str, str]:
    """Return three parts of a block of commands: the user who types it, the sort of site that needs it (empty: every
    site), and its lines."""
    first, _, lines = block.partition("\n")
    who, _, alone = first.removeprefix("# ").partition(", ")
    return who, alone, lines


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    with Walk(tmp_path) as walk:
        yield walk


def test_each_block_says_who_types_it_and_each_stand_in_is_still_needed() -> None:
    read = [parts_of(block) for block in blocks_of(PAGE)]
    typed = " ".join(blocks_of(PAGE))

    assert [who for who, _, _ in read if who not in HOME] == list(NOT_WALKED)
    assert {alone for who, alone, _ in read if who in HOME} == {"", PROXIED, OUTSIDE, BY_GCLOUD}
    assert [program for program in REPLACED if not re.search(rf"(?m)(^|[ (]){program} ", typed)] == []


def test_each_block_that_pods_alone_need_is_said_to_be_for_pods() -> None:
    """If only a grid with pods needs a block, the text before the block must mention pods. A reader whose grid has only
    instances then leaves the block out."""
    parts = re.split(r"```(?:sh)?\n", PAGE)
    parts_of_pods = [
        parts[i - 1].strip().split("\n\n")[-1] for i in range(1, len(parts), 2) if PODS_ALONE.search(parts[i])
    ]

    assert len(parts_of_pods) >= len(REQUESTS)
    assert [text for text in parts_of_pods if not re.search(r"\bpods?\b", text)] == []


def test_each_step_that_says_how_one_sees_that_it_worked_is_looked_at() -> None:
    assert [title[:1] for title, text in sections() if "**It worked:**" in text] == list(WORKED)


def test_a_machine_without_symphony_ends_as_the_page_says() -> None:
    (seconds,) = re.findall(r"HF_JOIN_SECONDS:=(\d+)", (ROOT / "deploy" / "machine" / "lib.sh").read_text())
    script = (ROOT / "deploy" / "machine" / "startup.sh").read_text()
    (key, value) = re.findall(r'"\$\(attribute (hf-join-failed)\)" = (\w+)', script)[0]

    assert f"powers off after {seconds} s; metadata `{key}={value}` keeps it" in " ".join(PAGE.split())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("terraform") is None, reason="needs terraform")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: users are made")
def test_the_page_leads_to_machines_of_both_kinds_and_back(walk: Walk) -> None:
    """Each step begins in new terminals. On HostFactory's host, the umask lets no other user read new files."""
    for title, text in sections():
        printed = ""
        walk.log_in()
        for who, alone, lines in map(parts_of, blocks_of(text)):
            if who in NOT_WALKED or alone == BY_GCLOUD:
                continue
            if alone == OUTSIDE:
                walk.outside(lines)
                continue
            for part in re.split(r"(?m)^(?=.*(?:getRequestStatus|requestReturnMachines|explain))", lines):
                printed += step(walk, who, part)
            if "deploy/terraform apply" in lines:
                walk.cloud()
            if "set-service-account" in lines:
                walk.attach()
        if worked := WORKED.get(title[:1]):
            worked(walk, printed)
    assert walk.machines() == {}


def step(walk: Walk, who: str, lines: str) -> str:
    """Run lines of the page, and return the output. Some lines show a state, so repeat them until the loop runs, the
    request is complete, or the machine is returned and gone."""
    lines = walk.with_own_ids(lines)
    if "check_install" in lines:
        once = f"{lines.splitlines()[0]} || true"
        until(lambda: ": the loop runs" in walk.type(who, once), 60, every=0.5, what="the loop runs")
        lines = once
    output = walk.type(who, lines)
    if "make dist" in lines:
        (walk.ids["VERSION"],) = re.findall(r"hostfactory-provisioner-(\S+)\.tar\.gz\n$", output)
    elif "/requestMachines" in lines:
        (template,) = re.findall(r'"templateId": "(\w+)"', lines)
        (walk.ids[REQUESTS[template]],) = re.findall(r'"requestId": *"([^"]+)"', output)
    elif "/getRequestStatus" in lines:
        rented(walk, until(lambda: complete(walk.type(who, lines)), 120, every=0.5, what="the request is complete"))
    elif "explain" in lines:
        timeline = until(lambda: ended(walk.type(who, lines)), 120, every=0.5, what="the machine's timeline ends")
        given_back(walk, lines.split()[-1], timeline)
    return output


def without_lag(text: str) -> str:
    """Return the settings with short times for groups, because the lists of this cloud do not lag.

    Two observations a second apart then prove that a machine is gone.
    """
    settings = yaml.safe_load(text)
    groups = [pool for pool in settings["pools"].values() if pool["kind"] == "mig"]
    assert groups
    for pool in groups:
        pool |= {"observe_seconds": 1, "lag_seconds": 1}
    return str(yaml.safe_dump(settings, sort_keys=False))


def complete(output: str) -> Any:
    """Return the request in an answer if it is complete; else None."""
    (request,) = json.loads(output)["requests"]
    return request if request["status"] == "complete" else None


def ended(timeline: str) -> str:
    """Return the timeline of a machine if the machine has been returned and is gone; else an empty text."""
    return timeline if "It is returned and gone." in timeline else ""


def rented(walk: Walk, answer: Any) -> None:
    """Check that HostFactory, the operator's commands and the cloud show the same machine. Its kind must be the kind
    that the template promises."""
    (machine,) = answer["machines"]
    (template,) = (name for name, documented in REQUESTS.items() if walk.ids.get(documented) == answer["requestId"])
    walk.ids[f"hf-{REQUESTS[template]}-000000"] = machine["name"]

    assert machine["result"] == "succeed"
    assert machine["privateIpAddress"]
    assert walk.machines()[machine["name"]] == KINDS[template]
    assert f"request {answer['requestId']} ({template}): complete; 1 of 1 machines run" in walk.status()


def given_back(walk: Walk, name: str, timeline: str) -> None:
    """Check that the cloud no longer has the machine, and that ``provisioner status`` no longer counts it."""
    assert timeline.splitlines()[-1].strip() == "It is returned and gone."
    assert name not in walk.machines()
    request = name.split("-")[1]
    assert re.search(rf"request {request} \(\w+\): complete; 0 of 1 machines run", walk.status())


# --- "It worked", by step ---------------------------------------------------------------------------------------------


def configuration_made(walk: Walk, _printed: str) -> None:
    assert walk.path(f"{HOME[CLONE]}/google/provisioner.yaml").exists()


def programs_installed(walk: Walk, printed: str) -> None:
    *_, names_place, last = printed.strip().splitlines()
    version = walk.type(ROOT_USER, "/opt/provisioner/bin/provisioner --version").split()[1]
    assert names_place == (
        f"Version {version} runs from now on: scriptPath of HostFactory's plug-in is /opt/provisioner/hf_scripts/"
    )
    has_systemd = Path("/run/systemd/system").is_dir()
    enable = "systemctl enable --now provisioner provisioner-backup.timer"
    assert (enable if has_systemd else "start /opt/provisioner/bin/provisioner run") in last


def instance_registered(walk: Walk, printed: str) -> None:
    assert '            "name": "gcpinst",' in printed
    assert re.findall(r"(?m)^- +(.*[^ \n{}\[\]].*)$", printed) == [
        '"enabled": 0,',
        '"providers": ["awsinst"],',
        '"providers": ["awsinst"],',
    ], "nothing else of what Symphony ships changes"
    assert walk.type(HF_USER, "provisioner render-hf settings.yaml --dry-run") == "No file would change.\n"


def images_made(walk: Walk, _printed: str) -> None:
    """Check that pod specs and groups name the pushed images. Check that a pod of each spec joins."""
    specs = [yaml.safe_load(file.read_text())["spec"] for file in walk.path("/home/clone/google/pod-specs").iterdir()]
    images = {container["image"] for spec in specs for container in spec["containers"]}
    assert images == {*walk.path("/home/cloud/pushed").read_text().split()}
    words = walk.path("/home/cloud/boot-image").read_text().split()
    family = f"projects/{words[words.index('--project') + 1]}/global/images/family/{words[words.index('--family') + 1]}"
    assert set(re.findall(r'image += "(projects/.*)"', walk.path("/home/clone/grid.tfvars").read_text())) == {family}
    for spec in specs:
        walk.joins(spec)


def loop_runs(walk: Walk, printed: str) -> None:
    assert walk.proxy is not None
    assert walk.proxy.hosts >= {CLUSTER}
    checked, _, installed = printed.partition("fine: ")
    assert re.search(r"(?:Fine|\d+ warnings?): provisioner gcpinst", checked)
    assert re.findall(r"(?m)^  pool (\S+): (\w+) ", checked) == [
        *(("a", "mig"), ("any", "mig"), ("pods", "gke"), ("pods-spot", "gke"))
    ]
    assert "ERROR" not in checked
    wrong = [line for line in f"fine: {installed}".strip().splitlines() if not line.startswith("fine: ")]
    assert [re.search(r"EGO_DYNAMIC_HOST_TIMEOUT is missing", line) is None for line in wrong] == [False], wrong
    assert ": the loop runs\n" in installed


def machines_came_and_went(walk: Walk, _printed: str) -> None:
    assert {f"hf-{request}-000000" for request in REQUESTS.values()} < walk.ids.keys(), "both were asked for"
    assert walk.machines() == {}
    status = walk.status()
    assert len(re.findall(r"return  ret-\w+: complete, 1 of 1 settled", status)) == len(REQUESTS)


def calls_are_logged(walk: Walk, _printed: str) -> None:
    (log,) = (walk.path(HF_TOP) / "log").glob("gcpinst-provider.*.log")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert "EGO_DYNAMIC_HOST_TIMEOUT=10m\n" in walk.path("/home/egoadmin/ego/kernel/conf/ego.conf").read_text()
    assert "fix: " not in walk.type(HF_USER, ". ~/gcpinst.env; /opt/provisioner/hf_scripts/check_install.sh")
    answered = {line["command"] for line in lines if line["message"] == "Answered a call"}
    assert answered > {"getAvailableTemplates", "requestMachines", "getRequestStatus", "requestReturnMachines"}


def all_removed(walk: Walk, _printed: str) -> None:
    conf = walk.path(HF_TOP) / "conf"
    assert {name: (conf / name).read_text() for name in SHIPPED if name != "requestors/hostRequestors.json"} == {
        name: text for name, text in SHIPPED.items() if name != "requestors/hostRequestors.json"
    }
    requestors = json.loads((conf / "requestors" / "hostRequestors.json").read_text())["requestors"]
    assert [(entry["enabled"], entry["providers"]) for entry in requestors] == [(0, []), (1, ["awsinst"])]
    assert not walk.path("/opt/provisioner").exists()
    assert walk.path("/etc/hostfactory/provisioner.yaml").exists()
    assert walk.path("/var/lib/hostfactory/memory.json").exists()
    assert walk.path("/var/log/hostfactory").is_dir()


WORKED: dict[str, Callable[[Walk, str], None]] = {
    "1": configuration_made,
    "2": programs_installed,
    "3": instance_registered,
    "4": images_made,
    "5": loop_runs,
    "6": machines_came_and_went,
    "7": calls_are_logged,
    "8": all_removed,
}
"""Checks by number of the step. Each gets all output of its step, and checks that it is as the page says."""

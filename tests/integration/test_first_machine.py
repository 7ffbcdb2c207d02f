"""docs/first-machine.md walked: its blocks in their order, as they stand, by those whom each block names.

The host is this one below file systems of its own, so install.sh makes users, directories and programs for real. What
no test can reach has a program of its name in its place: REPLACED says which, and why.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import pytest

from provisioner.settings import loader
from provisioner.simulator.cloud import Conditions
from provisioner.simulator.server import Simulator
from tests.support.clients.terraform import rendered
from tests.support.hosts import PYTHON, ROOT, python_version, tools
from tests.support.metadata_server import MetadataServer, account
from tests.support.network.authority import Authority
from tests.support.network.front import Front
from tests.support.waiting import until

PAGE = (ROOT / "docs" / "first-machine.md").read_text()
TIMES = ROOT / "config" / "demoinst" / "cloud.json"
"""How long things take in the cloud: seconds, not minutes."""

SECONDS = 280

CLONE, ROOT_USER, HF_USER = "in a clone of this repository", "as root on HostFactory's host", "as HostFactory's user"
HOME = {CLONE: "/home/clone", ROOT_USER: "/root", HF_USER: "/home/egoadmin"}
"""Who types a block, and where."""

ACCOUNT = "hostfactory-provisioner@my-grid-project.iam.gserviceaccount.com"
"""The loop's, which is attached to HostFactory's host."""

REPLACED = {
    # No Google can be reached. Terraform itself makes the instance's files of the page's grid.tfvars, in Walk.cloud;
    # that it takes the whole module is test_terraform.py's.
    "terraform": """case "$*" in
        *"output -json files") cat /home/cloud/files.json ;;
        *"output -raw account") echo ACCOUNT ;;
        *" init" | *" apply -var-file=$PWD/grid.tfvars" | *" destroy -var-file=$PWD/grid.tfvars") test -f grid.tfvars ;;
        *) exit 64 ;;
    esac""",
    # Here is no workstation's login. That gcloud knows the line is test_pages_run.py's.
    "gcloud": '[ "$1 $3" = "container get-credentials" ]',
    # The embedded cloud has no rights. That kubectl knows the line is test_pages_run.py's, the Role tests/kube's.
    "kubectl": 'case "$*" in *--filename*) test -f "${@: -1}" ;; create*) ;; *) exit 64 ;; esac',
    # There is one host here.
    "scp": 'cp -r "${@:2:$#-2}" /home/egoadmin && chown -R egoadmin /home/egoadmin',
    # Nobody has an EGO without a licence.
    "egosh": ":",
    # The unit under systemd is tests/vm's. Here its command runs as its user, with its environment and mask.
    "systemctl": r"""[ "$*" = "enable --now provisioner" ] || exit 64
        of_unit() { sed -n "s/^$1=//p" /usr/lib/systemd/system/provisioner.service; }
        umask "$(of_unit UMask)"
        setsid setpriv --reuid "$(of_unit User)" --regid "$(of_unit Group)" --init-groups env -i \
            $(of_unit Environment) $(cat /etc/default/provisioner) $(of_unit ExecStart) --listen 127.0.0.1:0 \
            </dev/null >/var/log/service.log 2>&1 &
        echo $! >/var/service.pid""",
}
"""Programs that stand in for others, by their names."""

NOT_WALKED = {
    "kubectl get pods --namespace symphony --selector hf-provisioner/id=gcpinst": "help for when it did not work",
}
"""The first lines of blocks that are no step."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("terraform") is None, reason="needs terraform"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: users are made"),
]


class Block(NamedTuple):
    """Lines that are typed together."""

    section: str
    lines: str


def blocks() -> list[Block]:
    """Every block of commands of the page."""
    found = []
    for section in re.split(r"(?m)^## ", PAGE)[1:]:
        title = section.splitlines()[0]
        found += [Block(title, lines) for lines in re.findall(r"```(?:sh|bash|shell)\n(.*?)```", section, re.DOTALL)]
    return found


class Walk:
    """The clone, HostFactory's host, and a cloud. A context manager: ends what it began, and leaves nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._space: subprocess.Popen[str] | None = None
        self._simulator: Simulator | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        tools()
        overlays = "\n".join(
            f"mkdir -p /mnt/{name}/upper /mnt/{name}/work\n"
            f"mount -t overlay -o lowerdir=/{name},upperdir=/mnt/{name}/upper,workdir=/mnt/{name}/work walk /{name}"
            for name in ("etc", "home", "opt", "root", "usr", "var")
        )
        program = f"mount -t tmpfs -o mode=755 walk /mnt\n{overlays}\necho ready\nexec sleep infinity"
        self._space = subprocess.Popen(["unshare", "-m", "sh", "-ec", program], stdout=subprocess.PIPE, text=True)
        assert self._space.stdout is not None
        assert self._space.stdout.readline() == "ready\n", "needs overlay file systems"
        self._inside("useradd --create-home --shell /bin/bash egoadmin; mkdir -p /home/clone/build /home/cloud")
        self._inside("su egoadmin -c 'mkdir -p ~/hf/conf ~/hf/work ~/hf/log'")
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and path.name != "build":
                (self.path("/home/clone") / path.name).symlink_to(path)
        self.path("/home/clone/build/tools").symlink_to(ROOT / "build" / "tools")
        for name, lines in REPLACED.items():
            program_file = self.path("/usr/local/sbin") / name
            program_file.write_text(f"#!/bin/bash\nset -eu\n{lines.replace('ACCOUNT', ACCOUNT)}\n")
            program_file.chmod(0o755)
        self._variables = {
            "PATH": f"/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin:{os.environ['PATH']}",
            "DIST_ARGS": f"--python {python_version()}",
            "PYTHON": PYTHON,
            "HF_TOP": "/home/egoadmin/hf",
            "HF_CONFDIR": "/home/egoadmin/hf/conf",
            "HF_WORKDIR": "/home/egoadmin/hf/work",
            "HF_LOGDIR": "/home/egoadmin/hf/log",
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()},
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._space is not None
        if error is not None and self.path("/var/log/service.log").exists():
            print(self.path("/var/log/service.log").read_text()[-5000:])
        self.stop_service()
        self._open.close()
        self._space.kill()
        self._space.wait()
        assert self._space.stdout is not None
        self._space.stdout.close()

    def path(self, inside: str) -> Path:
        """A path of the host, seen from here."""
        assert self._space is not None
        return Path(f"/proc/{self._space.pid}/root{inside}")

    def _inside(self, lines: str, *who: str, directory: str = "/") -> str:
        """What lines of a shell print; they have to end well."""
        assert self._space is not None
        command = ["nsenter", f"--target={self._space.pid}", "--mount", *who]
        done = subprocess.run(
            [*command, "bash", "-euo", "pipefail", "-c", f"cd {directory}\n{lines}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{lines}\nended with {done.returncode}: {done.stdout[-3000:]}"
        return done.stdout

    def type(self, who: str, lines: str) -> str:
        """What is printed when these lines are typed into somebody's terminal, whose variables and directory stay."""
        terminal = f'{HOME[who]}/.terminal; if [ -e "$t" ]; then . "$t"; cd "$PWD"; fi'
        words = [f"{name}={value}" for name, value in {**self._variables, "HOME": HOME[who]}.items()]
        user = ["runuser", "-u", "egoadmin", "--"] if who == HF_USER else []
        return self._inside(f't={terminal}\n{lines}\nexport -p >"$t"', *user, "env", "-i", *words, directory=HOME[who])

    def cloud(self) -> None:
        """Makes the instance's files of the page's grid.tfvars, as Terraform does, and a cloud of their pools.

        The cluster has an address and an authority of its own, and a metadata server says who HostFactory's host is.
        """
        authority = Authority(self._directory, "Cluster")
        front = self._open.enter_context(Front(authority.context("127.0.0.1")))
        metadata = self._open.enter_context(MetadataServer(account(ACCOUNT, "of-the-vm")))
        tfvars = self._directory / "grid.tfvars"
        tfvars.write_text(self.path("/home/clone/grid.tfvars").read_text())
        files = rendered(tfvars, self._directory, endpoint=front.url, authority=authority.file.read_text())
        self.path("/home/cloud/files.json").write_text(json.dumps(files))
        conf = self._directory / "conf"
        for name, text in files.items():
            (conf / name).parent.mkdir(parents=True, exist_ok=True)
            (conf / name).write_text(text)
        settings = loader.load(conf / "provisioner.yaml", {})
        self._simulator = self._open.enter_context(Simulator(settings, conditions=Conditions.read(TIMES)))
        address = urlsplit(self._simulator.address)
        front.target = (str(address.hostname), int(address.port or 0))
        around = {
            "PROVISIONER_COMPUTE_ENDPOINT": self._simulator.compute,
            "GCE_METADATA_HOST": metadata.host,
            "GCE_METADATA_IP": metadata.host,
            "PUBSUB_EMULATOR_HOST": "127.0.0.1:9",  # nobody: Google, which may be in reach, gets no token of ours
        }
        self._variables |= around
        self.path("/etc/default/provisioner").write_text("".join(f"{name}={value}\n" for name, value in around.items()))

    def machines(self) -> list[str]:
        """What the cloud holds."""
        assert self._simulator is not None
        return [machine["name"] for machine in self._simulator.state()["machines"]]

    def stop_service(self) -> None:
        """Ends the loop, as ``systemctl stop`` does."""
        file = self.path("/var/service.pid")
        if file.exists():
            number = int(file.read_text())
            file.unlink()
            os.kill(number, signal.SIGTERM)
            until(lambda: not Path(f"/proc/{number}/fd").exists(), 60, what="the loop has ended")


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    with Walk(tmp_path) as begun:
        yield begun


def test_each_block_says_who_types_it_and_each_stand_in_is_still_needed() -> None:
    first = [block.lines.splitlines()[0].removeprefix("# ") for block in blocks()]
    typed = " ".join(block.lines for block in blocks())

    assert [line for line in first if line not in HOME] == list(NOT_WALKED)
    assert [program for program in REPLACED if not re.search(rf"(?m)(^|[ (]){program} ", typed)] == []


def test_the_page_leads_to_a_machine_and_back(walk: Walk) -> None:
    printed: dict[str, str] = {}
    ids: dict[str, str] = {}
    for block in blocks():
        who, _, lines = block.lines.partition("\n")
        if who in NOT_WALKED:
            continue
        for part in re.split(r"(?m)^(?=.*(?:getRequestStatus|requestReturnMachines|explain))", lines):
            said = step(walk, who.removeprefix("# "), replaced(part, ids), ids)
            printed[block.section] = printed.get(block.section, "") + said
        if "grid.tfvars" in lines and " apply " in lines:
            walk.cloud()
        if block.section.startswith("6.") and "requestReturnMachines" in lines:
            until(lambda: walk.machines() == [], 60, every=0.2, what="the machine is gone")

    sections = {title[:1]: text for title, text in printed.items()}
    assert "hf_scripts/" in sections["2"].splitlines()[-2]
    assert '+      "name": "gcpinst",' in sections["3"]
    assert "fix: " not in sections["5"]
    assert "ERROR" not in sections["5"]
    assert ids["hf-k3v9x2m7qa-000004"] in sections["6"]
    assert not walk.path("/opt/provisioner").exists()
    assert walk.path("/etc/hostfactory/provisioner.yaml").exists()
    assert walk.path("/var/lib/hostfactory/memory.json").exists()


def replaced(lines: str, ids: dict[str, str]) -> str:
    """The lines with this site's ids in the place of the page's."""
    for documented, own in ids.items():
        lines = lines.replace(documented, own)
    return lines


def step(walk: Walk, who: str, lines: str, ids: dict[str, str]) -> str:
    """Types the lines, as often as the page says, and keeps the ids that they print."""
    if "check_install" in lines:
        once = f"{lines.splitlines()[0]} || true"
        until(lambda: "fix: " not in walk.type(who, once), 60, every=0.5, what="the loop runs")
    said = walk.type(who, lines)
    if "/requestMachines" in lines:
        ids["k2v9x0a7qd"] = re.findall(r'"requestId": *"([^"]+)"', said)[0]
    if "/getRequestStatus" in lines:
        answer = until(lambda: complete(walk.type(who, lines)), 120, every=0.5, what="the request is complete")
        (machine,) = answer["machines"]
        assert machine["result"] == "succeed"
        ids["hf-k3v9x2m7qa-000004"] = machine["name"]
    return said


def complete(said: str) -> Any:
    """The request of an answer, once it is complete."""
    (request,) = json.loads(said)["requests"]
    return request if request["status"] == "complete" else None

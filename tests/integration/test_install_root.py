"""install.sh of a bundle, run by root: the users and groups that it makes, and those that must exist before it changes
anything."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bundles import shared, small, unpacked
from tests.support.hosts import PYTHON, ROOT
from tests.support.installs import NEWER, open_directory
from tests.support.scratch_host import ScratchHost

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: users are made"),
]
"""The tests are slow because they download packages from a package index."""

OLD = "1.0.0"
OURS = "/opt/provisioner/* /usr/lib/*.d/provisioner* /usr/lib/systemd/system/provisioner* /etc/logrotate.d/provisioner"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a directory with two small bundles."""
    with open_directory() as directory:
        whole = unpacked(shared(tmp_path_factory), directory)
        for version in (OLD, NEWER):
            small(whole, directory, version)
        yield directory


class Installer(ScratchHost):
    """HostFactory's host. Each test names and makes HostFactory's user."""

    def __init__(self, bundles: Path) -> None:
        super().__init__()
        self.bundles = bundles

    def install(self, *arguments: str, version: str = OLD, ends: int = 0) -> str:
        """Run install.sh as root, and return its output. ``ends``: the expected exit code. If it is 1, the last line is
        the reason."""
        line = f"{self.bundles}/hostfactory-provisioner-{version}/install.sh {' '.join(arguments)} --python {PYTHON}"
        return self.run(f"umask 077; {line} || test $? = {ends}").strip()

    def placed(self) -> str:
        """Return a line for each of our files on the host: its path, the target of its link, and its time."""
        return self.run(f"find {OURS} -maxdepth 0 ! -name versions -printf '%p %l %T@\\n' 2>/dev/null || true")


@pytest.fixture
def host(bundles: Path) -> Iterator[Installer]:
    with Installer(bundles) as made:
        yield made


def test_without_hostfactory_s_user_nothing_is_changed(host: Installer) -> None:
    for arguments in ([], ["--dry-run"], ["--scripts-only"], ["--hf-user", "sym.admin"]):
        user = (arguments[1:] or ["egoadmin"])[0]
        words = f"install.sh: there is no user {user} here: name HostFactory's with --hf-user"
        assert host.install(*arguments, ends=1).splitlines()[-1] == words
        assert host.placed() == ""
        assert not host.path("/opt/provisioner").exists()
        assert host.run("getent passwd hostfactory || true") == ""


def test_an_upgrade_is_for_the_user_of_before_and_makes_none_while_that_one_is_away(host: Installer) -> None:
    host.run("useradd sym.admin")
    host.install("--hf-user", "sym.admin")
    assert "hostfactory" in host.run("id -Gn sym.admin").split()
    before = host.placed()
    (account,) = (line for line in host.path("/etc/passwd").read_text().splitlines() if line.startswith("sym.admin:"))
    host.run("sed -i /^sym.admin:/d /etc/passwd")
    assert "there is no user sym.admin here" in host.install("upgrade", version=NEWER, ends=1)
    assert host.placed() == before
    host.run("systemd-sysusers")  # as packages call it that have users
    assert host.run("getent passwd sym.admin || true") == ""

    host.run(f"echo '{account}' >>/etc/passwd")
    host.install("upgrade", version=NEWER)
    assert host.run("getent passwd egoadmin || true") == ""
    assert host.run("/opt/provisioner/bin/provisioner --version").split()[1] == NEWER
    assert host.run("grep -c 'su sym.admin hostfactory' /etc/logrotate.d/provisioner").strip() == "2"
    host.run("sed -i /^sym.admin:/d /etc/passwd")
    host.install("rollback")
    assert host.run("/opt/provisioner/bin/provisioner --version").split()[1] == OLD, "without the user"


def test_a_user_who_cannot_run_it_is_named_before_it_is_the_one_that_runs(host: Installer) -> None:
    host.run("useradd egoadmin")
    host.install()
    before = host.placed()
    host.run("chmod 700 /opt/provisioner/versions")
    assert "install.sh: egoadmin cannot run /opt/provisioner/versions/" in host.install(
        "upgrade", version=NEWER, ends=1
    )

    assert host.placed() == before
    host.run("chmod 755 /opt/provisioner/versions")
    host.install("upgrade", version=NEWER)
    program = "runuser -u egoadmin -- /opt/provisioner/bin/provisioner --version"
    assert host.run(program).split()[1] == NEWER


def test_the_loop_s_service_ends_where_the_scripts_stay_alone(host: Installer) -> None:
    """If only the scripts are installed again, install.sh must stop the loop's service. A stand-in replaces systemctl,
    because this host has no systemd."""
    host.run("useradd egoadmin")
    words = "No service was made here: end the loop that runs, and start /opt/provisioner/bin/provisioner run"
    assert words in host.install().splitlines()[-1]
    systemctl = "/usr/bin/systemctl"
    host.run(
        "mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/system; "
        f"rm -f {systemctl}; echo 'echo systemctl \"$*\"' >{systemctl}; chmod 755 {systemctl}"
    )
    assert host.install().splitlines()[-1].startswith("Restart the loop: systemctl restart provisioner ")
    before = host.placed()
    rehearsed = host.install("--scripts-only", "--dry-run").splitlines()
    assert "would run: systemctl disable --now provisioner.service" in rehearsed
    assert host.placed() == before

    printed = host.install("--scripts-only").splitlines()
    commands = [line.removeprefix("systemctl ") for line in printed if line.startswith("systemctl ")]
    units = ("provisioner-backup.timer", "provisioner-backup.service", "provisioner.service")
    assert commands == [*(f"disable --now {unit}" for unit in units), "daemon-reload"]
    assert not re.search("/usr/lib|logrotate", host.placed())


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="needs logrotate (Debian package logrotate)")
@pytest.mark.parametrize(
    "arguments", [pytest.param([], id="whole"), pytest.param(["--scripts-only"], id="scripts alone")]
)
def test_logrotate_goes_on_whatever_is_installed(host: Installer, arguments: list[str]) -> None:
    """A logrotate file with a missing user or group would stop the rotation of all logs of the host."""
    host.run("useradd egoadmin")
    host.install(*arguments)
    host.run(
        "mkdir -p /var/log/hostfactory; echo {} >/var/log/hostfactory/loop.out; chown -R egoadmin /var/log/hostfactory"
    )
    host.run("find /etc/logrotate.d -type f ! -name provisioner -delete; echo include /etc/logrotate.d >/root/all")
    host.run("logrotate --force --state /root/state /root/all")

    assert host.run("ls /var/log/hostfactory").count(".gz") == (0 if arguments else 1)


def test_the_share_of_a_loop_in_a_pod_stays_whose_it_is(host: Installer) -> None:
    """Run the lines of docs/deploy-gke.md that make the shared directory, except the mount. An upgrade must keep its
    owner, group and mode."""
    page = (ROOT / "docs" / "deploy-gke.md").read_text()
    (make,) = re.findall(r"(?m)^       (mkdir -p /\S+)$", page)
    (give,) = re.findall(r"`(chown root:hostfactory [^`]+)`", page)
    (number,) = re.findall(r"`groupadd --gid (\d+) hostfactory`", page)
    host.run(f"useradd egoadmin; groupadd --gid {number} hostfactory")
    host.install()
    host.run(f"{make}; {' '.join(give.split())}")
    host.install("upgrade", version=NEWER)

    assert host.run(f"stat --format '%U:%G %g %a' {make.split()[-1]}").strip() == f"root:hostfactory {number} 2770"
    assert host.run("id --group hostfactory").strip() == number
    assert host.run(f"runuser -u egoadmin -- touch {make.split()[-1]}/of-the-scripts") == ""


def test_a_group_of_the_user_s_own_may_write_while_it_has_no_other_member(host: Installer) -> None:
    """A directory may be writable for a group if the user is its only member. useradd makes such a group for each user,
    and with a umask of 002, unpacked files are writable for it."""
    host.run("useradd --create-home --user-group me; useradd other")
    me = ("runuser", "-u", "me", "--")
    bundle = f"{host.bundles}/hostfactory-provisioner-{OLD}"
    host.run(f"cp -R {bundle} /home/me/bundle; chmod -R g+w /home/me/bundle", *me)
    line = f"umask 002; sh /home/me/bundle/install.sh --scripts-only --prefix /home/me/p --python {PYTHON}"
    host.run(f"mkdir /home/me/p; chmod 775 /home/me /home/me/p; {line}", *me)
    assert host.run("/home/me/p/bin/provisioner --version", *me).split()[1] == OLD

    host.run("gpasswd --add other me")
    refused = host.run(f"{line} || test $? = 1", *me)
    assert "install.sh: /home/me: users other than root and you may change it (owner me, group me, mode 775)" in refused
    assert "may change it" in host.run("sh /home/me/bundle/install.sh uninstall --prefix /home/me/p || test $? = 1")

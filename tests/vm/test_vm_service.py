"""install.sh as root, and the service that it installs under a real systemd. The tests run in order: each continues
from the state of the test before."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.support.hostfactory.sites import template
from tests.support.hosts import ROOT
from tests.vm.build import TESTS
from tests.vm.conftest import NEWER
from tests.vm.guest import Guest
from tests.vm.shared import machines_at, until_ended

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1200)]

PREFIX = "/opt/provisioner"
STATE, CONF, LOG = "/var/lib/hostfactory", "/etc/hostfactory", "/var/log/hostfactory"
SPACE = "symphony"
PORT = 8001
SETTINGS = f"""\
id: demo
loop: {{interval_seconds: 2, floor_seconds: 0.5}}
pools:
  gke-main: {{kind: gke, namespace: {SPACE}, pod_spec: pod.yaml, kubeconfig: {CONF}/kubeconfig}}
"""
TEMPLATE = template("T", maxNumber=50, pools=["gke-main"])
PLUGIN = "/usr/local/bin/log-in"
PLUGIN_LINES = """#!/bin/sh
set -eu
mkdir -p "$HOME/.kube"
echo cached >"$HOME/.kube/gke_gcloud_auth_plugin_cache"
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
echo ' "status": {"token": "of-the-plug-in"}}'
"""
"""A program that logs in as gke-gcloud-auth-plugin does. Without its file below $HOME, it prints nothing."""
STATE_OF_UNIT = ("ActiveState", "SubState", "User", "MainPID", "NRestarts", "NeedDaemonReload")


def block(page: str, begin: str) -> str:
    """Return the block of commands of a page that begins with this text. Root runs these commands."""
    (lines,) = re.findall(rf"(?s)\n```\n({re.escape(begin)}.*?)```", (ROOT / "docs" / page).read_text())
    return str(lines)


class Host:
    """HostFactory's host: calls as HF's user, and commands as root."""

    def __init__(self, guest: Guest, instance: str = "gcpinst", suffix: str = "") -> None:
        """Append ``suffix`` to the names of the instance's directories."""
        self.guest = guest
        self.version = guest.run("cat /opt/old/VERSION")
        self._state = f"{STATE}{suffix}"
        directories = f"HF_PROVIDER_CONFDIR={CONF}{suffix} HF_PROVIDER_WORKDIR={self._state}"
        self.variables = f"HF_PROVIDER_NAME={instance} {directories} HF_PROVIDER_LOGDIR={LOG}"

    def install(self, bundle: str, command: str = "install") -> str:
        """Run install.sh as root. The version's directory was built outside of the guest."""
        version = self.guest.run(f"cat /opt/{bundle}/VERSION")
        self.guest.run(
            f"mkdir -p {PREFIX}/versions; [ ! -e /opt/built/{version} ] || mv /opt/built/{version} {PREFIX}/versions"
        )
        return self.guest.run(f"/opt/{bundle}/install.sh {command} --python /usr/bin/python3")

    def script(self, name: str, document: Mapping[str, Any] | None = None) -> str:
        """Return a script's output, called as HostFactory calls it."""
        given = "" if document is None else shlex.quote(json.dumps(document))
        return self.guest.run(f"{self.variables} {PREFIX}/hf_scripts/{name}.sh {given}", user="egoadmin")

    def request(self, count: int) -> str:
        template = {"templateId": "T", "machineCount": count}
        return str(json.loads(self.script("requestMachines", {"template": template}))["requestId"])

    def answer(self, id_: str) -> str:
        """Return the output of getRequestStatus."""
        return self.script("getRequestStatus", {"requests": [{"requestId": id_}]})

    def complete(self, id_: str) -> list[str]:
        """Wait until a request is complete, and return its machines."""
        until_ended(self.guest, self._state, id_, 240)
        (entry,) = json.loads(self.answer(id_))["requests"]
        assert entry["status"] == "complete", entry
        return [machine["name"] for machine in entry["machines"]]

    def cloud(self) -> set[str]:
        """Return the names of the machines that the cloud holds."""
        return machines_at(self.guest, PORT)

    def unit(self) -> dict[str, str]:
        """Return the properties of the service as systemd shows them."""
        shown = self.guest.run(f"systemctl show provisioner --property {','.join(STATE_OF_UNIT)}")
        return dict(line.split("=", 1) for line in shown.splitlines())

    def stop_timer(self) -> None:
        """Stop the timer, so that only tests start backups from now on.

        ``systemctl start`` would wait for a backup that already runs, and start no other backup.
        """
        self.guest.run("systemctl stop provisioner-backup.timer")
        state = "systemctl show provisioner-backup --property ActiveState --value"
        self.guest.until(lambda: self.guest.run(state) in ("inactive", "failed"), what="no backup runs")
        assert self.guest.run(state) == "inactive", self.guest.run("journalctl --unit provisioner-backup --no-pager")

    def journal(self) -> str:
        return self.guest.run("journalctl --unit provisioner --output cat --no-pager")

    def wait_for_journal(self, words: str, times: int = 1) -> None:
        """Wait until the service's journal has the words at least this often."""
        self.guest.until(lambda: self.journal().count(words) >= times, what=f"the journal says {words!r} {times} times")


@pytest.fixture(scope="module")
def host(guest: Guest) -> Iterator[Host]:
    """Yield an instance's files, and a cloud."""
    guest.run(f"mkdir -p {CONF}")
    guest.write(f"{CONF}/provisioner.yaml", SETTINGS)
    guest.write(f"{CONF}/pod.yaml", "containers: [{name: main, image: busybox}]\n")
    guest.write(f"{CONF}/gcpinstprov_templates.json", json.dumps([TEMPLATE]))
    guest.run(
        "systemd-run --quiet --unit cloud --working-directory /opt/repo --setenv PYTHONDONTWRITEBYTECODE=1 "
        f"{TESTS}/bin/python -m provisioner simulator --config {CONF}/provisioner.yaml --port {PORT} "
        f"--kubeconfig {CONF}/kubeconfig"
    )
    guest.until(lambda: guest.call(f"test -s {CONF}/kubeconfig").code == 0, what="the cloud runs")
    guest.write(PLUGIN, PLUGIN_LINES)
    guest.run(f"chmod 755 {PLUGIN}")
    log_in = {"apiVersion": "client.authentication.k8s.io/v1", "command": PLUGIN, "interactiveMode": "Never"}
    config = yaml.safe_load(guest.run(f"cat {CONF}/kubeconfig"))
    config["users"][0]["user"] = {"exec": log_in}
    guest.write(f"{CONF}/kubeconfig", json.dumps(config))
    yield Host(guest)
    guest.run("systemctl stop cloud")


def test_root_installs_users_directories_and_the_service(host: Host) -> None:
    printed = host.install("old")

    assert f"Version {host.version} is built already" in printed
    assert "systemctl enable --now provisioner" in printed
    assert (
        host.guest.run(f"stat --format '%U:%G %a' {STATE} {LOG}").splitlines() == ["hostfactory:hostfactory 2770"] * 2
    )
    assert "hostfactory" in host.guest.run("id --groups --name egoadmin").split()
    assert host.guest.call("systemctl is-enabled provisioner").text.strip() == "disabled"
    assert host.guest.run(f"{PREFIX}/bin/provisioner --version") == f"provisioner {host.version}"


def test_the_service_rents_machines_for_the_user_of_hostfactory(host: Host) -> None:
    host.guest.run("systemctl enable --now provisioner")
    names = host.complete(host.request(2))

    assert host.cloud() == set(names)
    shown = host.unit()
    assert (shown["ActiveState"], shown["SubState"], shown["User"]) == ("active", "running", "hostfactory")
    assert (shown["NRestarts"], shown["NeedDaemonReload"]) == ("0", "no")
    assert host.guest.run(f"ps -o user= -p {shown['MainPID']}").strip().startswith("hostfac")
    assert '"Provisioner started"' in host.journal()


def test_the_running_service_is_confined(host: Host) -> None:
    process = host.unit()["MainPID"]
    inside = f"nsenter --target {process} --mount --"
    fields = dict(re.findall(r"(?m)^(\w+):\t(.*)$", host.guest.run(f"cat /proc/{process}/status")))

    for place in ("/etc/hostfactory", "/opt/provisioner", "/usr", "/var/log/hostfactory", "/srv"):
        assert "Read-only file system" in host.guest.call(f"{inside} touch {place}/mine").text, place
    host.guest.run(f"{inside} sh -c 'touch {STATE}/mine && rm {STATE}/mine'")
    cache = "/run/hostfactory-provisioner/.kube/gke_gcloud_auth_plugin_cache"
    # As the loop starts it for a server with TLS: one of http:// gets no token, so no plug-in is asked.
    (home,) = re.findall(r"(?m)^HOME=(.*)$", host.guest.run(f"tr '\\0' '\\n' </proc/{process}/environ"))
    user = "setpriv --reuid hostfactory --regid hostfactory --clear-groups"
    host.guest.run(f"{inside} {user} env HOME={home} {PLUGIN}")
    assert host.guest.run(f"stat --format %U {cache}").strip() == "hostfactory", "a kubeconfig's plug-in has a home"
    assert "egoadmin" not in host.guest.call(f"{inside} ls -A /home").text
    assert (fields["CapEff"], fields["CapBnd"], fields["NoNewPrivs"], fields["Seccomp"]) == (
        "0" * 16,
        "0" * 16,
        "1",
        "2",
    )


def test_a_killed_loop_is_started_again_and_goes_on(host: Host) -> None:
    before, had = host.unit(), host.cloud()
    host.guest.run("systemctl kill --signal KILL --kill-who main provisioner")
    names = host.complete(host.request(1))

    after = host.unit()
    assert (after["ActiveState"], after["NRestarts"]) == ("active", "1")
    assert after["MainPID"] != before["MainPID"]
    assert host.cloud() == had | set(names)


def test_a_reload_takes_the_new_configuration_without_another_start(host: Host) -> None:
    before = host.unit()
    host.guest.write(f"{CONF}/gcpinstprov_templates.json", json.dumps([TEMPLATE | {"maxNumber": 60}]))
    host.guest.run("systemctl reload provisioner")
    host.wait_for_journal("New configuration applied")

    assert host.unit() == before


def test_logrotate_takes_the_scripts_log_and_they_begin_another(host: Host) -> None:
    owner = host.guest.run(f"stat --format %U {LOG}/*.log")
    rotates = host.guest.run("sed -n 's/^ *su //p' /etc/logrotate.d/provisioner").splitlines()
    assert {*rotates} == {f"{owner} hostfactory"}, "an older logrotate gives what it writes to that user, or fails"
    host.guest.run("logrotate --force /etc/logrotate.d/provisioner")
    (rotated,) = host.guest.run(f"ls {LOG}").split()
    host.script("getAvailableTemplates", {})

    assert re.fullmatch(r"gcpinst-provider\.\w+\.log-\d+\.gz", rotated)
    assert "requestMachines" in host.guest.run(f"zcat {LOG}/{rotated}")
    (current,) = set(host.guest.run(f"ls {LOG}").split()) - {rotated}
    assert "getAvailableTemplates" in host.guest.run(f"cat {LOG}/{current}")


def test_the_proxy_s_address_reaches_only_the_service_and_unchanged(host: Host) -> None:
    """Run the commands that the pages show. The password has characters that the shell or a unit's ``Environment=``
    would spoil."""
    lines = block("deploy-banks.md", "touch /etc/default/provisioner")
    (sourced,) = re.findall(r"(?m)^set -a; .*; set \+a$", (ROOT / "docs" / "first-machine.md").read_text())
    address = "http://grid:h%C3%A1t%40s&$HOME;x@proxy.bank.example:3128"
    host.guest.run(f"umask 077\n{lines}\nprintf '%s\\n' '{address}' >/etc/hostfactory/proxy")
    host.guest.run(
        f"cat >>/etc/default/provisioner <<'END'\nHTTPS_PROXY='{address}'\nEND\nsystemctl restart provisioner"
    )
    process = host.unit()["MainPID"]
    given = dict(line.split("=", 1) for line in host.guest.run(f"tr '\\0' '\\n' </proc/{process}/environ").splitlines())

    assert given["HTTPS_PROXY"] == address
    assert given["HTTPS_PROXY_FILE"] == "/etc/hostfactory/proxy"
    assert "proxy.bank.example" not in host.guest.run("systemctl show provisioner", user="egoadmin")
    for file in ("/etc/default/provisioner", "/etc/hostfactory/proxy"):
        assert host.guest.call(f"cat {file}", user="nobody").code != 0
    assert host.guest.run(f"{sourced}\nprintenv HTTPS_PROXY", user="egoadmin") == address
    assert host.guest.run(f"{sourced}\necho goes on", user="nobody") == "goes on"
    checked = host.guest.call(f"{sourced}\n{host.variables} {PREFIX}/bin/provisioner check --live", user="egoadmin")
    assert "cannot be used" not in checked.text
    assert checked.code in (0, 1), checked.text
    host.guest.run("rm /etc/default/provisioner; systemctl restart provisioner")


def test_a_backup_is_made_by_its_timer_s_service_beside_the_loop(host: Host) -> None:
    """Run the commands that backup.md shows."""
    before = host.unit()
    enable, start, listed = (
        line.partition("#")[0].strip() for line in block("backup.md", "systemctl enable").splitlines()
    )
    host.guest.run(enable)
    assert "provisioner-backup.service" in host.guest.run(listed)
    host.stop_timer()
    host.guest.run(
        "cd /var/backups/hostfactory; rm -f state-*; "
        "for old in 1 2; do install -o hostfactory /dev/null state-2026010$old.tar.gz; done"
    )
    host.guest.run(f"echo BACKUPS_KEPT=2 >/etc/default/provisioner; {start}")
    oldest, newest = host.guest.run("ls /var/backups/hostfactory").split()

    assert oldest == "state-20260102.tar.gz"
    assert re.fullmatch(r"state-\d{8}T\d{6}Z\.tar\.gz", newest)
    assert host.guest.run(f"stat --format '%U %a' /var/backups/hostfactory/{newest}") == "hostfactory 600"
    assert "memory.json" in host.guest.run(f"tar tzf /var/backups/hostfactory/{newest}")
    assert host.guest.call("ls /var/backups/hostfactory", user="egoadmin").code != 0
    assert host.unit() == before
    host.guest.run("rm /etc/default/provisioner")


def test_a_backup_that_was_missed_is_made_when_its_timer_starts(host: Host) -> None:
    made = "cd /var/backups/hostfactory; ls state-*T*Z.tar.gz"
    before = host.guest.run(made).split()
    host.guest.run("touch --date yesterday /var/lib/systemd/timers/stamp-provisioner-backup.timer")
    host.guest.run("systemctl start provisioner-backup.timer")
    host.guest.until(lambda: len(host.guest.run(made).split()) > len(before), what="the timer has made one")
    host.stop_timer()


def test_where_hostfactory_fails_over_the_backup_is_that_of_its_user(host: Host) -> None:
    """Run the commands that backup.md shows, on a copy of the state directory that belongs to HostFactory alone."""
    host.guest.run(
        "mkdir -p /shared/hf/conf/providers /shared/hf/work/providers; "
        f"cp -R {CONF} /shared/hf/conf/providers/gcpinst; cp -R {STATE} /shared/hf/work/providers/gcpinst; "
        "chown -R egoadmin:egoadmin /shared/hf; chmod -R go= /shared/hf/work/providers/gcpinst"
    )
    host.guest.run(block("backup.md", "install -d"))
    host.guest.run("systemctl start provisioner-backup")

    assert re.fullmatch(
        r"egoadmin 600 state-\w+\.tar\.gz", host.guest.run("cd /shared/backups; stat --format '%U %a %n' *")
    )
    host.guest.run("rm -r /etc/systemd/system/provisioner-backup.service.d /shared; systemctl daemon-reload")


def test_a_lost_state_directory_is_put_back_from_a_backup(host: Host) -> None:
    """Run the commands that backup.md shows."""
    id_ = host.request(1)
    host.complete(id_)
    wait_for_journal, had = host.answer(id_), host.cloud()
    host.guest.run("systemctl start provisioner-backup; systemctl stop provisioner; rm -r " + STATE)
    newest = host.guest.run("ls /var/backups/hostfactory").split()[-1]
    host.guest.run(block("backup.md", "systemctl stop provisioner ").replace("FILE", newest))
    host.guest.run("systemctl start provisioner provisioner-backup.timer")

    assert host.answer(id_) == wait_for_journal
    recover = f"{host.variables} {PREFIX}/bin/provisioner recover"
    host.guest.until(
        lambda: host.guest.call(f"{recover} --release-brake", user="egoadmin").code == 0, what="the brake is released"
    )
    more = host.complete(host.request(1))
    assert host.cloud() == had | set(more)


def test_a_second_instance_has_a_loop_of_its_own_beside_the_first(host: Host) -> None:
    """Run the commands that deploy-host.md shows."""
    before, had = host.unit(), host.cloud()
    host.guest.run(block("deploy-host.md", "name=gkeinst"))
    host.guest.run(f"cd {CONF}; cp --no-preserve=ownership pod.yaml kubeconfig {CONF}-gkeinst")
    host.guest.write(f"{CONF}-gkeinst/gkeinstprov_templates.json", json.dumps([TEMPLATE]))
    host.guest.write(
        f"{CONF}-gkeinst/provisioner.yaml",
        SETTINGS.replace("id: demo", "id: second\nname_prefix: second\nlisten: 127.0.0.1:9465"),
    )
    host.guest.run("systemctl enable --now provisioner-gkeinst provisioner-gkeinst-backup.timer")
    second = Host(host.guest, "gkeinst", "-gkeinst")
    names = second.complete(second.request(2))

    assert all(name.startswith("second-") for name in names)
    assert host.cloud() == had | set(names)
    host.guest.run("systemctl start provisioner-gkeinst-backup; ls /var/backups/hostfactory-gkeinst/state-*")
    assert host.unit() == before
    host.guest.run(
        "systemctl disable --now provisioner-gkeinst provisioner-gkeinst-backup.timer; "
        "rm /etc/systemd/system/provisioner-gkeinst*; systemctl daemon-reload"
    )


def test_an_upgrade_leaves_state_and_machines_alone(host: Host) -> None:
    """After an upgrade and a restart, the service must run the new version and keep state and machines.
    tests/integration/test_install_life.py tests rollbacks, which are the same for systemd."""
    id_ = host.request(1)
    host.complete(id_)
    wait_for_journal, had = host.answer(id_), host.cloud()
    assert f"Version {NEWER} runs from now on" in host.install("new", "upgrade")
    assert host.unit()["NeedDaemonReload"] == "no"
    started = host.journal().count('"Provisioner started"')
    host.guest.run("systemctl restart provisioner")
    host.wait_for_journal('"Provisioner started"', started + 1)
    process = host.unit()["MainPID"]
    assert f"/versions/{NEWER}/" in host.guest.run(f"grep -m 1 {PREFIX} /proc/{process}/maps")
    assert host.answer(id_) == wait_for_journal
    more = host.complete(host.request(1))

    assert host.cloud() == had | set(more)


def test_uninstalled_it_leaves_state_logs_and_configuration(host: Host) -> None:
    host.install("new", "uninstall")

    assert host.guest.run("systemctl show provisioner --property LoadState --property ActiveState").split() == [
        *("LoadState=not-found", "ActiveState=inactive")
    ]
    ours = "/usr/lib/*/provisioner* /usr/lib/systemd/system/provisioner* /etc/systemd/system/*/provisioner*"
    assert host.guest.call(f"ls -d {PREFIX} {ours} /etc/logrotate.d/provisioner 2>/dev/null").text == ""
    assert "provisioner" not in host.guest.run("systemctl list-timers --all --no-legend")
    host.guest.run(f"ls {STATE}/intent.json {STATE}/memory.json {CONF}/provisioner.yaml {LOG}/*.gz")
    host.guest.run("ls /var/backups/hostfactory/state-*")
    assert host.guest.run(f"stat --format %U:%G {STATE}") == "hostfactory:hostfactory"

"""The bundle as an RPM, as its users handle it: built, installed, upgraded and erased by rpm itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bundles import packed, shared, small, unpacked
from tests.support.hosts import PYTHON
from tests.support.scratch_host import ScratchHost
from tests.support.waiting import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="needs rpmbuild (Debian package rpm)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: users are made"),
]

PREFIX = "/opt/provisioner"
UNIT = "/usr/lib/systemd/system/provisioner.service"
BACKUP = [f"/usr/lib/systemd/system/provisioner-backup.{kind}" for kind in ("service", "timer")]
ROTATION = "/etc/logrotate.d/provisioner"
EXAMPLE = f"{PREFIX}/share/config/demoinst/provisioner.yaml"
STATE, LOG = "/var/lib/hostfactory", "/var/log/hostfactory"
OLDER = "0.0.1"

RPM = "rpm --dbpath /var/lib/rpm"
SYSTEMCTL = "/usr/bin/systemctl"
RECORDS = f"""#!/bin/sh
echo "$*:" $(ls {PREFIX}/versions) >>/var/calls"""
"""A stand-in of systemctl, which records each call with the versions that exist then."""


@pytest.fixture
def host() -> Iterator[ScratchHost]:
    with ScratchHost() as made:
        yield made


def rpm(archive: Path, directory: Path, **defined: str) -> Path:
    """Build the package from a bundle, by the page's command. Return its path."""
    version = archive.name.removesuffix(".tar.gz").rpartition("-")[2]
    defined |= {"version_": version, "_topdir": str(directory), "python": PYTHON, "_binary_payload": "w1.gzdio"}
    options = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    command = ["rpmbuild", "-tb", str(archive), "--nodeps", "--quiet", *options]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280 * PATIENCE)
    assert built.returncode == 0, built.stderr
    (package,) = directory.glob(f"RPMS/*/*-{version}-*.rpm")
    return package


def test_the_package_is_installed_upgraded_and_erased(
    host: ScratchHost, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Upgrade from an older package with few files to the package of this source."""
    archive = shared(tmp_path_factory)
    older = packed(small(unpacked(archive, tmp_path), tmp_path, OLDER))
    before, after = rpm(older, tmp_path), rpm(archive, tmp_path)
    version = archive.name.removesuffix(".tar.gz").rpartition("-")[2]

    # Debian keeps no database of rpm's in which a Python would be: that it is asked for is seen in the package.
    assert PYTHON in host.run(f"{RPM} -qp --requires {after}").splitlines()
    host.run(f"useradd --create-home egoadmin; {RPM} -i --nodeps {before}")
    listed = host.run(f"{RPM} -ql hostfactory-provisioner").splitlines()
    assert {f"{PREFIX}/bin/provisioner", f"{PREFIX}/hf_scripts", UNIT, *BACKUP, ROTATION} < set(listed)
    assert f"{PREFIX}/.lock" not in listed
    assert not any(str(tmp_path) in line for line in listed)
    assert host.run(f"{RPM} -V --nodeps hostfactory-provisioner") == "", "all is as packed, after the scriptlets"
    assert host.run(f"stat -L --format '%U:%G %a' {UNIT} {PREFIX}/bin/provisioner").splitlines() == [
        *("root:root 644", "root:root 755")
    ]
    assert host.run(f"stat --format '%U:%G %a' {STATE} {LOG}").splitlines() == ["hostfactory:hostfactory 2770"] * 2
    assert "hostfactory" in host.run("id --groups --name egoadmin").split()
    assert host.run(f"{PREFIX}/bin/provisioner --version").split()[1] == OLDER

    host.run(f"echo '# mine' >>{ROTATION}; echo kept | tee {STATE}/memory.json >{LOG}/calls.log")
    host.run(f"rm {SYSTEMCTL}; printf '%s\\n' '{RECORDS}' >{SYSTEMCTL}; chmod 755 {SYSTEMCTL}")
    host.run(f"{RPM} -U --nodeps {after}")
    calls = host.run("cat /var/calls").splitlines()
    assert calls[-1] == f"try-restart provisioner: {version}", "once the version before is gone"
    assert not any("disable" in line for line in calls)
    assert host.run(f"{RPM} -q hostfactory-provisioner").startswith(f"hostfactory-provisioner-{version}-1")
    assert host.run(f"{PREFIX}/bin/provisioner --version").split()[1] == version
    assert host.run(f"ls {PREFIX}/versions").split() == [version]
    user = ["runuser", "-u", "egoadmin", "--"]
    variables = f"HF_PROVIDER_NAME=demoinst HF_PROVIDER_CONFDIR={Path(EXAMPLE).parent} HF_PROVIDER_WORKDIR={STATE}"
    assert "GkePod" in host.run(f"env -i {variables} {PREFIX}/hf_scripts/getAvailableTemplates.sh '{{}}'", *user)
    host.run(f"env -i {variables} {PREFIX}/bin/provisioner check {EXAMPLE}", *user)
    kept_by_all(host)

    host.run(f"{RPM} -U --oldpackage --nodeps {before}")
    assert host.run(f"{PREFIX}/bin/provisioner --version").split()[1] == OLDER
    kept_by_all(host)

    host.run(f"{RPM} -e hostfactory-provisioner")
    assert (
        host.run(f"ls -d {PREFIX} {UNIT} {' '.join(BACKUP)} /usr/lib/sysusers.d/provisioner.conf 2>/dev/null || true")
        == ""
    )
    assert host.path(f"{ROTATION}.rpmsave").read_text().endswith("# mine\n")
    assert host.run(f"cat {STATE}/memory.json {LOG}/calls.log") == "kept\nkept\n"
    assert "hostfactory" in host.run("getent passwd hostfactory")


def test_a_package_for_another_user_needs_that_user_and_makes_none(
    host: ScratchHost, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = packed(small(unpacked(shared(tmp_path_factory), tmp_path), tmp_path, OLDER))
    package = rpm(archive, tmp_path, hf_user="sym.admin")
    output = host.run(f"{RPM} -i --nodeps {package}; systemd-sysusers")
    assert "sym.admin is no member of group hostfactory: " in output
    assert host.run("getent passwd sym.admin egoadmin || true") == ""
    assert host.run("stat --format %U:%G " + STATE).strip() == "hostfactory:hostfactory", "the rest is made"

    host.run("useradd sym.admin")
    assert "no member" not in host.run(f"{RPM} -U --force --nodeps {package}")
    assert "hostfactory" in host.run("id --groups --name sym.admin").split()
    assert host.run("grep -c 'su sym.admin hostfactory' /etc/logrotate.d/provisioner").strip() == "2"


def kept_by_all(host: ScratchHost) -> None:
    """Check that the files of operators and of the service are unchanged."""
    assert host.path(ROTATION).read_text().endswith("# mine\n")
    assert host.run(f"cat {STATE}/memory.json {LOG}/calls.log") == "kept\nkept\n"

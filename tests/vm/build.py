"""Build the disk of a real Debian 12 for tests, once per machine: ``python -m tests.vm.build`` prints its directory.

debootstrap, which needs root, installs systemd, Debian's cloud kernel, the kernel's NFS server and a Python environment
for tests. This takes two to four minutes and 1 GB. The cache directory's name is a hash of the inputs. The project's
own files come on another drive.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

RELEASE = "bookworm"
PYTHON = "3.11"
"""Version of Python in that release."""

PACKAGES = (
    *("systemd-sysv", "dbus", "udev", "kmod", "procps", "linux-image-cloud-amd64", "qemu-guest-agent"),
    *("nfs-kernel-server", "iproute2", "python3", "python3-venv", "logrotate", "curl"),
)
TESTS = "/usr/local/tests"
"""The environment for tests, in the guest."""

REQUIREMENTS = (
    *("pytest", "pytest-timeout", "aiohttp", "requests", "urllib3", "kubernetes", "google-auth"),
    *("tinydb", "pyyaml", "pydantic", "jinja2", "prometheus-client", "rich", "shtab", "tornado"),
)
EXPORTED = "rw,sync,no_subtree_check,root_squash"
FILES = {
    "etc/hostname": "guest\n",
    "etc/hosts": "127.0.0.1 localhost guest\n",
    "etc/exports": f"/srv/export 127.0.0.1({EXPORTED}) 10.9.0.0/16({EXPORTED})\n",
    # After a restart the server waits this long for locks that clients held before; 90 s by default. It believes what
    # groups a client's user is in, as docs/deploy-gke.md asks for.
    "etc/nfs.conf.d/tests.conf": "[nfsd]\ngrace-time=10\nlease-time=10\n[mountd]\nmanage-gids=n\n",
}
IDLE = ("cron", "e2scrub_reap", "systemd-timesyncd", "getty@tty1")
"""Services that only cost time."""

TOOLS = ("qemu-system-x86_64", "debootstrap", "mke2fs")


class BuildError(Exception):
    """The reason why no guest can be built, as one line for the operator."""


class NoMirrorError(BuildError):
    """debootstrap failed, mostly because no mirror of Debian can be reached."""


def lacking() -> str:
    """Return the programs that this machine lacks for a guest; empty if it has all."""
    tools = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        tools.insert(0, "root")
    return ", ".join(tools)


def disk(environment: Mapping[str, str]) -> Path:
    """Return the directory with ``root.ext4`` and ``vmlinuz``. Build it if it is missing. Raises BuildError."""
    directory = cache_directory(environment)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time; the others wait for it
        if not directory.is_dir():
            _build(directory)
    return directory


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of disks that were made from this file and these versions."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parts = "\n".join([Path(__file__).read_text(), *constraints()])
    return cache / "hostfactory-provisioner" / f"vm-{RELEASE}-{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


def constraints() -> list[str]:
    """Return the versions of the packages that the tests have on this machine."""
    found = {part.name.lower(): part.version for part in importlib.metadata.distributions()}
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name != "hostfactory-provisioner"]


def _build(directory: Path) -> None:
    """Make the disk. The directory appears only once it is complete."""
    if without := lacking():
        raise BuildError(f"building a guest needs {without}")
    aside = Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
    root = aside / "root"
    try:
        _say(f"building Debian {RELEASE} into {directory}: once per machine, two to four minutes")
        try:
            _run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, root, INITRD="No")
        except BuildError as error:
            raise NoMirrorError(str(error)) from error
        _say("its Python environment")
        _python(root, aside)
        _settle(root)
        _say("its disk")
        (kernel,) = (root / "boot").glob("vmlinuz-*")
        shutil.copy(kernel, aside / "vmlinuz")
        _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", root, aside / "root.ext4", "3G")
        shutil.rmtree(root)
        aside.chmod(0o755)
        aside.rename(directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _python(root: Path, aside: Path) -> None:
    """Install the wheels by this machine's pip, and compile them by the guest's own Python."""
    _run("chroot", root, "python3", "-m", "venv", "--without-pip", TESTS)
    (aside / "constraints").write_text("\n".join(constraints()))
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"),
        *("--root-user-action", "ignore", "--constraint", aside / "constraints", "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", PYTHON, "--platform", "manylinux_2_28_x86_64"),
        *("--platform", "manylinux2014_x86_64"),
        *("--target", root / TESTS[1:] / "lib" / f"python{PYTHON}" / "site-packages", *REQUIREMENTS),
    )
    _run("chroot", root, "python3", "-m", "compileall", "-q", TESTS)


def _settle(root: Path) -> None:
    """Configure the guest for its first start."""
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    _run("chroot", root, "systemctl", "--quiet", "mask", *(f"{name}.service" for name in IDLE))
    shutil.rmtree(root / "var" / "cache" / "apt")
    shutil.rmtree(root / "var" / "lib" / "apt" / "lists")


def _run(*command: str | Path, **variables: str) -> None:
    done = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def _say(text: str) -> None:
    print(f"guest: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Print the directory."""
    try:
        print(disk(os.environ))
    except BuildError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

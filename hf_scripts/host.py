"""What the host itself can have against the scripts: directories, mounts, SELinux's labels, EGO's ego.conf."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from provisioner.files.owners import group_name, user_name


class CheckResult(NamedTuple):
    """One thing that was looked at."""

    fine: bool
    text: str

    def __str__(self) -> str:
        return f"{'fine' if self.fine else 'fix'}: {self.text}"


def fine(text: str) -> CheckResult:
    """The result for what is as it should be."""
    return CheckResult(True, text)


def fix(text: str) -> CheckResult:
    """The result for what has to be mended; the text says how."""
    return CheckResult(False, text)


HELD_BACK = ("user_home_t", "admin_home_t", "user_tmp_t", "tmp_t", "default_t", "unlabeled_t")
"""Types of homes, of temporary files, and of what no policy knows: services are denied them, as a rule."""

SECONDS = 10
"""Seconds for getenforce and ls, which answer at once."""


class Mount(NamedTuple):
    """Where a file system is mounted, and how."""

    place: str
    kind: str
    options: frozenset[str]


def owner(facts: os.stat_result) -> str:
    """Owner, group and mode, for people."""
    return f"owner {user_name(facts.st_uid)}, group {group_name(facts.st_gid)}, mode {facts.st_mode & 0o7777:o}"


def mounts() -> list[str]:
    """The lines of /proc/self/mountinfo."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def mount_of(path: str, lines: list[str]) -> Mount:
    """What the path lies on, by the lines of /proc/self/mountinfo (proc(5): the type follows a lone ``-``)."""
    real = os.path.realpath(path)
    best = Mount("", "", frozenset())
    for line in lines:
        fields = line.split()
        place = fields[4].replace("\\040", " ")
        if (real == place or real.startswith(place.rstrip("/") + "/")) and len(place) >= len(best.place):
            rest = fields[fields.index("-") + 1 :]
            best = Mount(place, rest[0], frozenset(f"{fields[5]},{rest[2]}".split(",")))
    return best


def way_to(path: str) -> Iterator[CheckResult]:
    """The first directory above the path, or above what it leads to by links, that this user may not pass.

    Below it, everything seems not to exist.
    """
    for parent in [*_parents(os.path.abspath(path)), *_parents(os.path.realpath(path))]:
        if os.path.isdir(parent) and not os.access(parent, os.X_OK):
            user = user_name(os.geteuid())
            yield fix(
                f"{parent}: {user} may not pass it ({owner(os.stat(parent))}), so {path} cannot be opened: "
                f"chmod o+x {parent}, or setfacl -m u:{user}:x {parent}"
            )
            return


def _parents(path: str) -> list[str]:
    """The directories above a whole path, from the root on."""
    above = os.path.dirname(path)
    return ["/", *(above[:end] for end, letter in enumerate(above + "/") if letter == "/" and end)]


def scripts_run(directory: str, lines: list[str]) -> CheckResult:
    """Whether what lies there can be executed."""
    mount = mount_of(directory, lines)
    if "noexec" in mount.options:
        return fix(
            f"{directory}: on {mount.kind} mounted at {mount.place} with noexec, so HostFactory can run no script: "
            "mount it without noexec, or install elsewhere (install.sh --prefix)"
        )
    return fine(f"{directory}: scripts can be run from here")


def labels(paths: Mapping[str, str]) -> Iterator[CheckResult]:
    """SELinux's label of what each path leads to, where it enforces. ``paths``: the type it should have, by path."""
    if _printed("getenforce") != "Enforcing":
        return
    for path, wanted in ((os.path.realpath(path), wanted) for path, wanted in paths.items()):
        label = _printed("ls", "-Zd", path).split(" ")[0]
        given = label.split(":")[2] if label.count(":") >= 2 else "unknown"
        if given in HELD_BACK:
            yield fix(
                f"{path}: SELinux enforces, and its type is {given}, which services are denied: "
                f"semanage fcontext -a -t {wanted} '{path}(/.*)?'; restorecon -R {path}"
            )
        else:
            yield fine(f"{path}: SELinux enforces; its type is {given}")


def _printed(*command: str) -> str:
    """What a program prints; nothing where it is missing or fails. The system's places are searched, too."""
    program = shutil.which(command[0], path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        return ""
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


EXPIRY = "EGO_DYNAMIC_HOST_TIMEOUT"


def check_expiry(environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Return the result for the time after which EGO drops a host that has gone; none without an ego.conf to read."""
    path = _ego_conf(environment)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.findall(rf"(?m)^[ \t]*{EXPIRY}[ \t]*=[ \t]*([^\s#]+)", file.read())
    except OSError:
        return
    if found:
        yield fine(f"{path}: EGO drops a host that has gone after {found[-1]} ({EXPIRY})")
    else:
        yield fix(
            f"{path}: {EXPIRY} is missing, so EGO lists each machine that has gone for ever: "
            f"add {EXPIRY}=10m, then restart EGO on the management hosts"
        )


def _ego_conf(environment: Mapping[str, str]) -> str:
    """The file by the variables of EGO's profile, or of HostFactory's: HF_TOP lies beside the kernel's directory."""
    top = environment.get("EGO_TOP") or os.path.join(environment.get("HF_TOP") or os.devnull, os.pardir)
    return os.path.join(environment.get("EGO_CONFDIR") or os.path.join(top, "kernel", "conf"), "ego.conf")

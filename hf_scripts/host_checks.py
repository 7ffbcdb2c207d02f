"""Checks of the properties of this host on which the scripts depend: directories, mounts, file systems, SELinux labels
and ego.conf."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple

from provisioner.files.ownership import group_name, user_name
from provisioner.files.safe_open import closed_at_end
from provisioner.state.atomic import create_whole, discard, open_shared, replace
from provisioner.state.errors import StateError


class CheckResult(NamedTuple):
    """The result of one check: whether it found a mistake, and a sentence for the operator."""

    is_fine: bool
    text: str

    def __str__(self) -> str:
        return f"{'fine' if self.is_fine else 'fix'}: {self.text}"


def fine(text: str) -> CheckResult:
    """Return the result of a check that found no mistake."""
    return CheckResult(True, text)


def fix(text: str) -> CheckResult:
    """Return the result of a check that found a mistake. ``text`` names the mistake and its fix."""
    return CheckResult(False, text)


DENIED_TYPES = ("user_home_t", "admin_home_t", "user_tmp_t", "tmp_t", "default_t", "unlabeled_t")
"""SELinux types of home directories, of temporary files, and of files that the SELinux policy does not know. Services
usually have no access to files of these types."""

TIMEOUT_SECONDS = 10
"""Time-out of the programs getenforce and ls in seconds. These programs usually answer at once."""


class Mount(NamedTuple):
    """A mounted file system: mount point, type and mount options."""

    place: str
    kind: str
    options: frozenset[str]


def owner(facts: os.stat_result) -> str:
    """Format owner, group and mode of a file as text."""
    return f"owner {user_name(facts.st_uid)}, group {group_name(facts.st_gid)}, mode {facts.st_mode & 0o7777:o}"


def mounts() -> list[str]:
    """Return the lines of /proc/self/mountinfo."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


def mount_of(path: str, lines: list[str]) -> Mount:
    """Return the mount that contains the path. ``lines``: the lines of /proc/self/mountinfo (proc(5): the file system's
    type follows a lone ``-``)."""
    real = os.path.realpath(path)
    best = Mount("", "", frozenset())
    for line in lines:
        fields = line.split()
        place = fields[4].replace("\\040", " ")
        if (real == place or real.startswith(place.rstrip("/") + "/")) and len(place) >= len(best.place):
            rest = fields[fields.index("-") + 1 :]
            best = Mount(place, rest[0], frozenset(f"{fields[5]},{rest[2]}".split(",")))
    return best


def check_searchable(path: str) -> Iterator[CheckResult]:
    """Yield a mistake if this user may not search a directory above the path. Files below such a directory seem not to
    exist. Only the first such directory is reported.

    If the path leads through links, also check the directories above the links' targets.
    """
    ways = [PurePath(os.path.abspath(path)).parents, PurePath(os.path.realpath(path)).parents]
    for parent in [parent for way in ways for parent in reversed(way)]:
        if os.path.isdir(parent) and not os.access(parent, os.X_OK):
            user = user_name(os.geteuid())
            yield fix(
                f"{parent}: {user} may not search it ({owner(os.stat(parent))}), so {path} cannot be opened: "
                f"chmod o+x {parent}, or setfacl -m u:{user}:x {parent}"
            )
            return


def check_executable(directory: str, lines: list[str]) -> CheckResult:
    """Check that files in the directory can be executed. ``lines``: the lines of /proc/self/mountinfo."""
    mount = mount_of(directory, lines)
    if "noexec" in mount.options:
        return fix(
            f"{directory}: on {mount.kind} mounted at {mount.place} with noexec, so HostFactory can run no script: "
            "mount it without noexec, or install elsewhere (install.sh --prefix)"
        )
    return fine(f"{directory}: scripts can be run from here")


def check_selinux_labels(paths: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check the SELinux label of each path, if SELinux is enforcing. ``paths``: the expected SELinux type by path. If a
    path is a link, the target of the link is checked."""
    if _get_output("getenforce") != "Enforcing":
        return
    for path, wanted in ((os.path.realpath(path), wanted) for path, wanted in paths.items()):
        label = _get_output("ls", "-Zd", path).split(" ")[0]
        given = label.split(":")[2] if label.count(":") >= 2 else "unknown"
        if given in DENIED_TYPES:
            yield fix(
                f"{path}: SELinux is enforcing, and denies services the type of this path, {given}: "
                f"semanage fcontext -a -t {wanted} '{path}(/.*)?'; restorecon -R {path}"
            )
        else:
            yield fine(f"{path}: SELinux is enforcing; the type of this path is {given}")


def _get_output(*command: str) -> str:
    """Return the output of a program; empty if the program is missing or fails. The program is searched in PATH,
    /usr/sbin and /sbin."""
    program = shutil.which(command[0], path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        return ""
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


EXPIRY = "EGO_DYNAMIC_HOST_TIMEOUT"


def check_expiry(environment: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check that ego.conf sets how long EGO lists a vanished host. If ego.conf is unreadable, yield no result.

    ``environment``: the variables of EGO or HostFactory from which the path of ego.conf is made. If only HF_TOP is set,
    EGO's directory ``kernel`` is expected beside HF_TOP.
    """
    top = environment.get("EGO_TOP") or os.path.join(environment.get("HF_TOP") or os.devnull, os.pardir)
    path = os.path.join(environment.get("EGO_CONFDIR") or os.path.join(top, "kernel", "conf"), "ego.conf")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.findall(rf"(?m)^[ \t]*{EXPIRY}[ \t]*=[ \t]*([^\s#]+)", file.read())
    except OSError:
        return
    if found:
        yield fine(f"{path}: EGO drops a host that has gone after {found[-1]} ({EXPIRY})")
    else:
        yield fix(
            f"{path}: {EXPIRY} is missing, so EGO never drops a machine that has gone: "
            f"add {EXPIRY}=10m, then restart EGO on the management hosts"
        )


# --- the file system of the state directory ---------------------------------------------------------------------------

NFS_OPTIONS = "lookupcache=none,actimeo=0"
"""NFS mount options without which a client may see an old directory entry or an old file."""

TAKE_LOCK = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def check_filesystem(directory: str) -> Iterator[CheckResult]:
    """Check the file system of the state directory. The scripts and the loop rely on its locks, renames and hard
    links."""
    yield state_mount(directory, mounts())
    probe = os.path.join(directory, f".check-install.{os.getpid()}")
    attempts: tuple[tuple[str, Callable[[str], bool], str], ...] = (
        ("locks of one process are seen by another", _has_shared_locks, "mount it without nolock, or use a local disk"),
        ("a file is replaced by renaming, durably", _has_durable_rename, "use a file system with rename and fsync"),
        ("only one of two processes can create a file", _has_exclusive_create, "use a file system with hard links"),
    )
    for text, attempt, advice in attempts:
        try:
            works = attempt(probe)
        except (OSError, StateError) as error:
            works, advice = False, f"{advice} ({error})"
        finally:
            discard(probe)
        yield fine(f"{directory}: {text}") if works else fix(f"{directory}: this check failed: {text}: {advice}")


def _has_shared_locks(probe: str) -> bool:
    """Return True if a lock of this process keeps out other processes. A second process tries to take the lock. On NFS,
    a test within one process proves nothing."""
    with closed_at_end(open_shared(probe, os.O_RDWR)) as mine:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = subprocess.run([sys.executable, "-I", "-c", TAKE_LOCK, probe], capture_output=True, check=False)
        return b"BlockingIOError" in other.stderr


def _has_durable_rename(probe: str) -> bool:
    for content in (b"old", b"new"):
        replace(probe, content)
    with open(probe, "rb") as file:
        return file.read() == b"new"


def _has_exclusive_create(probe: str) -> bool:
    return create_whole(probe, b"first") and not create_whole(probe, b"second")


def state_mount(directory: str, lines: list[str]) -> CheckResult:
    """Check the type and the options of the mount that contains the state directory."""
    best, kind, given = mount_of(directory, lines)
    where = f"{directory}: on {kind} mounted at {best}"
    if "ro" in given:
        return fix(f"{where}, read-only: mount it for writing")
    if kind in ("tmpfs", "ramfs"):
        return fix(f"{where}: its files are gone after a restart: use a disk")
    uncached = "noac" in given or {"acregmin=0", "acregmax=0", "acdirmin=0", "acdirmax=0"} <= given  # actimeo=0
    if kind.startswith("nfs") and not (uncached and "lookupcache=none" in given):
        return fix(f"{where} with caches: mount it with {NFS_OPTIONS}")
    if kind.startswith("nfs") and (giving_up := " and ".join(given & {"soft", "softerr"})):
        return fix(f"{where}, {giving_up}: mount it with hard, otherwise half a write may be taken for a whole one")
    if kind.startswith("nfs") and given & {"nolock", "local_lock=all", "local_lock=flock"}:
        return fix(f"{where} with local locks: mount it without nolock and local_lock")
    return fine(where)

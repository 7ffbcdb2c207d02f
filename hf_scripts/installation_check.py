"""The command ``check_install.sh``: check that the scripts can work on this host, and report what to fix.

The check calls each script with a document that the script refuses, or that names no request and no host. These calls
record no request, but write lines to the log. If a script fails for another reason than its document, the script also
records this reason for the operator.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping

from hf_scripts import host_checks, log
from hf_scripts.host_checks import CheckResult, fine, fix
from hf_scripts.kubernetes_checks import check_api
from provisioner.files.ownership import group_name, user_name
from provisioner.files.safe_open import HARD_LINK, LINK, refusal_message
from provisioner.hostfactory import templates
from provisioner.hostfactory.provider_config import Directories, DirectoryError, TemplatesError
from provisioner.state.atomic import FILE_MODE
from provisioner.state.directory import STATE_FILES, StateDir
from provisioner.state.errors import STALE, StateError, advice_message, is_denied, is_stale, not_ours_message
from provisioner.state.kube.lease import SignedLease
from provisioner.state.marker_files import DIRECTORY_MODE, LifeSigns
from provisioner.state.opening import find_kube_store

HERE = os.path.dirname(os.path.abspath(__file__))
CALL_SECONDS = 60
DIRECTORY_VARIABLE = r"HF_TOP|HF_(PROVIDER_)?(CONF|WORK|LOG)DIR|PRO_(CONF_|DATA_|LSF_LOG)DIR"
"""Pattern of the environment variables that name a directory."""

UNKNOWN_NAME = "check_install"
"""A name that no template, request or host has."""

SCRIPT_CALLS: Mapping[str, tuple[object, int]] = {
    "getAvailableTemplates": ({"templates": [{"templateId": UNKNOWN_NAME}]}, 1),
    "requestMachines": ({"template": {"templateId": UNKNOWN_NAME, "machineCount": 1}}, 1),
    "getRequestStatus": ({"requests": [{"requestId": UNKNOWN_NAME}]}, 0),
    "requestReturnMachines": ({"machines": []}, 1),
    "getReturnRequests": ({}, 0),
}
"""For each script, a document from which the script records no request, and the exit code with which the script then
ends."""


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Print a line for each result. Return 1 if there is a mistake to fix, and 0 if there is none. ``arguments``: none,
    or ``--loop-user USER``."""
    loop_user = arguments[1] if arguments else ""
    code = 0
    for result in check_all(Directories(_with_absolute_paths(environment)), loop_user):
        print(result, flush=True)  # flush, so that this result is visible even if the next check hangs
        code |= not result.is_fine
    return code


def _with_absolute_paths(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with absolute paths, because the scripts are called from another directory."""
    return {
        name: os.path.abspath(value) if value and re.fullmatch(DIRECTORY_VARIABLE, name) else value
        for name, value in environment.items()
    }


def check_all(directories: Directories, loop_user: str) -> Iterator[CheckResult]:
    """Run all checks, each after the checks on which it depends."""
    groups = ", ".join(map(group_name, sorted(_groups())))
    yield fine(f"the scripts run as user {user_name(os.geteuid())}, in groups {groups}")
    try:
        conf, state, log_path, name = directories.conf, directories.state, log.file_of(directories), directories.name
    except DirectoryError as error:
        yield fix(f"{error}; HostFactory sets it from hostProviders.json, LSF from its configuration")
        return
    barred = [result for path in (conf, state, log_path) if path for result in host_checks.check_searchable(path)]
    yield from barred
    if barred:
        return
    yield host_checks.check_executable(HERE, host_checks.mounts())
    yield from host_checks.check_selinux_labels({HERE: "bin_t", conf: "etc_t", state: "var_lib_t"})
    yield from _check_configuration(conf, directories.environment)
    yield _check_log(log_path)
    yield from host_checks.check_expiry(directories.environment)
    try:
        store = find_kube_store(directories)
    except (StateError, TemplatesError) as error:
        yield fix(str(error))
        return
    usable = list(_check_state_directory(state) if store is None else check_api(store.api()))
    yield from usable
    if all(result.is_fine for result in usable):
        if store is None:
            yield from host_checks.check_filesystem(state)
            yield from _both_users(state, loop_user)
            yield from _check_state_files(StateDir(state), name)
            yield from _loop(state, StateDir(state).life_signs)
        else:
            yield from _loop(f"namespace {store.namespace}", SignedLease(store.api(), name).life_signs)
        yield from (_script(name, *call, directories.environment) for name, call in SCRIPT_CALLS.items())


# --- files and users --------------------------------------------------------------------------------------------------


def _check_configuration(directory: str, environment: Mapping[str, str]) -> Iterator[CheckResult]:
    try:
        provider = templates.load(directory, environment)
    except TemplatesError as error:
        yield fix(str(error))
        return
    yield fine(f"{provider.templates_path}: {', '.join(template.id for template in provider.templates)}")
    for problem in provider.problems:
        yield fix(f"{problem.file}: {problem}")
    # In a pod HF_TOP is not set, and the pod has its own copy of HF's files, which HostFactory does not rewrite.
    if environment.get("HF_TOP") and not os.access(provider.templates_path, os.W_OK):
        facts, user = os.stat(provider.templates_path), user_name(os.geteuid())
        yield fix(
            f"{provider.templates_path}: HostFactory rewrites it, and {user} may not ({host_checks.owner(facts)}): "
            f"chown {user} {provider.templates_path}"
        )


def _check_log(path: str) -> CheckResult:
    if not path:
        return fix("HF_PROVIDER_LOGDIR: is not set, so there is no log of calls")
    if message := refusal_message(path):
        return fix(f"{path}: {message}, so calls are not logged: remove it, or let LOGFILE name another")
    target, mode = (path, os.W_OK) if os.path.exists(path) else (os.path.dirname(path), os.W_OK | os.X_OK)
    if os.access(target, mode):
        return fine(f"{path}: the log of calls can be written")
    return fix(f"{target}: the log of calls cannot be written: create it, owned by {user_name(os.geteuid())}")


def _check_state_directory(directory: str) -> Iterator[CheckResult]:
    if is_stale(directory):
        yield fix(f"{directory}: {os.strerror(errno.ESTALE)}. {STALE}")
    elif not os.path.isdir(directory):
        yield fix(
            f"{directory}: no such directory: create it, with a group that holds the scripts' and the loop's user"
        )
    elif (refusal := StateDir(directory).find_write_error()) and not is_denied(refusal):
        yield fix(f"{directory}: cannot be written: {refusal.strerror}. {advice_message(refusal)}")
    elif not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        facts = os.stat(directory)
        user, group = user_name(os.geteuid()), group_name(facts.st_gid)
        message = "change owner, group or mode"
        if facts.st_mode & 0o070 == 0o070 and facts.st_gid in _groups():
            message = (
                "the group would allow it, but the file server resolves groups itself (NFS: manage-gids of mountd, in "
                "/etc/nfs.conf): put the user into the group there, or turn manage-gids off"
            )
        elif facts.st_mode & 0o070 == 0o070 and facts.st_gid in _account_groups(os.geteuid()):
            message = (
                f"{user} is in group {group} now, but was not when this login began: log in again; processes that "
                "EGO starts are in the group after a restart of EGO on this host"
            )
        yield fix(f"{directory}: {user} may not write here ({host_checks.owner(facts)}): {message}")
    else:
        yield fine(f"{directory}: the state directory can be read and written")


def _both_users(directory: str, loop_user: str) -> Iterator[CheckResult]:
    """Check that the scripts and the loop may replace each other's files. Scripts and loop must run as the same user,
    or share a group that new files inherit."""
    facts = os.stat(directory)
    group = group_name(facts.st_gid)
    is_shared = bool(facts.st_mode & 0o2000) and facts.st_mode & 0o070 == 0o070
    advice = f"chgrp GROUP {directory}; chmod 2770 {directory}, where GROUP holds both users"
    for name, uid in _loop_users(directory, loop_user):
        if uid is None:
            yield fix(f"user {name} of the loop does not exist here")
        elif uid == os.geteuid():
            yield fine(f"scripts and loop run as the same user, {name}")
        elif not is_shared:
            yield fix(f"{directory}: {host_checks.owner(facts)}, but the loop runs as {name}: {advice}")
        elif facts.st_gid not in _groups() or not _is_in_group(uid, facts):
            yield fix(f"group {group} of {directory} lacks the user of the scripts or {name}: {advice}")
        else:
            yield fine(f"scripts and loop ({name}) share group {group}")


def _loop_users(directory: str, loop_user: str) -> Iterator[tuple[str, int | None]]:
    """Yield name and id of the loop's user. The user is ``loop_user`` if given, or else the owner of the loop's
    heartbeat file. The id is None if it is unknown."""
    if loop_user:
        try:
            yield loop_user, pwd.getpwnam(loop_user).pw_uid
        except KeyError:
            yield loop_user, None
        return
    heartbeat = os.path.join(directory, "heartbeat")
    if os.path.exists(heartbeat):
        uid = os.stat(heartbeat).st_uid
        yield user_name(uid), uid


def _check_state_files(state: StateDir, name: str) -> Iterator[CheckResult]:
    """Check that this user may read and write the state files. Access may be denied if another user, for example root,
    has created a file."""
    seen = state.seen.path  # the path of the directory may be a link
    paths = [*_state_paths(state)]
    closed = [_closed_result(path, state) for path in paths if os.path.exists(path) and not _is_usable(path)]
    links = [(path, refusal_message(path)) for path in paths if path != seen]
    linked = [fix(not_ours_message(path, message)) for path, message in links if message in (LINK, HARD_LINK)]
    yield from [*linked, *closed] or [fine(f"{state.path}: the files in it can be read and written")]
    if os.access(state.intent.path, os.R_OK) or not state.intent.exists():
        yield _check_intent(state, name)


def _state_paths(state: StateDir) -> Iterator[str]:
    """Yield the paths of all files of scripts and loop. Other files in the directory, for example the configuration,
    are left out."""
    for name in sorted(STATE_FILES):
        path = os.path.join(state.path, name)
        yield from (path, f"{path}.lock", f"{path}.lock.turn")
    yield from (state.loop_lock.path, state.heartbeat.path, state.journal.path)
    for directory in (state.seen.path, state.config.path, state.refused.path):
        yield directory
        if _is_usable(directory):
            yield from (os.path.join(directory, name) for name in sorted(os.listdir(directory)))


def _is_usable(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK | (os.X_OK if os.path.isdir(path) else 0))


def _closed_result(path: str, state: StateDir) -> CheckResult:
    """Return the result for a file that this user may not read and write. The result's text has the commands that
    correct the file's owner, group and mode.

    The commands set the group that this user's new files get, because the scripts replace the file by a new file.
    """
    directory = os.stat(state.path)
    user, group = user_name(os.geteuid()), group_name(directory.st_gid if directory.st_mode & 0o2000 else os.getegid())
    chown, mode = ("chown -R", DIRECTORY_MODE) if os.path.isdir(path) else ("chown", FILE_MODE)
    return fix(
        f"{path}: {user} may not read and write it ({host_checks.owner(os.stat(path))}): "
        f"{chown} {user}:{group} {path}; chmod {mode:o} {path}"
    )


def _check_intent(state: StateDir, name: str) -> CheckResult:
    try:
        state.intent.check(name)
        if not state.intent.exists():
            return fine(f"{state.intent.path}: will be created by the first request")
        state.intent.read()
    except StateError as error:
        return fix(str(error))
    return fine(f"{state.intent.path}: the requests in it can be read")


def _groups() -> set[int]:
    return {os.getegid(), *os.getgroups()}


def _account_groups(uid: int) -> list[int]:
    """Return the groups that this user would have after a new login; empty if the user has no account here."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)


def _is_in_group(uid: int, directory: os.stat_result) -> bool:
    """Return True if ``uid``, the loop's user, is in the directory's group.

    If this host has no account ``uid``, the loop runs in a pod and has already written into the directory. The result
    is then True if only the group's right can have allowed this: ``uid`` is not the owner, and not everyone may write.
    """
    if groups := _account_groups(uid):
        return directory.st_gid in groups
    return uid != directory.st_uid and not directory.st_mode & 0o002


# --- the loop and the scripts -----------------------------------------------------------------------------------------


def _loop(place: str, read_life_signs: Callable[[], LifeSigns]) -> Iterator[CheckResult]:
    try:
        signs = read_life_signs()
    except StateError as error:
        yield fix(str(error))
        return
    advice = signs.advice.replace("\n", ". ")
    if signs.intent_lock:
        yield fix(f"{place}: {signs.intent_lock}")
    if signs.silent_seconds is None:
        yield fix(f"{place}: no loop has run here yet: {advice}")
    elif not signs.is_running:
        yield fix(f"{place}: the loop has not run for {signs.silent_seconds:.0f} s: {advice}")
    else:
        yield fine(f"{place}: the loop runs")


def _script(name: str, document: object, code: int, environment: Mapping[str, str]) -> CheckResult:
    """Call a script as HF does, and check its exit code."""
    path = os.path.join(HERE, f"{name}.sh")
    try:
        done = subprocess.run(
            [path, json.dumps(document)],
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return fix(f"{path}: {error}")
    printed = done.stdout.decode("utf-8", "replace").strip()
    if (done.returncode, done.stderr) != (code, b""):
        complaint = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return fix(f"{path}: ended with {done.returncode}, expected {code}: {printed} {complaint}".rstrip())
    return fine(f"{path}: answers")

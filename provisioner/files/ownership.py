"""Names of users and groups for ``chown``, and the message about a refused access to a file."""

from __future__ import annotations

import grp
import os
import pwd


def user_name(uid: int) -> str:
    """Return a user's name. If the user has no name, return the uid as text."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Return a group's name. If the group has no name, return the gid as text."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def denied_message(path: str) -> str:
    """Return a message that helps an operator to fix a refused access.

    The message names the file's owner and mode, and the user of this process. If the file cannot be reached, the
    message is about the nearest reachable directory above the file.
    """
    place = path
    while not os.access(place, os.F_OK, effective_ids=True) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    facts = os.stat(place)
    return (
        f"{place} belongs to user {user_name(facts.st_uid)} and group {group_name(facts.st_gid)} with mode "
        f"{facts.st_mode & 0o7777:o}, and this process runs as user {user_name(os.geteuid())}. Run it as the user that "
        "HostFactory runs the scripts as, or see hf_scripts/check_install.sh, which says how two users share the "
        "directory."
    )

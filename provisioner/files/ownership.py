"""Whose files are, and who we are, in words that ``chown`` and ``chmod`` understand."""

from __future__ import annotations

import grp
import os
import pwd


def user_name(uid: int) -> str:
    """A user's name; the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """A group's name; the number of one without a name."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def why_denied(path: str) -> str:
    """What a person needs to know to fix a refused access: whose the file, or what leads to it, is; who we are."""
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

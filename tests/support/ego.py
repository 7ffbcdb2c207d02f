"""Stand-ins for EGO's programs: they record their calls in ``$EGO/calls``, and behave as files beside it say."""

from __future__ import annotations

from pathlib import Path

EGO = """#!/bin/sh
echo "$(basename "$0") $*" >>"$EGO/calls"
case "$(basename "$0") $*" in
"egoconfig join"*)
    [ ! -e "$EGO/refuses-join" ] || { rm "$EGO/refuses-join"; exit 1; }
    [ ! -e "$EGO/never-joins" ] || exit 1
    [ ! -e "$EGO/hangs" ] || exec sleep 1000 ;;
"egosh ego start"*) [ -e "$EGO/slow" ] || touch "$EGO/up" ;;
"egosh resource list"*) [ ! -e "$EGO/up" ] || echo "$4 ok" ;;
"egosh resource close"*) [ ! -e "$EGO/refuses-leave" ] || exit 1 ;;
"egosh ego shutdown"*)
    [ ! -e "$EGO/refuses-leave" ] || { trap '' TERM; while :; do sleep 1; done; }
    rm -f "$EGO/up" ;;
esac
"""


def put_programs(directory: Path) -> None:
    """The programs, in a new directory."""
    directory.mkdir()
    for program in ("egosh", "egoconfig"):
        (directory / program).write_text(EGO)
        (directory / program).chmod(0o755)

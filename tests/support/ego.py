"""Stand-ins for EGO's programs: they record their calls in ``$EGO/calls``, and behave as files beside it say."""

from __future__ import annotations

from pathlib import Path

EGO = """#!/bin/sh
hang() {
    trap '' TERM
    while :; do sleep 1; done
}
echo "$(basename "$0") $*" >>"$EGO/calls"
case "$(basename "$0") $*" in
"egoconfig join"*)
    id -un >"$EGO/joined-by"
    [ ! -e "$EGO/refuses-join" ] || { rm "$EGO/refuses-join"; exit 1; }
    [ ! -e "$EGO/never-joins" ] || exit 1
    [ ! -e "$EGO/hangs" ] || exec sleep 1000 ;;
"egosh ego start"*)
    [ ! -e "$EGO/leaves-daemon" ] ||
        sh -c 'while [ -d "/proc/$1" ]; do sleep 0.05; done; touch "$EGO/daemon-ended"' daemon $$ &
    [ -e "$EGO/slow" ] || touch "$EGO/up" ;;
"egosh resource list -l")
    state=unavail
    [ ! -e "$EGO/up" ] || state=ok
    printf '%-24s %-8s mem swp\\n' NAME status master1 ok "$(cat "$EGO/name")" "$state" ;;
"egosh resource close"*) [ ! -e "$EGO/never-leaves" ] || hang ;;
"egosh ego shutdown"*) [ ! -e "$EGO/never-leaves" ] || hang; rm -f "$EGO/up" ;;
esac
"""


def put_programs(directory: Path) -> None:
    """The programs, in a new directory."""
    directory.mkdir()
    for program in ("egosh", "egoconfig"):
        (directory / program).write_text(EGO)
        (directory / program).chmod(0o755)

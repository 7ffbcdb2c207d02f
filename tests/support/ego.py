"""Stand-ins for EGO's programs. They record their calls in the file ``$EGO/calls``. Other files in ``$EGO`` set their
behaviour.

Only a cluster administrator who is logged on may close a host (IBM's reference of ``egosh resource``). The messages
about a logon, a logoff or a silent master are EGO's. The messages about a refusal are ours.
"""

from __future__ import annotations

from pathlib import Path

EGO = """#!/bin/sh
printf '%s\\n' "${LD_LIBRARY_PATH-}" >>"$EGO/library-paths"
unset LD_LIBRARY_PATH # those of the tests break the programs below
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
"egoconfig addresourceattr"*)
    [ ! -e "$EGO/refuses-attributes" ] || { rm "$EGO/refuses-attributes"; echo 'Cannot write ego.conf' >&2; exit 1; }
    [ ! -e "$EGO/unknown-attributes" ] || { echo 'Unknown resource' >&2; exit 1; } ;;
"egosh ego start"*)
    [ ! -e "$EGO/refuses-start" ] || { rm "$EGO/refuses-start"; echo 'No memory yet' >&2; exit 1; }
    [ ! -e "$EGO/wants-root" ] || { echo 'Only root may do this' >&2; exit 1; }
    [ ! -e "$EGO/start-waits" ] || echo $$ >"$EGO/asks"
    while [ -e "$EGO/start-waits" ]; do sleep 0.1; done
    while [ -e "$EGO/keeps-output" ]; do sleep 0.2; done &
    [ ! -e "$EGO/leaves-daemon" ] ||
        sh -c 'while [ -d "/proc/$1" ]; do sleep 0.05; done; touch "$EGO/daemon-ended"' daemon $$ &
    [ -e "$EGO/slow" ] || touch "$EGO/up" ;;
"egosh user logon -u "*)
    [ ! -e "$EGO/logon-hangs" ] || hang
    [ ! -e "$EGO/quotes-password" ] || { printf 'Invalid option: %s\n' "$6" >&2; exit 1; }
    [ "$4 $6" = "$(cat "$EGO/account" 2>/dev/null)" ] || { echo 'User name or password is not valid' >&2; exit 1; }
    id -un >"$EGO/session"
    echo 'Logged on successfully' ;;
"egosh user logoff")
    [ ! -e "$EGO/logoff-hangs" ] || hang
    rm "$EGO/session" && echo 'Logged off successfully' ;;
"egosh resource list -l")
    [ ! -e "$EGO/list-hangs" ] || { echo $$ >"$EGO/asks"; hang; }
    code=$(cat "$EGO/no-master" 2>/dev/null) && { echo 'Cannot contact the master host.'; exit "$code"; }
    name=$(cat "$EGO/name") state=unavail
    [ ! -e "$EGO/up" ] || state=ok
    [ ! -e "$EGO/closed" ] || state=closed
    printf '%-24s %-8s mem swp\\n' NAME status master1 ok "$name" "$state" ;;
"egosh resource close"*)
    [ ! -e "$EGO/never-leaves" ] && [ ! -e "$EGO/close-hangs" ] || hang
    [ "$(id -un)" = "$(cat "$EGO/session" 2>/dev/null)" ] ||
        { echo 'You must first log on as cluster administrator' >&2; exit 1; }
    echo "$3" >"$EGO/closed" ;;
"egosh ego shutdown"*)
    echo 'Shut down LIM'
    [ ! -e "$EGO/never-leaves" ] || hang
    rm -f "$EGO/up" ;;
esac
"""


def put_programs(directory: Path) -> None:
    """Write the programs into a new directory."""
    directory.mkdir()
    for program in ("egosh", "egoconfig"):
        (directory / program).write_text(EGO)
        (directory / program).chmod(0o755)

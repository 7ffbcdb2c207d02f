#!/usr/bin/env bash
# Entry point of a worker's container: joins EGO, is ready while it is in it, leaves at SIGTERM.
set -u
# Nobody has joined yet; without a trap PID 1 does not hear of its end.
trap 'exit 0' TERM INT
# A pod's host name is its own; its metadata server may tell that of the node.
: "${HF_MACHINE_NAME:=${HOSTNAME%%.*}}"
here=$(unset LD_LIBRARY_PATH && cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=deploy/machine/lib.sh
. "$here/lib.sh"

name=$(machine_name)
rm -f "$HF_READY_FILE"

# shellcheck disable=SC2317,SC2329 # it is called by the trap
on_term() {
    trap '' TERM INT
    say "told to end"
    leave "$name"
    exit 0
}
trap on_term TERM INT

know_own_name "$name" "${HF_MACHINE_ADDRESS:-$(hostname -I 2>/dev/null | cut -d' ' -f1)}"
join "$name" || exit 1

# Three such answers, and no good one between them: the daemons may start again.
missed=0
while [ "$missed" -lt 3 ]; do
    pause "$HF_WATCH_SECONDS"
    before=$found
    if joined "$name"; then
        [ "$before" = ok ] || say "EGO has $name again"
        missed=0
    elif gone; then
        missed=$((missed + 1))
    fi
done
say "EGO no longer has $name"
rm -f "$HF_READY_FILE"
exit 1

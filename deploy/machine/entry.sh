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

# Ends when EGO did not take the machine, or no longer has it.
# shellcheck disable=SC2317,SC2329 # attended calls it
be_in_ego() {
    local missed=0 before
    know_own_name "$name" "${HF_MACHINE_ADDRESS:-$(hostname -I 2>/dev/null | cut -d' ' -f1)}"
    join "$name" || return
    # Three such answers, and no good one between them: the daemons may start again.
    while [ "$missed" -lt 3 ]; do
        sleep "$HF_WATCH_SECONDS"
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
}

attended be_in_ego
[ -n "$must_end" ] || exit 1
say "told to end"
leave "$name"
exit 0

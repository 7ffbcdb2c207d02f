#!/usr/bin/env bash
# Entry point of a worker's container: joins EGO, is ready while it is in it, leaves at SIGTERM.
set -u
given=${1:-}
set -- # the profile sees no argument
# A pod's host name is its own; its metadata server may tell that of the node.
: "${HF_MACHINE_NAME:=${HOSTNAME%%.*}}"
here=${BASH_SOURCE[0]}
[[ $here = */* ]] || here=./$here
here=${here%/*}

# PID 1 does not get a signal without a trap, and a shell with a trap may lose it in $(...): this one only waits for another,
# which reads EGO's profile and joins.
if [ "$given" != joins ]; then
    trap 'exit 0' TERM INT
    hf_later=yes
    # shellcheck source=deploy/machine/lib.sh
    . "$here/lib.sh"
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} attended exec bash "$here/entry.sh" joins
    hf_later=
    [ -n "$must_end" ] || exit 1
    say "told to end"
    [ -e "$HF_READY_FILE.joins" ] || exit 0
    # shellcheck source=deploy/machine/lib.sh
    . "$here/lib.sh"
    leave "$(machine_name)"
    exit 0
fi

# shellcheck source=deploy/machine/lib.sh
. "$here/lib.sh"
name=$(machine_name)
rm -f "$HF_READY_FILE" "$HF_READY_FILE.joins"

# Ends when EGO did not take the machine, or no longer has it.
know_own_name "$name" "${HF_MACHINE_ADDRESS:-$(hostname -I 2>/dev/null | cut -d' ' -f1)}"
join "$name" || exit
missed=0
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

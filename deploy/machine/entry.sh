#!/usr/bin/env bash
# Entry point of a worker's container: joins EGO, is ready while EGO has it, leaves at SIGTERM.
set -u
given=${1:-}
set -- # the profile sees no argument
# The pod's host name is used, because its metadata server may answer with the node's name.
: "${HF_MACHINE_NAME:=${HOSTNAME%%.*}}"
here=${BASH_SOURCE[0]}
[[ $here = */* ]] || here=./$here
here=${here%/*}

# PID 1 gets no signal without a trap, and a shell with a trap may lose a signal in $(...). So this shell only waits for
# another, which reads EGO's profile and joins.
if [ "$given" != joins ]; then
    trap 'exit 0' TERM INT
    hf_later=yes
    # shellcheck source=deploy/machine/lib.sh
    . "$here/lib.sh"
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} attended exec bash "$here/entry.sh" joins
    hf_later=
    [ -n "$must_end" ] || exit 1
    say "received a signal to end"
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

# The entry point ends if EGO did not accept the machine, or no longer has it.
know_own_name "$name" "${HF_MACHINE_ADDRESS:-$(hostname -I 2>/dev/null | cut -d' ' -f1)}"
join "$name" || exit
missed=0
# Three such answers without a good one between them are needed, because the daemons may start again.
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

#!/usr/bin/env bash
# Entry point of a pilot's container: an execute node of HTCondor, ready while the central manager lists it. At SIGTERM it
# takes no new jobs and waits for those that run, for at most HF_LEAVE_SECONDS. The settings are read by pilot.conf, too.
set -u
: "${HF_CONDOR_HOST:=}"                           # central manager; no default
: "${HF_TOKEN_FILE:=/run/secrets/htcondor/token}" # token with the right ADVERTISE_STARTD; empty: the image has its own login
: "${HF_MACHINE_NAME:=${HOSTNAME%%.*}}"           # the name reported to HostFactory: the pod's host name
: "${HF_READY_FILE:=/run/hf/ready}"               # exists while the machine is in the pool
: "${HF_JOIN_SECONDS:=200}"                       # together with the boot, below the pool's early_loss_seconds (300)
: "${HF_LEAVE_SECONDS:=12}"                       # two more are needed: a Spot node gives its pods 15 s
: "${HF_POLL_SECONDS:=5}"
: "${HF_TOKEN_DIRECTORY:=$HOME/tokens.d}"
export HF_CONDOR_HOST HF_MACHINE_NAME HF_LEAVE_SECONDS HF_TOKEN_DIRECTORY

say() {
    printf '%s hf-machine: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" >&2
}

# listed: true if the central manager has a slot of this machine.
listed() {
    timeout 20 condor_status -startd -constraint "HFMachine == \"$HF_MACHINE_NAME\"" -autoformat Name 2>/dev/null | grep -q .
}

# join PID: make the ready file as soon as the machine is listed; end the master if this takes too long.
join() {
    local ends=$((SECONDS + HF_JOIN_SECONDS))
    until listed; do
        if [ "$SECONDS" -ge "$ends" ]; then
            say "$HF_CONDOR_HOST does not list $HF_MACHINE_NAME after $HF_JOIN_SECONDS s: see MasterLog and StartLog"
            kill -TERM "$1"
            return
        fi
        sleep "$HF_POLL_SECONDS"
    done
    : >"$HF_READY_FILE"
    say "joined $HF_CONDOR_HOST as $HF_MACHINE_NAME"
}

[ -n "$HF_CONDOR_HOST" ] || { say "HF_CONDOR_HOST is not set"; exit 1; }
rm -f "$HF_READY_FILE"
# HTCondor reads only tokens that belong to its user and that no other user can read, which a Secret's files do not fulfil.
if [ -n "$HF_TOKEN_FILE" ]; then
    mkdir -p "$HF_TOKEN_DIRECTORY" && install -m 600 "$HF_TOKEN_FILE" "$HF_TOKEN_DIRECTORY/pool" || exit 1
fi

# From here on this shell only waits, because a shell with a trap may lose a signal while it expands $(...).
leaves="" master=""
trap 'leaves=yes; rm -f "$HF_READY_FILE"; [ -z "$master" ] || kill -TERM "$master"' TERM INT
condor_master -f &
master=$!
[ -z "$leaves" ] || kill -TERM "$master"
join "$master" &
joins=$!
code=0
while kill -0 "$master" 2>/dev/null; do
    wait "$master"
    code=$?
done
kill "$joins" 2>/dev/null
[ -z "$leaves" ] || exit 0
# A pilot without jobs ends by itself (STARTD_NOCLAIM_SHUTDOWN). One that has never joined fails.
rm "$HF_READY_FILE" 2>/dev/null || exit 1
exit "$code"

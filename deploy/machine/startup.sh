#!/usr/bin/env bash
# Start-up script of a managed instance group's instances. It joins EGO under the instance's name, and leaves when a
# preemption is announced; an instance that cannot join is powered off. The metadata attribute hf-machine-lib holds the
# library, attributes hf-… the settings.
# startup.sh LIBRARY reads the library from a file, and always ends after joining, as a step of another start-up script.
set -u
unset LD_LIBRARY_PATH # the library reads EGO's libraries from its profile
given=${1:-}
set -- # the profile sees no argument
host=${GCE_METADATA_HOST:-metadata.google.internal}

# metadata_value PATH: a value of this instance, tried ten times, because at a boot the server may be late.
# Exit code 1: there is no such value; 2: the server does not answer.
metadata_value() {
    local said code=0 tries=10
    until said=$(curl --silent --fail --noproxy '*' --max-time 5 --header 'Metadata-Flavor: Google' \
        --write-out '\n%{http_code}' "http://$host/computeMetadata/v1/instance/$1"); do
        code=$?
        [ "${said##*$'\n'}" != 404 ] || return 1
        tries=$((tries - 1))
        if [ "$tries" = 0 ]; then
            echo "hf-machine: the metadata server does not answer $1: curl ended with $code, HTTP status ${said##*$'\n'}" >&2
            return 2
        fi
        sleep "${HF_POLL_SECONDS:-2}"
    done
    printf '%s\n' "${said%$'\n'*}"
}

attribute() {
    metadata_value "attributes/$1"
}

# The provisioner cannot observe that EGO lacks a running instance. An instance that is off counts as lost, and is replaced.
give_up() {
    if [ "$(attribute hf-join-failed)" = stay ]; then
        echo "hf-machine: stays, as hf-join-failed says" >&2
    else
        echo "hf-machine: powers off (hf-join-failed=stay keeps an instance that cannot join)" >&2
        poweroff
    fi
    exit 1
}

# lacks NAME CODE: end without a required attribute; CODE is the exit code of metadata_value.
lacks() {
    [ "$2" != 1 ] || echo "hf-machine: the instance template lacks $1" >&2
    give_up
}

# optional CODE: accept a missing attribute, but not a server that does not answer.
optional() {
    [ "$1" = 1 ] || give_up
}

library=${HF_LIBRARY:-/run/hf/lib.sh}
mkdir -p "$(dirname "$library")"
if [ -n "$given" ]; then
    functions=$(cat -- "$given") && [ -n "$functions" ] || {
        echo "hf-machine: $given is no library to read: name a copy of lib.sh" >&2
        give_up
    }
else
    functions=$(attribute hf-machine-lib) || lacks hf-machine-lib $?
fi
HF_EGO_MASTER=$(attribute hf-ego-master) || lacks hf-ego-master $?
HF_EGO_MASTER_ADDRESS=$(attribute hf-ego-master-address) || optional $?
HF_EGO_ATTRIBUTES=$(attribute hf-ego-attributes) || optional $?
HF_MACHINE_DOMAIN=$(attribute hf-machine-domain) || optional $?
HF_EGO_USER=$(attribute hf-ego-user) || optional $?
HF_EGO_PASSWORD_FILE=$(attribute hf-ego-password-file) || optional $?
HF_MACHINE_NAME=$(metadata_value name) || give_up
seconds=$(attribute hf-join-seconds) || optional $?
[ -z "$seconds" ] || HF_JOIN_SECONDS=$seconds
password=$(attribute hf-ego-password-secret) || optional $?
[ -z "$password" ] || HF_EGO_PASSWORD_FILE=$(dirname "$library")/ego-password
# The settings are stored with the library, so that the shutdown script needs no metadata server.
{
    declare -p HF_EGO_MASTER HF_EGO_MASTER_ADDRESS HF_EGO_ATTRIBUTES HF_MACHINE_NAME HF_MACHINE_DOMAIN HF_EGO_USER HF_EGO_PASSWORD_FILE
    printf '%s\n' "$functions"
} >"$library"
# shellcheck source=deploy/machine/lib.sh
. "$library"
# The attribute names the secret; only root can read its value, in memory.
[ -z "$password" ] || (umask 077 && secret "$password" >"$HF_EGO_PASSWORD_FILE")

name=$(machine_name)
know_own_name "$name" "$(metadata instance/network-interfaces/0/ip)"
if ! join "$name"; then
    leave "$name" || true
    give_up
fi
# The units that boot after this script start now. A service of its own stays, which systemd signals at a shutdown.
if [ -d "$HF_SYSTEMD" ] && systemd-run --quiet --collect --unit hf-machine --description 'Leaves EGO with this machine' \
    --property "After=network.target network-online.target remote-fs.target" --property KillMode=process \
    --property "TimeoutStopSec=$((HF_LEAVE_SECONDS + 5))" \
    --property StandardOutput=journal+console --property StandardError=journal+console \
    bash -uc ". '$library'; stay '$name'"; then
    exit 0
fi
if [ -n "$given" ]; then
    say "systemd-run made no service that waits for a preemption: the shutdown script alone leaves EGO"
    exit 0
fi
stay "$name"

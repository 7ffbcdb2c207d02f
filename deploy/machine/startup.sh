#!/usr/bin/env bash
# Start-up script of a managed instance group's instances: joins EGO under the instance's name, and leaves when a
# preemption is announced. The library comes as the metadata attribute hf-machine-lib, settings as attributes hf-….
set -u
host=${GCE_METADATA_HOST:-metadata.google.internal}
attribute() {
    curl --silent --fail --noproxy '*' --max-time 5 --header 'Metadata-Flavor: Google' \
        "http://$host/computeMetadata/v1/instance/attributes/$1"
}

library=${HF_LIBRARY:-/run/hf/lib.sh}
mkdir -p "$(dirname "$library")"
attribute hf-machine-lib >"$library" || { echo "hf-machine: the instance template lacks hf-machine-lib" >&2; exit 1; }
HF_EGO_MASTER=$(attribute hf-ego-master) || { echo "hf-machine: the instance template lacks hf-ego-master" >&2; exit 1; }
HF_MACHINE_DOMAIN=$(attribute hf-machine-domain) || HF_MACHINE_DOMAIN=
# shellcheck source=deploy/machine/lib.sh
. "$library"

name=$(machine_name)
know_own_name "$name" "$(metadata instance/network-interfaces/0/ip)"
if ! join "$name"; then
    leave "$name" || true
    exit 1
fi
# It stays for as long as the instance lives: somebody has to hear of a preemption.
if preempted; then
    say "is preempted"
    leave "$name"
fi

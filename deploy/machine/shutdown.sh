#!/usr/bin/env bash
# Shutdown script of a managed instance group's instances: leaves EGO, unless hf-machine has done so at a preemption.
set -u
library=${HF_LIBRARY:-/run/hf/lib.sh}
[ -r "$library" ] || exit 0 # this instance never joined
# shellcheck source=deploy/machine/lib.sh
. "$library"
leave_once "$(machine_name)"
exit 0

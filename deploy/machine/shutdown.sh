#!/usr/bin/env bash
# Shutdown script of a managed instance group's instances: leaves EGO, if the announced preemption has not done so.
set -u
library=${HF_LIBRARY:-/run/hf/lib.sh}
[ -r "$library" ] || exit 0 # it never joined
# shellcheck source=deploy/machine/lib.sh
. "$library"
leave_once "$(machine_name)"
exit 0

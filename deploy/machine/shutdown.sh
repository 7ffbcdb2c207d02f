#!/usr/bin/env bash
# Shutdown script of a managed instance group's instances: leaves EGO, if the announced preemption has not done so.
set -u
library=${HF_LIBRARY:-/run/hf/lib.sh}
[ -r "$library" ] || exit 0 # it never joined
# shellcheck source=deploy/machine/lib.sh
. "$library"
if [ -e "$HF_READY_FILE" ]; then leave "$(machine_name)"; fi
# Where the start-up script has heard first: the instance ends with this script.
ends=$((SECONDS + HF_LEAVE_SECONDS + 2))
while leaving && [ "$SECONDS" -lt "$ends" ]; do pause "$HF_POLL_SECONDS"; done
exit 0

#!/bin/sh
# The loop as EGO starts it: what it says goes to a file of the host on which it runs, where that can be written.
log=/var/log/hostfactory/loop.out
# shellcheck disable=SC3045 # each sh that Linux has knows it; a core would hold tokens
ulimit -c 0
{ true >>"$log"; } 2>/dev/null && exec >>"$log" 2>&1
exec /opt/provisioner/bin/provisioner run

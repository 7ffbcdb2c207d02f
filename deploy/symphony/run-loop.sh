#!/bin/sh
# Starts the loop for EGO: its output goes to a file of this host, if that file can be written.
log=/var/log/hostfactory/loop.out
# shellcheck disable=SC3045 # every sh on Linux has it; a core dump would contain tokens
ulimit -c 0
{ true >>"$log"; } 2>/dev/null && exec >>"$log" 2>&1
exec /opt/provisioner/bin/provisioner run

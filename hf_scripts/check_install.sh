#!/bin/sh
# Checks an installation and says what to fix: check_install.sh [--loop-user USER]
# Run it as the user that HostFactory runs scripts as, with the environment that HostFactory gives them.
script=$(readlink -f -- "$0")
found=$("${script%/*}/python" check_install "$@")
code=$?
case $found in "fine: "* | "fix: "*) ;; *) found="fix: ${found:-Python did not start}" ;; esac
printf '%s\n' "$found"
exit "$code"

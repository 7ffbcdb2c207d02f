#!/bin/sh
# Checks an installation and says what to fix: check_install.sh [--loop-user USER]
# Run it as the user that HostFactory runs scripts as, with the environment that HostFactory gives them.
script=$(readlink -f -- "$0")
found=$("${script%/*}/python" check_install "$@")
code=$?
[ -n "$found" ] || found="fix: Python did not start: set HF_PYTHON to the Python that hostfactory-provisioner is installed for"
printf '%s\n' "$found"
exit "$code"

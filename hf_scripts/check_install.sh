#!/bin/sh
# Check an installation and report what to fix: check_install.sh [--loop-user USER]
# Run it as the user that HostFactory runs scripts as, with the environment that HostFactory gives them.
unset LD_LIBRARY_PATH
usage='usage: check_install.sh [--loop-user USER]'
case $#:${1:-} in
  0: | 2:--loop-user) ;;
  1:-h | 1:--help)
    printf '%s\n' "$usage" \
      "Checks an installation and reports what to fix. Run it as the user that HostFactory runs scripts as, with the" \
      "environment that HostFactory gives them. USER: the user of the loop, if its files do not show the user yet." \
      "Exit codes: 0 nothing to fix, 1 something to fix, 2 wrong usage."
    exit 0
    ;;
  *)
    printf '%s\n' "$usage" >&2
    exit 2
    ;;
esac
script=$(readlink -f -- "$0")
# Called by sh, so that `sh check_install.sh` reports even if no file may be executed.
found=$(sh "${script%/*}/python" check_install "$@")
code=$?
case $found in "fine: "* | "fix: "*) ;; *) found="fix: ${found:-Python did not start}" ;; esac
printf '%s\n' "$found"
exit "$code"

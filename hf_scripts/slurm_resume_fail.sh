#!/bin/sh
unset LD_LIBRARY_PATH
case $0 in /*) [ -L "$0" ] || exec "${0%/*}/python" slurm_resume_fail "$@" ;; esac
exec "$(dirname -- "$(readlink -f -- "$0")")/python" slurm_resume_fail "$@"

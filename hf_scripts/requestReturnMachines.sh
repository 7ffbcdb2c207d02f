#!/bin/sh
script=$(readlink -f -- "$0")
exec "${script%/*}/python" requestReturnMachines "$@"

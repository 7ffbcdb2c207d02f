#!/bin/sh
# Writes the locks in this directory, from setup.cfg and build.in: lock.sh UV [--upgrade]. Versions stay unless --upgrade is given.
set -eu
uv=$1
shift
cd "$(dirname -- "$0")/../.."
lock() { # name, then source and options
  name=$1
  shift
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --custom-compile-command 'make lock' --output-file "deploy/requirements/$name.lock" "$@"
}
lock loop setup.cfg --extra gke --extra mig --extra events "$@"
lock scripts setup.cfg --constraints deploy/requirements/loop.lock "$@"
lock build deploy/requirements/build.in "$@"

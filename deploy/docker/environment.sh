#!/bin/sh
# Makes the environment that runs the provisioner, and its SBOM: environment.sh TARGET SBOM
# Everything comes from the locks, by hash. TARGET may be moved; $PYTHON (python3) has to stay where it is.
# What pip reads from the environment (PIP_INDEX_URL, PIP_CERT, proxies) holds here, too.
set -eu
[ $# = 2 ] || { echo 'usage: environment.sh TARGET SBOM' >&2; exit 2; }
target=$(readlink -m -- "$1") sbom=$(readlink -m -- "$2")
source=$(cd -- "$(dirname -- "$0")/../.." && pwd)
locks=$source/deploy/requirements
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Neither in a clone nor beside one: Python would find that one's metadata, and pip nothing to install.
cd "$work"
unset PYTHONPATH PYTHONHOME

"${PYTHON:-python3}" -m venv build
build/bin/python -m pip install --quiet --require-hashes --requirement "$locks/build.lock"
"${PYTHON:-python3}" -m venv --without-pip "$target"
install() { build/bin/pip --python "$target/bin/python" install --quiet --no-compile "$@"; }

install --require-hashes --only-binary :all: --requirement "$locks/loop.lock"
mkdir source
(cd "$source" && cp -R pyproject.toml setup.cfg README.md LICENSE provisioner hf_scripts "$work/source")
build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheels ./source
install --no-deps --no-index --find-links wheels hostfactory-provisioner
ln -s "$(cd "$target" && echo lib/python*/site-packages/hf_scripts)" "$target/hf_scripts" # as install.sh does
# Compiled here, as nothing may be written where it runs; without times and in one order, so that each build is alike.
PYTHONHASHSEED=0 "$target/bin/python" -m compileall -q -f --invalidation-mode unchecked-hash "$target/lib"
build/bin/cyclonedx-py environment --output-reproducible --output-format JSON --output-file "$sbom" \
  "$target/bin/python" 2>sbom.log || { cat sbom.log >&2; exit 1; }

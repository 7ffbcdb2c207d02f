#!/bin/sh
# Makes the environment that runs the provisioner, and its SBOM: environment.sh TARGET SBOM
# All packages come from the locks, by hash. TARGET may be moved; $PYTHON (python3) has to stay in its place.
# pip's environment variables (PIP_INDEX_URL, PIP_CERT, proxies) are used.
set -eu
[ $# = 2 ] || { echo 'usage: environment.sh TARGET SBOM' >&2; exit 2; }
target=$(readlink -m -- "$1") sbom=$(readlink -m -- "$2")
source=$(cd -- "$(dirname -- "$0")/../.." && pwd)
locks=$source/deploy/requirements
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The work directory is outside of the clone: there Python would find the clone's metadata, and pip would install nothing.
cd "$work"
unset PYTHONPATH PYTHONHOME

"${PYTHON:-python3}" -m venv build
build/bin/python -m pip install --quiet --require-hashes --requirement "$locks/build.lock"
"${PYTHON:-python3}" -m venv --without-pip "$target"
install() { build/bin/pip --python "$target/bin/python" install --quiet --no-compile "$@"; }

install --require-hashes --only-binary :all: --requirement "$locks/loop.lock"
mkdir source
(cd "$source" && cp -R pyproject.toml setup.cfg README.md LICENSE provisioner hf_scripts "$work/source")
# The version names the commit, as in a bundle.
case ${REVISION:-} in
  ????????????*) sed -i "s/^__version__ = \"[^\"]*/&+g$(printf %.12s "$REVISION")/" source/provisioner/__init__.py ;;
esac
build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheels ./source
install --no-deps --no-index --find-links wheels hostfactory-provisioner
ln -s "$(cd "$target" && echo lib/python*/site-packages/hf_scripts)" "$target/hf_scripts" # as install.sh does
# Compiled here, because the environment is read-only where it runs; without times and in one order, so that builds are equal.
PYTHONHASHSEED=0 "$target/bin/python" -m compileall -q -f --invalidation-mode unchecked-hash "$target/lib"
build/bin/cyclonedx-py environment --output-reproducible --output-format JSON --output-file "$sbom" \
  "$target/bin/python" 2>sbom.log || { cat sbom.log >&2; exit 1; }

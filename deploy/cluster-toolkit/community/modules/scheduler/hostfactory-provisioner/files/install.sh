#!/bin/bash
# Copyright 2026 The HostFactory provisioner authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

# Installs the provisioner in the image of Symphony's master: install.sh URI SHA256 EGO_USER PYTHON_PACKAGE.
set -euo pipefail
uri=$1 sha256=$2 ego_user=$3 python=$4
installed=/opt/provisioner/current/bundle.sha256

say() { echo "hostfactory-install: $*"; }
fail() {
	say "$*" >&2
	exit 1
}

if [[ -r $installed && $(<"$installed") == "$sha256" ]]; then
	say "the bundle with sha256 $sha256 is installed already"
	exit 0
fi
id "$ego_user" >/dev/null 2>&1 || fail "there is no user $ego_user: this runner comes after those that install Symphony"
command -v "$python" >/dev/null || dnf --assumeyes install "$python"

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
archive=$directory/bundle.tar.gz
case $uri in
gs://*) gcloud storage cp --no-user-output-enabled "$uri" "$archive" ;;
https://*) curl --silent --show-error --fail --location --proto '=https' --retry 5 --output "$archive" "$uri" ;;
*) fail "$uri: expected an address that begins with gs:// or https://" ;;
esac
found=$(sha256sum "$archive")
[[ ${found%% *} == "$sha256" ]] ||
	fail "$uri has sha256 ${found%% *}, expected $sha256: put the right archive there, or its sum into bundle.sha256"

mkdir "$directory/bundle"
tar --extract --gzip --no-same-owner --strip-components=1 --directory "$directory/bundle" --file "$archive"
"$directory/bundle/install.sh" --hf-user "$ego_user" --python "$python"
echo "$sha256" >"$installed"

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

# Registers the provider instance at HostFactory and starts the loop, before EGO starts:
# configure.sh SETTINGS SYMPHONY_INSTALL_DIR INSTANCE EGO_USER run|dry-run. With dry-run it only shows the changes.
set -euo pipefail
settings=$1 install_dir=$2 instance=$3 ego_user=$4 mode=$5
provisioner=/opt/provisioner/bin/provisioner

say() { echo "hostfactory-configure: $*"; }
fail() {
	say "$*" >&2
	exit 1
}

# link PLACE TARGET: let a directory of HostFactory lead to a directory of the service.
link() {
	[[ ! -d $1 || -L $1 ]] || fail "$1 is a directory: move its content to $2 and remove it, then run this again"
	[[ $(readlink "$1") == "$2" ]] || ln -sfn "$2" "$1"
}

# would_change: show the difference; true if there is one.
would_change() {
	local code=0
	"$provisioner" render-hf "$settings" --out "$hf_top" --dry-run || code=$?
	[[ $code -le 1 ]] || exit "$code"
	[[ $code -eq 1 ]]
}

# EGO's profile stops a strict shell, and its library path breaks other programs. So it is read in a separate shell, and the
# `|| :` in the last line ignores even a `set -e` of the profile.
hf_top=$(
	set +euo pipefail
	# shellcheck source=/dev/null
	. "$install_dir/profile.platform" >/dev/null 2>&1
	echo "${HF_TOP:-}"
) || :
hf_top=${hf_top:-$install_dir/hostfactory}
[[ -d $hf_top/conf ]] || fail "$hf_top/conf is no directory: HostFactory's own configuration comes before this runner"
[[ -x $provisioner ]] || fail "$provisioner is missing: the image lacks the installation of packer_runners"
id "$ego_user" >/dev/null 2>&1 || fail "there is no user $ego_user"

if [[ $mode == dry-run ]]; then
	would_change || true
	say "dry run: no file was changed, and no loop was started"
	exit 0
fi

for directory in "$hf_top/conf/providers" "$hf_top/work" "$hf_top/work/providers"; do
	[[ -d $directory ]] || install -d -o "$ego_user" "$directory"
done
install -d -o "$ego_user" -g hostfactory -m 2750 /etc/hostfactory
link "$hf_top/conf/providers/$instance" /etc/hostfactory
link "$hf_top/work/providers/$instance" /var/lib/hostfactory

changed=
if would_change; then
	"$provisioner" render-hf "$settings" --out "$hf_top"
	changed=yes
fi

# Lines that the site has written there stay.
defaults=/etc/default/provisioner
[[ -e $defaults ]] || install -o root -g hostfactory -m 640 /dev/null "$defaults"
if ! grep -qx "HF_PROVIDER_NAME='$instance'" "$defaults"; then
	sed -i '/^HF_PROVIDER_NAME=/d' "$defaults"
	echo "HF_PROVIDER_NAME='$instance'" >>"$defaults"
	changed=yes
fi

# Symphony ships hostfactory.xml with MANUAL, with which HostFactory would not start with EGO.
service=$install_dir/eservice/esc/conf/services/hostfactory.xml
[[ ! -e $service ]] || sed -i 's/>MANUAL</>AUTOMATIC</' "$service"

if [[ -n $changed ]] && systemctl is-active --quiet provisioner; then systemctl restart provisioner; fi
systemctl enable --now provisioner provisioner-backup.timer

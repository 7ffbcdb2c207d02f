#!/bin/sh
# Installs the bundle in which it lies, without any network. Versions lie side by side in PREFIX/versions. The link
# PREFIX/current is switched in one step, so a kill leaves the old version or the new one, and a rerun goes on.
set -eu
umask 022
unset LD_LIBRARY_PATH PYTHONPATH PYTHONHOME # EGO's profile exports them, and root may have sourced it

usage='usage: install.sh [install | upgrade | rollback | uninstall | status] [OPTIONS]
  install     install and activate this bundle'"'"'s version; the previous version is kept (default)
  upgrade     the same with the options of the installed version, for example --scripts-only
  rollback    go back to the previous version; once more: forward again
  uninstall   remove all versions; state, logs, configuration and users stay
  status      show the installed versions
  --prefix DIR      directory of the installation (/opt/provisioner)
  --root DIR        put all files below DIR, as for a package: this host is not changed
  --hf-user USER    HostFactory'"'"'s user (as installed, else egoadmin); becomes a member of group hostfactory
  --python PYTHON   Python to use, 3.11 or newer (as installed, else the newest of the PATH with wheels in the bundle)
  --scripts-only    only the scripts, without loop and service; an existing service is stopped and removed
  --dry-run         print the changes without making them
Exit codes: 0 done, 1 not done (the last line says why), 2 wrong usage.'

say() { printf '%s\n' "$*"; }
report() { [ -n "$dry" ] || say "$@"; } # a change that was made
fail() {
  printf 'install.sh: %s\n' "$*" >&2
  exit 1
}
wrong() {
  printf 'install.sh: %s\n%s\n' "$*" "$usage" >&2
  exit 2
}

command=install prefix=/opt/provisioner root='' hf_user='' python='' locks='' dry=''
case ${1:-} in install | upgrade | rollback | uninstall | status) command=$1 && shift ;; esac
while [ $# -gt 0 ]; do
  case $1 in
    --prefix | --root | --hf-user | --python)
      [ -n "${2:-}" ] || wrong "$1: expects a value"
      case $1 in
        --prefix) prefix=${2%/} ;;
        --root) root=${2%/} ;;
        --hf-user) hf_user=$2 ;;
        --python) python=$2 ;;
      esac
      shift
      ;;
    --scripts-only) locks=scripts ;;
    --dry-run) dry=yes ;;
    -h | --help) say "$usage" && exit ;;
    *) wrong "$1: unknown argument" ;;
  esac
  shift
done
case $prefix in
  *[!-A-Za-z0-9_./+]*) wrong "--prefix: expected letters, digits and any of -_./+, got '$prefix'" ;;
  /?*) ;;
  *) wrong "--prefix: expected an absolute path other than /, got '$prefix'" ;;
esac
case $root in '' | /*) ;; *) wrong "--root: expected an absolute path, got '$root'" ;; esac
case $hf_user in *[!-A-Za-z0-9_.]*) wrong "--hf-user: expected a user's name, got '$hf_user'" ;; esac

bundle=$(cd -- "$(dirname -- "$0")" && pwd)
base=$root$prefix
versions=$base/versions

# --- permissions ------------------------------------------------------------------------------------------------------

me=$(id -u)
private=4294967295 # the group with the caller's name and no other member, as useradd makes it; else an impossible number
[ "$me" = 0 ] || [ "$(getent group "$(id -g)" | cut -d: -f1,4)" != "$(id -un 2>/dev/null):" ] || private=$(id -g)

loose() { # PATH [OPTION ...]: the first entry below it that users other than root and the caller own or may write
  find "$@" '(' ! -uid 0 ! -uid "$me" -o ! -type l '(' -perm /002 -o -perm /020 ! -gid "$private" ')' ')' -print -quit
}

refuse_others() { # DIRECTORY [OPTION ...]: fail if other users may change it, its content, or the path and links to it
  at=/ rest=$1 links=0
  shift
  while :; do
    while [ "${rest#/}" != "$rest" ]; do rest=${rest#/}; done
    next=${at%/}/${rest%%/*}
    found=''
    if [ -z "$rest" ]; then
      found=$(loose "$at" "$@")
    elif [ ! -e "$next" ] && [ ! -L "$next" ]; then
      found=$(loose "$at" -maxdepth 0)
      rest=''
    else # in a sticky directory of root's, such as /tmp, other users cannot replace its entries
      found=$(loose "$at" -maxdepth 0 ! '(' -uid 0 -perm -1000 ')')
      [ -n "$found" ] || [ ! -L "$next" ] || found=$(loose "$next" -maxdepth 0)
    fi
    [ -z "$found" ] || fail "$found: users other than root$([ "$me" = 0 ] || echo ' and you') may change it" \
      "($(stat -c 'owner %U, group %G, mode %a' -- "$found")), and so what this runs and removes: chown it, chmod go-w it," \
      "or take a directory that others cannot change"
    [ -n "$rest" ] || return 0
    case $rest in */*) rest=${rest#*/} ;; *) rest='' ;; esac
    if [ -L "$next" ]; then
      links=$((links + 1))
      [ $links -le 40 ] || fail "$at: leads through more than 40 links"
      next=$(readlink -- "$next")
      case $next in /*) at=/ ;; esac
      rest=$next/$rest
    elif [ "${next##*/}" = .. ]; then
      at=$(dirname -- "$at")
    else
      at=$next
    fi
  done
}

# --- installed versions -----------------------------------------------------------------------------------------------

whole() { # NAME: print it if that version is complete and no link
  [ -f "$versions/$1/installed" ] && [ ! -L "$versions/$1" ] && [ ! -L "$versions/$1/installed" ] && echo "$1"
}

target() { # LINK to versions/NAME: print NAME if that version is complete
  name=$(readlink -- "$base/$1" 2>/dev/null) && whole "${name##*/}"
}

others() { # print the complete versions except the active one
  for each in "$versions"/*; do
    [ "${each##*/}" = "$current" ] || whole "${each##*/}" || :
  done
}

before() { # print the version for a rollback: the linked one, or the only other one after a kill between two links
  name=$(target previous) && [ "$name" != "$current" ] && echo "$name" && return
  [ "$(others | wc -l)" != 1 ] || others
}

fact() { sed -n "s/^$2: //p" "$versions/$1/installed"; } # VERSION NAME: a value recorded at its installation

settle() { # VERSION, or empty: take missing options from its installation
  if [ -n "$1" ]; then
    : "${locks:=$(fact "$1" for)}" "${hf_user:=$(fact "$1" hf-user)}"
    had=$(fact "$1" python)
    ! starts "$had" || : "${python:=$had}" # else that Python is gone from this host
  fi
  : "${locks:=loop}" "${hf_user:=egoadmin}"
}

status() {
  [ -n "$current" ] || { say "$base: no version is installed" && return; }
  say "$base: version $current runs ($(fact "$current" for), Python $(fact "$current" python))"
  say "$base: rollback goes to ${previous:-no version: no other is installed}"
}

# --- changes ----------------------------------------------------------------------------------------------------------

run() { if [ -n "$dry" ]; then say "would run: $*"; else "$@"; fi; }

switch() { # LINK TARGET: replace the link in one step
  [ -z "$dry" ] || { say "would link: $base/$1 to $2" && return; }
  ln -sfn -- "$2" "$base/$1.new"
  mv -fT -- "$base/$1.new" "$base/$1"
}

remove() { # VERSION: remove its mark first, so that a half removed version is not complete
  run rm -f -- "$1/installed"
  run rm -rf -- "$1"
}

lock() {
  [ -n "$dry" ] || mkdir -p -- "$versions" 2>/dev/null || fail "$versions: cannot be made: run as root, or name a place of yours with --prefix"
  [ -z "$dry" ] || return 0
  [ -w "$base" ] || fail "$base: may not be written by $(id -un): run as root, or name a place of yours with --prefix"
  for each in "$versions" "$base/bin" "$base/.lock"; do
    [ ! -L "$each" ] || fail "$each: is a link, which install.sh never makes: remove it, then run this again"
  done
  exec 9>>"$base/.lock"
  flock -n 9 || fail "$base: another install.sh is at work: wait for it"
  rm -rf -- "$versions"/.new-* "$base"/*.new "$base"/bin/*.new # rest of an install.sh that was killed
  for each in "$versions"/*; do # a link goes as a link
    [ -n "$(whole "${each##*/}")" ] || rm -rf -- "$each"
  done
}

find_user() {
  ! host || id "$hf_user" >/dev/null 2>&1 || fail "there is no user $hf_user here: name HostFactory's with --hf-user"
}

starts() { command -v "$1" >/dev/null && "$1" -c '' >/dev/null 2>&1; } # PYTHON

find_python() {
  needed=$(cat "$bundle/PYTHONS")
  advice="Python 3.11 or newer is needed (RHEL 8 and 9: dnf install python3.11); name it with --python"
  if [ -z "$python" ]; then
    for each in $needed; do # newest last
      ! starts "python$each" || python=$(command -v "python$each")
    done
    [ -n "$python" ] || python=$(command -v python3) || fail "no Python was found: $advice"
  fi
  command -v "$python" >/dev/null || fail "$python: no such program: $advice"
  python=$(command -v "$python")
  found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.version_info >= (3, 11))') ||
    fail "$python: does not start: $advice"
  [ "${found#* }" = True ] || fail "$python: is Python ${found% *}: $advice"
  found=${found% *}
  [ $locks = scripts ] || case " $needed " in
    *" $found "*) ;;
    *) fail "$python: is Python $found, and the bundle has wheels for $needed: name one of these with --python" ;;
  esac
  [ $locks = scripts ] || [ "$(uname -m)" = "$(cat "$bundle/MACHINE")" ] ||
    fail "the bundle is for $(cat "$bundle/MACHINE"), this is $(uname -m): make one there with make dist"
}

pip() { # run pip from its wheel, because environment and host may lack it
  env -u PYTHONPATH -u PYTHONHOME HOME="$new" PIP_CONFIG_FILE=/dev/null "$new/bin/python" "$pip_wheel/pip" --isolated install \
    --quiet --disable-pip-version-check --no-cache-dir --no-compile --no-warn-script-location \
    --root-user-action ignore --no-index --find-links "$bundle/wheelhouse" "$@"
}

record() { # print the options of an installation
  printf '%s: %s\n' for "$locks" hf-user "$hf_user" python "$python" bundle "$digest"
}

build() { # NAME: make versions/NAME, completely or not at all
  new=$versions/.new-$1
  say "Installing version $1 in $prefix for Python $found ..."
  [ -z "$dry" ] || { say "would build: $versions/$1" && return; }
  for pip_wheel in "$bundle"/wheelhouse/pip-*.whl; do :; done
  "$python" -m venv --without-pip "$new" || fail "$python: makes no virtual environment: its module venv is missing"
  pip --require-hashes --requirement "$bundle/requirements/$locks.lock"
  pip --no-deps "hostfactory-provisioner==$version"
  # The environment must be movable, so pip's programs, which name its first place, are removed.
  find "$new/bin" ! -type d ! -name 'python*' -exec rm -f -- {} +
  sed -i '/^command = /d' "$new/pyvenv.cfg"
  cp -- "$bundle/provisioner" "$new/bin/provisioner"
  library=$(cd -- "$new" && echo lib/python*/site-packages)
  ln -s -- "$library/hf_scripts" "$new/hf_scripts"
  cp -R -- "$bundle/share" "$bundle/vm" "$bundle/install.sh" "$new" # so that a rollback needs no bundle
  "$new/bin/python" -m compileall -q -f -j 0 -s "$new" -p "$prefix/versions/$1" "$new/lib"
  chmod -R u=rwX,go=rX -- "$new" # independent of the umask that unpacked the bundle
  record >"$new/installed"
  sync -f "$new" 2>/dev/null || sync
  mv -T -- "$new" "$versions/$1"
}

choose() { # set `name` to this version's directory: one with the same content, else a free one
  name=$version number=1
  while [ -e "$versions/$name" ]; do
    [ "$(cat "$versions/$name/installed")" != "$(record)" ] || break
    number=$((number + 1)) && name=$version-$number
  done
}

text() { # FILE: print a system file, adapted to prefix and user
  sed "s|/opt/provisioner|$prefix|g; s|egoadmin|$hf_user|g" "$1"
}

put() { # FILE PLACE: write a file that install.sh owns
  say "  $root$2"
  [ -z "$dry" ] || return 0
  mkdir -p -- "$(dirname -- "$root$2")"
  rm -rf -- "$root$2.new" # so that it does not write through a link
  text "$1" >"$root$2.new"
  mv -fT -- "$root$2.new" "$root$2"
}

put_once() { # FILE PLACE: write a file that the site owns from then on
  if [ ! -e "$root$2" ]; then
    put "$1" "$2"
  else
    text "$1" | cmp -s - "$root$2" || say "  $root$2: left as it is, yours"
  fi
}

units=/usr/lib/systemd/system
ours='provisioner-backup.timer provisioner-backup.service provisioner.service'
tmpfiles=/usr/lib/tmpfiles.d/provisioner.conf
sysusers=/usr/lib/sysusers.d/provisioner.conf
logrotate=/etc/logrotate.d/provisioner

host() { # true if this host itself may be changed: by root, without --root
  [ -z "$root" ] && [ "$(id -u)" = 0 ]
}

systemd() { # true if it runs here and may be changed
  host && [ -d /run/systemd/system ]
}

drop_service() { # BUNDLE or VERSION: remove its service; files that the site changed stay
  for each in $ours; do
    [ -e "$root$units/$each" ] || continue
    ! systemd || run systemctl disable --now "$each" || fail "$each does not stop: stop it, then run this again"
    run rm -f -- "$root$units/$each"
  done
  for each in "$tmpfiles" "$sysusers"; do
    [ ! -e "$root$each" ] || run rm -f -- "$root$each"
  done
  ! text "$1/vm/logrotate.conf" | cmp -s - "$root$logrotate" || run rm -f -- "$root$logrotate"
  ! systemd || run systemctl daemon-reload
}

system_files() { # BUNDLE or VERSION: write its system files
  if [ -z "$root" ] && ! host; then
    say "Not root: no service, users and directories were made ($1/vm has their files)"
    return
  fi
  if [ $locks = loop ]; then
    say 'Files of the system:'
    put "$1/vm/sysusers.conf" "$sysusers"
    put "$1/vm/tmpfiles.conf" "$tmpfiles"
    for each in $ours; do put "$1/vm/$each" "$units/$each"; done
    put_once "$1/vm/logrotate.conf" "$logrotate"
  else
    [ ! -e "$root$units/provisioner.service" ] || say 'The service is stopped and removed'
    drop_service "$1"
  fi
  host && [ $locks = loop ] || return 0
  run systemd-sysusers "$sysusers"
  run systemd-tmpfiles --create "$tmpfiles"
  ! systemd || run systemctl daemon-reload
}

join_group() { # not by sysusers.d, which would make a user while the directory service is away
  host && [ $locks = loop ] || return 0
  id -Gn "$hf_user" | tr ' ' '\n' | grep -qx hostfactory || run gpasswd --add "$hf_user" hostfactory
}

next_step() {
  [ $locks = loop ] && [ -z "$root" ] || return 0 # a package's files go to another host
  systemd || { report "No service was made here: end the loop that runs, and start $prefix/bin/provisioner run (docs/deploy-host.md)" && return; }
  report "Restart the loop: systemctl restart provisioner (the first time: systemctl enable --now provisioner provisioner-backup.timer)"
}

unlisted() { # print files that SHA256SUMS does not name: names that occur only once
  { find . -type f ! -path ./SHA256SUMS -printf '%P\0' && cut -c67- SHA256SUMS SHA256SUMS | tr '\n' '\0'; } | sort -z | uniq -zu
}

install() {
  [ -e "$bundle/SHA256SUMS" ] || fail "$bundle: is no bundle: unpack one, and run its install.sh"
  refuse_others "$bundle"
  strange=$(cd -- "$bundle" && { find . ! -type d ! -type f -print -quit && unlisted; } | tr '\0' '\n' | head -n 1)
  [ -z "$strange" ] || fail "$bundle: $strange is not what was packed: unpack the bundle again, into a directory of its own"
  (cd -- "$bundle" && sha256sum --check --quiet --strict SHA256SUMS >&2) ||
    fail "$bundle: is not what was packed (see above): unpack the bundle again"
  version=$(cat "$bundle/VERSION")
  digest=$(sha256sum <"$bundle/SHA256SUMS" | cut -c1-64)
  find_user
  find_python
  lock
  choose
  if [ -e "$versions/$name" ]; then say "Version $name is built already"; else build "$name"; fi
  [ -n "$dry" ] || ! host || runuser -u "$hf_user" -- "$versions/$name/bin/python" -I -c 'import hf_scripts.commands' 2>/dev/null ||
    fail "$hf_user cannot run $versions/$name/bin/python: let that user read $prefix and $python, and pass all above them"
  if [ "$name" != "$current" ]; then
    [ -z "$current" ] || switch previous "versions/$current"
    switch current "versions/$name"
  fi
  [ -n "$dry" ] || mkdir -p -- "$base/bin"
  switch bin/provisioner ../current/bin/provisioner
  switch hf_scripts current/hf_scripts
  switch share current/share
  kept=$previous
  [ "$name" = "$current" ] || kept=$current
  for old in $(current=$name others); do
    [ "$old" = "$kept" ] || remove "$versions/$old"
  done
  system_files "$bundle"
  join_group
  report "Version $name runs from now on: scriptPath of HostFactory's plug-in is $prefix/hf_scripts/"
  next_step
}

rollback() {
  [ -n "$current" ] || fail "$base: no version is installed"
  [ -n "$previous" ] || fail "$base: there is no version before $current"
  settle "$previous"
  lock
  system_files "$versions/$previous"
  switch current "versions/$previous"
  switch previous "versions/$current"
  report "Version $previous runs from now on, $current is kept"
  next_step
}

uninstall() {
  [ -e "$base" ] || { say "$base: no version is installed" && return; }
  settle "$current"
  lock
  if [ -n "$root" ] || host; then drop_service "$bundle"; fi
  # Links first, so that a caller finds all or none.
  run rm -rf -- "$base/hf_scripts" "$base/bin" "$base/share" "$base/current" "$base/previous" "$versions"
  run rm -f -- "$base/.lock"
  [ -n "$dry" ] || rmdir -- "$base" 2>/dev/null || say "$base: kept, as other files are in it"
  report "Uninstalled. State, logs, backups, configuration and users are as they were: /var/lib/hostfactory, /var/log/hostfactory, /var/backups/hostfactory, /etc/hostfactory"
}

[ "$command" = status ] || refuse_others "$base"
if [ "$command" != status ] && { [ -n "$root" ] || host; }; then
  for each in "$units" "${tmpfiles%/*}" "${sysusers%/*}" "${logrotate%/*}"; do refuse_others "$root$each" -maxdepth 0; done
fi
current=$(target current) || current=''
previous=$(before) || previous=''
case $command in
  install)
    : "${locks:=loop}"
    settle "$current"
    install
    ;;
  upgrade)
    [ -n "$current" ] || fail "$base: no version is installed to upgrade: run install.sh without a command"
    settle "$current"
    install
    ;;
  *) "$command" ;;
esac

# shellcheck shell=bash
# Functions by which a machine joins and leaves EGO, for the pod's entry point and the group's start-up script.
# HostFactory has the machine under the name of its pod or instance; EGO must have it under the same name.

: "${HF_EGO_MASTER:=}"              # host that the machine joins; no default
: "${HF_EGO_MASTER_ADDRESS:=}"      # its address, written into hosts files if DNS does not have the name
: "${HF_EGO_ATTRIBUTES:=}"          # resource attributes of this machine, such as [resourcemap gcp*cloudprovider]
: "${HF_MACHINE_NAME:=}"            # the name reported to HostFactory: a pod's host name, an instance's name
: "${HF_MACHINE_DOMAIN:=}"          # appended if HostFactory's host names have a domain
: "${HF_MACHINE_ADDRESS:=}"         # for a name that does not resolve; default: the host's first address
: "${HF_READY_FILE:=/run/hf/ready}" # exists while the machine is in EGO
: "${HF_HOSTS_FILE:=/etc/hosts}"
: "${HF_EGO_PROFILE:=/opt/ibm/spectrumcomputing/profile.platform}" # read if it exists: EGO's PATH and environment
: "${HF_EGO_ADMIN=egoadmin}"        # EGO's administrator, who joins if this is root and the user exists
: "${HF_EGO_USER:=}"                # EGO's account that closes this host as it leaves: a cluster administrator
: "${HF_EGO_PASSWORD_FILE:=}"       # file with its password, read when the host leaves
: "${HF_JOIN_SECONDS:=200}"         # together with the boot, below the pool's early_loss_seconds (300)
: "${HF_LEAVE_SECONDS:=12}"         # two more are needed: a Spot node gives its pods 15 s, a Spot VM has 30 s
: "${HF_POLL_SECONDS:=5}"
: "${HF_WATCH_SECONDS:=60}"         # between two checks that EGO still has a pod; each reads EGO's whole list
: "${GCE_METADATA_HOST:=metadata.google.internal}"
: "${HF_SYSTEMD:=/run/systemd/system}" # exists if systemd runs
: "${HF_SECRETS_SERVER:=https://secretmanager.googleapis.com}"

# The profile uses unset variables and programs that fail, so the shell's options are off while it is read. A shell that only
# waits for another shell does not read it (hf_later).
if [ -z "${hf_later:-}" ] && [ -r "$HF_EGO_PROFILE" ]; then
    hf_options=()
    for hf_option in errexit nounset pipefail; do
        if [[ -o $hf_option ]]; then hf_options+=(-o "$hf_option"); else hf_options+=(+o "$hf_option"); fi
        set +o "$hf_option"
    done
    # shellcheck source=/dev/null
    . "$HF_EGO_PROFILE" || : # the `||` also keeps a profile's own `set -e` from ending the script
    set "${hf_options[@]}"
fi
# EGO's libraries are for EGO's programs alone: they are older than the system's and can break curl, getent or runuser.
ego_libraries=()
[ -z "${LD_LIBRARY_PATH:-}" ] || ego_libraries=(env "LD_LIBRARY_PATH=$LD_LIBRARY_PATH")
if [ -n "${hf_later:-}" ]; then export -n LD_LIBRARY_PATH; else unset LD_LIBRARY_PATH; fi
ego_conf=${EGO_CONFDIR:-${EGO_TOP:+$EGO_TOP/kernel/conf}} # where EGO's ego.conf and hosts are; empty if unknown

# A start-up script's log is a pipe whose reader ends at a shutdown: then a line is lost, and the script goes on.
trap : PIPE

say() {
    printf '%s hf-machine: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" >&2
}

# now: the seconds since the boot, because a host that has just booted may set its clock.
now() {
    local uptime
    IFS=. read -r uptime _ </proc/uptime
    echo "$uptime"
}

# metadata PATH [SECONDS [OPTION ...]]: a value of the metadata server, never through a proxy; options are curl's.
metadata() {
    curl --silent --show-error --fail --noproxy '*' --max-time "${2:-5}" --header 'Metadata-Flavor: Google' "${@:3}" \
        "http://$GCE_METADATA_HOST/computeMetadata/v1/$1"
}

# read_secret NAME: the newest value of projects/PROJECT/secrets/NAME, as the instance's account. The token is not passed as an
# argument, because all users of a machine can read arguments.
read_secret() {
    local token value
    token=$(metadata instance/service-accounts/default/token) || return
    token=$(sed -nE 's/.*"access_token" *: *"([^"]+)".*/\1/p' <<<"$token")
    value=$(printf 'header = "Authorization: Bearer %s"\n' "$token" | curl --silent --show-error --fail --max-time 10 \
        --config - "$HF_SECRETS_SERVER/v1/$1/versions/latest:access") || return
    sed -nE 's/.*"data" *: *"([^"]+)".*/\1/p' <<<"$value" | base64 -d
}

# secret NAME: the same, tried for half a minute unless it is refused, because the network may not be up yet.
secret() {
    local ends=$(($(now) + 30)) why before=
    until { why=$(read_secret "$1" 2>&1 >&3); } 3>&1; do
        why=$(first_line "$why")
        [ "${why//[0-9]/}" = "$before" ] || say "$1 cannot be read: $why"
        if [[ $why =~ error:\ 4[0-9][0-9] && ! $why =~ error:\ 4(08|29) ]] || [ "$(now)" -ge "$ends" ]; then return 1; fi
        before=${why//[0-9]/} # without its times
        sleep "$HF_POLL_SECONDS"
    done
}

# machine_name: the name under which EGO has to have this machine.
machine_name() {
    printf '%s%s\n' "$HF_MACHINE_NAME" "${HF_MACHINE_DOMAIN:+.$HF_MACHINE_DOMAIN}"
}

# in_time SECONDS COMMAND...: run the command for at most SECONDS, and for at least one second.
in_time() {
    local seconds=$(($1 > 1 ? $1 : 1))
    shift
    timeout --kill-after=1 "$seconds" "$@"
}

# ego SECONDS PROGRAM...: run a program of EGO's with EGO's libraries, for at most SECONDS.
ego() {
    in_time "$1" "${ego_libraries[@]}" "${@:2}"
}

# end_all PID: end a process and all its children that the kernel lists. The process is stopped first, so that it starts no
# more children while they are read.
end_all() {
    local each children=()
    kill -STOP "$1"
    read -r -a children <"/proc/$1/task/$1/children"
    for each in "${children[@]}"; do end_all "$each"; done
    kill -KILL "$1"
} 2>/dev/null

# attended COMMAND...: run the command in a child. If a signal comes, end the child and set `must_end`. This shell only waits,
# because a shell with a trap may lose a signal while it expands $(...) or <(...) (bash 5.2: "trap: unexpected EOF").
# Two more cases are covered: a signal before the child has a number, and a signal before `wait`.
must_end=
attended() {
    local child='' code=0
    trap 'must_end=yes; [ -z "$child" ] || end_all "$child"' TERM INT
    { trap : PIPE; "$@"; } & # a child does not inherit the traps of its parent
    child=$!
    [ -z "$must_end" ] || end_all "$child"
    wait "$child" 2>/dev/null || code=$?
    trap '' TERM INT
    [ -z "$must_end" ] || wait "$child" 2>/dev/null
    return "$code"
}

resolves() {
    in_time 10 getent hosts "$1" >/dev/null
}

# address_in FILE NAME: the address of the first line of a hosts file with that name; empty without such a line.
address_in() {
    local address names
    while read -r address names || [ -n "$address" ]; do
        names=${names%%#*}
        [[ $address = \#* || " ${names//$'\t'/ } " != *" $2 "* ]] || { echo "$address"; return; }
    done 2>/dev/null <"$1"
}

# write_host FILE ADDRESS NAME: write a line for the name into a hosts file, unless the file has it; above a line with another
# address, because the first line counts. False if the file cannot be written.
write_host() {
    local line="$2 $3" before unended='' others
    [ "${3%%.*}" = "$3" ] || line="$line ${3%%.*}"
    before=$(address_in "$1" "$3")
    [ "$before" != "$2" ] || return 0
    if [ -n "$before" ]; then
        others=$(grep -vxF -- "$line" "$1")
        printf '%s\n%s\n' "$line" "$others" >"$1"
    else
        [ -z "$(tail -c 1 "$1" 2>/dev/null)" ] || unended=$'\n' # its last line
        (umask 022 && printf '%s%s\n' "$unended" "$line" >>"$1")
    fi 2>/dev/null
}

# know_own_name NAME ADDRESS: write this host's name into the hosts file unless it resolves, because EGO resolves its own host.
know_own_name() {
    resolves "$1" && return
    [ -n "$2" ] || { say "EGO will not find $1: it does not resolve, and this host has no address to write down"; return; }
    write_host "$HF_HOSTS_FILE" "$2" "$1" ||
        say "EGO will not find $1: it does not resolve, and $HF_HOSTS_FILE cannot be written: let DNS know it, or run as root"
}

# know_master: write HF_EGO_MASTER_ADDRESS, if it is set, into the hosts files of system and EGO.
know_master() {
    local file
    [ -n "$HF_EGO_MASTER_ADDRESS" ] || return 0
    for file in "$HF_HOSTS_FILE" ${ego_conf:+"$ego_conf/hosts"}; do
        write_host "$file" "$HF_EGO_MASTER_ADDRESS" "$HF_EGO_MASTER" ||
            say "$HF_EGO_MASTER is not $HF_EGO_MASTER_ADDRESS in $file, which cannot be written: use hostAliases, or run as root"
    done
}

# first_line TEXT: the first line of a program's output, for the log.
first_line() {
    local text=${1#"${1%%[![:space:]]*}"}
    text=${text%%$'\n'*}
    printf '%s\n' "${text:0:200}"
}

# listed NAME: `ok` if EGO has it as a host that takes work, else the reason. The long list does not cut names; its lines
# begin with name and status, below a line of titles.
listed() {
    local said code=0 status other short=${1%%.*}
    said=$(ego 10 egosh resource list -l 2>&1) || code=$?
    status=$(printf '%s\n' "$said" | sed -nE "s/^${1//./\\.}[[:space:]]+([^[:space:]]+).*/\1/p")
    status=$(first_line "$status")
    if [ "$status" = ok ]; then
        echo ok
    elif [ -n "$status" ]; then
        echo "EGO has $1, and says that it is $status"
    elif [ "$code" = 124 ] || [ "$code" = 137 ]; then
        echo "egosh resource list -l has not ended within 10 s"
    elif [[ $code = 0 && $(first_line "$said") = NAME* ]]; then
        other=$(printf '%s\n' "$said" | sed -nE "s/^($short(\.[^[:space:]]+)?)[[:space:]].*/\1/p")
        echo "EGO does not have $1${other:+, but $(first_line "$other"): HF_MACHINE_DOMAIN has to be what follows the first dot}"
    else
        echo "egosh resource list -l ended with $code and said: $(first_line "$said")"
    fi
}

# as_admin SECONDS PROGRAM...: run a program as EGO's administrator, whom EGO requires; a start-up script is root.
as_admin() {
    local change=()
    if [ "$(id -u)" = 0 ] && id -u "$HF_EGO_ADMIN" >/dev/null 2>&1; then change=(runuser -u "$HF_EGO_ADMIN" --); fi
    "${change[@]}" timeout --kill-after=1 "$1" "${ego_libraries[@]}" "${@:2}"
}

# joined NAME: true if EGO lists this machine as a host that takes work; otherwise log the reason when it changes.
found=
joined() {
    local before=$found
    found=$(listed "$1")
    [ "$found" = ok ] || [ "$found" = "$before" ] || say "$found"
    [ "$found" = ok ]
}

# gone: true if EGO's last answer lacked this machine or called it unavail. It is false if EGO did not answer, and for a host
# that an operator has closed, which works on.
gone() {
    [[ $found = "EGO does not have "* || $found = *" says that it is unavail" ]]
}

# at_most SECONDS ENDS: the seconds left until ENDS, at most SECONDS, and at least one.
at_most() {
    local left=$(($2 - $(now)))
    echo $((left < 1 ? 1 : left < $1 ? left : $1))
}

# into FILE COMMAND...: run the command with its output in FILE.
into() {
    "${@:2}" >"$1" 2>&1
}

# attempt TITLE COMMAND...: run a step of joining, and log why it failed when that changes. The output goes to a file, because
# daemons may keep it open, and the reader of a pipe would wait for their end.
refused=
attempt() {
    local file=$HF_READY_FILE.start code=0 before=$refused
    into "$file" "${@:2}" || code=$?
    refused="$1 ended with $code and said: $(first_line "$(cat "$file")")"
    [ "$1" != "egosh ego start" ] || refused+=$(not_root)
    [ "$code" = 0 ] || [ "$refused" = "$before" ] || say "$refused"
    rm -f "$file"
    return "$code"
}

# not_root: the reason why EGO may refuse to start or end its daemons: by default only root may. Empty if this is root.
not_root() {
    [ "$(id -u)" != 0 ] || return 0
    if grep -qsE '^NoNewPrivs:[[:space:]]*1$' /proc/self/status; then
        echo "; EGO may ask for root: this is user $(id -u), and no_new_privs (allowPrivilegeEscalation: false) disables egosetsudoers.sh"
    else
        echo "; EGO may ask for root: this is user $(id -u), who needs egosetsudoers.sh to have run in the image"
    fi
}

# add_attributes SECONDS: set them before EGO starts and reads them, unless an earlier boot has done so.
add_attributes() {
    [ -n "$HF_EGO_ATTRIBUTES" ] && [[ $(ego_setting EGO_LOCAL_RESOURCES) != *"$HF_EGO_ATTRIBUTES"* ]] || return 0
    attempt "egoconfig addresourceattr \"$HF_EGO_ATTRIBUTES\"" as_admin "$1" egoconfig addresourceattr "$HF_EGO_ATTRIBUTES"
}

# ego_setting NAME: its value in the image's ego.conf; empty if it has none. The last line counts.
ego_setting() {
    sed -nE "s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*\"?([^\"#]*)\"?.*/\1/p" "$ego_conf/ego.conf" 2>/dev/null | tail -n 1
}

# longest TIMES: the longest of some times in seconds, such as 60, 10,60 or 10m; false for another form.
longest() {
    local each most=0
    for each in ${1//,/ }; do
        [[ $each =~ ^([0-9]+)([sSmMhH]?)$ ]] || return 1
        each=$((10#${BASH_REMATCH[1]}))
        case ${BASH_REMATCH[2]} in [mM]) each=$((each * 60)) ;; [hH]) each=$((each * 3600)) ;; esac
        most=$((each > most ? each : most))
    done
    echo "$most"
}

# check_image: log each fault of the image that may keep this machine out of EGO, even if it joins in the end.
check_image() {
    local kernel wait seconds
    IFS= read -r kernel </proc/sys/kernel/osrelease
    [[ ${BINARY_TYPE:-} != fail && $PATH: != */fail[/:]* ]] ||
        say "BINARY_TYPE is fail: $HF_EGO_PROFILE has none for kernel $kernel, so EGO's programs are missing: correct the image"
    wait=$(ego_setting EGO_DYNAMIC_HOST_WAIT_TIME)
    [ -n "$wait" ] || return 0
    seconds=$(longest "$wait") || { say "EGO_DYNAMIC_HOST_WAIT_TIME is $wait in $ego_conf/ego.conf: unknown form"; return; }
    [ "$HF_JOIN_SECONDS" -ge $((seconds + 60)) ] ||
        say "EGO may wait $seconds s until it asks to join, and HF_JOIN_SECONDS is $HF_JOIN_SECONDS: set at least" \
            "$((seconds + 60)), or lower EGO_DYNAMIC_HOST_WAIT_TIME in $ego_conf/ego.conf"
}

# fit_to_join: false if a setting is wrong with which EGO would have this machine unnoticed or under another name.
fit_to_join() {
    local setting one='\[resource [A-Za-z_][A-Za-z0-9_]*\]|\[resourcemap [^][*]+\*[A-Za-z_][A-Za-z0-9_]*\]'
    [ -n "$HF_EGO_MASTER" ] || { say "HF_EGO_MASTER is not set: name EGO's management host"; return 1; }
    for setting in HF_JOIN_SECONDS HF_LEAVE_SECONDS; do
        [[ ${!setting} =~ ^[1-9][0-9]*$ ]] || { say "$setting is ${!setting}: expected a whole number of seconds"; return 1; }
    done
    [[ ${HF_EGO_MASTER_ADDRESS:-0} =~ ^[0-9a-fA-F.:]+$ ]] ||
        { say "HF_EGO_MASTER_ADDRESS is $HF_EGO_MASTER_ADDRESS: expected an IP address"; return 1; }
    [[ -z $HF_EGO_ATTRIBUTES || $HF_EGO_ATTRIBUTES =~ ^($one)( +($one))*$ ]] || {
        say "HF_EGO_ATTRIBUTES is $HF_EGO_ATTRIBUTES: expected [resource NAME] or [resourcemap VALUE*NAME], or several"
        return 1
    }
    mkdir -p "$(dirname "$HF_READY_FILE")" && : >"$HF_READY_FILE.start" && return
    say "$HF_READY_FILE cannot be made: let user $(id -u) write its directory, by a volume where the root file system is read-only"
    return 1
}

# join NAME: true once EGO has the machine; false if the time is over. A refused step is tried again.
join() {
    local ends step=0
    fit_to_join || return
    : >"$HF_READY_FILE.joins" # from now on EGO may have this machine
    ends=$(($(now) + HF_JOIN_SECONDS))
    check_image
    know_master
    [ -z "$HF_EGO_USER" ] || has_password || say "$1 will leave undrained: $(no_password)"
    while [ "$(now)" -lt "$ends" ]; do
        if [ "$step" = 0 ] && attempt "egoconfig join $HF_EGO_MASTER -f" \
            as_admin "$(at_most 30 "$ends")" egoconfig join "$HF_EGO_MASTER" -f; then step=1; fi
        if [ "$step" = 1 ] && add_attributes "$(at_most 30 "$ends")"; then step=2; fi
        if [ "$step" = 2 ] && attempt "egosh ego start" ego "$(at_most 30 "$ends")" egosh ego start; then step=3; fi
        if [ "$step" -ge 2 ] && joined "$1" && : >"$HF_READY_FILE"; then
            say "joined $HF_EGO_MASTER as $1"
            return 0
        fi
        sleep "$HF_POLL_SECONDS"
    done
    say "did not join $HF_EGO_MASTER as $1 within $HF_JOIN_SECONDS s$(not_root)"
    return 1
}

has_password() {
    [ -r "$HF_EGO_PASSWORD_FILE" ] && [ -s "$HF_EGO_PASSWORD_FILE" ]
}

no_password() {
    echo "HF_EGO_USER is $HF_EGO_USER, and HF_EGO_PASSWORD_FILE (${HF_EGO_PASSWORD_FILE:-not set}) has no password to read"
}

# log_on SECONDS: log HF_EGO_USER on. egosh takes a password only as an argument or from a terminal. If its output has the
# password, the log does not.
log_on() {
    local said password code=0
    has_password || { no_password; return 1; }
    password=$(cat "$HF_EGO_PASSWORD_FILE")
    said=$(ego "$1" egosh user logon -u "$HF_EGO_USER" -x "$password" 2>&1 </dev/null) || code=$?
    said=${said//"$password"/(the password)}
    case $code in
        0) ;;
        124 | 137) echo "EGO has not logged $HF_EGO_USER on in time" ;;
        *) echo "EGO does not log $HF_EGO_USER on: $(first_line "$said")" ;;
    esac
    return "$code"
}

# drain NAME: close this machine in EGO, so that it gets no new work. EGO accepts this only from an administrator who is logged on.
drain() {
    local ends=$(($(now) + HF_LEAVE_SECONDS / 2)) said=
    if [ -n "$HF_EGO_USER" ]; then
        said=$(log_on $((HF_LEAVE_SECONDS / 4))) || { say "$1 leaves undrained: $said"; return; }
    else
        said=": HF_EGO_USER is not set, so no account is logged on"
    fi
    ego $((ends - $(now))) egosh resource close "$1" >/dev/null || say "EGO does not close $1, which leaves undrained$said"
    [ -z "$HF_EGO_USER" ] || ego 1 egosh user logoff >/dev/null || say "EGO does not log $HF_EGO_USER off"
}

# leave NAME: drain, then end the daemons, within HF_LEAVE_SECONDS and two more, whatever EGO answers.
leave() {
    local ends=$(($(now) + HF_LEAVE_SECONDS)) code=0
    trap '' PIPE # also for egosh, which would end at its first unread output
    rm -f "$HF_READY_FILE" "$HF_READY_FILE.joins"
    drain "$1"
    ego $((ends - $(now))) egosh ego shutdown -f || code=1
    if [ "$code" = 0 ]; then say "left EGO"; else say "EGO did not let $1 go within $HF_LEAVE_SECONDS s; EGO will find it missing$(not_root)"; fi
    return "$code"
}

# leave_once NAME: leave EGO in the first of an instance's scripts that detects its end, if it has joined. The other scripts wait
# until that is done, because an instance ends with its shutdown script.
leave_once() {
    local ends=$(($(now) + HF_LEAVE_SECONDS + 2)) code=0
    if mv "$HF_READY_FILE" "$HF_READY_FILE.leaving" 2>/dev/null; then
        leave "$1" || code=1
        rm -f "$HF_READY_FILE.leaving"
    else
        while [ -e "$HF_READY_FILE.leaving" ] && [ "$(now)" -lt "$ends" ]; do sleep "$HF_POLL_SECONDS"; done
    fi
    return "$code"
}

# preempted: wait until Compute Engine announces the end of this Spot machine; false if the server fails. Each call names the
# last answer's ETag, so that a change between two calls is not missed; without an ETag the server may answer at once.
preempted() {
    local said named etag=NONE
    while said=$(metadata "instance/preempted?wait_for_change=true&timeout_sec=60&last_etag=$etag" 70 --include); do
        [ "${said##*$'\n'}" != TRUE ] || return 0
        named=$(sed -nE 's/\r$//; s/^[Ee][Tt]ag: *//p' <<<"$said")
        if [ -n "$named" ]; then etag=$named; else sleep "$HF_POLL_SECONDS"; fi
    done
    return 1
}

# stay NAME: wait for the end of the instance, then leave EGO.
stay() {
    attended until_preempted || true
    if [ -n "$must_end" ]; then say "received a signal to end"; else say "is preempted"; fi
    leave_once "$1"
}

until_preempted() {
    until preempted; do sleep "$HF_POLL_SECONDS"; done
}

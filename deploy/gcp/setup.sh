#!/bin/bash
# Makes by gcloud the Google resources that deploy/terraform makes, for sites without Terraform. By default it only prints the
# commands. --apply runs those whose result is missing, and may be repeated; --destroy deletes all again.
# docs/deploy-google.md says why each resource is needed.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: setup.sh --project ID --region REGION [options]

  --apply                  run the commands; without it they are only printed
  --destroy                delete all that was made, in the reverse order (with --apply; docs/deploy-google.md lists what stays)
  --prefix NAME            first part of the names of machines and of all that is made (hf)
  --symphony-range CIDR    addresses of Symphony's management hosts; may be repeated
  --account NAME           the loop's Google service account (hostfactory-provisioner; with another prefix PREFIX-loop)
  --kubernetes-account N/A the Kubernetes service account of the loop's pod (hostfactory/provisioner)

  --cluster KIND           standard, autopilot or none (standard)
  --node-machine TYPE      machine type of the nodes for pods (n2-standard-8)
  --max-nodes N            most nodes of each pool, on demand and Spot (50)
  --maintenance WINDOW     hours in which Google may upgrade it, as START/END/RECURRENCE (any hour):
                           '2026-01-03T22:00:00Z/2026-01-04T04:00:00Z/FREQ=WEEKLY;BYDAY=SA,SU'
  --authorized-range CIDR  addresses that may reach its API, besides those of --symphony-range; may be repeated
  --endpoint KIND          address by which a loop on HostFactory's host reaches it: public, private or dns; none if
                           the loop is a pod of the cluster (public)

  --pod-image IMAGE        with --settings: pools of pods of this image, on demand and Spot
  --pod-env KEY=VALUE      a variable of their environment, such as HF_EGO_MASTER=master1; may be repeated
  --pod-cpus N             whole cores of a pod (3)
  --pod-memory MB          its memory in MB (12288)

  --group NAME:PLACE[:spot]  a managed instance group in a zone or region; may be repeated; Spot is asked first
  --machine TYPE           machine type of the groups (n2-standard-8)
  --disk-type TYPE         type of their boot disks (pd-balanced); n4 and c4 need hyperdisk-balanced
  --disk-size GB           size of their boot disks (50)
  --image-project ID       project of their image (the project itself)
  --image-family NAME      family of their image (symphony-compute)
  --startup-script FILE    script by which an instance joins Symphony
  --metadata KEY=VALUE     an attribute of the groups' instances, for that script; may be repeated
  --metadata-from-file KEY=FILE  an attribute with the content of a file; may be repeated

  --no-events              no sink, topic and subscription
  --share ZONE             a Filestore share for the state directory, in this zone
  --secret NAME            an empty secret that the loop's pod may mount (component secret-csi); may be repeated
  --credentials FILE       with --settings: the federation's configuration on the loop's host by which all pools log in, if the
                           machine's own account does not (docs/deploy-banks.md)
  --settings FILE          write HostFactory's settings for groups and pods there, and the files that they name beside it, for
                           `provisioner render-hf` (with --apply)
TEXT
}

fail() {
    echo "setup.sh: $*; see setup.sh --help" >&2
    exit 2
}

roles=$(cd "$(dirname "$0")/../terraform/roles" && pwd)
filter_file=$roles/../sink-filter.txt

project='' region='' prefix=hf account='' kubernetes_account=hostfactory/provisioner
cluster=standard node_machine=n2-standard-8 max_nodes=50 machine=n2-standard-8 endpoint=public maintenance=''
pod_image='' pod_cpus=3 pod_memory=12288
disk_type=pd-balanced disk_size=50 image_project='' image_family=symphony-compute startup_script='' credentials=''
events=1 share='' apply='' destroy='' settings=''
groups=() ranges=() authorized=() secrets=() pod_env=() metadata=(block-project-ssh-keys=true enable-oslogin=TRUE) metadata_files=()

while [ $# -gt 0 ]; do
    case $1 in
        --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
        --apply) apply=1 ;;
        --destroy) destroy=1 ;;
        --no-events) events='' ;;
        -h | --help) usage; exit 0 ;;
        --project | --region | --prefix | --account | --kubernetes-account | --cluster | --node-machine | --max-nodes | \
            --share | --machine | --image-project | --image-family | --startup-script | --group | --symphony-range | \
            --disk-type | --disk-size | --maintenance | --metadata | --metadata-from-file | --secret | --settings | \
            --authorized-range | --endpoint | --pod-image | --pod-env | --pod-cpus | --pod-memory | --credentials)
            [[ $# -ge 2 && $2 != --* ]] || fail "$1 needs a value"
            case $1 in
                --group) groups+=("$2") ;;
                --symphony-range) ranges+=("$2") ;;
                --authorized-range) authorized+=("$2") ;;
                --pod-env) pod_env+=("$2") ;;
                --secret) secrets+=("$2") ;;
                --metadata) metadata+=("$2") ;;
                --metadata-from-file) metadata_files+=("$2") ;;
                *) name=${1#--} && printf -v "${name//-/_}" %s "$2" ;;
            esac
            shift ;;
        *) fail "unknown option $1" ;;
    esac
    shift
done

[ -z "$apply" ] || command -v gcloud >/dev/null || fail "--apply needs gcloud, and there is none in PATH"
[ -n "$project" ] || fail "--project is missing: the id of a project with billing enabled"
[[ $region =~ ^[a-z]+-[a-z]+[0-9]+$ ]] || fail "--region '$region' is no region such as us-central1"
[[ $prefix =~ ^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$ ]] || fail "--prefix '$prefix': at most 20 lower-case letters, digits or '-'"
[[ $cluster =~ ^(standard|autopilot|none)$ ]] || fail "--cluster '$cluster' is none of standard, autopilot, none"
[[ $endpoint =~ ^(public|private|dns|none)$ ]] || fail "--endpoint '$endpoint' is none of public, private, dns, none"
[[ $pod_cpus =~ ^[1-9][0-9]*$ ]] || fail "--pod-cpus '$pod_cpus' is no number of whole cores"
IFS=/ read -r window_start window_end window_recurrence <<<"$maintenance"
[[ $maintenance =~ ^([0-9TZ:+-]+/[0-9TZ:+-]+/FREQ=[A-Z0-9=\;,]+)?$ ]] ||
    fail "--maintenance '$maintenance' is not START/END/RECURRENCE, such as 2026-01-03T22:00:00Z/2026-01-04T04:00:00Z/FREQ=DAILY"
[[ $disk_size =~ ^[1-9][0-9]*$ ]] || fail "--disk-size '$disk_size' is no number of GB"
[[ $credentials =~ ^(/[A-Za-z0-9_./-]+)?$ ]] || fail "--credentials '$credentials' is no path such as /etc/hostfactory/federation.json"
[[ $pod_memory =~ ^[1-9][0-9]*$ ]] || fail "--pod-memory '$pod_memory' is no number of MB"
for pair in ${pod_env[@]+"${pod_env[@]}"}; do
    [[ $pair =~ ^[A-Za-z_][A-Za-z0-9_]*=[^\"\\]*$ ]] ||
        fail "--pod-env '$pair' is not KEY=VALUE without quotes, such as HF_EGO_MASTER=master1"
done
if [ -n "$pod_image" ]; then
    [ "$cluster" != none ] || fail "--pod-image needs a cluster, and --cluster is none"
    [[ " ${pod_env[*]-}" == *' HF_EGO_MASTER='?* ]] ||
        fail "--pod-image needs --pod-env HF_EGO_MASTER=HOST, EGO's management host: without it a pod joins nothing"
fi
for group in ${groups[@]+"${groups[@]}"}; do
    [[ $group =~ ^[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?:[a-z]+-[a-z]+[0-9]+(-[a-z])?(:spot)?$ ]] ||
        fail "--group '$group' is not NAME:PLACE or NAME:PLACE:spot, such as a:us-central1-a or any:us-central1:spot"
    IFS=: read -r name place _ <<<"$group"
    [[ $place =~ ^$region(-[a-z])?$ ]] || fail "--group '$group' lies in $place, and its subnet in $region"
done
[ -z "$share" ] || [[ $share =~ ^$region-[a-z]$ ]] || fail "--share '$share' is no zone of $region, such as $region-a"
[ -z "$startup_script" ] || metadata_files=("startup-script=$startup_script" ${metadata_files[@]+"${metadata_files[@]}"})
for pair in "${metadata[@]}"; do
    [[ $pair =~ ^[A-Za-z0-9_-]+=[^,]*$ ]] ||
        fail "--metadata '$pair' is not KEY=VALUE, such as hf-ego-master=master1; a value with commas goes into a file"
done
for pair in ${metadata_files[@]+"${metadata_files[@]}"}; do
    [[ $pair =~ ^[A-Za-z0-9_-]+=[^,]+$ ]] ||
        fail "--metadata-from-file '$pair' is not KEY=FILE without commas, such as hf-machine-lib=lib.sh"
    [ -r "${pair#*=}" ] || fail "${pair%%=*}: '${pair#*=}' cannot be read"
done
[ ${#secrets[@]} = 0 ] || [ "$cluster" != none ] || fail "--secret '${secrets[0]}' is mounted by a cluster, and --cluster is none"
[ -z "$settings" ] || [ -n "$apply" ] || fail "--settings needs --apply: what a machine has is asked of Google"
[ -z "$settings" ] || [ ${#groups[@]} -gt 0 ] || [ -n "$pod_image" ] || fail "--settings needs a --group or --pod-image"
[[ -z $pod_image || " ${groups[*]-}" != *' pods'?(-spot):* ]] ||
    fail "--group: pods and pods-spot are the pools of --pod-image; choose another name"
[ ${#groups[@]} -gt 0 ] || events=''

if [ "$prefix" = hf ]; then : "${account:=hostfactory-provisioner}"; else : "${account:=$prefix-loop}"; fi
loop=$account@$project.iam.gserviceaccount.com
nodes=$prefix-nodes@$project.iam.gserviceaccount.com
machines=$prefix-machines@$project.iam.gserviceaccount.com
machines_role=${prefix//-/_}_provisioner
events_role=${machines_role}_events cluster_role=${machines_role}_cluster
labels=app=hostfactory instance=gcpinst # HostFactory's instance
in_project=(--project="$project")
ca_file='cluster-ca.crt' # beside provisioner.yaml
nodes_range=10.60.0.0/20 machines_range=10.62.0.0/20 pods_range=10.64.0.0/14 services_range=10.61.0.0/20
joined_ranges=$(IFS=, && echo "${ranges[*]-}")
api_ranges=$(IFS=, && echo "${ranges[*]-}${authorized[*]:+${ranges[*]:+,}${authorized[*]}}")
joined_metadata=$(IFS=, && echo "${metadata[*]}")
joined_files=$(IFS=, && echo "${metadata_files[*]-}")

# --- making and deleting one resource ---------------------------------------------------------------------------------

undo=() # commands that delete all, in the order in which it was made

flags_file=''
trap 'rm -f "$flags_file"' EXIT

run() { # run or print a command; a word --flags-file={…} stands for a file with that content
    local word quoted line='' words=()
    for word; do
        printf -v quoted %q "$word"
        if [[ $word == --flags-file=* ]]; then
            printf -v quoted -- '--flags-file=<(echo %q)' "${word#*=}"
            [ -z "$apply" ] || { flags_file=$(mktemp) && echo "${word#*=}" >"$flags_file" && word=--flags-file=$flags_file; }
        fi
        line+="$quoted " words+=("$word")
    done
    echo "${line% }"
    if [ -n "$apply" ]; then "${words[@]}"; fi
}

# gcloud's words for a resource or a binding that does not exist. Any other error leaves that open.
absent='NOT_FOUND|code=404|HTTPError 404|was not found|[Pp]olicy binding.* not found'

stop() { # [gcloud's output that has not been shown yet]
    [ $# = 0 ] || echo "$1" >&2
    echo "setup.sh: gcloud failed, and the script has stopped. Fix the error (an expired login: gcloud auth login)," \
        "and run the same again: existing resources stay." >&2
    exit 1
}

export CLOUDSDK_CORE_DISABLE_PROMPTS=1 # its questions would not be visible

there() { # GROUP NAME [WHERE…]: true if gcloud finds it; false without --apply
    local group=() said
    [ -n "$apply" ] || return 1
    read -ra group <<<"$1" && shift
    said=$(gcloud "${group[@]}" describe "$@" "${in_project[@]}" 2>&1 >/dev/null) && return
    [[ $said =~ $absent ]] || stop "$said"
    return 1
}

later() { # COMMAND…: remember a command of --destroy
    local line
    printf -v line '%q ' "$@" && undo+=("$line")
}

take() { # GROUP NAME [WHERE…]: delete it if it exists
    local group=()
    if [ -z "$apply" ] || there "$@"; then
        read -ra group <<<"$1" && shift
        run gcloud "${group[@]}" delete "$@" "${in_project[@]}" --quiet
    fi
}

# thing GROUP NAME [WHERE…] -- [OPTIONS…]: make it unless it exists.
thing() {
    local group=() which=()
    while [ "$1" != -- ]; do which+=("$1") && shift; done
    shift
    if [ -n "$destroy" ]; then
        later take "${which[@]}"
    elif ! there "${which[@]}"; then
        read -ra group <<<"${which[0]}"
        run gcloud "${group[@]}" "${made_by:-create}" "${which[@]:1}" "$@" "${in_project[@]}"
    fi
}

account() { # NAME TITLE: make a service account; gcloud finds it by its address
    local address=$1@$project.iam.gserviceaccount.com
    if [ -n "$destroy" ]; then
        later take 'iam service-accounts' "$address"
    elif ! there 'iam service-accounts' "$address"; then
        run gcloud iam service-accounts create "$1" --display-name="$2" "${in_project[@]}"
    fi
}

# bind MEMBER ROLE GROUP NAME: add a binding to a resource; an existing one stays. It is deleted with the resource.
bind() {
    local group=()
    read -ra group <<<"$3"
    [ -n "$destroy" ] ||
        run gcloud "${group[@]}" add-iam-policy-binding "$4" --member="$1" --role="$2" "${in_project[@]}"
}

grant() { # MEMBER ROLE: add a binding in the project
    if [ -n "$destroy" ]; then
        later revoke "$1" "$2"
    else
        run gcloud projects add-iam-policy-binding "$project" --member="$1" --role="$2" --condition=None
    fi
}

revoke() {
    local line said words=(gcloud projects remove-iam-policy-binding "$project" --member="$1" --role="$2" --condition=None)
    printf -v line '%q ' "${words[@]}" && echo "${line% }"
    [ -n "$apply" ] || return 0
    said=$("${words[@]}" 2>&1 >/dev/null) && return
    [[ $said =~ $absent ]] || stop "$said"
    echo "# It was not bound." >&2
}

role() { # ID FILE
    if [ -n "$destroy" ]; then
        later take_role "$1"
    elif there 'iam roles' "$1"; then
        # A deleted role is kept for weeks, during which its name cannot be used again.
        if is_deleted "$1"; then run gcloud iam roles undelete "$1" "${in_project[@]}"; fi
        run gcloud iam roles update "$1" --file="$2" "${in_project[@]}" --quiet
    else
        run gcloud iam roles create "$1" --file="$2" "${in_project[@]}" --quiet
    fi
}

is_deleted() {
    [ "$(gcloud iam roles describe "$1" "${in_project[@]}" --format='value(deleted)')" = True ]
}

take_role() {
    if [ -n "$apply" ] && there 'iam roles' "$1" && is_deleted "$1"; then return; fi
    take 'iam roles' "$1"
}

# --- the resources -----------------------------------------------------------------------------------------------------

make_apis() {
    local apis=(cloudresourcemanager compute iam logging monitoring)
    [ "$cluster" = none ] || apis+=(artifactregistry container containerfilesystem iamcredentials)
    [ -z "$events" ] || apis+=(pubsub)
    [ -z "$share" ] || apis+=(file)
    [ ${#secrets[@]} = 0 ] || apis+=(secretmanager)
    [ -n "$destroy" ] || run gcloud services enable "${apis[@]/%/.googleapis.com}" "${in_project[@]}"
}

find_project() { # check project and login first, so that an error is not taken for an absent resource
    number=PROJECT_NUMBER
    [ -z "$apply" ] || number=$(gcloud projects describe "$project" --format='value(projectNumber)') || stop
}

make_accounts() {
    account "$account" "HostFactory provisioner"
    [ "$cluster" = none ] || account "$prefix-nodes" "Nodes of the HostFactory cluster"
    [ ${#groups[@]} = 0 ] || account "$prefix-machines" "Instances of HostFactory"
}

make_rights() {
    # Google's agent makes the instances of groups and GKE's nodes. Its role stays, because others of the project may need it.
    local agent=serviceAccount:$number@cloudservices.gserviceaccount.com
    [ -n "$destroy" ] || { [ "$cluster" = none ] && [ ${#groups[@]} = 0 ]; } || grant "$agent" roles/compute.instanceAdmin.v1
    if [ "$cluster" != none ]; then
        bind "$agent" roles/iam.serviceAccountUser 'iam service-accounts' "$nodes"
        grant "serviceAccount:$nodes" roles/container.defaultNodeServiceAccount
        grant "serviceAccount:$nodes" roles/artifactregistry.reader
    fi
    if [ "$cluster" != none ] && [ "$endpoint" = dns ]; then
        role "$cluster_role" "$roles/cluster.yaml"
        grant "serviceAccount:$loop" "projects/$project/roles/$cluster_role"
    fi
    [ ${#groups[@]} -gt 0 ] || return 0
    role "$machines_role" "$roles/machines.yaml"
    grant "serviceAccount:$loop" "projects/$project/roles/$machines_role"
    grant "serviceAccount:$machines" roles/logging.logWriter
    grant "serviceAccount:$machines" roles/monitoring.metricWriter
    bind "$agent" roles/iam.serviceAccountUser 'iam service-accounts' "$machines"
}

make_network() {
    thing 'compute networks' "$prefix" -- --subnet-mode=custom
    thing 'compute networks subnets' "$prefix" --region="$region" -- --network="$prefix" --range="$nodes_range" \
        --secondary-range="pods=$pods_range,services=$services_range" --enable-private-ip-google-access
    [ ${#groups[@]} = 0 ] || # a range of their own, because only the nodes may mount the share
        thing 'compute networks subnets' "$prefix-machines" --region="$region" -- --network="$prefix" \
            --range="$machines_range" --enable-private-ip-google-access
    thing 'compute firewall-rules' "$prefix-symphony" -- --network="$prefix" --direction=INGRESS \
        --allow=tcp,udp,icmp --source-ranges="$nodes_range,$machines_range,$pods_range${joined_ranges:+,$joined_ranges}"
}

make_cluster() {
    local common=(--network="$prefix" --subnetwork="$prefix" --cluster-secondary-range-name=pods
        --services-secondary-range-name=services --enable-private-nodes
        --release-channel=regular --service-account="$nodes" --labels="$labels") reach=()
    [ -z "$api_ranges" ] || reach+=(--enable-master-authorized-networks --master-authorized-networks="$api_ranges")
    [ "$endpoint" != dns ] || reach+=(--enable-dns-access)
    if [ "$cluster" != none ] && [ -z "$destroy" ] && there 'container clusters' "$prefix" --region="$region"; then
        # Only endpoints, ranges and the add-on that mounts secrets of an existing cluster are changed.
        [ ${#reach[@]} = 0 ] ||
            run gcloud container clusters update "$prefix" --region="$region" "${reach[@]}" "${in_project[@]}"
        [ ${#secrets[@]} = 0 ] || [ "$(of_cluster secretManagerConfig.enabled)" = True ] ||
            run gcloud container clusters update "$prefix" --region="$region" --enable-secret-manager "${in_project[@]}"
        return
    fi
    [ -n "$api_ranges" ] || common+=(--enable-master-authorized-networks)
    common+=(${reach[@]+"${reach[@]}"})
    [ ${#secrets[@]} = 0 ] || common+=(--enable-secret-manager)
    case $cluster in
        autopilot) made_by=create-auto thing 'container clusters' "$prefix" --region="$region" -- "${common[@]}" ;;
        standard)
            # The first pool is for the loop and the cluster's own pods, so it is never Spot.
            thing 'container clusters' "$prefix" --region="$region" -- "${common[@]}" --enable-ip-alias \
                --workload-pool="$project.svc.id.goog" --default-max-pods-per-node=32 --num-nodes=1 \
                --machine-type=e2-standard-4 --enable-autoscaling --total-min-nodes=1 --total-max-nodes=3 \
                --workload-metadata=GKE_METADATA --enable-shielded-nodes --shielded-secure-boot --enable-dataplane-v2 ;;
        none) ;;
    esac
}

make_window() { # in a separate command, because create-auto has no option for it
    [ -z "$maintenance" ] || [ "$cluster" = none ] || [ -n "$destroy" ] ||
        run gcloud container clusters update "$prefix" --region="$region" --maintenance-window-start="$window_start" \
            --maintenance-window-end="$window_end" --maintenance-window-recurrence="$window_recurrence" "${in_project[@]}"
}

make_nodes() {
    [ "$cluster" = standard ] || return 0
    local taint=hostfactory/machines=true:NoSchedule
    local common=(--machine-type="$node_machine" --num-nodes=0 --enable-autoscaling --total-min-nodes=0
        --total-max-nodes="$max_nodes" --location-policy=ANY --disk-size=100 --service-account="$nodes"
        --node-labels=hostfactory/machines=true --enable-image-streaming --workload-metadata=GKE_METADATA
        --shielded-secure-boot)
    thing 'container node-pools' workers --cluster="$prefix" --region="$region" -- "${common[@]}" --node-taints="$taint"
    thing 'container node-pools' workers-spot --cluster="$prefix" --region="$region" -- "${common[@]}" --spot \
        --node-taints="$taint,cloud.google.com/gke-spot=true:NoSchedule"
}

make_registry() { # for the pods' image
    [ "$cluster" = none ] || thing 'artifacts repositories' "$prefix" --location="$region" -- --repository-format=docker \
        --description="Images of HostFactory's machines" --labels="$labels"
}

make_identity() {
    [ "$cluster" = none ] || bind "serviceAccount:$project.svc.id.goog[$kubernetes_account]" \
        roles/iam.workloadIdentityUser 'iam service-accounts' "$loop"
}

# each_group COMMAND: COMMAND NAME PLACE SPOT for each group.
each_group() {
    local group name place spot
    for group in ${groups[@]+"${groups[@]}"}; do
        IFS=: read -r name place spot <<<"$group"
        "$1" "$name" "$place" "$spot"
    done
}

make_template() { # name place spot
    local kind=(--provisioning-model=STANDARD --maintenance-policy=MIGRATE)
    # A preempted instance is stopped, so that the loop observes it; the loop deletes it.
    [ -z "$3" ] || kind=(--provisioning-model=SPOT --instance-termination-action=STOP --maintenance-policy=TERMINATE)
    thing 'compute instance-templates' "$prefix-$1" -- --machine-type="$machine" \
        --image-project="${image_project:-$project}" --image-family="$image_family" \
        --boot-disk-size="${disk_size}GB" --boot-disk-type="$disk_type" \
        --no-address --subnet="$prefix-machines" --region="$region" "${kind[@]}" --no-restart-on-failure \
        --service-account="$machines" --scopes=cloud-platform \
        --shielded-secure-boot --shielded-vtpm --shielded-integrity-monitoring --labels="$labels,hostfactory-pool=$1" \
        --metadata="$joined_metadata" ${joined_files:+--metadata-from-file="$joined_files"}
}

make_group() { # name place spot
    local where=(--zone="$2") regional=()
    [[ $2 =~ -[a-z]$ ]] || {
        where=(--region="$2")
        regional=(--instance-redistribution-type=none --target-distribution-shape=any)
    }
    # The loop makes and deletes the instances; the group has no autoscaler, no repair and no update.
    thing 'compute instance-groups managed' "$prefix-$1" "${where[@]}" -- --template="$prefix-$1" --size=0 \
        --base-instance-name="$prefix-$1" --default-action-on-vm-failure=do-nothing \
        --update-policy-type=opportunistic --update-policy-minimal-action=replace \
        --list-managed-instances-results=pageless ${regional[@]+"${regional[@]}"}
}

make_templates() { each_group make_template; }
make_groups() { each_group make_group; }

make_topic() {
    [ -z "$events" ] || thing 'pubsub topics' "$prefix-events" -- --labels="$labels"
}

make_sink() {
    [ -n "$events" ] || return 0
    local filter writer=WRITER_OF_THE_SINK
    filter=$(<"$filter_file")
    filter=${filter//\$\{project\}/$project}
    filter=${filter//\$\{name_prefix\}/$prefix}
    thing 'logging sinks' "$prefix-events" -- "pubsub.googleapis.com/projects/$project/topics/$prefix-events" \
        --log-filter="$filter"
    if [ -n "$apply" ] && [ -z "$destroy" ]; then
        writer=$(gcloud logging sinks describe "$prefix-events" "${in_project[@]}" --format='value(writerIdentity)')
    fi
    bind "$writer" roles/pubsub.publisher 'pubsub topics' "$prefix-events"
}

make_subscription() {
    [ -n "$events" ] || return 0
    role "$events_role" "$roles/events.yaml"
    thing 'pubsub subscriptions' "$prefix-events" -- --topic="$prefix-events" --expiration-period=never \
        --ack-deadline=10 --message-retention-duration=10m --labels="$labels"
    bind "serviceAccount:$loop" "projects/$project/roles/$events_role" 'pubsub subscriptions' "$prefix-events"
}

export_to() { # squash mode, ranges
    local between='", "'
    printf '{"access-mode": "READ_WRITE", "squash-mode": "%s", "ip-ranges": ["%s"]}' "$1" "${2//,/$between}"
}

make_share() { # for nodes and Symphony's hosts: each may write as any user, but only those hosts as root
    local options
    options=$(export_to NO_ROOT_SQUASH "${joined_ranges:-$nodes_range}")
    [ -z "$joined_ranges" ] || options+=", $(export_to ROOT_SQUASH "$nodes_range")"
    [ -z "$share" ] || thing 'filestore instances' "$prefix-state" --location="$share" -- --tier=basic-hdd \
        --flags-file='{"--file-share": {"name": "state", "capacity": "1TB", "nfs-export-options": ['"$options"']}}' \
        --network="name=$prefix" --labels="$labels"
}

make_secrets() { # their values are given to Google alone
    local secret
    for secret in ${secrets[@]+"${secrets[@]}"}; do
        thing secrets "$secret" -- --replication-policy=automatic --labels="$labels"
        bind "serviceAccount:$loop" roles/secretmanager.secretAccessor secrets "$secret"
    done
}

show_settings() {
    local address=ADDRESS_OF_THE_SHARE server=ADDRESS_OF_THE_API_SERVER cpus=NCPUS memory=NRAM api=ADDRESS_OF_THE_CLUSTER
    echo "# Of the overlay's values.yaml:"
    echo "# instance: $instance"
    echo "# googleServiceAccount: $loop"
    if [ "$cluster" != none ]; then
        echo "# image: $region-docker.pkg.dev/$project/$prefix/provisioner:VERSION"
        echo "# nodesServiceAccount: $nodes"
        [ -z "$apply" ] || server=$(of_cluster privateClusterConfig.privateEndpoint)
        echo "# apiServer: $server/32"
    fi
    if [ -n "$share" ]; then
        [ -z "$apply" ] || address=$(gcloud filestore instances describe "$prefix-state" --location="$share" \
            "${in_project[@]}" --format='value(networks[0].ipAddresses[0])')
        echo "# nfsServer: $address"
        echo "# nfsPath: /state"
    fi
    if [ -n "$apply" ] && [ ${#groups[@]} -gt 0 ]; then
        read -r cpus memory < <(gcloud compute machine-types list --filter="name=$machine AND zone~$region-" --limit=1 \
            --format='value(guestCpus,memoryMb)' "${in_project[@]}") || fail "$region has no machines of type $machine"
    fi
    if [ -n "$apply" ] && [ -n "$pod_image" ] && [ "$endpoint" != none ]; then
        api=$(of_cluster "$(address_field)")
        [ -n "$api" ] || fail "cluster $prefix has no $endpoint endpoint: choose another by --endpoint"
    fi
    echo "# Settings for provisioner render-hf:"
    settings_of "$cpus" "$memory" "$api" | sed 's/^/# /'
    [ -z "$settings" ] || write_settings "$cpus" "$memory" "$api"
}

write_settings() { # cpus memory api: the settings, and beside them the files that the pools of pods name
    local beside
    beside=$(dirname "$settings")
    settings_of "$@" >"$settings"
    [ -n "$pod_image" ] || return 0
    mkdir -p "$beside/pod-specs"
    pod_spec pods >"$beside/pod-specs/pods.yaml"
    pod_spec pods-spot >"$beside/pod-specs/pods-spot.yaml"
    ! has_authority || of_cluster masterAuth.clusterCaCertificate | base64 -d >"$beside/$ca_file"
}

has_authority() { # true if the address needs the cluster's own certificate authority
    [[ $endpoint =~ ^(public|private)$ ]]
}

of_cluster() { # field
    gcloud container clusters describe "$prefix" --region="$region" "${in_project[@]}" --format="value($1)"
}

address_field() {
    case $endpoint in
        public) echo privateClusterConfig.publicEndpoint ;;
        private) echo privateClusterConfig.privateEndpoint ;;
        dns) echo controlPlaneEndpointsConfig.dnsEndpointConfig.endpoint ;;
    esac
}

settings_of() { # cpus memory api
    local group spot='' names=''
    echo "instance: $instance"
    echo "scripts: /opt/provisioner/hf_scripts/"
    echo "requestors: {symAinst: {mode: POLL, enabled: true, providers: [$instance]}, admin: REST_MANUAL}"
    echo "provisioner:"
    echo "  id: $instance"
    echo "  name_prefix: $prefix"
    [ -z "$events" ] || echo "  events: {project: $project, subscription: $prefix-events}"
    if [ -n "$pod_image" ] && has_authority; then
        echo "files: [pod-specs, $ca_file]"
    elif [ -n "$pod_image" ]; then
        echo "files: [pod-specs]"
    fi
    [ ${#groups[@]} -gt 0 ] || [ -n "$pod_image" ] || return 0
    echo "pools:"
    each_group show_pool
    if [ -n "$pod_image" ]; then
        show_pods pods "$3"
        show_pods pods-spot "$3"
    fi
    echo "templates:"
    if [ -n "$pod_image" ]; then
        echo "  - templateId: Small"
        echo "    maxNumber: 1000"
        echo "    pools: [pods-spot, pods]"
        show_attributes "$pod_cpus" "$pod_memory"
    fi
    [ ${#groups[@]} -gt 0 ] || return 0
    for group in "${groups[@]}"; do # Spot comes first, as among the pods
        if [[ $group == *:spot ]]; then spot+=", ${group%%:*}"; else names+=", ${group%%:*}"; fi
    done
    names=$spot$names
    echo "  - templateId: Large"
    echo "    maxNumber: $((1000 * ${#groups[@]}))"
    echo "    pools: [${names#, }]"
    show_attributes "$1" "$2"
}

show_attributes() { # cpus memory
    echo "    attributes: {type: [String, X86_64], ncores: [Numeric, \"1\"], ncpus: [Numeric, \"$1\"], nram: [Numeric, \"$2\"]}"
}

show_pods() { # name api
    local cluster=''
    [ "$endpoint" = none ] || cluster=", endpoint: https://$2"
    ! has_authority || cluster+=", ca_file: $ca_file"
    echo "  $1: {kind: gke, namespace: symphony, pod_spec: pod-specs/$1.yaml$cluster${credentials:+, credentials: $credentials}, max_machines: 500}"
}

pod_spec() { # name: the same spec as Terraform's (deploy/terraform/modules/settings)
    local key keys=() pair grace=30
    [ "$cluster" = autopilot ] || keys+=(hostfactory/machines)
    [ "$1" = pods ] || keys+=(cloud.google.com/gke-spot) grace=15
    cat <<YAML
apiVersion: v1
kind: Pod
metadata: {annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: "false"}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: $grace
  automountServiceAccountToken: false
YAML
    if [ ${#keys[@]} = 0 ]; then
        echo "  nodeSelector: {}"
        echo "  tolerations: []"
    else
        echo "  nodeSelector:"
        for key in "${keys[@]}"; do echo "    $key: \"true\""; done
        echo "  tolerations:"
        for key in "${keys[@]}"; do
            echo "    - {key: $key, operator: Equal, value: \"true\", effect: NoSchedule}"
        done
    fi
    cat <<YAML
  containers:
    - name: symphony-compute
      image: "$pod_image"
      resources:
        requests: {cpu: "$pod_cpus", memory: ${pod_memory}Mi}
        limits: {memory: ${pod_memory}Mi}
      # Ready, and so reported to HostFactory, once the host has joined its cluster.
      readinessProbe: {exec: {command: [test, -e, /run/hf/ready]}, periodSeconds: 5}
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      env:
YAML
    for pair in "${pod_env[@]}"; do echo "        - {name: ${pair%%=*}, value: \"${pair#*=}\"}"; done
}

show_pool() { # name place spot
    local location=region
    [[ $2 =~ -[a-z]$ ]] && location=zone
    echo "  $1: {kind: mig, project: $project, $location: $2, group: $prefix-$1, max_machines: 1000${credentials:+, credentials: $credentials}}"
}

make_apis
find_project
make_accounts
make_rights
make_network
make_cluster
make_window
make_nodes
make_registry
make_identity
make_templates
make_groups
make_topic
make_sink
make_subscription
make_secrets
make_share

if [ -n "$destroy" ]; then
    for ((i = ${#undo[@]} - 1; i >= 0; i--)); do eval "${undo[i]}"; done
else
    show_settings
fi
[ -n "$apply" ] || echo "# No command was run: --apply runs them." >&2

#!/bin/bash
# Stands in for gcloud: records each call in $CALLS, one line of quoted words, with the content of a file of flags instead of
# its name, and the resources that were made in $THINGS.
# The command that $FAILING names fails, as with an expired login. If $ASKING is set, each command asks to enable an API, unless
# prompts are disabled.
for word; do
    [[ $word != --flags-file=* ]] || word=--flags-file=$(<"${word#*=}")
    printf '%q ' "$word" >>"$CALLS"
done
echo >>"$CALLS"
[[ -z ${FAILING-} || " $* " != *" $FAILING "* ]] || {
    echo "ERROR: (gcloud.$1) There was a problem refreshing your current auth tokens: invalid_grant" >&2
    exit 1
}
[[ -z ${ASKING-} || ${CLOUDSDK_CORE_DISABLE_PROMPTS-} ]] || {
    echo "API [compute.googleapis.com] not enabled on project. Would you like to enable and retry (y/N)?" >&2
    exit 1
}

group=()
while [[ ! $1 =~ ^(create|create-auto|describe|list|delete|undelete|update|enable|.*-binding)$ ]]; do group+=("$1") && shift; done
thing="$THINGS/$(IFS=_ && echo "${group[*]}")_${2%%@*}"
for word; do
    [[ $word != --cluster=* ]] || thing+=_of_${word#*=}
done
case $1 in
    list) printf '8\t32768\n' ;; # machine-types
    create | create-auto)
        [ ! -e "$thing" ] || { echo "already there: $thing" >&2 && exit 1; }
        touch "$thing" ;;
    delete) rm "$thing" ;;
    remove-iam-policy-binding)
        [ "$BOUND" ] || { echo "ERROR: (gcloud.$1) Policy binding with the specified principal, role, and condition not found!" >&2 && exit 1; } ;;
    describe)
        case "$*" in
            *projectNumber*)
                echo "WARNING: Your active project does not match the quota project." >&2
                echo 123456 ;;
            *ipAddresses*) echo 10.9.8.2 ;;
            *writerIdentity*) echo serviceAccount:writer@example.com ;;
            *publicEndpoint*) echo 203.0.113.7 ;;
            *privateEndpoint*) echo 10.60.0.2 ;;
            *clusterCaCertificate*) base64 -w0 "$CLUSTER_CA" ;;
            *secretManagerConfig*) echo "$MOUNTS" ;;
            *dnsEndpointConfig*) echo "$DNS" ;;
            *'value(deleted)'*) echo "$DELETED" ;;
            *) [ -e "$thing" ] || { echo "ERROR: (gcloud.$1) NOT_FOUND: Requested entity was not found." >&2 && exit 1; } ;;
        esac ;;
esac

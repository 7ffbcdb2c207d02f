#!/bin/bash
# Stands in for gcloud: notes each call in $CALLS, one line of quoted words, and remembers in $THINGS what was made.
printf '%q ' "$@" >>"$CALLS"
echo >>"$CALLS"

group=()
while [[ ! $1 =~ ^(create|create-auto|describe|list|delete|undelete|update|enable|.*-binding)$ ]]; do group+=("$1") && shift; done
thing="$THINGS/$(IFS=_ && echo "${group[*]}")_${2%%@*}"
case $1 in
    list) printf '8\t32768\n' ;; # machine-types
    create | create-auto)
        [ ! -e "$thing" ] || { echo "already there: $thing" >&2 && exit 1; }
        touch "$thing" ;;
    delete) rm "$thing" ;;
    describe)
        case "$*" in
            *projectNumber*) echo 123456 ;;
            *ipAddresses*) echo 10.9.8.2 ;;
            *writerIdentity*) echo serviceAccount:writer@example.com ;;
            *publicEndpoint*) echo 203.0.113.7 ;;
            *privateEndpoint*) echo 10.60.0.2 ;;
            *clusterCaCertificate*) base64 -w0 "$CLUSTER_CA" ;;
            *dnsEndpointConfig*) echo "$DNS" ;;
            *'value(deleted)'*) echo "$DELETED" ;;
            *) [ -e "$thing" ] ;;
        esac ;;
esac

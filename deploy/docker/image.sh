#!/bin/sh
# Builds the image with buildah, podman or docker, the first that is installed: image.sh [NAME]
# Every time in the image is SOURCE_DATE_EPOCH, by default the time of the last commit.
# Environment: BUILDER, REGISTRY, BASE, PIP_INDEX_URL, PIP_CERT (the index's authorities, a file of this host),
# PIP_TRUSTED_HOST, BUILD_OPTIONS (more options, in words).
set -eu
cd -- "$(dirname -- "$0")/../.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' provisioner/__init__.py)
revision=${REVISION:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
name=${1:-hostfactory-provisioner:$version}

builder=${BUILDER:-}
for tool in buildah podman docker; do
  [ -n "$builder" ] || ! command -v "$tool" >/dev/null || builder=$tool
done
[ -n "$builder" ] || { echo 'image.sh: none of buildah, podman and docker is installed' >&2; exit 1; }

set -- --file deploy/docker/Dockerfile --build-arg "SOURCE_DATE_EPOCH=$epoch" \
  --build-arg "VERSION=$version" --build-arg "REVISION=$revision"
[ -z "${REGISTRY:-}" ] || set -- "$@" --build-arg "REGISTRY=$REGISTRY"
[ -z "${BASE:-}" ] || set -- "$@" --build-arg "BASE=$BASE"
[ -z "${PIP_INDEX_URL:-}" ] || set -- "$@" --build-arg "PIP_INDEX_URL=$PIP_INDEX_URL"
# Only the build uses it; the image does not contain it.
[ -z "${PIP_CERT:-}" ] || set -- "$@" --secret "id=ca,src=$PIP_CERT" --build-arg PIP_CERT=/run/secrets/ca
[ -z "${PIP_TRUSTED_HOST:-}" ] || set -- "$@" --build-arg "PIP_TRUSTED_HOST=$PIP_TRUSTED_HOST"

# shellcheck disable=SC2086  # BUILD_OPTIONS are words
case ${builder##*/} in
  docker) set -- buildx build "$@" --output "type=docker,name=$name,rewrite-timestamp=true" ${BUILD_OPTIONS:-} ;;
  *)
    # Docker finds this ignore file by its name. Only the format docker has a health check.
    # All is one layer, because podman would make a layer per instruction, and so another image than buildah.
    set -- build "$@" --ignorefile deploy/docker/Dockerfile.dockerignore --format docker --timestamp "$epoch" \
      --layers=false --tag "$name" ${BUILD_OPTIONS:-}
    ;;
esac
"$builder" "$@" .
echo "$name"

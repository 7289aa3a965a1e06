#!/usr/bin/env bash
# make-base.sh [TAG]: make the Debian + Python base image that container tests build on, from Debian's packages alone.
#
# Needs root, mmdebstrap and a Docker engine; about 40 seconds. Nothing is pulled, and no package source of this machine
# stays in the image.
set -euo pipefail
tag=${1:-wattdock-test-base}
packages=python3,python3-dev,python3-pip,ca-certificates,g++,libnuma1,iproute2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mmdebstrap --quiet --variant=minbase --mode=root --include="$packages" \
  --aptopt='APT::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --customize-hook='rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/etc/resolv.conf "$1"/etc/hostname' \
  --customize-hook='find "$1"/var/log -type f -delete' \
  bookworm "$work/root.tar"
docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' "$work/root.tar" "$tag"

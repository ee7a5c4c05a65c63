#!/bin/sh
# README's commands, as a newcomer types them: a minimal Debian 12, a fresh clone, nothing else.
#
#   tests/fresh/run.sh [FOLDER] [COMMAND ...]
#
# Makes the Debian with mmdebstrap in FOLDER (default: a new one in /var/tmp, removed at the end), clones this
# checkout's HEAD into it and runs the commands there, by default README's two. Needs root: it uses chroot and a
# mount namespace of its own, so that no mount outlives it.
set -eu

checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
if [ -z "${GPU_IMAGE_FRESH:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "run.sh: needs root" >&2 && exit 2; }
  GPU_IMAGE_FRESH=1 exec unshare --mount --propagation=private --pid --fork --kill-child "$0" "$@"
fi

root=${1:-}
[ $# = 0 ] || shift
if [ -z "$root" ]; then
  root=$(mktemp -d /var/tmp/gpu-image-fresh.XXXXXX)
  # In the mount namespace: what is mounted below goes with it, so this removes only our own files.
  trap 'umount --recursive "$root" 2>/dev/null; rm -rf --one-file-system "$root"' EXIT
fi

if [ ! -e "$root/etc/debian_version" ]; then
  mmdebstrap --quiet --variant=minbase --include=git,ca-certificates bookworm "$root"
fi
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
# A site's own certificate authority, where the machine has one.
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

home=/srv/gpu-image-pipeline
rm -rf "${root:?}$home"
git clone --quiet --no-local "$checkout" "$root$home"
git -C "$root$home" remote remove origin

# A machine's root is a mount point; where it is none, `unshare --mount` fails.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/sys"
mount --make-rslave "$root/dev"

run() {
  echo "fresh: $*" >&2
  began=$(date +%s)
  # shellcheck disable=SC2016  # the inner shell expands them
  chroot "$root" env -i HOME=/root TERM=dumb CI=true LC_ALL=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    ${PIP_CERT:+PIP_CERT=/etc/ssl/certs/ca-certificates.crt} \
    sh -c 'cd "$1" && shift && exec "$@"' sh "$home" "$@"
  echo "fresh: $* took $(($(date +%s) - began)) s" >&2
}

if [ $# -gt 0 ]; then
  run "$@"
else
  run ./inv build --cloud=local
  run ./inv test
fi

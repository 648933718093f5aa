#!/bin/sh
# From nothing: a bare Debian 12 in a folder of its own, a clone of HEAD in it,
# and deploy/try there. Proves that deploy/setup names every package that the
# build and the program need. Takes some minutes, so tests/run leaves it out.
# usage: tests/deploy/clean_room.sh [COMMAND...]    default: deploy/try
# The lab's programs go along where an archive of them lies beside the clone.
# Exit 77: skipped, because this machine cannot do it.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)

skip() {
    echo "SKIP clean_room: $*"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip 'a chroot needs root'
command -v debootstrap >/dev/null || skip 'debootstrap is not installed'
# The mirror that this machine installs from.
mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(SITE)' \
    'Created-By: Packages' 2>/dev/null |
    sed -n 's/^bookworm main //p' | head -n 1)
[ -n "$mirror" ] || skip 'apt knows no mirror of Debian 12'

root=$(mktemp -d)
end() {
    if mountpoint -q "$root/proc"; then umount "$root/proc"; fi
    rm -rf --one-file-system "$root"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

echo "clean_room: a bare Debian 12"
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" 2>&1 || {
    tail -n 20 "$root.log" >&2
    rm -f "$root.log"
    skip 'debootstrap failed'
}
rm -f "$root.log"
# What the network of this machine asks for: name servers, and perhaps an
# authority of its own.
cp /etc/resolv.conf "$root/etc/resolv.conf"
trusted=/etc/host-authorities.crt
[ ! -f /etc/ssl/certs/ca-certificates.crt ] ||
    cp /etc/ssl/certs/ca-certificates.crt "$root$trusted"
mount -t proc proc "$root/proc" 2>/dev/null || skip 'proc cannot be mounted'
git clone --quiet --no-hardlinks "$here" "$root/weft"
archive=shared/tools/kubelab/bin.tar.xz
[ ! -f "$here/../$archive" ] ||
    install -D -m 644 "$here/../$archive" "$root/$archive"

[ $# -gt 0 ] || set -- deploy/try
echo "clean_room: $*"
chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    PIP_CERT=$trusted NODE_EXTRA_CA_CERTS=$trusted \
    ${http_proxy:+http_proxy="$http_proxy"} \
    ${https_proxy:+https_proxy="$https_proxy"} \
    sh -c 'cd /weft && exec "$@"' sh "$@"
echo "PASS clean_room: $*"

#!/bin/sh
# The image's root file system, looked at from outside and run as its own user.
# usage: tests/deploy/image.sh [FOLDER]   FOLDER: made earlier; else it is made
# Exit 77: skipped, because this machine cannot do it.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
failed=0
fail() {
    echo "FAIL image: $*"
    failed=1
}

folder=
end() {
    if mountpoint -q "$root/proc"; then umount "$root/proc"; fi
    [ -z "$folder" ] || rm -rf --one-file-system "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM HUP
if [ $# -gt 0 ]; then
    root=$1
else
    folder=$(mktemp -d)
    root=$folder/root
    "$here/deploy/image/rootfs" "$root" || exit
fi

mount -t proc proc "$root/proc" 2>/dev/null || {
    echo 'SKIP image: proc cannot be mounted'
    exit 77
}
# The program, as the image's user, in the image's root alone.
run() {
    chroot --userspec=65532:65532 "$root" /usr/bin/env -i \
        PATH=/usr/local/bin:/usr/bin:/bin "$@"
}

run weft version >/dev/null || fail 'weft version does not run'
run weft serve --model /nowhere >/dev/null 2>&1 && fail 'a missing model is served'
cp -r "$here/tests/data/tiny-model" "$root/model"
run weft check --model /model | grep -q '^ok ' || fail 'weft check of the tiny model'
rm -rf "$root/model"

for program in cc gcc c++ g++ clang ld make cmake python3 python pip apt apt-get; do
    for folder in usr/bin usr/local/bin usr/sbin bin; do
        [ ! -e "$root/$folder/$program" ] || fail "/$folder/$program is there"
    done
done
with=$(find "$root" -xdev -perm /6000 -type f)
[ -z "$with" ] || fail "set-user-id: $with"
with=$(find "$root" -xdev -type f -perm /0002)
[ -z "$with" ] || fail "anybody may write: $with"
[ ! -s "$root/var/lib/dpkg/status" ] && fail 'no list of packages for scanners'
run id -u | grep -qx 65532 || fail 'not the user of the image'
missing=$(chroot "$root" /usr/bin/env -i /usr/bin/ldd /usr/local/bin/weft | grep 'not found' || true)
[ -z "$missing" ] || fail "$missing"
bytes=$(du -sbx "$root" | cut -f 1)
[ "$bytes" -lt 160000000 ] || fail "$bytes bytes; 160000000 at most are wanted"

# One file, two targets, nothing that changes under a tag.
file=$here/deploy/image/Containerfile
grep -q '^ARG DEBIAN=.*@sha256:[0-9a-f]\{64\}$' "$file" || fail 'the base has no digest'
for target in cpu cuda; do
    grep -q "^FROM base AS $target\$" "$file" || fail "no target $target"
done
grep -q '^USER 65532:65532$' "$file" || fail 'the Containerfile names no user'

[ $failed -eq 0 ] && echo "PASS image: $bytes bytes"
exit $failed

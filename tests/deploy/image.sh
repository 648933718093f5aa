#!/bin/sh
# The image's root file system, looked at from outside and run as its own user.
# usage: tests/deploy/image.sh [WEFT]    build/release/weft unless said otherwise
# Exit 77: skipped, because this machine cannot do it.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
weft=${1:-$here/build/release/weft}
passed=0
failed=0

# check WORDS COMMAND...: the command must succeed.
check() {
    words=$1
    shift
    if "$@" >"$scratch/log" 2>&1; then
        passed=$((passed + 1))
    else
        echo "FAIL image: $words"
        sed 's/^/    | /' "$scratch/log"
        failed=$((failed + 1))
    fi
}

scratch=$(mktemp -d)
root=$scratch/root
end() {
    if mountpoint -q "$root/proc"; then umount "$root/proc"; fi
    rm -rf --one-file-system "$scratch"
}
trap end EXIT
trap 'exit 130' INT TERM HUP
"$here/deploy/image/rootfs" "$root" "$weft" || exit
mount -t proc proc "$root/proc" 2>/dev/null || {
    echo 'SKIP image: proc cannot be mounted'
    exit 77
}

# The program, as the image's user, in the image's root alone.
run() {
    chroot --userspec=65532:65532 "$root" /usr/bin/env -i \
        PATH=/usr/local/bin:/usr/bin:/bin "$@"
}
ends_with() { # CODE COMMAND...
    code=$1 got=0
    shift
    "$@" || got=$?
    [ "$got" -eq "$code" ] || {
        echo "exit $got, not $code"
        return 1
    }
}
is_absent() {
    for folder in usr/bin usr/local/bin usr/sbin; do
        [ ! -e "$root/$folder/$1" ] || {
            echo "/$folder/$1 is there"
            return 1
        }
    done
}
finds_nothing() { # FIND-EXPRESSION...
    found=$(find "$root" -xdev "$@")
    [ -z "$found" ] || {
        echo "$found"
        return 1
    }
}
libraries_are_there() {
    ! chroot "$root" /usr/bin/ldd /usr/local/bin/weft | grep 'not found'
}
is_small() {
    bytes=$(du -sbx "$root" | cut -f 1)
    [ "$bytes" -lt 160000000 ] || {
        echo "$bytes bytes; 160000000 at most are wanted"
        return 1
    }
}

check 'the user' ends_with 0 run sh -c \
    'test "$(id -u):$(id -g):$(id -un)" = 65532:65532:weft'
check 'weft version' run weft version
check 'a missing model is refused' ends_with 3 run weft serve --model /nowhere
cp -r "$here/tests/data/tiny-model" "$root/model"
check 'weft check of a model' run weft check --model /model
rm -rf "$root/model"
check 'its libraries' libraries_are_there
for program in cc gcc c++ g++ clang as ld make cmake python3 python pip \
    apt apt-get curl wget; do
    check "no $program" is_absent "$program"
done
check 'no set-user-id' finds_nothing -perm /6000 -type f
check 'nobody but root writes' finds_nothing '(' -type f -perm /0022 -o \
    -type f '!' -user root -o -type d -perm /0002 '!' -perm /1000 ')'
check 'nothing of this machine' finds_nothing -path "$root/etc/*" \
    '(' -name resolv.conf -o -name hostname ')' -size +0
check 'a list of packages for scanners' test -s "$root/var/lib/dpkg/status"
check 'its size' is_small

# One file, two targets, nothing that changes under a tag.
file=$here/deploy/image/Containerfile
for base in DEBIAN CUDA; do
    check "$base by digest" \
        grep -q "^ARG $base=.*@sha256:[0-9a-f]\{64\}\$" "$file"
done
for target in cpu cuda; do
    check "a target $target" grep -q "^FROM base AS $target\$" "$file"
done
check 'the user is named' grep -q '^USER 65532:65532$' "$file"

echo "$passed passed, $failed failed; the image has $bytes bytes"
[ $failed -eq 0 ]

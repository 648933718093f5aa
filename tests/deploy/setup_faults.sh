#!/bin/bash
# deploy/setup against stand-ins for dpkg-query, apt-get and id: when it calls
# apt, for what, and what it says when it cannot.
# usage: tests/deploy/setup_faults.sh
set -uo pipefail
cd -- "$(dirname -- "$0")/../.." || exit 1
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
failed=0 checks=0

# stand_in NAME BODY
stand_in() {
    printf '#!/bin/sh\n%s\n' "$2" >"$bin/$1"
    chmod +x "$bin/$1"
}

# expect CODE WORDS ABSENT ARG...: exit code, what is printed ("": nothing, "*":
# anything), and what is not.
expect() {
    local code=$1 words=$2 absent=$3 got
    shift 3
    checks=$((checks + 1))
    PATH=$bin:$PATH deploy/setup "$@" >"$bin/log" 2>&1
    got=$?
    if [ "$got" -ne "$code" ] ||
        { [ -z "$words" ] && [ -s "$bin/log" ]; } ||
        { [ -n "$words" ] && [ "$words" != '*' ] &&
            ! grep -qF -- "$words" "$bin/log"; } ||
        { [ -n "$absent" ] && grep -qF -- "$absent" "$bin/log"; }; then
        echo "FAIL (setup $*): exit $got (wanted $code, \"$words\")"
        sed 's/^/    | /' "$bin/log"
        failed=$((failed + 1))
    fi
}

everything='shift 3; for p; do echo "ii $p"; done'
but_cmake='shift 3; for p; do [ "$p" = cmake ] || echo "ii $p"; done'
removed='shift 3; for p; do
    case $p in cmake) echo "rc $p" ;; *) echo "ii $p" ;; esac; done'
stand_in apt-get 'echo "apt-get $*"; exit 1'

stand_in id 'echo 1000'
stand_in dpkg-query "$everything"
expect 0 '' apt-get
expect 0 '' apt-get --test
expect 2 usage apt-get --tests
expect 2 usage apt-get --test extra
stand_in dpkg-query "$but_cmake"
expect 4 'not root, and these packages are missing: cmake' apt-get
stand_in dpkg-query "$removed"
expect 4 'missing: cmake' gcc
stand_in dpkg-query "$everything | grep -v -e check -e qemu-user"
expect 0 '' apt-get
expect 4 'missing: check qemu-user' cmake --test
stand_in dpkg-query "$everything | grep -v -e etcd-server -e qemu-user"
expect 0 '' apt-get
expect 4 'missing: etcd-server' qemu-user --cluster

stand_in id 'echo 0'
stand_in dpkg-query "$but_cmake"
expect 4 'could not install: cmake' ''
expect 4 'apt-get update' 'apt-get install'
stand_in apt-get 'echo "$*" >>"$0.calls"'
expect 0 'installing cmake' gcc
checks=$((checks + 1))
if ! grep -q '^install .*-y .* cmake$' "$bin/apt-get.calls"; then
    echo 'FAIL: apt-get was not asked for cmake'
    failed=$((failed + 1))
fi

echo "$((checks - failed)) passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]

#!/bin/sh
# aarch64.sh - the kernels give the same bits on aarch64 as here.
#
# Cross-compiles kernels and node/base (no libraries beside libc) with
# portable_main.c, runs the result under qemu-user, builds the same program for
# this machine and compares the hashes they print. Exit 77: a tool is missing.
#
#   tests/kernel/aarch64.sh [op ...]      CC, CROSS_CC, QEMU choose the tools
set -eu
cd "$(dirname "$0")/../.."

CC=${CC:-cc}
CROSS_CC=${CROSS_CC:-aarch64-linux-gnu-gcc}
QEMU=${QEMU:-qemu-aarch64}
for tool in "$CC" "$CROSS_CC" "$QEMU"; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIP kernel.aarch64: $tool is not installed"
        exit 77
    fi
done

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

flags="-std=c17 -D_GNU_SOURCE -I. -O2 -ffp-contract=off -Wall -Wextra -Werror"
sources="kernels/*.c kernels/cpu/*.c node/base/*.c tests/support/kernel_*.c
    tests/kernel/portable_main.c"
# shellcheck disable=SC2086 # lists of words
"$CROSS_CC" $flags -static $sources -o "$dir/cross" -lm -lpthread &
cross=$!
# The scalar path alone: that the others here agree with it is what
# test_kernels shows, in the build that is tested.
# shellcheck disable=SC2086
"$CC" $flags $sources -o "$dir/here" -lm -lpthread
wait $cross

"$dir/here" "$@" >"$dir/here.txt"
"$QEMU" "$dir/cross" "$@" >"$dir/cross.txt"
cat "$dir/cross.txt"
if ! diff "$dir/here.txt" "$dir/cross.txt"; then
    echo "kernel.aarch64: results differ (above: here <, aarch64 >)"
    exit 1
fi
echo "kernel.aarch64: same bits on both"

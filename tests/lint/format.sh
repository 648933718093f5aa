#!/bin/sh
# Fail on a source that clang-format would write differently.
# usage: tests/lint/format.sh   (CLANG_FORMAT names another program)
cd "$(dirname "$0")/../.."
. tests/lint/lib.sh

if ! command -v "${CLANG_FORMAT:=clang-format}" >/dev/null; then
    echo "$CLANG_FORMAT is not installed"
    exit 1
fi
sources | xargs -r "$CLANG_FORMAT" --dry-run -Werror 2>&1 |
    grep -E 'error: code should be clang-formatted|No such file|rror' |
    awk -F: '!seen[$1]++ { print $1 ":" $2 ": not as clang-format writes it" }' |
    none

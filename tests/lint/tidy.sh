#!/bin/sh
# Run clang-tidy with the checks of .clang-tidy over the sources that a build
# folder knows. Minutes, so it is not a part of tests/lint/run.
# usage: tests/lint/tidy.sh BUILD [FOLDER...]   (such as build/dev-clang node/base)
cd "$(dirname "$0")/../.."
. tests/lint/lib.sh

build=$1
shift
if [ ! -f "$build/compile_commands.json" ]; then
    echo "$build has no compile_commands.json"
    exit 1
fi
sources | grep '\.c$' | { if [ $# -gt 0 ]; then grep -E "^($(echo "$@" | tr ' ' '|'))/"; else cat; fi; } |
    while read -r file; do
        # A source of another architecture is in no build here.
        ! grep -q "/$file\"" "$build/compile_commands.json" || echo "$file"
    done |
    xargs -r -n 8 -P "$(nproc)" clang-tidy -p "$build" --quiet

#!/bin/sh
# Run clang-tidy with the checks of .clang-tidy over the sources that a build
# folder knows; it is configured if it is not there. Minutes, so it is not a
# part of tests/lint/run. Exit 77: skipped, clang-tidy is not installed.
# usage: tests/lint/tidy.sh [BUILD [FOLDER...]]   (default: build/dev-clang, all)
cd "$(dirname "$0")/../.."
. tests/lint/lib.sh

command -v clang-tidy >/dev/null || {
    echo 'SKIP tidy: clang-tidy is not installed'
    exit 77
}
build=${1:-build/dev-clang}
[ $# -eq 0 ] || shift
if [ ! -f "$build/compile_commands.json" ]; then
    # The generated messages are headers that sources include.
    { cmake --preset dev-clang -B "$build" &&
        cmake --build "$build" --target weft_proto_gen; } >&2
fi
chosen="^($(echo "$@" | tr ' ' '|'))/"
[ $# -gt 0 ] || chosen=.
sources | grep '\.c$' | grep -E "$chosen" |
    while read -r file; do
        # A source of another architecture is in no build here.
        ! grep -q "/$file\"" "$build/compile_commands.json" || echo "$file"
    done |
    xargs -r -n 8 -P "$(nproc)" clang-tidy -p "$build" --quiet

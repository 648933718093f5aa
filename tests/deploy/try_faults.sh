#!/bin/bash
# deploy/try against programs that misbehave: it must tell what failed, leave no
# process behind, and never end well. The build and weft are stand-ins.
# usage: tests/deploy/try_faults.sh
set -uo pipefail
cd -- "$(dirname -- "$0")/../.." || exit 1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/deploy" "$tree/bin" "$tree/build/release"
cp deploy/try "$tree/deploy/try"
for name in deploy/setup bin/cmake build/release/weft; do
    printf '#!/bin/sh\n' >"$tree/$name"
    chmod +x "$tree/$name"
done
failed=0 checks=0

# expect WORDS CODE: the last run's exit code and a word of what it printed.
expect() {
    local words=$1 code=$2 left
    checks=$((checks + 1))
    (cd "$tree" && PATH=$tree/bin:$PATH timeout 60 deploy/try) \
        >"$tree/log" 2>&1
    local got=$?
    left=$(pgrep -f "$tree/[w]eft-serve" | wc -l)
    if [ "$got" -ne "$code" ] || [ "$left" -ne 0 ] ||
        ! grep -qF -- "$words" "$tree/log"; then
        echo "FAIL ($words): exit $got (wanted $code), $left processes left"
        sed 's/^/    | /' "$tree/log"
        failed=$((failed + 1))
    fi
}

# weft SERVE GENERATE: what the stand-in does for each command. A server that
# stays is a process of its own name, so that one left behind is found. It is
# ready only when a signal would be heeded, and ends after that process.
weft() {
    cat >"$tree/build/release/weft" <<END
#!/bin/bash
serve() { $1
}
generate() { $2
}
ready() {
    echo "ready grpc=127.0.0.1:1 http=127.0.0.1:2"
}
stay() {
    trap 'kill \$!; wait \$!; exit \$1' TERM
    exec -a $tree/weft-serve sleep 100 &
    \$2
    wait
}
\$1
END
}

weft 'stay 0 ready' 'echo Once upon'
expect 'Once upon' 0
expect 'grpc=127.0.0.1:1' 0
weft 'echo no memory >&2; exit 4' 'echo Once'
expect 'no memory' 1
weft 'stay 0' 'echo Once'
sed -i.whole 's/^load_seconds=.*/load_seconds=1/' "$tree/deploy/try"
expect 'no ready line' 1
mv "$tree/deploy/try.whole" "$tree/deploy/try"
weft 'stay 0 ready' 'echo "cannot reach" >&2; exit 5'
expect 'cannot reach' 5
weft 'stay 0 ready' 'echo'
expect 'holds no text' 1
weft 'stay 1 ready' 'echo Once'
expect 'ended with exit 1' 1
printf '#!/bin/sh\necho broken header; exit 1\n' >"$tree/bin/cmake"
expect 'broken header' 1
printf '#!/bin/sh\necho not root >&2; exit 4\n' >"$tree/deploy/setup"
expect 'not root' 4

echo "$((checks - failed)) passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]

#!/bin/sh
# Show that each lint can fail: a small clean tree passes them all, and each
# planted violation makes the one that is meant go red and name the file.
# usage: tests/lint/selftest.sh
cd "$(dirname "$0")/../.."
set -eu
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/tests"
cp -r tests/lint "$tree/tests/lint"
cp .clang-format "$tree/"
bad=0

complain() {
    echo "selftest: $*"
    bad=1
}

# write PATH, the text on stdin
write() {
    mkdir -p "$tree/$(dirname "$1")"
    cat >"$tree/$1"
}

# expect_red LINT PATH WHAT, the text on stdin
expect_red() {
    write "$2"
    if found=$(sh "$tree/tests/lint/$1.sh" 2>&1); then
        complain "$1 passes $3"
    elif ! echo "$found" | grep -q "^$2:"; then
        complain "$1 does not name $2 for $3: $found"
    fi
    rm "$tree/$2"
}

# expect_green LINT PATH WHAT, the text on stdin
expect_green() {
    write "$2"
    found=$(sh "$tree/tests/lint/$1.sh" 2>&1) ||
        complain "$1 fails on $3: $found"
    rm "$tree/$2"
}

function_of() { # N lines, head and braces included
    printf '%s\n' "void weft_x_do(void)" "{"
    yes "    f();" | head -n $(($1 - 3)) || :
    echo "}"
}

write node/base/err.h </dev/null
write node/base/mem.c <<'C'
void *weft_mem_new(void)
{
    return malloc(1);
}
C
write shard/kv/pool.c <<'C'
#include "shard/kv/pool.h"

/* Why free() is not called: "free()" says it. */
void weft_kv_do(weft_pool *pool)
{
    pool->free(pool);
    weft_mem_free(pool->text);
    log("malloc(1) failed");
}
C
for lint in format sizes layers mem words; do
    found=$(sh "$tree/tests/lint/$lint.sh" 2>&1) ||
        complain "$lint fails on a clean tree: $found"
done

echo 'int  x;' | expect_red format kernels/a.c "two blanks"
function_of 70 | expect_green sizes kernels/a.c "a function of 70 lines"
function_of 71 | expect_red sizes kernels/a.c "a function of 71 lines"
{ echo 'START_TEST(x)'; function_of 71 | tail -n +2; echo END_TEST; } |
    expect_red sizes tests/unit/test_a.c "a test of 71 lines"
{ echo 'static weft_status x(int a,'; echo '                     int b)'
  function_of 70 | tail -n +2; } |
    expect_red sizes router/a.c "71 lines with a head of two"
yes 'int x;' | head -n 600 | expect_green sizes shard/a.h "600 lines"
yes 'int x;' | head -n 601 | expect_red sizes shard/a.h "601 lines"
yes 'int x;' | head -n 601 | expect_green sizes proto/a.pb-c.h "generated code"

while read -r path name; do
    echo "#include $name" | expect_red layers "$path" "$name"
done <<'E'
node/base/a.c "kernels/ops.h"
node/base/a.c "node/rpc/server.h"
node/base/a.c <jansson.h>
kernels/cpu/a.c "shard/kv/kv.h"
kernels/cpu/a.c "router/admit.h"
proto/a.c "kernels/ops.h"
shard/load/a.c "router/admit.h"
shard/load/a.c "proto/codec.h"
shard/load/a.c "node/obs/metrics.h"
router/a.c "shard/kv/kv.h"
router/a.c "kernels/ops.h"
node/app/a.c "tests/support/suite.h"
node/app/a.c "options.h"
node/app/a.c <grpc/grpc.h>
node/app/a.c <protobuf-c/protobuf-c.h>
node/app/a.c "weft.pb-c.h"
shard/step/a.c <grpc/grpc.h>
router/a.c <microhttpd.h>
node/app/a.c <pcre2.h>
node/app/a.c <check.h>
shard/sched/a.c <pthread.h>
shard/sched/a.c "node/base/clock.h"
shard/kv/a.c <time.h>
E
while read -r path name; do
    echo "#include $name" | expect_green layers "$path" "$name"
done <<'E'
shard/load/a.c "kernels/ops.h"
shard/load/a.c <jansson.h>
router/text/a.c <pcre2.h>
node/rpc/a.c <grpc/grpc.h>
node/rpc/a.c "weft.pb-c.h"
node/rpc/http/a.c <microhttpd.h>
node/app/a.c "shard/step/engine.h"
tests/unit/a.c "router/admit.h"
tests/unit/a.c <check.h>
E

while read -r code; do
    echo "$code" | expect_red mem router/a.c "$code"
done <<'E'
x = malloc(1);
free(x);
x = (char *)calloc (1, 2);
realloc(x, 2);
if (x) free(x);
return strdup(x);
use(malloc, x);
use(x, free);
hook = free;
aligned_alloc(64, 64);
posix_memalign(&x, 64, 64);
/* why */ free(x); /* and why */
E
while read -r code; do
    echo "$code" | expect_green mem router/a.c "$code"
done <<'E'
x = weft_mem_new(1, 1);
ops->free(x);
ops.free(x);
/* malloc(1) */
// free(x)
log("free(x)");
int n_free = pool->free;
int free_pages(void);
E

echo 'free(x);' | expect_green mem tests/unit/a.c "a test"

# Written in pieces, so that this file holds none of what the lint looks for.
todo=TO'DO' fixme=FIX'ME' slash=/ registry=py'pi'.org
while read -r text; do
    echo "/* $text */" | expect_red words shard/a.c "$text"
done <<E
$todo: later
$fixme this
This was changed to be faster.
Previously a list.
It is no longer used.
Good enough for now.
See issue 12.
Data in ${slash}tmp/data is read.
Data in ${slash}home/someone/data is read.
The new version is faster.
E
printf '/* It is no\n * longer used. */\n' |
    expect_red words shard/a.c "a phrase over two lines"
echo '# previously a list' | expect_red words deploy/a.sh "a script's comment"
echo "p = \"${slash}work/data\";" | expect_red words shard/a.c "a path in code"
echo "get https://$registry/x" | expect_red words deploy/a.txt "a registry"
while read -r text; do
    echo "$text" | expect_green words shard/a.c "$text"
done <<E
/* $todo(#12): later */
/* The previous token's row; used to find the next. */
p = "no longer";
E

# A build of two libraries; symbols.sh says `$2`, or nothing if that is empty.
expect_symbols() { # WHAT SAYS, then LIBRARY/OBJECT:SYMBOL...
    what=$1 says=$2
    shift 2
    rm -rf "$tree/built"
    for item in "$@"; do
        object=$tree/built/${item%:*}.c.o
        mkdir -p "$(dirname "$object")"
        echo "int ${item#*:}; static int same; int *${item#*:}_p = &same;" |
            ${CC:-cc} -x c -c - -o "$object"
        (cd "$(dirname "$object")" &&
            ar rc "../lib$(basename "$PWD").a" "$(basename "$object")")
    done
    if found=$(sh "$tree/tests/lint/symbols.sh" "$tree/built" 2>/dev/null); then
        [ -z "$says" ] || complain "symbols passes $what"
    elif [ -z "$says" ] || ! echo "$found" | grep -q "$says"; then
        complain "symbols says of $what: $found"
    fi
}

expect_symbols "a clean build" "" weft_a/x:weft_x weft_b/y:weft_y
expect_symbols "one name in two libraries" "b.*weft_x: is in .*a.a.x.c.o" \
    weft_a/x:weft_x weft_b/y:weft_x
expect_symbols "one name in two objects" "weft_x: is in" \
    weft_a/x:weft_x weft_a/y:weft_x
expect_symbols "a name without prefix" "other: does not start" weft_a/x:other
expect_symbols "a generated name" "" weft_a/x.pb-c:grpc_x weft_b/y:weft_y
expect_symbols "one name in generated code, too" "weft_x: is in" \
    weft_a/x.pb-c:weft_x weft_b/y:weft_x
expect_symbols "helpers of tests" "" weft_a/x:weft_x weft_support/y:harness
expect_symbols "no library" "no static library"

if [ "$bad" -ne 0 ]; then exit 1; fi
echo "selftest: every lint can fail"

#!/bin/sh
# Fail on a global symbol that two objects of the static libraries of a build
# define, since a static link takes one of them without a word, and on one that
# does not start with weft_. The second is not asked of generated code (*.pb-c)
# and of libweft_support.a, which is linked to test programs alone; names with
# "__" in front are the compiler's.
# usage: tests/lint/symbols.sh BUILD-FOLDER     from the root of the tree
cd "$(dirname "$0")/../.."
. tests/lint/lib.sh

folder=${1:?the build folder is missing}
libraries=$(find "$folder" -name 'lib*.a' | LC_ALL=C sort)
[ -n "$libraries" ] || {
    echo "$folder: no static library"
    exit 1
}

# shellcheck disable=SC2086 # a list of paths
symbols=$(nm -A -g -P --defined-only $libraries)
echo "$symbols" | awk '
NF > 1 {
    # PATH/library.a[object.o]: symbol type ...
    from = $1
    sub(/:$/, "", from)
    sub(/.*\//, "", from)
    symbol = $2
    seen++
    if (from !~ /\.pb-c\.c\.o\]$/ && from !~ /^libweft_support\.a/ &&
        symbol !~ /^(weft_|__)/)
        print from ": " symbol ": does not start with weft_"
    if (symbol in home)
        print from ": " symbol ": is in " home[symbol] ", too"
    else
        home[symbol] = from
}
END {
    if (seen == 0) print "no global symbol in the libraries"
    print seen + 0 " global symbols looked at" >"/dev/stderr"
}' | none

#!/bin/sh
# Fail on a file of more than 600 lines or a function of more than 70, its head
# included. Relies on the format: a body starts with a line "{" and ends with a
# line that starts with "}".
# usage: tests/lint/sizes.sh
cd "$(dirname "$0")/../.."
. tests/lint/lib.sh

sources | xargs -r awk '
function end_file() {
    if (file != "" && lines > 600)
        print file ": " lines " lines, the limit is 600"
}
FNR == 1 { end_file(); file = FILENAME; body = 0; head = 0 }
{ lines = FNR }
body && /^}/ {
    n = FNR - head + 1
    if (n > 70) print FILENAME ":" head ": a function of " n " lines, the limit is 70"
    body = 0
    head = 0
    next
}
body { next }
/^\{[ \t]*(\/[*\/].*)?$/ { body = 1; if (!head) head = FNR; next }
# What cannot be a part of a head ends the search for one.
/^[ \t]*$/ || /^[ \t]*#/ || /;[ \t]*$/ || /^}/ || /\*\/[ \t]*$/ { head = 0; next }
!head && /^[A-Za-z_]/ { head = FNR }
END { end_file() }' | none

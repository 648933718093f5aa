#!/bin/sh
# Fail on comments that tell history instead of what is, on paths of one
# machine, and on hosts of package registries.
# usage: tests/lint/words.sh
cd "$(dirname "$0")/../.."
. tests/lint/lib.sh

# Letters in brackets, here and below, keep this file from matching itself.
history='previously|formerly|originally|recently|anymore|no longer|used to be|for now|for the time being|(was|were|has been|have been|got) (changed|fixed|added|removed|renamed|moved|replaced|rewritten|refactored)|(old|new|earlier|previous) (version|implementation|code|way|behaviou?r)|refactor(ed|ing)?|turned out|issue #?[0-9]+|ticket #?[A-Z0-9-]*[0-9]+|pull request'
paths='(^|[^A-Za-z0-9_.~/-])/([w]ork|[t]mp|[h]ome|[r]oot|[U]sers|[m]nt)/'
hosts='pyp[i]\.org|python[h]osted\.org|npm[j]s\.(org|com)|crates\.[i]o|proxy\.[g]olang\.org|ruby[g]ems\.org|docker\.([i]o|[c]om)|ghcr\.[i]o|quay\.[i]o|gcr\.[i]o|deb\.[d]ebian\.org|archive\.[u]buntu\.com|conda\.[a]naconda\.org|repo1?\.[m]aven'

# Comments of scripts and build files: from a "#" to the end of the line.
script_comments() {
    find . \( -path ./.git -o -path ./build -o -path ./tests/data \
        -o -path ./tests/accept -o -path ./tests/lint -o -name .venv \) -prune \
        -o -type f \( -name '*.sh' -o -name '*.py' -o -name '*.cmake' \
        -o -name '*.y*ml' -o -name CMakeLists.txt -o -name run -o -name try \
        -o -name '*.proto' -o -name 'Containerfile*' -o -name 'Dockerfile*' \) \
        -print | sed 's|^\./||' | LC_ALL=C sort |
        xargs -r awk '{
            at = match($0, /(^|[ \t])#|\/\//)
            print FILENAME ":" FNR ":" (at ? substr($0, at + 1) : "")
        }'
}

# Each line with the first word of the next, so that a phrase that the end of a
# line cuts is found.
joined() {
    awk '{
        match($0, /^[^:]*:[0-9]+:/)
        head = substr($0, 1, RLENGTH)
        text = substr($0, RLENGTH + 1)
        first = text
        sub(/^[ \t*]+/, "", first)
        sub(/[ \t].*/, "", first)
        if (NR > 1) print before " " first
        gsub(/[ \t]+/, " ", text)
        before = head text
    } END { if (NR > 0) print before }'
}

comments=$(mktemp)
trap 'rm -f "$comments"' EXIT
{
    stripped comments
    script_comments
} | joined >"$comments"
{
    grep -iE ":[0-9]+:(.*[^A-Za-z])?($history)([^A-Za-z]|\$)" "$comments" |
        sed 's/$/  [history]/' || :
    grep -E '(^|[^A-Za-z])(TO[D]O|FIX[M]E|X[X]X|HAC[K])([^A-Za-z]|$)' "$comments" |
        grep -vE 'TO[D]O\(#[0-9]+\)' | sed 's/$/  [no issue number]/' || :
    sed -E 's/^([^:]*:[0-9]+:)/\1 /' "$comments" | grep -E "$paths" |
        sed 's/$/  [machine path]/' || :
    # Everywhere, not in comments alone.
    find . \( -path ./.git -o -path ./build -o -path ./tests/data \
        -o -path ./tests/accept -o -path ./tests/lint -o -name .venv \) -prune \
        -o -type f -print | xargs -r grep -nIE "$hosts|[^A-Za-z0-9_.-]/[w]ork/" |
        sed 's|^\./||; s/$/  [host or path]/' || :
} | none

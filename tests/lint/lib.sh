# lib.sh - what the lint scripts share. Sourced from the root of the tree.
set -eu

# The sources of the tree, one a line, generated and build folders left out.
sources() {
    for folder in node router shard proto kernels tests; do
        [ ! -d "$folder" ] || echo "$folder"
    done | xargs -I{} find {} \
        \( -path '*/build' -o -path 'tests/data' -o -path '*/.venv' \) -prune \
        -o -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
            -o -name '*.cc' \) \
        ! -name '*.pb-c.[ch]' -print | LC_ALL=C sort
}

# "file:line:text" of the sources with comments and literals blanked (code) or
# with everything but comments blanked (comments).
stripped() {
    sources | xargs -r awk -v keep="$1" -f tests/lint/strip.awk
}

# Print stdin, and fail if there was any.
none() {
    ! grep ''
}

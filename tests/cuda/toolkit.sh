# toolkit.sh - where a CUDA tool kit is, for scripts that need one. Sourced from
# the root of the tree.

# toolkit_find [TOOL...]: prints the root of a tool kit of CUDA 13 or later that
# has nvcc and these tools. Where the machine has none, one is made in
# build/cuda-root if the script that makes it is beside the clone. Else 77, and
# the reason.
toolkit_find() {
    local maker=../shared/tools/cuda-root made=$PWD/build/cuda-root
    local root why='no nvcc on this machine'
    for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" \
        "$(dirname "$(dirname "$(command -v nvcc || echo /-/-)")")" \
        /usr/local/cuda "$made"; do
        [ -x "$root/bin/nvcc" ] || continue
        why=$(toolkit_lacks "$root" "$@") || {
            (cd "$root" && pwd)
            return 0
        }
    done
    if [ -x $maker ]; then
        rm -rf "$made"
        if $maker "$made" >&2; then
            why=$(toolkit_lacks "$made" "$@") || {
                echo "$made"
                return 0
            }
        else
            why="$maker made none"
        fi
    fi
    echo "SKIP no CUDA tool kit: $why" >&2
    return 77
}

# toolkit_lacks ROOT [TOOL...]: says what is missing; fails if nothing is.
toolkit_lacks() {
    local root=$1 tool major
    shift
    for tool in "$@"; do
        [ -x "$root/bin/$tool" ] || {
            echo "$root has no $tool"
            return 0
        }
    done
    major=$("$root/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [ "${major:-0}" -lt 13 ] || return 1
    echo "$root is of CUDA ${major:-unknown}, and 13 or later is needed"
}

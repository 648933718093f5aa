#!/bin/sh
# Fail on an allocation outside node/base/mem.c, which counts blocks and can
# make the n-th one fail. Tests may allocate as they like.
# usage: tests/lint/mem.sh
cd "$(dirname "$0")/../.."
. tests/lint/lib.sh

taking='malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|memalign|valloc|pvalloc|strdup|strndup|asprintf|vasprintf|getline|getdelim|open_memstream'
# A call, or the function's address; not a member of that name.
stripped code | grep -vE '^(node/base/mem\.c|tests/[^:]*):' |
    grep -E ":(.*[^A-Za-z0-9_.>])?($taking|free)[ 	]*\(|[=(,][ 	]*&?($taking)[ 	]*[,;)}]|=[ 	]*&?free[ 	]*[,;}]|[(,][ 	]*&?free[ 	]*\)" |
    none

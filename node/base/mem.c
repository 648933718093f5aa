#include "node/base/mem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* From this size a block is aligned and advised for huge pages: a pass over
 * weights or KV touches every page of it, and 2 MiB pages spare the TLB. */
enum { HUGE_BYTES = 4 << 20 };

static atomic_long live;
static atomic_long fail_after = -1;

static bool must_fail(void)
{
    if (atomic_load_explicit(&fail_after, memory_order_relaxed) < 0)
        return false;
    return atomic_fetch_sub(&fail_after, 1) <= 0 &&
           (atomic_store(&fail_after, 0), true);
}

static void *count(void *mem)
{
    if (mem != NULL) atomic_fetch_add(&live, 1);
    return mem;
}

/* false: more bytes than an object can have. Refused here, so that sanitizers
 * do not take the request itself for a bug. */
static bool product(size_t n, size_t item_bytes, size_t *bytes_out)
{
    return !__builtin_mul_overflow(n, item_bytes, bytes_out) &&
           *bytes_out <= PTRDIFF_MAX;
}

void *weft_mem_new(size_t n, size_t item_bytes)
{
    size_t bytes = 0;
    if (must_fail() || !product(n, item_bytes, &bytes)) return NULL;
    return count(calloc(bytes == 0 ? 1 : bytes, 1));
}

void *weft_mem_resize(void *mem, size_t n, size_t item_bytes)
{
    size_t bytes = 0;
    if (must_fail() || !product(n, item_bytes, &bytes)) return NULL;
    void *const grown = realloc(mem, bytes == 0 ? 1 : bytes);
    if (mem == NULL) (void)count(grown);
    return grown;
}

static size_t align_of(size_t align, size_t bytes)
{
    return bytes >= HUGE_BYTES && align < (2U << 20) ? 2U << 20 : align;
}

size_t weft_mem_aligned_bytes(size_t align, size_t bytes)
{
    align = align_of(align, bytes);
    return bytes == 0 ? align : (bytes + align - 1) / align * align;
}

void *weft_mem_new_aligned(size_t align, size_t bytes)
{
    if (must_fail() || bytes > PTRDIFF_MAX - align - HUGE_BYTES) return NULL;
    const size_t whole = weft_mem_aligned_bytes(align, bytes);
    void *const mem = aligned_alloc(align_of(align, bytes), whole);
    if (mem != NULL && bytes >= HUGE_BYTES)
        (void)madvise(mem, whole, MADV_HUGEPAGE); /* a hint; may be refused */
    return count(mem);
}

char *weft_mem_copy_text(const char *text, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *const copy = weft_mem_new(n + 1, 1);
    if (copy != NULL && n > 0) memcpy(copy, text, n);
    return copy;
}

void weft_mem_free(void *mem)
{
    if (mem == NULL) return;
    atomic_fetch_sub(&live, 1);
    free(mem);
}

long weft_mem_live(void)
{
    return atomic_load(&live);
}

void weft_mem_fail_after(long n)
{
    atomic_store(&fail_after, n);
}

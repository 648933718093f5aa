#include "shard/sample/select.h"

#include <stddef.h>

static void swap(uint64_t *keys, int32_t a, int32_t b)
{
    const uint64_t key = keys[a];
    keys[a] = keys[b];
    keys[b] = key;
}

/* The middle one of the first, the middle and the last of [lo, hi). */
static int32_t pivot_of(const uint64_t *keys, int32_t lo, int32_t hi)
{
    const int32_t a = lo, b = lo + (hi - lo) / 2, c = hi - 1;
    if ((keys[a] < keys[b]) == (keys[b] < keys[c])) return b;
    return (keys[b] < keys[a]) == (keys[a] < keys[c]) ? a : c;
}

/* Larger keys to the front of [lo, hi); the pivot's place is returned. */
static int32_t partition(uint64_t *keys, int32_t lo, int32_t hi)
{
    swap(keys, pivot_of(keys, lo, hi), hi - 1);
    const uint64_t pivot = keys[hi - 1];
    int32_t place = lo;
    for (int32_t i = lo; i < hi - 1; i++) {
        if (keys[i] < pivot) continue;
        swap(keys, i, place++);
    }
    swap(keys, place, hi - 1);
    return place;
}

static double weigh(const uint64_t *keys, int32_t lo, int32_t hi,
                    const float *weights)
{
    if (weights == NULL) return hi - lo;
    double sum = 0.0;
    for (int32_t i = lo; i < hi; i++)
        sum += (double)weights[weft_key_id(keys[i])];
    return sum;
}

int32_t weft_select_cut(uint64_t *keys, int32_t n, const float *weights,
                        double target)
{
    /* The end of the run lies in [lo, hi); keys[0, lo) weigh `before`. */
    int32_t lo = 0, hi = n;
    double before = 0.0;
    while (hi - lo > 1) {
        const int32_t pivot = partition(keys, lo, hi);
        const double above = weigh(keys, lo, pivot, weights);
        if (pivot > lo && before + above >= target) {
            hi = pivot;
            continue;
        }
        before += above + weigh(keys, pivot, pivot + 1, weights);
        lo = pivot + 1;
        if (before >= target) return lo;
    }
    return hi; /* the one that is left ends the run, or nothing is left */
}

/* ---- the first k, through a heap whose root is the last of them ---------- */

static void sift_down(uint64_t *heap, int32_t n, int32_t i)
{
    for (;;) {
        int32_t least = i;
        for (int32_t c = 2 * i + 1; c <= 2 * i + 2 && c < n; c++)
            if (heap[c] < heap[least]) least = c;
        if (least == i) return;
        swap(heap, i, least);
        i = least;
    }
}

int32_t weft_select_top(const float *values, int32_t n, int32_t k,
                        uint64_t *keys_out)
{
    if (k > n) k = n;
    if (k <= 0) return 0;
    for (int32_t i = 0; i < k; i++) keys_out[i] = weft_key(values[i], i);
    for (int32_t i = k / 2 - 1; i >= 0; i--) sift_down(keys_out, k, i);
    /* Of equals the lower id comes first and is here already, so only a larger
     * value can enter. */
    float least = values[weft_key_id(keys_out[0])];
    for (int32_t i = k; i < n; i++) {
        if (values[i] <= least) continue;
        keys_out[0] = weft_key(values[i], i);
        sift_down(keys_out, k, 0);
        least = values[weft_key_id(keys_out[0])];
    }
    for (int32_t left = k - 1; left > 0; left--) {
        swap(keys_out, 0, left);
        sift_down(keys_out, left, 0);
    }
    return k;
}

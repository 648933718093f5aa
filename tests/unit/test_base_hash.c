/* The wide hash: one value however the bytes come, another for other bytes. */
#include <check.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/rng.h"
#include "tests/support/suite.h"

enum { N = 1000 };

static void fill(unsigned char *bytes)
{
    for (uint64_t i = 0; i < N; i++)
        bytes[i] = (unsigned char)weft_rng_u64(5, i);
}

static uint64_t hash_of(const unsigned char *bytes, size_t n)
{
    weft_hash_wide hash;
    weft_hash_wide_begin(&hash);
    weft_hash_wide_add(&hash, bytes, n);
    return weft_hash_wide_end(&hash);
}

START_TEST(pieces_do_not_matter)
{
    unsigned char bytes[N];
    fill(bytes);
    const uint64_t want = hash_of(bytes, N);
    for (uint64_t seed = 0; seed < 300; seed++) {
        weft_hash_wide hash;
        weft_hash_wide_begin(&hash);
        size_t at = 0;
        for (uint64_t i = 0; at < N; i++) {
            const size_t most = seed % 3 == 0 ? 7 : 200;
            size_t n = weft_rng_u64(seed, i) % most;
            if (n > N - at) n = N - at;
            weft_hash_wide_add(&hash, bytes + at, n);
            at += n;
        }
        ck_assert(weft_hash_wide_end(&hash) == want);
    }
}
END_TEST

START_TEST(every_bit_and_the_length_matter)
{
    unsigned char bytes[N];
    fill(bytes);
    const uint64_t want = hash_of(bytes, N);
    for (size_t i = 0; i < (size_t)N * 8; i++) {
        bytes[i / 8] ^= (unsigned char)(1U << (i % 8));
        ck_assert(hash_of(bytes, N) != want);
        bytes[i / 8] ^= (unsigned char)(1U << (i % 8));
    }
    /* Zeros at the end, in a block of their own and not. */
    memset(bytes, 0, N);
    for (size_t n = 0; n < 200; n++)
        for (size_t m = 0; m < n; m++)
            ck_assert(hash_of(bytes, n) != hash_of(bytes, m));
    /* Two words that change places, in one lane and across. */
    fill(bytes);
    for (size_t far = 8; far <= 64; far += 56) {
        unsigned char other[N];
        memcpy(other, bytes, N);
        memcpy(other, bytes + far, 8);
        memcpy(other + far, bytes, 8);
        ck_assert(hash_of(other, N) != want);
    }
}
END_TEST

/* What is written to etcd by one machine is read by another: fixed values. */
START_TEST(the_value_is_fixed)
{
    unsigned char bytes[N];
    fill(bytes);
    ck_assert_uint_eq(hash_of(bytes, 0), UINT64_C(0xf3860dfe745a381));
    ck_assert_uint_eq(hash_of(bytes, 63), UINT64_C(0xcfd3dc5a5304a3b8));
    ck_assert_uint_eq(hash_of(bytes, N), UINT64_C(0x53d1cc3e56adef7a));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        pieces_do_not_matter,
        every_bit_and_the_length_matter,
        the_value_is_fixed,
    };
    return WEFT_SUITE_RUN("base/hash", tests);
}

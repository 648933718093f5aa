/* CRC-32C by wide multiplication: the same values as through tables, for all
 * lengths around its steps, from every alignment, continued anywhere. */
#include <string.h>

#include "node/base/rng.h"
#include "shard/link/crc32c.h"
#include "shard/link/frame.h"
#include "tests/support/suite.h"

enum { BYTES = 40000 };

static unsigned char bytes[BYTES];

static void fill(void)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)weft_rng_u64(5, i);
}

START_TEST(every_length_and_alignment)
{
    if (!weft_crc32c_has_wide()) return;
    fill();
    for (size_t n = 0; n < 1200; n++) {
        const size_t at = n * 7 % 64;
        const uint32_t from = (uint32_t)weft_rng_u64(6, n);
        ck_assert_uint_eq(weft_crc32c_wide(from, bytes + at, n),
                          weft_crc32c_software(from, bytes + at, n));
    }
}
END_TEST

START_TEST(long_ones_continued)
{
    fill();
    const uint32_t whole = weft_crc32c_software(0, bytes, BYTES);
    for (size_t cut = 0; cut <= BYTES; cut += 997)
        ck_assert_uint_eq(
            weft_crc32c(weft_crc32c(0, bytes, cut), bytes + cut, BYTES - cut),
            whole);
}
END_TEST

START_TEST(the_check_value)
{
    ck_assert_uint_eq(weft_crc32c(0, "123456789", 9), 0xe3069283U);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {every_length_and_alignment,
                                  long_ones_continued, the_check_value};
    return WEFT_SUITE_RUN("wide checksums", tests);
}

/* crc32c.h - the ways CRC-32C can be computed, beside weft_crc32c (frame.h),
 * which takes the fastest that this machine has.
 *
 * All give the same value; tests compare them. `software` reads eight bytes a
 * step through tables. `hardware` uses the machine's instruction: on x86 it
 * runs three streams at once, since one result takes three cycles and one can
 * begin in each, and joins them by carry-less multiplication. `wide` does it
 * all by carry-less multiplication of 512 bits, at several times the speed: a
 * checksum must not cost what the network does.
 *
 * Threads: any.
 */
#ifndef WEFT_SHARD_LINK_CRC32C_H
#define WEFT_SHARD_LINK_CRC32C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint32_t weft_crc32c_software(uint32_t crc, const void *bytes, size_t n);

bool weft_crc32c_has_hardware(void);
/* Only where has_hardware. */
uint32_t weft_crc32c_hardware(uint32_t crc, const void *bytes, size_t n);

bool weft_crc32c_has_wide(void);
/* Only where has_wide. */
uint32_t weft_crc32c_wide(uint32_t crc, const void *bytes, size_t n);

#endif

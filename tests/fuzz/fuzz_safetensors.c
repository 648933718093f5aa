/* Any bytes as a safetensors file: a table whose every tensor lies inside the
 * file, or one line of error. */
#include <stdint.h>
#include <string.h>

#include "node/base/check.h"
#include "shard/load/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char raw[WEFT_HEADER_LENGTH_BYTES] = {0};
    size_t n = 0;
    weft_err err = {0};
    weft_safetensors table = {0};
    memcpy(raw, data, size < sizeof raw ? size : sizeof raw);
    weft_status st =
        weft_safetensors_header_bytes("fuzz", raw, (int64_t)size, &n, &err);
    if (st == WEFT_OK)
        st = weft_safetensors_parse("fuzz", (const char *)data + sizeof raw, n,
                                    (int64_t)size, &table, &err);
    if (st != WEFT_OK) {
        WEFT_ASSERT(strlen(err.text) > 0 && strchr(err.text, '\n') == NULL);
        return 0;
    }
    int64_t sum = 0;
    for (size_t i = 0; i < table.n; i++) {
        const weft_tensor *const t = &table.tensors[i];
        WEFT_ASSERT(t->offset >= 0 && t->bytes >= 0 &&
                    t->bytes <= (int64_t)size - t->offset);
        sum += t->bytes;
        if (t->bytes > 0) sum += data[t->offset + t->bytes - 1] >> 8;
    }
    WEFT_ASSERT(sum + (int64_t)(n + sizeof raw) == (int64_t)size);
    weft_safetensors_deinit(&table);
    return 0;
}

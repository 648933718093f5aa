/* Any bytes as model.safetensors.index.json: only plain names of files come out
 * of it. */
#include <stdint.h>
#include <string.h>

#include "node/base/check.h"
#include "shard/load/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    weft_err err = {0};
    weft_index index = {0};
    if (weft_index_parse((const char *)data, size, &index, &err) != WEFT_OK) {
        WEFT_ASSERT(strlen(err.text) > 0 && strchr(err.text, '\n') == NULL);
        return 0;
    }
    for (int32_t i = 0; i < index.n_files; i++)
        WEFT_ASSERT(strchr(index.files[i], '/') == NULL &&
                    index.files[i][0] != '.' && index.files[i][0] != '\0');
    for (size_t i = 0; i < index.n; i++)
        WEFT_ASSERT(weft_index_find(&index, index.entries[i].tensor) ==
                    index.entries[i].file);
    weft_index_deinit(&index);
    return 0;
}

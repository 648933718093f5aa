#include "shard/load/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matrix.h"
#include "node/base/check.h"
#include "node/base/mem.h"
#include "shard/model/json.h"

_Static_assert((int)WEFT_STORED_F32 == (int)WEFT_F32 &&
                   (int)WEFT_STORED_BF16 == (int)WEFT_BF16 &&
                   (int)WEFT_STORED_F16 == (int)WEFT_F16 &&
                   (int)WEFT_STORED_F8_E4M3 == (int)WEFT_F8_E4M3,
               "a stored dtype that kernels read has their number");

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[WEFT_STORED_COUNT] = {
    [WEFT_STORED_F32] = {"F32", 4},
    [WEFT_STORED_BF16] = {"BF16", 2},
    [WEFT_STORED_F16] = {"F16", 2},
    [WEFT_STORED_F8_E4M3] = {"F8_E4M3", 1},
    [WEFT_STORED_F8_E8M0] = {"F8_E8M0", 1},
    [WEFT_STORED_F8_E5M2] = {"F8_E5M2", 1},
    [WEFT_STORED_U8] = {"U8", 1},
    [WEFT_STORED_I8] = {"I8", 1},
    [WEFT_STORED_BOOL] = {"BOOL", 1},
    [WEFT_STORED_I16] = {"I16", 2},
    [WEFT_STORED_U16] = {"U16", 2},
    [WEFT_STORED_I32] = {"I32", 4},
    [WEFT_STORED_U32] = {"U32", 4},
    [WEFT_STORED_I64] = {"I64", 8},
    [WEFT_STORED_U64] = {"U64", 8},
    [WEFT_STORED_F64] = {"F64", 8},
};

static const char metadata_key[] = "__metadata__";

size_t weft_stored_bytes(weft_stored_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *weft_stored_name(weft_stored_dtype dtype)
{
    return dtypes[dtype].name;
}

void weft_dims_show(const int64_t *dims, int32_t n_dims, char text[96])
{
    int used = snprintf(text, 96, "[");
    for (int32_t i = 0; i < n_dims && used > 0 && used < 80; i++)
        used += snprintf(text + used, (size_t)(96 - used), "%s%lld",
                         i > 0 ? ", " : "", (long long)dims[i]);
    if (used > 0 && used < 95)
        (void)snprintf(text + used, (size_t)(96 - used), "]");
}

weft_status weft_safetensors_header_bytes(
    const char *file, const unsigned char raw[WEFT_HEADER_LENGTH_BYTES],
    int64_t file_bytes, size_t *bytes_out, weft_err *err)
{
    if (file_bytes < WEFT_HEADER_LENGTH_BYTES)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: %lld bytes are too few for a safetensors header",
                         file, (long long)file_bytes);
    uint64_t n = 0;
    for (int i = WEFT_HEADER_LENGTH_BYTES - 1; i >= 0; i--) n = n << 8 | raw[i];
    if (n < 2 || n > WEFT_HEADER_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: says that its header has %llu bytes, allowed are "
                         "2 to %d",
                         file, (unsigned long long)n,
                         (int)WEFT_HEADER_BYTES_MAX);
    if (n > (uint64_t)(file_bytes - WEFT_HEADER_LENGTH_BYTES))
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: the header should have %llu bytes, but the file "
                         "ends after %lld",
                         file, (unsigned long long)n,
                         (long long)(file_bytes - WEFT_HEADER_LENGTH_BYTES));
    *bytes_out = (size_t)n;
    return WEFT_OK;
}

/* Names go into error lines and are compared as C text. */
static bool good_name(const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n >= WEFT_TENSOR_NAME_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) return false;
    return true;
}

static bool read_dtype(const json_t *value, weft_stored_dtype *out)
{
    const char *const text = json_string_value(value);
    for (int i = 0; text != NULL && i < WEFT_STORED_COUNT; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *out = (weft_stored_dtype)i;
            return true;
        }
    }
    return false;
}

/* Also sets the bytes that dtype and shape ask for. */
static weft_status read_shape(const char *file, const json_t *value,
                              weft_tensor *t, weft_err *err)
{
    const size_t n = json_array_size(value);
    if (!json_is_array(value) || n > WEFT_TENSOR_DIMS_MAX)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: tensor %s: shape is not a list of at most %d "
                         "integers",
                         file, t->stored_name, (int)WEFT_TENSOR_DIMS_MAX);
    int64_t bytes = (int64_t)dtypes[t->dtype].bytes;
    t->n_dims = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *const item = json_array_get(value, i);
        t->dims[i] = json_integer_value(item);
        if (!json_is_integer(item) || t->dims[i] < 0)
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: tensor %s: a dimension of its shape is not a "
                             "natural number",
                             file, t->stored_name);
        if (__builtin_mul_overflow(bytes, t->dims[i], &bytes))
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: tensor %s: its shape does not fit into 2^63 "
                             "bytes",
                             file, t->stored_name);
    }
    t->bytes = bytes;
    return WEFT_OK;
}

static weft_status read_offsets(const char *file, const json_t *value,
                                int64_t data_bytes, weft_tensor *t,
                                weft_err *err)
{
    const json_t *const first = json_array_get(value, 0);
    const json_t *const last = json_array_get(value, 1);
    const int64_t begin = json_integer_value(first);
    const int64_t end = json_integer_value(last);
    if (json_array_size(value) != 2 || !json_is_integer(first) ||
        !json_is_integer(last) || begin < 0 || end < begin)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: tensor %s: data_offsets is not [begin, end]",
                         file, t->stored_name);
    if (end - begin != t->bytes) {
        char dims[96];
        weft_dims_show(t->dims, t->n_dims, dims);
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: tensor %s: data_offsets span %lld bytes, but %s "
                         "%s has %lld",
                         file, t->stored_name, (long long)(end - begin),
                         dtypes[t->dtype].name, dims, (long long)t->bytes);
    }
    if (end > data_bytes)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: tensor %s ends at byte %lld of the data, the "
                         "file after %lld: it is cut short",
                         file, t->stored_name, (long long)end,
                         (long long)data_bytes);
    t->offset = begin;
    return WEFT_OK;
}

static weft_status read_entry(const char *file, const json_t *entry,
                              int64_t data_bytes, weft_tensor *t, weft_err *err)
{
    if (!json_is_object(entry) || json_object_size(entry) != 3)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: tensor %s: not an object of dtype, shape and "
                         "data_offsets",
                         file, t->stored_name);
    if (!read_dtype(json_object_get(entry, "dtype"), &t->dtype))
        return WEFT_FAIL(err, WEFT_DATA_LOSS, "%s: tensor %s: unknown dtype",
                         file, t->stored_name);
    WEFT_TRY(read_shape(file, json_object_get(entry, "shape"), t, err));
    return read_offsets(file, json_object_get(entry, "data_offsets"),
                        data_bytes, t, err);
}

static weft_status read_metadata(const char *file, json_t *value,
                                 weft_safetensors *out, weft_err *err)
{
    const char *key = NULL;
    json_t *item = NULL;
    if (!json_is_object(value))
        return WEFT_FAIL(err, WEFT_DATA_LOSS, "%s: %s is not an object", file,
                         metadata_key);
    json_object_foreach(value, key, item)
    {
        if (!json_is_string(item))
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: %s holds something that is not text", file,
                             metadata_key);
        if (strcmp(key, "indexer_rope_layout") == 0)
            (void)snprintf(out->indexer_rope_layout, WEFT_LAYOUT_BYTES, "%s",
                           json_string_value(item));
    }
    return WEFT_OK;
}

static int by_offset(const void *a, const void *b)
{
    const weft_tensor *const x = a, *const y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Every byte belongs to one tensor: what is hidden between tensors, or read
 * twice, is either damage or an attempt. */
static weft_status check_cover(const char *file, weft_safetensors *table,
                               int64_t data_bytes, weft_err *err)
{
    int64_t end = 0;
    qsort(table->tensors, table->n, sizeof *table->tensors, by_offset);
    for (size_t i = 0; i < table->n; i++) {
        const weft_tensor *const t = &table->tensors[i];
        if (t->offset < end)
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: tensor %s overlaps tensor %s", file,
                             t->stored_name, t[-1].stored_name);
        if (t->offset > end)
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: %lld bytes before tensor %s belong to no "
                             "tensor",
                             file, (long long)(t->offset - end),
                             t->stored_name);
        end += t->bytes;
    }
    if (end != data_bytes)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: %lld bytes at the end belong to no tensor", file,
                         (long long)(data_bytes - end));
    return WEFT_OK;
}

/* Room for all tensors and their names. */
static weft_status reserve(const char *file, json_t *root,
                           weft_safetensors *out, weft_err *err)
{
    const char *key = NULL;
    json_t *value = NULL;
    size_t n = 0, name_bytes = 0;
    json_object_foreach(root, key, value)
    {
        if (!good_name(key))
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: a tensor's name is empty, longer than %d "
                             "bytes or not printable",
                             file, (int)WEFT_TENSOR_NAME_MAX - 1);
        if (strcmp(key, metadata_key) == 0) continue;
        name_bytes += strlen(key) + 1;
        n++;
    }
    out->tensors = weft_mem_new(n, sizeof *out->tensors);
    out->names = weft_mem_new(name_bytes, 1);
    if (out->tensors == NULL || out->names == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "%s: no memory for a table of %zu tensors", file, n);
    return WEFT_OK;
}

static weft_status read_table(const char *file, json_t *root,
                              int64_t data_bytes, weft_safetensors *out,
                              weft_err *err)
{
    WEFT_TRY(reserve(file, root, out, err));
    WEFT_ASSERT(out->tensors != NULL && out->names != NULL);
    const char *key = NULL;
    json_t *value = NULL;
    char *name = out->names;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, metadata_key) == 0) {
            WEFT_TRY(read_metadata(file, value, out, err));
            continue;
        }
        const size_t bytes = strlen(key) + 1;
        memcpy(name, key, bytes);
        weft_tensor *const t = &out->tensors[out->n++];
        t->stored_name = t->name = name;
        name += bytes;
        WEFT_TRY(read_entry(file, value, data_bytes, t, err));
    }
    return check_cover(file, out, data_bytes, err);
}

weft_status weft_safetensors_parse(const char *file, const char *json, size_t n,
                                   int64_t file_bytes, weft_safetensors *out,
                                   weft_err *err)
{
    weft_safetensors table = {0};
    const int64_t data_offset = WEFT_HEADER_LENGTH_BYTES + (int64_t)n;
    json_t *root = NULL;
    char what[WEFT_TENSOR_NAME_MAX + 16];
    (void)snprintf(what, sizeof what, "header of %s", file);
    weft_status st = weft_json_read(what, json, n, &root, err);
    if (st == WEFT_OK)
        st = read_table(file, root, file_bytes - data_offset, &table, err);
    json_decref(root);
    if (st != WEFT_OK) {
        weft_safetensors_deinit(&table);
        return st;
    }
    for (size_t i = 0; i < table.n; i++) table.tensors[i].offset += data_offset;
    *out = table;
    return WEFT_OK;
}

void weft_safetensors_deinit(weft_safetensors *table)
{
    weft_mem_free(table->tensors);
    weft_mem_free(table->names);
    *table = (weft_safetensors){0};
}

#include "shard/load/index.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "shard/model/json.h"

static bool plain_text(const char *text)
{
    const size_t n = strlen(text);
    if (n == 0 || n >= WEFT_TENSOR_NAME_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) return false;
    return true;
}

/* A name that cannot lead out of the folder, nor to a hidden file. */
static bool plain_file(const char *name)
{
    static const char ending[] = ".safetensors";
    const size_t n = strlen(name), tail = sizeof ending - 1;
    return plain_text(name) && name[0] != '.' && strchr(name, '/') == NULL &&
           n > tail && strcmp(name + n - tail, ending) == 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_tensor(const void *a, const void *b)
{
    const weft_index_entry *const x = a, *const y = b;
    return strcmp(x->tensor, y->tensor);
}

static weft_status no_memory(weft_err *err)
{
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "%s: no memory to read it",
                     WEFT_INDEX_FILE);
}

static weft_status check_map(json_t *map, size_t *name_bytes, weft_err *err)
{
    const char *key = NULL;
    json_t *value = NULL;
    *name_bytes = 0;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: weight_map is absent, empty or not an object",
                         WEFT_INDEX_FILE);
    json_object_foreach(map, key, value)
    {
        const char *const file = json_string_value(value);
        if (!plain_text(key))
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: a tensor's name is empty, longer than %d "
                             "bytes or not printable",
                             WEFT_INDEX_FILE, (int)WEFT_TENSOR_NAME_MAX - 1);
        if (file == NULL || !plain_text(file))
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: tensor %s: not the name of a file",
                             WEFT_INDEX_FILE, key);
        if (!plain_file(file))
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: tensor %s is said to be in \"%.120s\": only "
                             "a .safetensors file of the same folder may be "
                             "named",
                             WEFT_INDEX_FILE, key, file);
        *name_bytes += strlen(key) + strlen(file) + 2;
    }
    return WEFT_OK;
}

static char *append(char **at, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *const copy = *at;
    memcpy(copy, text, bytes);
    *at += bytes;
    return copy;
}

/* `files` holds the file of every entry; sorts them and drops repetitions. */
static weft_status unite_files(weft_index *index, weft_err *err)
{
    size_t n = 0;
    qsort(index->files, index->n, sizeof *index->files, by_text);
    for (size_t i = 0; i < index->n; i++)
        if (n == 0 || strcmp(index->files[n - 1], index->files[i]) != 0)
            index->files[n++] = index->files[i];
    if (n > WEFT_INDEX_FILES_MAX)
        return WEFT_FAIL(err, WEFT_DATA_LOSS, "%s: %zu files, the limit is %d",
                         WEFT_INDEX_FILE, n, (int)WEFT_INDEX_FILES_MAX);
    index->n_files = (int32_t)n;
    return WEFT_OK;
}

static int32_t find_file(const weft_index *index, const char *name)
{
    const char **const at = bsearch(&name, index->files, (size_t)index->n_files,
                                    sizeof *index->files, by_text);
    return (int32_t)(at - index->files);
}

static weft_status read_map(json_t *map, weft_index *index, weft_err *err)
{
    size_t name_bytes = 0;
    WEFT_TRY(check_map(map, &name_bytes, err));
    const size_t n = json_object_size(map);
    index->files = weft_mem_new(n, sizeof *index->files);
    index->entries = weft_mem_new(n, sizeof *index->entries);
    index->names = weft_mem_new(name_bytes, 1);
    if (index->files == NULL || index->entries == NULL || index->names == NULL)
        return no_memory(err);
    const char *key = NULL;
    json_t *value = NULL;
    char *at = index->names;
    json_object_foreach(map, key, value)
    {
        index->files[index->n] = append(&at, json_string_value(value));
        index->entries[index->n++].tensor = append(&at, key);
    }
    WEFT_TRY(unite_files(index, err));
    size_t i = 0;
    json_object_foreach(map, key, value)
    {
        index->entries[i++].file = find_file(index, json_string_value(value));
    }
    qsort(index->entries, index->n, sizeof *index->entries, by_tensor);
    return WEFT_OK;
}

/* total_size and what else may be there is for people. */
static void read_metadata(const json_t *metadata, weft_index *index)
{
    const char *const layout =
        json_string_value(json_object_get(metadata, "indexer_rope_layout"));
    if (layout != NULL)
        (void)snprintf(index->indexer_rope_layout, WEFT_LAYOUT_BYTES, "%s",
                       layout);
}

weft_status weft_index_parse(const char *json, size_t n, weft_index *out,
                             weft_err *err)
{
    weft_index index = {0};
    json_t *root = NULL;
    weft_status st = weft_json_read(WEFT_INDEX_FILE, json, n, &root, err);
    if (st == WEFT_OK)
        st = read_map(json_object_get(root, "weight_map"), &index, err);
    if (st == WEFT_OK) read_metadata(json_object_get(root, "metadata"), &index);
    json_decref(root);
    if (st != WEFT_OK) {
        weft_index_deinit(&index);
        return st;
    }
    *out = index;
    return WEFT_OK;
}

void weft_index_deinit(weft_index *index)
{
    weft_mem_free(index->files);
    weft_mem_free(index->entries);
    weft_mem_free(index->names);
    *index = (weft_index){0};
}

int32_t weft_index_find(const weft_index *index, const char *tensor)
{
    const weft_index_entry key = {.tensor = tensor};
    const weft_index_entry *const at = bsearch(
        &key, index->entries, index->n, sizeof *index->entries, by_tensor);
    return at != NULL ? at->file : -1;
}

/* synth_file.c - folders, files, and the safetensors format, written out. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/base/mem.h"
#include "node/base/str.h"
#include "tests/support/synth_internal.h"

void synth_die(const char *what, const char *detail)
{
    (void)fprintf(stderr, "synth: %s: %s\n", what, detail);
    abort();
}

void synth_must(weft_status st, const weft_err *err)
{
    if (st != WEFT_OK) synth_die(weft_status_name(st), err->text);
}

void *synth_new(size_t n, size_t item_bytes)
{
    void *const mem = weft_mem_new(n, item_bytes);
    if (mem == NULL) synth_die("memory", "none left");
    return mem;
}

void synth_folder_make(char path_out[64])
{
    (void)snprintf(path_out, 64, "%s/weft-test-XXXXXX", P_tmpdir);
    if (mkdtemp(path_out) == NULL) synth_die(path_out, "cannot be made");
}

void synth_folder_remove(const char *path)
{
    DIR *const folder = opendir(path);
    if (folder == NULL) synth_die(path, "cannot be opened");
    for (const struct dirent *entry = readdir(folder); entry != NULL;
         entry = readdir(folder)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char file[512];
        (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (unlink(file) != 0) synth_die(file, "cannot be removed");
    }
    (void)closedir(folder);
    if (rmdir(path) != 0) synth_die(path, "cannot be removed");
}

void synth_file_write(const char *dir, const char *name, const void *bytes,
                      int64_t n)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *const file = fopen(path, "wb");
    if (file == NULL) synth_die(path, "cannot be written");
    if (fwrite(bytes, 1, (size_t)n, file) != (size_t)n || fclose(file) != 0)
        synth_die(path, "cannot be written");
}

synth_tensor *synth_list_add(synth_list *list, const char *name,
                             const char *dtype, size_t item_bytes,
                             const int64_t *dims, int32_t n_dims)
{
    if (list->n == list->capacity) {
        list->capacity = list->capacity == 0 ? 256 : 2 * list->capacity;
        list->items =
            weft_mem_resize(list->items, list->capacity, sizeof *list->items);
        if (list->items == NULL) synth_die("memory", "none left");
    }
    synth_tensor *const t = &list->items[list->n++];
    memset(t, 0, sizeof *t);
    if (strlen(name) >= sizeof t->name) synth_die(name, "too long");
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->dtype = dtype;
    t->n_dims = n_dims;
    t->n_bytes = item_bytes;
    for (int32_t i = 0; i < n_dims; i++) {
        t->dims[i] = dims[i];
        t->n_bytes *= (size_t)dims[i];
    }
    t->bytes = synth_new(t->n_bytes, 1);
    return t;
}

void synth_list_free(synth_list *list)
{
    for (size_t i = 0; i < list->n; i++) weft_mem_free(list->items[i].bytes);
    weft_mem_free(list->items);
    *list = (synth_list){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const synth_tensor *)a)->name,
                  ((const synth_tensor *)b)->name);
}

static void add_metadata(weft_buf *buf, const synth_options *options)
{
    weft_err err;
    synth_must(options->layout == NULL
                   ? weft_buf_printf(buf, &err, "{\"format\":\"pt\"}")
                   : weft_buf_printf(buf, &err,
                                     "{\"indexer_rope_layout\":\"%s\"}",
                                     options->layout),
               &err);
}

static void write_one(const synth_tensor *items, size_t n, const char *dir,
                      const char *name, const synth_options *options)
{
    weft_err err;
    weft_buf header = {0}, file = {0};
    size_t offset = 0;
    synth_must(weft_buf_printf(&header, &err, "{\"__metadata__\":"), &err);
    add_metadata(&header, options);
    for (size_t i = 0; i < n; i++) {
        const synth_tensor *const t = &items[i];
        synth_must(weft_buf_printf(&header, &err,
                                   ",\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                   t->name, t->dtype),
                   &err);
        for (int32_t d = 0; d < t->n_dims; d++)
            synth_must(weft_buf_printf(&header, &err, "%s%lld",
                                       d > 0 ? "," : "", (long long)t->dims[d]),
                       &err);
        synth_must(weft_buf_printf(&header, &err,
                                   "],\"data_offsets\":[%zu,%zu]}", offset,
                                   offset + t->n_bytes),
                   &err);
        offset += t->n_bytes;
    }
    synth_must(weft_buf_add(&header, "}", 1, &err), &err);
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(header.n >> (8 * i));
    synth_must(weft_buf_add(&file, length, sizeof length, &err), &err);
    synth_must(weft_buf_add(&file, header.data, header.n, &err), &err);
    for (size_t i = 0; i < n; i++)
        synth_must(weft_buf_add(&file, items[i].bytes, items[i].n_bytes, &err),
                   &err);
    synth_file_write(dir, name, file.data, (int64_t)file.n);
    weft_buf_deinit(&file);
    weft_buf_deinit(&header);
}

void synth_list_write(synth_list *list, const char *dir,
                      const synth_options *options)
{
    qsort(list->items, list->n, sizeof *list->items, by_name);
    if (options->n_shards < 1) {
        write_one(list->items, list->n, dir, "model.safetensors", options);
        return;
    }
    weft_err err;
    weft_buf index = {0};
    const size_t n_shards = (size_t)options->n_shards;
    synth_must(weft_buf_printf(&index, &err, "{\"metadata\":"), &err);
    add_metadata(&index, options);
    synth_must(weft_buf_printf(&index, &err, ",\"weight_map\":{"), &err);
    for (size_t s = 0; s < n_shards; s++) {
        char name[64];
        const size_t first = list->n * s / n_shards;
        const size_t end = list->n * (s + 1) / n_shards;
        (void)snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors",
                       s + 1, n_shards);
        write_one(list->items + first, end - first, dir, name, options);
        for (size_t i = first; i < end; i++)
            synth_must(weft_buf_printf(&index, &err, "%s\"%s\":\"%s\"",
                                       i > 0 ? "," : "", list->items[i].name,
                                       name),
                       &err);
    }
    synth_must(weft_buf_add(&index, "}}", 2, &err), &err);
    synth_file_write(dir, "model.safetensors.index.json", index.data,
                     (int64_t)index.n);
    weft_buf_deinit(&index);
}

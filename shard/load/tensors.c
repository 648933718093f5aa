#include "shard/load/tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/base/file.h"
#include "node/base/mem.h"

enum { PATH_BYTES = 4096 };

static const struct {
    const char *from, *to;
} prefixes[] = {
    {"model.language_model.lm_head.", "lm_head."},
    {"model.language_model.model.", "model."},
    {"model.language_model.", "model."},
    {"language_model.lm_head.", "lm_head."},
    {"language_model.model.", "model."},
    {"model.vision_encoder.", "vision_encoder."},
    {"model.audio_encoder.", "audio_encoder."},
};

static weft_status make_path(const char *dir, const char *name,
                             char path[PATH_BYTES], weft_err *err)
{
    const int n = snprintf(path, PATH_BYTES, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_BYTES)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the path of the model folder is too long");
    return WEFT_OK;
}

static weft_status read_exact(int fd, const char *name, int64_t offset,
                              void *bytes_out, size_t n, weft_err *err)
{
    unsigned char *const out = bytes_out;
    size_t done = 0;
    while (done < n) {
        const ssize_t got =
            pread(fd, out + done, n - done, offset + (int64_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return WEFT_FAIL(err, WEFT_UNAVAILABLE, "read %s: %s", name,
                             strerror(errno));
        if (got == 0)
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: ends %zu bytes short of %zu at offset %lld",
                             name, n - done, n, (long long)offset);
        done += (size_t)got;
    }
    return WEFT_OK;
}

static weft_status read_table(weft_tensor_file *file, weft_err *err)
{
    unsigned char raw[WEFT_HEADER_LENGTH_BYTES] = {0};
    size_t n = 0;
    if (file->bytes >= WEFT_HEADER_LENGTH_BYTES)
        WEFT_TRY(read_exact(file->fd, file->name, 0, raw, sizeof raw, err));
    WEFT_TRY(
        weft_safetensors_header_bytes(file->name, raw, file->bytes, &n, err));
    char *const json = weft_mem_new(n, 1);
    if (json == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "%s: no memory for a header of %zu bytes", file->name,
                         n);
    weft_status st = read_exact(file->fd, file->name, WEFT_HEADER_LENGTH_BYTES,
                                json, n, err);
    if (st == WEFT_OK)
        st = weft_safetensors_parse(file->name, json, n, file->bytes,
                                    &file->table, err);
    weft_mem_free(json);
    return st;
}

/* `file` has a name and no descriptor; what is opened stays its own. */
static weft_status open_file(const char *dir, weft_tensor_file *file,
                             weft_err *err)
{
    char path[PATH_BYTES];
    struct stat info;
    WEFT_TRY(make_path(dir, file->name, path, err));
    /* O_NONBLOCK: opening a pipe must not wait for its other end. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0)
        return WEFT_FAIL(err,
                         errno == ENOENT || errno == ENOTDIR ? WEFT_NOT_FOUND
                         : errno == EMFILE || errno == ENFILE
                             ? WEFT_RESOURCE_EXHAUSTED
                             : WEFT_UNAVAILABLE,
                         "%s in %s: %s", file->name, dir, strerror(errno));
    if (fstat(file->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: not a regular file",
                         file->name);
    file->bytes = (int64_t)info.st_size;
    (void)posix_fadvise(file->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return read_table(file, err);
}

static weft_status read_index(const char *dir, weft_tensor_set *set,
                              bool *found, weft_err *err)
{
    char path[PATH_BYTES];
    weft_buf text = {0};
    weft_err why = {.status = WEFT_OK};
    WEFT_TRY(make_path(dir, WEFT_INDEX_FILE, path, err));
    weft_status st =
        weft_file_read_all(path, WEFT_INDEX_BYTES_MAX, &text, &why);
    *found = st != WEFT_NOT_FOUND;
    if (st == WEFT_OK)
        st = weft_index_parse(text.data, text.n, &set->index, err);
    else if (st == WEFT_NOT_FOUND)
        st = WEFT_OK;
    else if (err != NULL)
        *err = why;
    weft_buf_deinit(&text);
    return st;
}

static weft_status open_files(const char *dir, bool indexed,
                              weft_tensor_set *set, weft_err *err)
{
    const int32_t n = indexed ? set->index.n_files : 1;
    set->files = weft_mem_new((size_t)n, sizeof *set->files);
    if (set->files == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a list of %d files", (int)n);
    for (int32_t i = 0; i < n; i++) {
        set->files[i].name = indexed ? set->index.files[i] : WEFT_SINGLE_FILE;
        set->files[i].fd = -1;
    }
    set->n_files = n;
    for (int32_t i = 0; i < n; i++)
        WEFT_TRY(open_file(dir, &set->files[i], err));
    return WEFT_OK;
}

/* A layout that two places tell must be the same. */
static weft_status settle_layout(weft_tensor_set *set, weft_err *err)
{
    char *const layout = set->indexer_rope_layout;
    memcpy(layout, set->index.indexer_rope_layout, WEFT_LAYOUT_BYTES);
    for (int32_t i = 0; i < set->n_files; i++) {
        const char *const own = set->files[i].table.indexer_rope_layout;
        if (own[0] == '\0') continue;
        if (layout[0] != '\0' && strcmp(layout, own) != 0)
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "%s: indexer_rope_layout %s contradicts another "
                             "file's %s",
                             set->files[i].name, own, layout);
        memcpy(layout, own, WEFT_LAYOUT_BYTES);
    }
    return WEFT_OK;
}

static const char *strip(const char *name, char **at)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const size_t n = strlen(prefixes[i].from);
        if (strncmp(name, prefixes[i].from, n) != 0) continue;
        char *const copy = *at;
        *at = stpcpy(stpcpy(copy, prefixes[i].to), name + n) + 1;
        return copy;
    }
    return name;
}

/* The index says whose copy counts; what it does not list at all is refused,
 * since then one of the two is not the other's. */
static weft_status keep(const weft_tensor_set *set, const weft_tensor *t,
                        bool *keep_out, weft_err *err)
{
    *keep_out = true;
    if (set->index.n == 0) return WEFT_OK;
    const int32_t file = weft_index_find(&set->index, t->stored_name);
    if (file < 0)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "%s: tensor %s is not in " WEFT_INDEX_FILE,
                         set->files[t->file].name, t->stored_name);
    *keep_out = file == t->file;
    return WEFT_OK;
}

static int by_name(const void *a, const void *b)
{
    const weft_tensor *const x = *(const weft_tensor *const *)a;
    const weft_tensor *const y = *(const weft_tensor *const *)b;
    return strcmp(x->name, y->name);
}

/* Every tensor of every table into set->tensors, without prefixes. */
static weft_status collect(weft_tensor_set *set, weft_err *err)
{
    size_t n = 0, name_bytes = 1;
    for (int32_t i = 0; i < set->n_files; i++) {
        const weft_safetensors *const table = &set->files[i].table;
        n += table->n;
        for (size_t k = 0; k < table->n; k++)
            name_bytes += strlen(table->tensors[k].stored_name) + 1;
    }
    set->tensors = weft_mem_new(n, sizeof(weft_tensor *));
    set->names = weft_mem_new(name_bytes, 1);
    if (set->tensors == NULL || set->names == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a table of %zu tensors", n);
    char *at = set->names;
    for (int32_t i = 0; i < set->n_files; i++) {
        weft_safetensors *const table = &set->files[i].table;
        for (size_t k = 0; k < table->n; k++) {
            weft_tensor *const t = &table->tensors[k];
            bool kept = true;
            t->file = i;
            WEFT_TRY(keep(set, t, &kept, err));
            if (!kept) continue;
            t->name = strip(t->stored_name, &at);
            set->tensors[set->n++] = t;
        }
    }
    qsort(set->tensors, set->n, sizeof(weft_tensor *), by_name);
    for (size_t i = 1; i < set->n; i++)
        if (strcmp(set->tensors[i - 1]->name, set->tensors[i]->name) == 0)
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "tensor %s is there twice: in %s and in %s",
                             set->tensors[i]->stored_name,
                             weft_tensor_set_file(set, set->tensors[i - 1]),
                             weft_tensor_set_file(set, set->tensors[i]));
    return WEFT_OK;
}

static int by_stored_name(const void *a, const void *b)
{
    const weft_tensor *const x = *(const weft_tensor *const *)a;
    const weft_tensor *const y = *(const weft_tensor *const *)b;
    return strcmp(x->stored_name, y->stored_name);
}

/* Every line of the index must be kept by the file it names. */
static weft_status check_index(const weft_tensor_set *set, weft_err *err)
{
    if (set->index.n == 0) return WEFT_OK;
    weft_tensor **const sorted = weft_mem_new(set->n, sizeof(weft_tensor *));
    if (sorted == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a table of %zu tensors", set->n);
    if (set->n > 0)
        memcpy(sorted, set->tensors, set->n * sizeof(weft_tensor *));
    qsort(sorted, set->n, sizeof(weft_tensor *), by_stored_name);
    weft_status st = WEFT_OK;
    for (size_t i = 0; st == WEFT_OK && i < set->index.n; i++) {
        const weft_index_entry *const entry = &set->index.entries[i];
        if (i < set->n && strcmp(sorted[i]->stored_name, entry->tensor) == 0)
            continue;
        st = WEFT_FAIL(err, WEFT_DATA_LOSS,
                       "%s: tensor %s is missing, " WEFT_INDEX_FILE
                       " says it is there",
                       set->index.files[entry->file], entry->tensor);
    }
    weft_mem_free(sorted);
    return st;
}

static void tell_stray(const char *dir, weft_remark_fn remark, void *arg)
{
    char path[PATH_BYTES];
    struct stat info;
    if (remark != NULL &&
        make_path(dir, WEFT_SINGLE_FILE, path, NULL) == WEFT_OK &&
        stat(path, &info) == 0)
        remark(arg, WEFT_SINGLE_FILE,
               "not read: " WEFT_INDEX_FILE " names the files that count");
}

weft_status weft_tensor_set_open(const char *dir, weft_remark_fn remark,
                                 void *arg, weft_tensor_set *set_out,
                                 weft_err *err)
{
    weft_tensor_set set = {0};
    bool indexed = false;
    weft_status st = read_index(dir, &set, &indexed, err);
    if (st == WEFT_OK) st = open_files(dir, indexed, &set, err);
    if (st == WEFT_OK) st = collect(&set, err);
    if (st == WEFT_OK) st = check_index(&set, err);
    if (st == WEFT_OK) st = settle_layout(&set, err);
    if (st != WEFT_OK) {
        weft_tensor_set_deinit(&set);
        return st;
    }
    bool listed = false;
    for (int32_t i = 0; i < set.index.n_files; i++)
        listed = listed || strcmp(set.index.files[i], WEFT_SINGLE_FILE) == 0;
    if (indexed && !listed) tell_stray(dir, remark, arg);
    *set_out = set;
    return WEFT_OK;
}

void weft_tensor_set_deinit(weft_tensor_set *set)
{
    for (int32_t i = 0; i < set->n_files; i++) {
        if (set->files[i].fd >= 0) (void)close(set->files[i].fd);
        weft_safetensors_deinit(&set->files[i].table);
    }
    weft_mem_free(set->files);
    weft_mem_free(set->tensors);
    weft_mem_free(set->names);
    weft_index_deinit(&set->index);
    *set = (weft_tensor_set){0};
}

weft_tensor *weft_tensor_set_find(const weft_tensor_set *set, const char *name)
{
    const weft_tensor key = {.name = name};
    const weft_tensor *const at = &key;
    weft_tensor **const found =
        bsearch(&at, set->tensors, set->n, sizeof(weft_tensor *), by_name);
    return found != NULL ? *found : NULL;
}

const char *weft_tensor_set_file(const weft_tensor_set *set,
                                 const weft_tensor *tensor)
{
    return set->files[tensor->file].name;
}

weft_status weft_tensor_set_read(const weft_tensor_set *set,
                                 const weft_tensor *tensor, int64_t begin,
                                 void *bytes_out, size_t n, weft_err *err)
{
    const weft_tensor_file *const file = &set->files[tensor->file];
    const weft_status st = read_exact(
        file->fd, file->name, tensor->offset + begin, bytes_out, n, err);
    if (st == WEFT_OK) return st;
    return WEFT_WRAP(err, st, "tensor %s", tensor->stored_name);
}

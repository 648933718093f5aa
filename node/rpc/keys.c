#include "node/rpc/keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/file_watch.h"
#include "node/base/log.h"
#include "node/base/mem.h"

typedef struct key {
    size_t n;
    unsigned char bytes[WEFT_KEY_BYTES_MAX];
} key;

struct weft_keys {
    char *path;
    pthread_mutex_t lock; /* of what follows */
    key *keys;            /* [WEFT_KEYS_MAX] */
    key *fresh;           /* the same: where a file is read to */
    int32_t n;
    weft_file_watch watch;
};

static bool is_key(const char *line, size_t n)
{
    if (n < WEFT_KEY_BYTES_MIN || n > WEFT_KEY_BYTES_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if (line[i] <= ' ' || line[i] > '~') return false;
    return true;
}

/* Every line of the file into keys_out [max]. */
static weft_status read_lines(FILE *file, const char *path, key *keys_out,
                              int32_t max, int32_t *n_out, weft_err *err)
{
    /* With its line's end, and one more byte to tell a line that is too long.
     */
    char line[WEFT_KEY_BYTES_MAX + 4];
    int32_t n = 0;
    for (int32_t at = 1; fgets(line, sizeof line, file) != NULL; at++) {
        size_t bytes = strcspn(line, "\r\n");
        if (bytes == 0 || line[0] == '#') {
            while (strchr(line, '\n') == NULL &&
                   fgets(line, sizeof line, file) != NULL) {
            }
            continue;
        }
        if (!is_key(line, bytes))
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s line %d: a key is %d to %d visible ASCII "
                             "characters",
                             path, at, WEFT_KEY_BYTES_MIN, WEFT_KEY_BYTES_MAX);
        if (n == max)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s: more than %d keys", path, max);
        keys_out[n].n = bytes;
        memcpy(keys_out[n++].bytes, line, bytes);
    }
    if (n == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: no key in it", path);
    *n_out = n;
    return WEFT_OK;
}

static weft_status read_file(const char *path, key *keys_out, int32_t max,
                             int32_t *n_out, weft_err *err)
{
    FILE *const file = fopen(path, "re");
    if (file == NULL)
        return WEFT_FAIL(
            err, errno == ENOENT ? WEFT_NOT_FOUND : WEFT_INVALID_ARGUMENT,
            "%s: %s", path, strerror(errno));
    weft_status st = read_lines(file, path, keys_out, max, n_out, err);
    if (ferror(file) != 0)
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: %s", path,
                       strerror(errno));
    (void)fclose(file);
    return st;
}

/* The lock is held. */
static void look(weft_keys *k)
{
    weft_err err = {0};
    int32_t n = 0;
    if (!weft_file_watch_look(&k->watch, weft_clock_now_ns())) return;
    if (read_file(k->path, k->fresh, WEFT_KEYS_MAX, &n, &err) != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "rpc", "keys_not_reloaded", "reason \"%s\"",
                 err.text);
        return;
    }
    key *const old = k->keys;
    k->keys = k->fresh;
    k->fresh = old;
    k->n = n;
    weft_log(WEFT_LOG_INFO, "rpc", "keys_reloaded", "keys %d", n);
}

weft_status weft_keys_create(const char *path, weft_keys **keys_out,
                             weft_err *err)
{
    weft_keys *const k = weft_mem_new(1, sizeof *k);
    if (k == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for keys");
    (void)pthread_mutex_init(&k->lock, NULL);
    k->path = weft_mem_copy_text(path, strlen(path));
    k->keys = weft_mem_new(WEFT_KEYS_MAX, sizeof *k->keys);
    k->fresh = weft_mem_new(WEFT_KEYS_MAX, sizeof *k->fresh);
    weft_status st = WEFT_OK;
    if (k->path == NULL || k->keys == NULL || k->fresh == NULL)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for keys");
    k->watch.paths[0] = k->path;
    weft_file_watch_begin(&k->watch, weft_clock_now_ns());
    if (st == WEFT_OK) st = read_file(path, k->keys, WEFT_KEYS_MAX, &k->n, err);
    if (st != WEFT_OK) {
        weft_keys_destroy(k);
        return st;
    }
    *keys_out = k;
    return WEFT_OK;
}

void weft_keys_destroy(weft_keys *k)
{
    if (k == NULL) return;
    weft_mem_free(k->path);
    weft_mem_free(k->keys);
    weft_mem_free(k->fresh);
    (void)pthread_mutex_destroy(&k->lock);
    weft_mem_free(k);
}

static bool is_same(const key *k, const unsigned char *bytes, size_t n)
{
    unsigned different = k->n != n;
    for (size_t i = 0; i < k->n; i++)
        different |= (unsigned)k->bytes[i] ^ bytes[i < n ? i : 0];
    return different == 0;
}

bool weft_keys_has(weft_keys *k, const void *bytes, size_t n)
{
    bool found = false;
    if (n < WEFT_KEY_BYTES_MIN || n > WEFT_KEY_BYTES_MAX) return false;
    (void)pthread_mutex_lock(&k->lock);
    look(k);
    for (int32_t i = 0; i < k->n; i++) found |= is_same(&k->keys[i], bytes, n);
    (void)pthread_mutex_unlock(&k->lock);
    return found;
}

weft_status weft_keys_read_first(const char *path,
                                 char key_out[WEFT_KEY_BYTES_MAX + 1],
                                 weft_err *err)
{
    int32_t n = 0;
    key *const all = weft_mem_new(WEFT_KEYS_MAX, sizeof *all);
    if (all == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for keys");
    const weft_status st = read_file(path, all, WEFT_KEYS_MAX, &n, err);
    if (st == WEFT_OK) {
        memcpy(key_out, all[0].bytes, all[0].n);
        key_out[all[0].n] = '\0';
    }
    weft_mem_free(all);
    return st;
}

#include "node/cluster/registry.h"

#include <stdio.h>
#include <string.h>

#include "node/base/str.h"

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && memcmp(text + n - m, end, m) == 0;
}

size_t weft_registry_value_max(const char *key)
{
    return strncmp(key, "epoch/", 6) == 0 && ends_with(key, "/placement")
               ? WEFT_PLACEMENT_BYTES_MAX
               : WEFT_VALUE_BYTES_MAX;
}

bool weft_registry_is_key(const void *key, size_t n)
{
    const unsigned char *const bytes = key;
    for (size_t i = 0; i < n; i++)
        if (bytes[i] <= ' ' || bytes[i] >= 0x7f) return false;
    return n > 0 && n < WEFT_KEY_BYTES;
}

static weft_status check_key(const char *key, weft_err *err)
{
    char copy[WEFT_KEY_BYTES], line[WEFT_KEY_BYTES];
    const size_t n = strnlen(key, WEFT_KEY_BYTES);
    if (weft_registry_is_key(key, n)) return WEFT_OK;
    (void)snprintf(copy, sizeof copy, "%.*s", (int)n, key);
    (void)weft_text_line(copy, line, sizeof line);
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "\"%.80s\" is no key (allowed: 1 to %d printable "
                     "characters, no space)",
                     line, WEFT_KEY_BYTES - 1);
}

static weft_status check_write(const weft_txn_write *write, weft_err *err)
{
    WEFT_TRY(check_key(write->key, err));
    const size_t most = weft_registry_value_max(write->key);
    if (!write->remove && write->value.n > most)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the value of %s has %zu bytes (allowed: up to %zu)",
                         write->key, write->value.n, most);
    if (write->prefix && !write->remove)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: a prefix can be removed, not written",
                         write->key);
    return WEFT_OK;
}

weft_status weft_txn_check(const weft_txn *txn, weft_err *err)
{
    if (txn->n_compares < 0 || txn->n_compares > WEFT_TXN_COMPARES_MAX ||
        txn->n_writes < 1 || txn->n_writes > WEFT_TXN_WRITES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a transaction of %d compares and %d writes "
                         "(allowed: up to %d and 1 to %d)",
                         txn->n_compares, txn->n_writes, WEFT_TXN_COMPARES_MAX,
                         WEFT_TXN_WRITES_MAX);
    for (int32_t i = 0; i < txn->n_compares; i++)
        WEFT_TRY(check_key(txn->compares[i].key, err));
    for (int32_t i = 0; i < txn->n_writes; i++)
        WEFT_TRY(check_write(&txn->writes[i], err));
    return WEFT_OK;
}

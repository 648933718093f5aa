#include "node/base/failpoint.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "node/base/str.h"

enum { ENTRIES_MAX = 32, MS_MAX = 3600000 };

typedef enum action { ABORT, STOP, SLEEP, ERROR } action;

typedef struct entry {
    const char *name; /* of the list */
    action action;
    int64_t sleep_ms;
    int64_t at; /* 0: every time */
    atomic_int_least64_t passed;
} entry;

static entry entries[ENTRIES_MAX];
static int n_entries;

/* NULL: none of the list. */
static const char *find_name(const char *name)
{
#define NAME_OF(name, where) name,
    static const char *const names[] = {WEFT_FAILPOINT_LIST(NAME_OF)};
#undef NAME_OF
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) return names[i];
    return NULL;
}

static bool parse_action(const char *text, entry *e)
{
    static const char sleep[] = "sleep:";
    if (strcmp(text, "abort") == 0)
        e->action = ABORT;
    else if (strcmp(text, "stop") == 0)
        e->action = STOP;
    else if (strcmp(text, "error") == 0)
        e->action = ERROR;
    else if (strncmp(text, sleep, sizeof sleep - 1) == 0) {
        e->action = SLEEP;
        return weft_parse_i64(text + sizeof sleep - 1, 0, MS_MAX, &e->sleep_ms);
    } else
        return false;
    return true;
}

/* text is "name=action[@n]"; it is cut into its parts. */
static weft_status parse_entry(char *text, entry *e, weft_err *err)
{
    char *const equals = strchr(text, '=');
    if (equals == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "failpoint \"%s\": it takes name=action", text);
    *equals = '\0';
    char *const count = strchr(equals + 1, '@');
    if (count != NULL) *count = '\0';
    e->at = 0;
    e->name = find_name(text);
    if (e->name == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "failpoint \"%s\": there is no such place", text);
    if (!parse_action(equals + 1, e))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "failpoint %s=%s: it takes abort, stop, sleep:MS or "
                         "error",
                         text, equals + 1);
    if (count != NULL && !weft_parse_i64(count + 1, 1, INT64_MAX, &e->at))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "failpoint %s: @%s: it takes a number from 1", text,
                         count + 1);
    atomic_store(&e->passed, 0);
    return WEFT_OK;
}

weft_status weft_failpoints_set(const char *text, weft_err *err)
{
    enum { ENTRY_BYTES = 128 };
    n_entries = 0;
    while (*text != '\0') {
        char one[ENTRY_BYTES];
        const size_t n = strcspn(text, ";");
        if (n >= sizeof one || n_entries == ENTRIES_MAX)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "failpoints: more than %d entries, or one longer "
                             "than %d bytes",
                             ENTRIES_MAX, ENTRY_BYTES - 1);
        memcpy(one, text, n);
        one[n] = '\0';
        text += n + (text[n] == ';' ? 1 : 0);
        if (n == 0) continue;
        const weft_status st = parse_entry(one, &entries[n_entries], err);
        if (st != WEFT_OK) {
            n_entries = 0;
            return st;
        }
        n_entries++;
    }
    return WEFT_OK;
}

static bool act(const entry *e)
{
    struct timespec left = {.tv_sec = e->sleep_ms / 1000,
                            .tv_nsec = e->sleep_ms % 1000 * 1000000};
    switch (e->action) {
    case ABORT: (void)raise(SIGKILL); break;
    case STOP: (void)raise(SIGSTOP); break;
    case SLEEP:
        while (nanosleep(&left, &left) != 0) {
        }
        break;
    case ERROR: return true;
    }
    return false;
}

bool weft_failpoint_pass(const char *name)
{
    bool fails = false;
    for (int i = 0; i < n_entries; i++) {
        entry *const e = &entries[i];
        if (strcmp(e->name, name) != 0) continue;
        const int64_t times = atomic_fetch_add(&e->passed, 1) + 1;
        if (e->at == 0 || e->at == times) fails |= act(e);
    }
    return fails;
}

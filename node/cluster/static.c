#include <pthread.h>
#include <string.h>
#include <time.h>

#include "node/base/address.h"
#include "node/base/file.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/base/str.h"
#include "node/cluster/registry.h"
#include "node/cluster/values.h"

enum {
    FILE_BYTES_MAX = 1 << 20,
    MEMBERS_MAX = 4096,
    WORDS_MAX = 6,
    RESULTS_MAX = 8,
};

struct fixed {
    weft_registry base; /* first */
    weft_member *members;
    int32_t n_members, room, replicas;
    bool told;
    uint64_t tags[RESULTS_MAX]; /* of transactions to be refused */
    int32_t n_tags;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool awake;
};

/* --- the file ------------------------------------------------------------ */

/* Where a line is, for what is said about it. */
struct place {
    const char *file;
    int32_t line;
};

#define BAD(at, err, ...)                                                      \
    WEFT_WRAP((err), WEFT_FAIL((err), WEFT_INVALID_ARGUMENT, __VA_ARGS__),     \
              "%s, line %d", (at)->file, (at)->line)

static int32_t split(char *line, char *words[WORDS_MAX + 1])
{
    static const char blanks[] = " \t\r";
    int32_t n = 0;
    char *rest = NULL;
    line[strcspn(line, "#")] = '\0';
    for (char *word = strtok_r(line, blanks, &rest);
         word != NULL && n <= WORDS_MAX; word = strtok_r(NULL, blanks, &rest))
        words[n++] = word;
    return n;
}

static bool role_of(const char *word, weft_role *role_out)
{
    static const weft_role roles[] = {WEFT_ROLE_ROUTER, WEFT_ROLE_LAYERS,
                                      WEFT_ROLE_EXPERTS};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(word, weft_role_name(roles[i])) != 0) continue;
        *role_out = roles[i];
        return true;
    }
    return false;
}

static weft_status take_replicas(struct fixed *f, const struct place *at,
                                 char *const *words, int32_t n, weft_err *err)
{
    int64_t replicas;
    if (n != 2 || !weft_parse_i64(words[1], 1, WEFT_REPLICAS_MAX, &replicas))
        return BAD(at, err, "expected: replicas N, with N from 1 to %d",
                   WEFT_REPLICAS_MAX);
    f->replicas = (int32_t)replicas;
    return WEFT_OK;
}

static weft_status read_place_in_group(weft_member *m, const struct place *at,
                                       char *const *words, weft_err *err)
{
    int64_t group, stage;
    if (!weft_parse_i64(words[0], 0, WEFT_GROUP_MAX - 1, &group) ||
        !weft_parse_i64(words[1], 0, MEMBERS_MAX - 1, &stage))
        return BAD(at, err, "group %.40s stage %.40s are not two numbers",
                   words[0], words[1]);
    m->group = (int32_t)group;
    m->stage = (int32_t)stage;
    return WEFT_OK;
}

static weft_status check_distinct(const struct fixed *f, const weft_member *m,
                                  const struct place *at, weft_err *err)
{
    for (int32_t i = 0; i < f->n_members; i++) {
        const weft_member *other = &f->members[i];
        if (strcmp(other->id, m->id) == 0)
            return BAD(at, err, "the id %s is given twice", m->id);
        if (m->role == WEFT_ROLE_LAYERS && other->role == m->role &&
            other->group == m->group && other->stage == m->stage)
            return BAD(at, err, "group %d stage %d is %s already", m->group,
                       m->stage, other->id);
    }
    return WEFT_OK;
}

static weft_status read_member(weft_member *m, const struct place *at,
                               char *const *words, int32_t n, weft_err *err)
{
    weft_address address;
    *m = (weft_member){.state = WEFT_MEMBER_SERVING, .incarnation = 1};
    if (!role_of(words[0], &m->role))
        return BAD(at, err,
                   "\"%.40s\" is no role (allowed: router, layers, experts, "
                   "replicas)",
                   words[0]);
    const int32_t wanted = m->role == WEFT_ROLE_LAYERS ? 5 : 3;
    if (n != wanted)
        return BAD(at, err, "expected: %s ID HOST:PORT%s", words[0],
                   wanted == 5 ? " GROUP STAGE" : "");
    if (!weft_id_is_valid(words[1]))
        return BAD(at, err,
                   "\"%.80s\" is no id (allowed: 1 to 63 of A-Z a-z 0-9 . _ "
                   "-)",
                   words[1]);
    memcpy(m->id, words[1], strlen(words[1]) + 1);
    weft_status st = weft_address_parse(words[2], &address, err);
    if (st != WEFT_OK)
        return WEFT_WRAP(err, st, "%s, line %d", at->file, at->line);
    if (address.port == 0)
        return BAD(at, err, "%s has port 0 (allowed: 1 to 65535)", words[2]);
    weft_address_print(&address, m->address);
    return n == 5 ? read_place_in_group(m, at, words + 3, err) : WEFT_OK;
}

static weft_status add_member(struct fixed *f, const struct place *at,
                              char *const *words, int32_t n, weft_err *err)
{
    weft_member m;
    WEFT_TRY(read_member(&m, at, words, n, err));
    WEFT_TRY(check_distinct(f, &m, at, err));
    if (f->n_members == MEMBERS_MAX)
        return BAD(at, err, "more than %d members", MEMBERS_MAX);
    if (f->n_members == f->room) {
        const int32_t room = f->room > 0 ? 2 * f->room : 16;
        weft_member *grown =
            weft_mem_resize(f->members, (size_t)room, sizeof *f->members);
        if (grown == NULL)
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                             "no memory for the members of %s", at->file);
        f->members = grown;
        f->room = room;
    }
    f->members[f->n_members++] = m;
    return WEFT_OK;
}

/* A group has as many stages as its last one says, and none is missing. */
static weft_status count_stages(struct fixed *f, const char *file,
                                weft_err *err)
{
    for (int32_t i = 0; i < f->n_members; i++) {
        weft_member *m = &f->members[i];
        int32_t last = 0, n = 0;
        if (m->role != WEFT_ROLE_LAYERS) continue;
        for (int32_t k = 0; k < f->n_members; k++) {
            const weft_member *other = &f->members[k];
            if (other->role != m->role || other->group != m->group) continue;
            n++;
            if (other->stage > last) last = other->stage;
        }
        if (n != last + 1)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "%s: group %d has %d of the stages 0 to %d", file,
                             m->group, n, last);
        m->n_stages = n;
    }
    return WEFT_OK;
}

static weft_status read_lines(struct fixed *f, const char *file, char *text,
                              weft_err *err)
{
    struct place at = {.file = file};
    while (text != NULL) {
        char *words[WORDS_MAX + 1];
        char *const line = text;
        char *const end = strchr(text, '\n');
        at.line++;
        text = end != NULL ? end + 1 : NULL;
        if (end != NULL) *end = '\0';
        const int32_t n = split(line, words);
        if (n == 0) continue;
        if (strcmp(words[0], "replicas") == 0)
            WEFT_TRY(take_replicas(f, &at, words, n, err));
        else
            WEFT_TRY(add_member(f, &at, words, n, err));
    }
    return count_stages(f, file, err);
}

static weft_status read_file(struct fixed *f, const char *file, weft_err *err)
{
    weft_buf buf = {0};
    WEFT_TRY(weft_file_read_all(file, FILE_BYTES_MAX, &buf, err));
    weft_status st = WEFT_OK;
    if (buf.n == 0)
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: is empty", file);
    else if (memchr(buf.data, '\0', buf.n) != NULL)
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: is no text", file);
    else
        st = read_lines(f, file, buf.data, err);
    weft_buf_deinit(&buf);
    return st;
}

/* --- the registry -------------------------------------------------------- */

static void tell_members(struct fixed *f, weft_registry_fn take, void *arg)
{
    weft_registry_event event = {.kind = WEFT_REGISTRY_LINK,
                                 .status = WEFT_OK,
                                 .text = "",
                                 .revision = 1};
    take(arg, &event);
    event.kind = WEFT_REGISTRY_RELIST_BEGIN;
    take(arg, &event);
    for (int32_t i = 0; i < f->n_members; i++) {
        const weft_member *m = &f->members[i];
        char key[WEFT_KEY_BYTES];
        weft_buf value = {0};
        if (weft_member_encode(m, &value, NULL) != WEFT_OK) {
            weft_log(WEFT_LOG_ERROR, "cluster", "member_untold",
                     "id %s reason \"no memory\"", m->id);
            continue;
        }
        event.kind = WEFT_REGISTRY_PUT;
        event.key = weft_key_of_member(m->role, m->id, key);
        event.value = (weft_span){value.data, value.n};
        take(arg, &event);
        weft_buf_deinit(&value);
    }
    event = (weft_registry_event){
        .kind = WEFT_REGISTRY_RELIST_END, .revision = 1, .text = ""};
    take(arg, &event);
}

static void refuse_all(struct fixed *f, weft_registry_fn take, void *arg)
{
    const int32_t n = f->n_tags;
    uint64_t tags[RESULTS_MAX];
    memcpy(tags, f->tags, sizeof tags);
    f->n_tags = 0;
    for (int32_t i = 0; i < n; i++)
        take(arg, &(weft_registry_event){
                      .kind = WEFT_REGISTRY_TXN,
                      .tag = tags[i],
                      .status = WEFT_FAILED_PRECONDITION,
                      .text = "a file of members is not written to"});
}

static weft_status submit(weft_registry *registry, const weft_txn *txn,
                          weft_err *err)
{
    struct fixed *f = (struct fixed *)registry;
    WEFT_TRY(weft_txn_check(txn, err));
    if (f->n_tags == RESULTS_MAX)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "too many transactions under way");
    f->tags[f->n_tags++] = txn->tag;
    return WEFT_OK;
}

static void wait(struct fixed *f, uint64_t deadline_ns)
{
    const uint64_t second = UINT64_C(1000000000);
    const struct timespec at = {(time_t)(deadline_ns / second),
                                (long)(deadline_ns % second)};
    int timed_out = 0;
    (void)pthread_mutex_lock(&f->lock);
    while (!f->awake && timed_out == 0)
        timed_out = pthread_cond_timedwait(&f->woken, &f->lock, &at);
    f->awake = false;
    (void)pthread_mutex_unlock(&f->lock);
}

static void poll(weft_registry *registry, uint64_t deadline_ns,
                 weft_registry_fn take, void *arg)
{
    struct fixed *f = (struct fixed *)registry;
    if (f->told && f->n_tags == 0) {
        wait(f, deadline_ns);
        return;
    }
    if (!f->told) tell_members(f, take, arg);
    f->told = true;
    refuse_all(f, take, arg);
}

static void wake(weft_registry *registry)
{
    struct fixed *f = (struct fixed *)registry;
    (void)pthread_mutex_lock(&f->lock);
    f->awake = true;
    (void)pthread_cond_signal(&f->woken);
    (void)pthread_mutex_unlock(&f->lock);
}

static void destroy(weft_registry *registry, uint64_t deadline_ns)
{
    struct fixed *f = (struct fixed *)registry;
    (void)deadline_ns;
    (void)pthread_cond_destroy(&f->woken);
    (void)pthread_mutex_destroy(&f->lock);
    weft_mem_free(f->members);
    weft_mem_free(f);
}

static const weft_registry_ops fixed_ops = {submit, poll, wake, destroy};

weft_status weft_registry_create_static(const char *members_file,
                                        weft_registry **registry_out,
                                        weft_err *err)
{
    pthread_condattr_t attr;
    struct fixed *f = weft_mem_new(1, sizeof *f);
    if (f == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the members of %s", members_file);
    f->base.ops = &fixed_ops;
    f->replicas = 1;
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&f->woken, &attr);
    (void)pthread_condattr_destroy(&attr);
    const weft_status st = read_file(f, members_file, err);
    if (st != WEFT_OK) {
        destroy(&f->base, 0);
        return st;
    }
    *registry_out = &f->base;
    return WEFT_OK;
}

int32_t weft_registry_static_replicas(const weft_registry *registry)
{
    return ((const struct fixed *)registry)->replicas;
}

/* status.c - `weft status`: what a server, or the cluster behind it, is doing.
 *
 * A `weft serve` is one member that holds everything: a router, which is what
 * answers at the address, with layers and experts inside. Its epoch is 0: no
 * other placement was ever agreed on.
 */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "node/app/client_open.h"
#include "node/app/commands.h"

enum { ANSWER_BYTES_MAX = 4 << 20 };

static const uint64_t timeout_ns = UINT64_C(5000000000);

typedef struct status {
    const char *address;
    weft_model_info model;
    weft_cluster_info cluster;
    bool serving;
} status;

static uint64_t pages_of(const weft_load_info *load, const char *kind)
{
    for (size_t i = 0; i < load->n_kinds; i++)
        if (strcmp(load->pages_used[i].kind, kind) == 0)
            return load->pages_used[i].pages;
    return 0;
}

static const char *state_of(const status *s)
{
    return s->serving ? "serving" : "draining";
}

/* A process that is everything itself says no id. */
static bool is_alone(const status *s)
{
    return s->cluster.n_members == 1 && s->cluster.members[0].id.n == 0;
}

/* -- JSON ------------------------------------------------------------------ */

static json_t *text_of(weft_span span)
{
    return json_stringn(span.n > 0 ? span.data : "", span.n);
}

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

/* Takes the value; false: no memory. */
static bool put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static json_t *json_alone(const status *s)
{
    return json_pack("[{s:s, s:s, s:s, s:s, s:s%}]", "id", s->address, "role",
                     "router", "state", state_of(s), "address", s->address,
                     "model", s->model.name.data, s->model.name.n);
}

static json_t *json_member(const weft_member_info *m)
{
    json_t *const told = json_object();
    bool done = put(told, "id", text_of(m->id)) &&
                put(told, "role", text_of(m->role)) &&
                put(told, "state", text_of(m->state)) &&
                put(told, "address", text_of(m->address)) &&
                put(told, "device", text_of(m->device)) &&
                put(told, "experts", number(m->experts)) &&
                put(told, "incarnation", number(m->incarnation));
    if (m->group.set) done = done && put(told, "group", number(m->group.value));
    if (m->stage.set) done = done && put(told, "stage", number(m->stage.value));
    if (done) return told;
    json_decref(told);
    return NULL;
}

static json_t *json_members(const status *s)
{
    if (is_alone(s)) return json_alone(s);
    json_t *const told = json_array();
    for (size_t i = 0; i < s->cluster.n_members; i++) {
        if (json_array_append_new(told, json_member(&s->cluster.members[i])) ==
            0)
            continue;
        json_decref(told);
        return NULL;
    }
    return told;
}

static json_t *json_groups(const status *s)
{
    json_t *const told = json_array();
    for (size_t i = 0; i < s->cluster.n_groups; i++) {
        const weft_group_info *const g = &s->cluster.groups[i];
        json_t *const group = json_pack(
            "{s:I, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:s%}", "group",
            (json_int_t)g->group, "connected", g->connected, "whole", g->whole,
            "draining", g->draining, "epoch", (json_int_t)g->epoch, "running",
            (json_int_t)g->running, "waiting", (json_int_t)g->waiting,
            "kv_used_bytes", (json_int_t)g->kv_bytes_used, "kv_total_bytes",
            (json_int_t)g->kv_bytes_total, "reason",
            g->reason.n > 0 ? g->reason.data : "", g->reason.n);
        if (json_array_append_new(told, group) == 0) continue;
        json_decref(told);
        return NULL;
    }
    return told;
}

static json_t *json_placement(const weft_cluster_info *c)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s%}", "experts_min",
        (json_int_t)c->experts_min, "experts_max", (json_int_t)c->experts_max,
        "replicas", (json_int_t)c->replicas, "planned_epoch",
        (json_int_t)c->planned_epoch, "retired_epoch",
        (json_int_t)c->retired_epoch, "moved_bytes", (json_int_t)c->moved_bytes,
        "moved_least_bytes", (json_int_t)c->moved_least_bytes, "waiting",
        c->waiting.n > 0 ? c->waiting.data : "", c->waiting.n);
}

static json_t *json_kv(const weft_load_info *load)
{
    return json_pack("{s:I, s:I, s:{s:I, s:I}}", "total_bytes",
                     (json_int_t)load->kv_bytes_total, "used_bytes",
                     (json_int_t)load->kv_bytes_used, "pages", "full",
                     (json_int_t)pages_of(load, "full"), "window",
                     (json_int_t)pages_of(load, "window"));
}

static weft_status print_json(const status *s, weft_err *err)
{
    const weft_cluster_info *const c = &s->cluster;
    const uint64_t streams = (uint64_t)c->load.running + c->load.waiting;
    json_t *const told = json_object();
    bool shown = put(told, "epoch", number(c->epoch)) &&
                 put(told, "members", json_members(s)) &&
                 put(told, "streams", number(streams)) &&
                 put(told, "kv", json_kv(&c->load));
    if (!is_alone(s))
        shown = shown && put(told, "model", text_of(s->model.name)) &&
                put(told, "groups", json_groups(s)) &&
                put(told, "placement", json_placement(c)) &&
                put(told, "registry_reachable",
                    json_boolean(c->registry_reachable));
    shown = shown && json_dumpf(told, stdout, JSON_COMPACT) == 0;
    json_decref(told);
    if (!shown)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "the answer cannot be shown as JSON");
    (void)fputc('\n', stdout);
    return WEFT_OK;
}

/* -- text ------------------------------------------------------------------ */

/* Texts of a cluster come from many processes: what a terminal would obey is
 * shown as '?'. */
static void print_word(weft_span text, int width)
{
    for (size_t i = 0; i < text.n; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        (void)fputc(c < ' ' || c == 0x7f ? '?' : c, stdout);
    }
    for (size_t i = text.n; i < (size_t)width; i++) (void)fputc(' ', stdout);
}

static void print_load(const status *s)
{
    const weft_load_info *const load = &s->cluster.load;
    (void)printf("model    %.*s (%.*s, context %" PRIu32 ")\nstreams  %" PRIu32
                 " running, %" PRIu32 " waiting\nkv       %" PRIu64
                 " of %" PRIu64 " bytes",
                 (int)s->model.name.n, s->model.name.data,
                 (int)s->model.model_type.n, s->model.model_type.data,
                 s->model.max_context, load->running, load->waiting,
                 load->kv_bytes_used, load->kv_bytes_total);
    for (size_t i = 0; i < load->n_kinds; i++)
        (void)printf(", %" PRIu64 " %s pages", load->pages_used[i].pages,
                     load->pages_used[i].kind);
    (void)fputc('\n', stdout);
}

static void print_placement(const weft_cluster_info *c)
{
    (void)printf("epoch    %" PRIu64, c->epoch);
    if (c->planned_epoch != 0)
        (void)printf(" (%" PRIu64 " is being prepared)", c->planned_epoch);
    if (!c->registry_reachable) (void)printf(", the registry does not answer");
    (void)printf("\nexperts  %" PRIu32 " to %" PRIu32 " on a shard, %" PRIu32
                 " owner%s of each, %" PRIu64 " bytes moved\n",
                 c->experts_min, c->experts_max, c->replicas,
                 c->replicas == 1 ? "" : "s", c->moved_bytes);
    if (c->waiting.n == 0) return;
    (void)printf("waiting  ");
    print_word(c->waiting, 0);
    (void)fputc('\n', stdout);
}

static void print_member(const weft_member_info *m)
{
    print_word(m->role, 8);
    print_word(m->id, 24);
    (void)fputc(' ', stdout);
    print_word(m->state, 9);
    if (m->group.set)
        (void)printf("group %" PRIu32 " stage %" PRIu32 "  ", m->group.value,
                     m->stage.value);
    if (m->experts > 0) (void)printf("%" PRIu32 " experts  ", m->experts);
    print_word(m->address, 0);
    if (m->device.n > 0) (void)fputs("  ", stdout);
    print_word(m->device, 0);
    (void)fputc('\n', stdout);
}

static void print_group(const weft_group_info *g)
{
    (void)printf(
        "group   %-24" PRIu32 " %-9s%" PRIu32 " running, %" PRIu32
        " waiting, kv %" PRIu64 " of %" PRIu64 " bytes, epoch %" PRIu64,
        g->group,
        !g->connected ? "lost"
        : g->draining ? "draining"
        : g->whole    ? "whole"
                      : "broken",
        g->running, g->waiting, g->kv_bytes_used, g->kv_bytes_total, g->epoch);
    if (g->reason.n > 0) (void)printf(" (");
    print_word(g->reason, 0);
    if (g->reason.n > 0) (void)fputc(')', stdout);
    (void)fputc('\n', stdout);
}

static void print_text(const status *s)
{
    const weft_cluster_info *const c = &s->cluster;
    (void)printf("address  %s\nstate    %s\n", s->address, state_of(s));
    print_load(s);
    if (is_alone(s)) return;
    print_placement(c);
    for (size_t i = 0; i < c->n_groups; i++) print_group(&c->groups[i]);
    for (size_t i = 0; i < c->n_members; i++) print_member(&c->members[i]);
}

/* -- the command ----------------------------------------------------------- */

/* A server of a release before clusters: one process that holds everything. */
static weft_status ask_load(weft_client *client, weft_arena *arena, status *s,
                            weft_err *err)
{
    static const weft_member_info alone = {.role = {"router", 6},
                                           .state = {"serving", 7}};
    s->cluster = (weft_cluster_info){
        .members = &alone, .n_members = 1, .registry_reachable = true};
    return weft_client_get_load(client, timeout_ns, arena, &s->cluster.load,
                                err);
}

static weft_status ask(weft_client *client, weft_arena *arena, status *s,
                       weft_err *err)
{
    WEFT_TRY(weft_client_health(client, timeout_ns, &s->serving, err));
    WEFT_TRY(weft_client_get_model(client, timeout_ns, arena, &s->model, err));
    const weft_status st =
        weft_client_get_cluster(client, timeout_ns, arena, &s->cluster, err);
    return st == WEFT_UNIMPLEMENTED ? ask_load(client, arena, s, err) : st;
}

/* What the server answers, and the code of what went wrong with it. */
static int show(const weft_options *o, weft_client *client, weft_arena *arena)
{
    weft_err err = {0};
    status s = {.address = o->addr.text};
    weft_status st = ask(client, arena, &s, &err);
    weft_doing doing =
        weft_client_lost(client) ? WEFT_DOING_REACH : WEFT_DOING_CALL;
    if (st == WEFT_OK) {
        doing = WEFT_DOING_START;
        if (o->json)
            st = print_json(&s, &err);
        else
            print_text(&s);
        if (st == WEFT_OK && fflush(stdout) != 0)
            st = WEFT_FAIL(&err, WEFT_UNAVAILABLE,
                           "the output cannot be written");
    }
    if (st == WEFT_OK) return WEFT_EXIT_DONE;
    (void)WEFT_WRAP(&err, st, "status: %s", weft_status_name(st));
    return weft_fail_with(weft_exit_of(st, doing), &err);
}

int weft_command_status(const weft_options *options)
{
    weft_err err = {0};
    weft_arena *arena = NULL;
    weft_client *client = NULL;
    weft_status st = weft_arena_create(ANSWER_BYTES_MAX, &arena, &err);
    if (st != WEFT_OK)
        return weft_fail_with(weft_exit_of(st, WEFT_DOING_START), &err);
    st = weft_client_open(options, timeout_ns, &client, &err);
    int code = WEFT_EXIT_DONE;
    if (st == WEFT_OK) {
        code = show(options, client, arena);
    } else {
        (void)WEFT_WRAP(&err, st, "status");
        code = weft_fail_with(weft_exit_of(st, WEFT_DOING_REACH), &err);
    }
    weft_client_destroy(client);
    weft_arena_destroy(arena);
    return code;
}

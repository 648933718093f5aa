/* status.c - `weft status`: what a server is doing.
 *
 * A `weft serve` is one member that holds everything: a router, which is what
 * answers at the address, with layers and experts inside. Its epoch is 0: no
 * other placement was ever agreed on.
 */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "node/app/commands.h"
#include "node/rpc/client.h"

enum { ANSWER_BYTES_MAX = 1 << 20 };

static const uint64_t timeout_ns = UINT64_C(5000000000);

typedef struct status {
    const char *address;
    weft_model_info model;
    weft_load_info load;
    bool serving;
} status;

static uint64_t pages_of(const weft_load_info *load, const char *kind)
{
    for (size_t i = 0; i < load->n_kinds; i++)
        if (strcmp(load->pages_used[i].kind, kind) == 0)
            return load->pages_used[i].pages;
    return 0;
}

static uint32_t streams_of(const weft_load_info *load)
{
    return load->running + load->waiting;
}

static const char *state_of(const status *s)
{
    return s->serving ? "serving" : "draining";
}

static weft_status print_json(const status *s, weft_err *err)
{
    json_t *const told = json_pack(
        "{s:i, s:[{s:s, s:s, s:s, s:s, s:s%}], s:I, s:{s:I, s:I, s:{s:I, "
        "s:I}}}",
        "epoch", 0, "members", "id", s->address, "role", "router", "state",
        state_of(s), "address", s->address, "model", s->model.name.data,
        s->model.name.n, "streams", (json_int_t)streams_of(&s->load), "kv",
        "total_bytes", (json_int_t)s->load.kv_bytes_total, "used_bytes",
        (json_int_t)s->load.kv_bytes_used, "pages", "full",
        (json_int_t)pages_of(&s->load, "full"), "window",
        (json_int_t)pages_of(&s->load, "window"));
    const bool shown =
        told != NULL && json_dumpf(told, stdout, JSON_COMPACT) == 0;
    json_decref(told);
    if (!shown)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "the answer cannot be shown as JSON");
    (void)fputc('\n', stdout);
    return WEFT_OK;
}

static void print_text(const status *s)
{
    const weft_load_info *const load = &s->load;
    (void)printf(
        "address  %s\nstate    %s\nmodel    %.*s (%.*s, context %" PRIu32
        ")\nstreams  %" PRIu32 " running, %" PRIu32
        " waiting\nkv       %" PRIu64 " of %" PRIu64 " bytes",
        s->address, state_of(s), (int)s->model.name.n, s->model.name.data,
        (int)s->model.model_type.n, s->model.model_type.data,
        s->model.max_context, load->running, load->waiting, load->kv_bytes_used,
        load->kv_bytes_total);
    for (size_t i = 0; i < load->n_kinds; i++)
        (void)printf(", %" PRIu64 " %s pages", load->pages_used[i].pages,
                     load->pages_used[i].kind);
    (void)fputc('\n', stdout);
}

static weft_status ask(weft_client *client, weft_arena *arena, status *s,
                       weft_err *err)
{
    WEFT_TRY(weft_client_health(client, timeout_ns, &s->serving, err));
    WEFT_TRY(weft_client_get_model(client, timeout_ns, arena, &s->model, err));
    return weft_client_get_load(client, timeout_ns, arena, &s->load, err);
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
    st = weft_client_create(options->addr.text, timeout_ns, &client, &err);
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

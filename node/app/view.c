#include "node/app/view.h"

#include <stdio.h>
#include <string.h>

/* -- an engine of this process ----------------------------------------------
 */

/* Free is what a kind could still take if no other did: its own free pages and
 * those of all free slabs. Index keys are part of full pages, told apart. */
static void get_load(void *arg, weft_view_load *out)
{
    const weft_engine_view *const own = arg;
    const weft_kv_layout *const layout = weft_engine_layout(own->engine);
    weft_engine_load load;
    weft_engine_get_load(own->engine, &load);
    /* Free is told by the layout of this stage: an estimate if there are
     * several, which split their pages in the same way. */
    const weft_kv_stats *const kv = &load.kv;
    const int64_t index_page =
        layout->index_token_bytes * (int64_t)layout->page_tokens;
    int64_t pages[WEFT_KINDS];
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        pages[k] =
            layout->page_bytes[k] == 0
                ? 0
                : kv->pages_free[k] + kv->slabs_free * layout->slab_pages[k];
    out->kv = load.kv_group;
    out->kv_free[WEFT_KV_FULL] =
        pages[WEFT_FULL] * (layout->page_bytes[WEFT_FULL] - index_page);
    out->kv_free[WEFT_KV_WINDOW] =
        pages[WEFT_WINDOW] * layout->page_bytes[WEFT_WINDOW];
    out->kv_free[WEFT_KV_INDEX] = pages[WEFT_FULL] * index_page;
}

bool weft_view_step_hangs(const weft_engine_load *load, uint64_t now_ns)
{
    return now_ns > load->last_progress_ns &&
           now_ns - load->last_progress_ns > WEFT_STEP_HANGS_NS;
}

static const char *why_unhealthy(void *arg, uint64_t now_ns)
{
    const weft_engine_view *const own = arg;
    weft_engine_load load;
    weft_engine_get_load(own->engine, &load);
    return weft_view_step_hangs(&load, now_ns) ? "a step hangs" : NULL;
}

static bool can_serve(void *arg, char *reason_out, size_t reason_bytes)
{
    const weft_engine_view *const own = arg;
    weft_engine_load load;
    weft_engine_get_load(own->engine, &load);
    (void)snprintf(reason_out, reason_bytes, "the device failed");
    return !load.broken;
}

static uint64_t weights_hash(void *arg)
{
    const weft_engine_view *const own = arg;
    return own->weights_hash;
}

static weft_span span_of(const char *text)
{
    return (weft_span){.data = text, .n = strlen(text)};
}

/* One member that is everything, and no placement was ever agreed on. */
static weft_status get_cluster(void *arg, weft_arena *arena,
                               weft_cluster_info *out, weft_err *err)
{
    weft_member_info *const member = weft_arena_new(arena, 1, sizeof *member);
    (void)arg;
    if (member == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    *member = (weft_member_info){.role = span_of("router"),
                                 .state = span_of("serving")};
    *out = (weft_cluster_info){
        .members = member, .n_members = 1, .registry_reachable = true};
    return WEFT_OK;
}

static void refresh(void *arg, weft_metrics *metrics)
{
    (void)arg;
    weft_metrics_set(metrics, WEFT_EPOCH, 0);
    weft_metrics_set(metrics, WEFT_MEMBERS_ROUTER, 1);
    weft_metrics_set(metrics, WEFT_MEMBERS_LAYERS, 1);
    weft_metrics_set(metrics, WEFT_MEMBERS_EXPERTS, 1);
}

weft_view weft_engine_view_of(weft_engine_view *own)
{
    return (weft_view){.get_load = get_load,
                       .why_unhealthy = why_unhealthy,
                       .can_serve = can_serve,
                       .weights_hash = weights_hash,
                       .get_cluster = get_cluster,
                       .refresh = refresh,
                       .arg = own};
}

/* -- of any ------------------------------------------------------------------
 */

void weft_view_load_info(const weft_view *view, weft_load_info *info_out)
{
    weft_view_load load;
    view->get_load(view->arg, &load);
    const weft_kv_stats *const kv = &load.kv;
    const int64_t used = kv->used_bytes[WEFT_FULL] +
                         kv->used_bytes[WEFT_WINDOW] + kv->index_used_bytes;
    *info_out = (weft_load_info){
        .kv_bytes_used = (uint64_t)used,
        .kv_bytes_total = (uint64_t)kv->total_bytes,
        .pages_used = {{"full", (uint64_t)kv->pages_used[WEFT_FULL]},
                       {"window", (uint64_t)kv->pages_used[WEFT_WINDOW]}},
        .n_kinds = WEFT_KINDS,
    };
}

/* The body of a STATE frame. */
#include <math.h>

#include "node/base/str.h"
#include "node/fleet/codec.h"

static void pack_kv(weft_pack *pack, const weft_kv_stats *kv)
{
    weft_pack_i64(pack, kv->slabs);
    weft_pack_i64(pack, kv->slabs_free);
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        weft_pack_i64(pack, kv->pages_used[k]);
        weft_pack_i64(pack, kv->pages_free[k]);
        weft_pack_i64(pack, kv->used_bytes[k]);
    }
    weft_pack_i64(pack, kv->index_used_bytes);
    weft_pack_i64(pack, kv->free_bytes);
    weft_pack_i64(pack, kv->total_bytes);
}

static void pack_exchange(weft_pack *pack, const weft_exchange_counts *c)
{
    weft_pack_u64(pack, c->pairs);
    weft_pack_u64(pack, c->bytes);
    weft_pack_u64(pack, c->sum_ns);
    for (int32_t i = 0; i < WEFT_HISTOGRAM_BUCKETS; i++)
        weft_pack_u64(pack, c->buckets[i]);
    weft_pack_f32(pack, c->imbalance);
    weft_pack_u32(pack, (uint32_t)c->n_top);
    for (int32_t i = 0; i < c->n_top; i++) {
        weft_pack_i32(pack, c->top[i].layer);
        weft_pack_i32(pack, c->top[i].expert);
        weft_pack_u64(pack, c->top[i].pairs);
    }
}

void weft_state_encode(const weft_group_state *state, weft_pack *pack)
{
    const weft_engine_load *const load = &state->load;
    weft_pack_u32(pack, state->group);
    weft_pack_u8(pack, state->whole);
    weft_pack_u8(pack, state->been_whole);
    weft_pack_u8(pack, state->draining);
    weft_pack_u64(pack, state->epoch);
    weft_pack_i32(pack, state->max_seqs);
    weft_pack_i32(pack, state->max_context);
    weft_pack_i32(pack, state->jobs_max);
    weft_pack_i32(pack, state->jobs_live);
    weft_pack_i32(pack, load->sched.n_running);
    weft_pack_i32(pack, load->sched.n_waiting);
    weft_pack_i64(pack, load->sched.n_preempted);
    weft_pack_u64(pack, load->n_steps);
    weft_pack_u8(pack, load->idle);
    pack_kv(pack, &load->kv_group);
    pack_exchange(pack, &state->exchange);
    weft_pack_u64(pack, state->weights_hash);
    weft_pack_text(pack, state->id);
    weft_pack_text(pack, state->reason);
}

static bool unpack_bool(weft_unpack *unpack)
{
    const uint8_t value = weft_unpack_u8(unpack);
    if (value > 1) unpack->bad = true;
    return value == 1;
}

static int32_t unpack_size(weft_unpack *unpack)
{
    const int32_t value = weft_unpack_i32(unpack);
    if (value < 0) unpack->bad = true;
    return value;
}

static int64_t unpack_bytes(weft_unpack *unpack)
{
    const int64_t value = weft_unpack_i64(unpack);
    /* Sums of several stay in range. */
    if (value < 0 || value > INT64_MAX / 1024) unpack->bad = true;
    return value;
}

static void unpack_kv(weft_unpack *unpack, weft_kv_stats *kv)
{
    kv->slabs = unpack_bytes(unpack);
    kv->slabs_free = unpack_bytes(unpack);
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        kv->pages_used[k] = unpack_bytes(unpack);
        kv->pages_free[k] = unpack_bytes(unpack);
        kv->used_bytes[k] = unpack_bytes(unpack);
    }
    kv->index_used_bytes = unpack_bytes(unpack);
    kv->free_bytes = unpack_bytes(unpack);
    kv->total_bytes = unpack_bytes(unpack);
}

static void unpack_exchange(weft_unpack *unpack, weft_exchange_counts *c)
{
    c->pairs = weft_unpack_u64(unpack);
    c->bytes = weft_unpack_u64(unpack);
    c->sum_ns = weft_unpack_u64(unpack);
    for (int32_t i = 0; i < WEFT_HISTOGRAM_BUCKETS; i++)
        c->buckets[i] = weft_unpack_u64(unpack);
    c->imbalance = weft_unpack_f32(unpack);
    if (!isfinite(c->imbalance)) unpack->bad = true;
    c->n_top = weft_unpack_count(unpack, WEFT_TOP_EXPERTS, 16);
    for (int32_t i = 0; i < c->n_top; i++) {
        c->top[i].layer = unpack_size(unpack);
        c->top[i].expert = unpack_size(unpack);
        c->top[i].pairs = weft_unpack_u64(unpack);
    }
}

/* It will stand in answers and logs. */
static void unpack_line(weft_unpack *unpack, char *text_out, size_t bytes)
{
    char text[WEFT_STATE_BYTES_MAX];
    weft_unpack_text(unpack, text, bytes);
    (void)weft_text_line(text, text_out, bytes);
}

weft_status weft_state_decode(const void *bytes, size_t n,
                              weft_group_state *state_out, weft_err *err)
{
    weft_unpack unpack = weft_unpack_from(bytes, n);
    weft_group_state state = {.group = weft_unpack_u32(&unpack)};
    state.whole = unpack_bool(&unpack);
    state.been_whole = unpack_bool(&unpack);
    state.draining = unpack_bool(&unpack);
    state.epoch = weft_unpack_u64(&unpack);
    state.max_seqs = unpack_size(&unpack);
    state.max_context = unpack_size(&unpack);
    state.jobs_max = unpack_size(&unpack);
    state.jobs_live = unpack_size(&unpack);
    state.load.sched.n_running = unpack_size(&unpack);
    state.load.sched.n_waiting = unpack_size(&unpack);
    state.load.sched.n_preempted = unpack_bytes(&unpack);
    state.load.n_steps = weft_unpack_u64(&unpack);
    state.load.idle = unpack_bool(&unpack);
    unpack_kv(&unpack, &state.load.kv_group);
    unpack_exchange(&unpack, &state.exchange);
    state.weights_hash = weft_unpack_u64(&unpack);
    unpack_line(&unpack, state.id, sizeof state.id);
    unpack_line(&unpack, state.reason, sizeof state.reason);
    if (!weft_unpack_done(&unpack))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a STATE of %zu bytes is malformed", n);
    state.load.kv = state.load.kv_group;
    state.load.whole = state.whole;
    state.load.epoch = state.epoch;
    *state_out = state;
    return WEFT_OK;
}

/* The bodies of the frames between a lead and its stages. What comes from a
 * peer is held against what is here before any of it is used. */
#include <string.h>

#include "shard/step/stages_internal.h"

/* ---- small ones --------------------------------------------------------- */

size_t weft_stages_values_encode(const weft_stages_values *v, void *out)
{
    weft_pack p = weft_pack_into(out, WEFT_STAGES_BODY_BYTES);
    weft_pack_u64(&p, v->run);
    weft_pack_i32(&p, v->n_stages);
    weft_pack_i32(&p, v->stage);
    weft_pack_i32(&p, v->page_tokens);
    weft_pack_i32(&p, v->chunk_tokens);
    weft_pack_i32(&p, v->max_seqs);
    weft_pack_i32(&p, v->max_context);
    weft_pack_i32(&p, v->profile);
    weft_pack_i32(&p, v->hidden_size);
    weft_pack_i64(&p, v->kv_bytes);
    return p.n;
}

bool weft_stages_values_decode(const weft_frame *frame, weft_stages_values *out)
{
    weft_unpack u = weft_unpack_from(frame->body, frame->body_bytes);
    *out = (weft_stages_values){.run = weft_unpack_u64(&u)};
    out->n_stages = weft_unpack_i32(&u);
    out->stage = weft_unpack_i32(&u);
    out->page_tokens = weft_unpack_i32(&u);
    out->chunk_tokens = weft_unpack_i32(&u);
    out->max_seqs = weft_unpack_i32(&u);
    out->max_context = weft_unpack_i32(&u);
    out->profile = weft_unpack_i32(&u);
    out->hidden_size = weft_unpack_i32(&u);
    out->kv_bytes = weft_unpack_i64(&u);
    return weft_unpack_done(&u) && out->run != 0;
}

size_t weft_stages_hail_encode(const weft_stages_hail *hail, void *out)
{
    weft_pack p = weft_pack_into(out, WEFT_STAGES_BODY_BYTES);
    weft_pack_u64(&p, hail->run);
    weft_pack_i64(&p, hail->kv_bytes);
    return p.n;
}

bool weft_stages_hail_decode(const weft_frame *frame, weft_stages_hail *out)
{
    weft_unpack u = weft_unpack_from(frame->body, frame->body_bytes);
    out->run = weft_unpack_u64(&u);
    out->kv_bytes = weft_unpack_i64(&u);
    return weft_unpack_done(&u);
}

size_t weft_stuck_encode(const weft_stuck *stuck, void *out)
{
    weft_pack p = weft_pack_into(out, WEFT_STAGES_BODY_BYTES);
    weft_pack_u64(&p, stuck->run);
    weft_pack_u32(&p, stuck->why);
    weft_pack_text(&p, stuck->text);
    return p.n;
}

bool weft_stuck_decode(const weft_frame *frame, weft_stuck *out)
{
    weft_unpack u = weft_unpack_from(frame->body, frame->body_bytes);
    *out = (weft_stuck){.run = weft_unpack_u64(&u)};
    out->why = weft_unpack_u32(&u);
    weft_unpack_text(&u, out->text, sizeof out->text);
    return weft_unpack_done(&u) && out->why >= WEFT_STUCK_EXPERTS &&
           out->why <= WEFT_STUCK_REFUSED;
}

size_t weft_stages_run_encode(uint64_t run, void *out)
{
    weft_pack p = weft_pack_into(out, WEFT_STAGES_BODY_BYTES);
    weft_pack_u64(&p, run);
    return p.n;
}

bool weft_stages_run_decode(const weft_frame *frame, uint64_t *run_out)
{
    weft_unpack u = weft_unpack_from(frame->body, frame->body_bytes);
    *run_out = weft_unpack_u64(&u);
    return weft_unpack_done(&u);
}

/* ---- plans -------------------------------------------------------------- */

enum {
    HEAD_BYTES = 20,  /* run, micro-batches, rows, pieces */
    PIECE_BYTES = 20, /* slot, first, rows, page counts */
};

/* The pages that begin within rows [first, end). */
static int32_t page_after(int32_t position, int32_t page_tokens)
{
    return (int32_t)(((int64_t)position + page_tokens - 1) / page_tokens);
}

size_t weft_plan_bytes_max(const weft_engine_options *o)
{
    const size_t pieces = (size_t)o->max_seqs;
    const size_t rows = (size_t)o->chunk_tokens + (size_t)o->max_seqs;
    const size_t pages = rows / (size_t)o->page_tokens + pieces + 1;
    return HEAD_BYTES + pieces * PIECE_BYTES +
           WEFT_KINDS * pages * sizeof(int64_t) + 4 + rows * sizeof(int32_t);
}

static void pack_piece(weft_pack *pack, const weft_piece *p, int32_t first,
                       int32_t n_rows, int32_t stage, int32_t page_tokens)
{
    weft_pack_i32(pack, p->slot);
    weft_pack_i32(pack, first);
    weft_pack_i32(pack, n_rows);
    const int32_t from = page_after(first, page_tokens);
    const int32_t to = page_after(first + n_rows, page_tokens);
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        const int64_t *const offsets =
            weft_kv_table_offsets(p->table, stage, (weft_kind)k);
        const int32_t n = offsets == NULL ? 0 : to - from;
        weft_pack_u32(pack, (uint32_t)n);
        for (int32_t i = 0; i < n; i++) weft_pack_i64(pack, offsets[from + i]);
    }
}

/* The part of each living piece that lies in the micro-batch; returns how many
 * there are. pack NULL: only counts. */
static int32_t pack_pieces(const weft_stages_step *step,
                           const weft_micro *micro, int32_t stage,
                           int32_t page_tokens, weft_pack *pack)
{
    const int32_t end = micro->first + micro->n_rows;
    int32_t at = 0, n = 0;
    for (int32_t i = 0; i < step->n_pieces && at < end; i++) {
        if (step->dead[i]) continue;
        const weft_piece *const p = &step->pieces[i];
        const int32_t low = at < micro->first ? micro->first : at;
        at += p->n_rows;
        const int32_t high = at < end ? at : end;
        if (low >= high) continue;
        n++;
        if (pack != NULL)
            pack_piece(pack, p, p->first + low - (at - p->n_rows), high - low,
                       stage, page_tokens);
    }
    return n;
}

size_t weft_plan_encode(const weft_stages_step *step, const weft_micro *micro,
                        uint64_t run, int32_t n_micros, int32_t stage,
                        int32_t page_tokens, weft_pack *pack)
{
    weft_pack_u64(pack, run);
    weft_pack_i32(pack, n_micros);
    weft_pack_i32(pack, micro->n_rows);
    weft_pack_i32(pack, pack_pieces(step, micro, stage, page_tokens, NULL));
    (void)pack_pieces(step, micro, stage, page_tokens, pack);
    weft_pack_u32(pack, (uint32_t)micro->n_wanted);
    for (int32_t i = 0; i < micro->n_wanted; i++)
        weft_pack_i32(pack, step->wanted_rows[micro->first_wanted + i] -
                                micro->first);
    return pack->full ? 0 : pack->n;
}

static weft_plan_head unpack_head(weft_unpack *u)
{
    weft_plan_head head = {.run = weft_unpack_u64(u)};
    head.n_micros = weft_unpack_i32(u);
    head.n_rows = weft_unpack_i32(u);
    return head;
}

bool weft_plan_decode_head(const void *body, size_t n, weft_plan_head *head_out)
{
    weft_unpack u = weft_unpack_from(body, n);
    *head_out = unpack_head(&u);
    return !u.bad && head_out->n_micros >= 1 &&
           head_out->n_micros <= WEFT_MICRO_MAX && head_out->n_rows >= 1;
}

static bool is_page(const weft_slots *slots, int32_t kind, int64_t offset)
{
    const weft_kv_layout *const l = slots->layout;
    if (offset < 0 || offset >= slots->arena_bytes) return false;
    const int64_t within = offset % l->slab_bytes;
    return within % l->page_bytes[kind] == 0 &&
           within / l->page_bytes[kind] < l->slab_pages[kind];
}

static weft_status unpack_pages(weft_unpack *u, weft_slots *slots,
                                weft_slot *slot, int32_t kind, int32_t first,
                                int32_t end, weft_err *err)
{
    const int32_t from = page_after(first, slots->layout->page_tokens);
    const int32_t to = page_after(end, slots->layout->page_tokens);
    const int32_t want = slot->offsets[kind] == NULL ? 0 : to - from;
    const int32_t n = weft_unpack_count(u, slots->max_pages, sizeof(int64_t));
    if (u->bad || n != want)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d pages for positions %d to %d, expected %d", n,
                         first, end, want);
    if (slot->offsets[kind] == NULL) return WEFT_OK;
    if (from > slot->n_pages[kind])
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "page %d comes after %d pages", from,
                         slot->n_pages[kind]);
    for (int32_t i = 0; i < n; i++) {
        const int64_t offset = weft_unpack_i64(u);
        if (!is_page(slots, kind, offset))
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "offset %lld is no page of this arena",
                             (long long)offset);
        slot->offsets[kind][from + i] = offset;
        weft_kv_store_poison(slots->store, (weft_kind)kind, offset);
    }
    if (n > 0) slot->n_pages[kind] = to;
    return WEFT_OK;
}

/* One piece; its rows go to layers from row *n on. */
static weft_status unpack_piece(weft_unpack *u, weft_slots *slots,
                                weft_layers *layers, int32_t *n, weft_err *err)
{
    const int32_t s = weft_unpack_i32(u), first = weft_unpack_i32(u),
                  n_rows = weft_unpack_i32(u);
    if (u->bad || s < 0 || s >= slots->n || first < 0 || n_rows < 1 ||
        n_rows > slots->max_rows - *n || first > slots->max_context - n_rows)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "slot %d, rows %d from position %d", s, n_rows, first);
    weft_slot *const slot = &slots->at[s];
    if (first == 0) memset(slot->n_pages, 0, sizeof slot->n_pages);
    if (first == 0) slot->n_written = 0;
    if (first > slot->n_written)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "slot %d has %d positions, not yet %d", s,
                         slot->n_written, first);
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        WEFT_TRY(unpack_pages(u, slots, slot, k, first, first + n_rows, err));
    for (int32_t r = 0; r < n_rows; r++, ++*n) {
        layers->positions[*n] = first + r;
        for (int32_t k = 0; k < WEFT_KINDS; k++)
            layers->pages[k][*n] = slot->offsets[k];
    }
    slot->n_written = first + n_rows;
    return WEFT_OK;
}

static weft_status unpack_wanted(weft_unpack *u, int32_t n_rows,
                                 int32_t *wanted_out, int32_t *n_wanted_out,
                                 weft_err *err)
{
    const int32_t n = weft_unpack_count(u, n_rows, sizeof(int32_t));
    int32_t before = -1;
    for (int32_t i = 0; i < n; i++) {
        wanted_out[i] = weft_unpack_i32(u);
        if (wanted_out[i] <= before || wanted_out[i] >= n_rows)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "row %d is wanted of %d, after row %d",
                             wanted_out[i], n_rows, before);
        before = wanted_out[i];
    }
    *n_wanted_out = n;
    return WEFT_OK;
}

weft_status weft_plan_decode(const void *body, size_t n_bytes,
                             weft_slots *slots, weft_layers *layers,
                             int32_t *wanted_out, int32_t *n_wanted_out,
                             weft_err *err)
{
    weft_unpack u = weft_unpack_from(body, n_bytes);
    const weft_plan_head head = unpack_head(&u);
    const int32_t n_pieces = weft_unpack_count(&u, slots->n, PIECE_BYTES);
    int32_t n = 0;
    for (int32_t i = 0; i < n_pieces; i++)
        WEFT_TRY(unpack_piece(&u, slots, layers, &n, err));
    if (n != head.n_rows || n == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d rows in pieces, %d were said", n, head.n_rows);
    WEFT_TRY(unpack_wanted(&u, n, wanted_out, n_wanted_out, err));
    if (!weft_unpack_done(&u))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "a malformed plan");
    return WEFT_OK;
}

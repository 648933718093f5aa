/* What a stage does with frames that are wrong: the link they came on is
 * closed, and the next lead finds the stage as it was. Frames of an earlier run
 * or try are dropped without a word. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/rng.h"
#include "shard/step/stages_internal.h"
#include "tests/support/chain.h"
#include "tests/support/dial_kit.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"

enum { SEQS = 4, CHUNK = 16, PAGE = 4, CONTEXT = 64, ROWS = 6 };

static const uint64_t WAIT_NS = UINT64_C(10) * 1000 * 1000 * 1000;

/* ---- a lead by hand ------------------------------------------------------ */

typedef struct lead {
    harness h;
    weft_model_config config;
    weft_engine_options engine;
    weft_kv_layout layout;
    weft_stage *stage;
    weft_link *link;
    weft_poller *poller;
    uint64_t run, step;
    float *rows;
} lead;

static lead *lead_open(void)
{
    lead *const l = weft_mem_new(1, sizeof *l);
    l->h = harness_open(MODEL, WEFT_EXACT);
    l->run = 100;
    l->engine = (weft_engine_options){.kv_bytes = 1 << 20,
                                      .page_tokens = PAGE,
                                      .chunk_tokens = CHUNK,
                                      .max_seqs = SEQS,
                                      .max_context = CONTEXT,
                                      .threads = 1,
                                      .profile = WEFT_EXACT,
                                      .ops = harness_ops(NULL)};
    OK(weft_partition_cut(&l->h.config, 2, 1, &l->config, &err));
    OK(weft_kv_layout_make(&l->config, WEFT_F32, PAGE, &l->layout, &err));
    const weft_stage_options o = {
        .config = &l->config,
        .weights = weft_model_weights(l->h.model),
        .engine = l->engine,
        .stage = 1,
        .n_stages = 2,
        .group = CHAIN_GROUP,
    };
    OK(weft_stage_start(&o, &l->stage, &err));
    OK(weft_poller_create(&l->poller, &err));
    const size_t n = ROWS * (size_t)l->config.hidden_size;
    l->rows = weft_mem_new(n, sizeof *l->rows);
    for (size_t i = 0; i < n; i++) l->rows[i] = (float)(i % 7) * 0.25F - 0.5F;
    return l;
}

static void hang_up(lead *l)
{
    if (l->link == NULL) return;
    weft_poller_remove(l->poller, l->link);
    weft_link_close(l->link);
    l->link = NULL;
}

static void lead_close(lead *l)
{
    hang_up(l);
    weft_stage_stop(l->stage);
    weft_poller_destroy(l->poller);
    harness_close(&l->h);
    weft_mem_free(l->rows);
    weft_mem_free(l);
}

/* The next frame; false: the stage has closed the link. */
static bool next_frame(lead *l, weft_frame *frame)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    for (;;) {
        bool got = false;
        if (weft_link_recv(l->link, frame, &got, NULL) != WEFT_OK) return false;
        if (got) return true;
        ck_assert_msg(weft_clock_now_ns() < deadline_ns, "no word");
        weft_poller_wait(l->poller, deadline_ns, 0);
    }
}

static void send(lead *l, weft_frame_type type, const void *body, size_t bytes)
{
    const weft_frame frame = {.type = type,
                              .step = l->step,
                              .group = CHAIN_GROUP,
                              .body = body,
                              .body_bytes = bytes};
    OK(weft_link_send(l->link, &frame, NULL, &err));
}

static weft_stages_values values_of(const lead *l)
{
    return (weft_stages_values){
        .run = l->run,
        .n_stages = 2,
        .stage = 1,
        .page_tokens = PAGE,
        .chunk_tokens = CHUNK,
        .max_seqs = SEQS,
        .max_context = CONTEXT,
        .profile = WEFT_EXACT,
        .hidden_size = l->config.hidden_size,
        .kv_bytes = 1000,
    };
}

/* A new link and a new run. */
static void dial(lead *l)
{
    const weft_link_options o = {
        .limits = weft_stages_limits(&l->config, &l->engine)};
    weft_link *other = NULL;
    weft_frame frame;
    weft_stages_hail hail;
    hang_up(l);
    OK(weft_link_create_local(&o, &o, &l->link, &other, &err));
    OK(weft_poller_add(l->poller, l->link, &err));
    OK(weft_stage_add_link(l->stage, 0, other, &err));
    ck_assert(next_frame(l, &frame) && frame.type == WEFT_FRAME_RESET);
    ck_assert(weft_stages_hail_decode(&frame, &hail));
    ck_assert_uint_eq(hail.run, 0);
    ck_assert_int_eq(hail.kv_bytes,
                     (1 << 20) / l->layout.slab_bytes * l->layout.slab_bytes);
    l->run++;
    const weft_stages_values values = values_of(l);
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    send(l, WEFT_FRAME_RESET, body, weft_stages_values_encode(&values, body));
    ck_assert(next_frame(l, &frame) && frame.type == WEFT_FRAME_RESET);
    ck_assert(weft_stages_hail_decode(&frame, &hail));
    ck_assert_uint_eq(hail.run, l->run);
}

/* ---- plans --------------------------------------------------------------- */

/* One piece, and what may be wrong with it. */
typedef struct plan {
    uint64_t run;
    int32_t n_micros, n_rows, n_pieces;
    int32_t slot, first, piece_rows;
    int32_t n_pages; /* of each kind; -1: as many as it takes */
    int64_t offset_added;
    int32_t n_wanted, wanted[3];
    int32_t cut; /* bytes fewer at the end; negative: more */
    uint32_t group_added, tag, attempt;
    int32_t hidden_rows;
    uint32_t row_bytes_cut;
    size_t hidden_body_cut;
} plan;

static plan good_plan(const lead *l)
{
    return (plan){.run = l->run,
                  .n_micros = 1,
                  .n_rows = ROWS,
                  .n_pieces = 1,
                  .slot = 2,
                  .piece_rows = ROWS,
                  .n_pages = -1,
                  .n_wanted = 1,
                  .wanted = {ROWS - 1},
                  .hidden_rows = ROWS};
}

static size_t plan_body(const lead *l, const plan *p, unsigned char *body,
                        size_t capacity)
{
    weft_pack pack = weft_pack_into(body, capacity);
    weft_pack_u64(&pack, p->run);
    weft_pack_i32(&pack, p->n_micros);
    weft_pack_i32(&pack, p->n_rows);
    weft_pack_i32(&pack, p->n_pieces);
    weft_pack_i32(&pack, p->slot);
    weft_pack_i32(&pack, p->first);
    weft_pack_i32(&pack, p->piece_rows);
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        int32_t n = p->n_pages < 0 ? (ROWS + PAGE - 1) / PAGE : p->n_pages;
        if (l->layout.page_bytes[k] == 0) n = 0;
        weft_pack_i32(&pack, n);
        for (int32_t i = 0; i < n; i++)
            weft_pack_i64(&pack,
                          (2 * i + k) * l->layout.slab_bytes + p->offset_added);
    }
    weft_pack_i32s(&pack, p->wanted, p->n_wanted);
    ck_assert(!pack.full);
    memset(body + pack.n, 0, 16);
    return (size_t)((int64_t)pack.n - p->cut);
}

static void send_plan_bytes(lead *l, const plan *p, const void *bytes, size_t n)
{
    const weft_frame frame = {.type = WEFT_FRAME_PLAN,
                              .step = l->step,
                              .group = CHAIN_GROUP + p->group_added,
                              .tag = p->tag,
                              .attempt = p->attempt,
                              .body = bytes,
                              .body_bytes = n};
    OK(weft_link_send(l->link, &frame, NULL, &err));
}

static void send_bytes(lead *l, const plan *p, const void *bytes, size_t n)
{
    const uint32_t row_bytes =
        (uint32_t)l->config.hidden_size * (uint32_t)sizeof(float);
    send_plan_bytes(l, p, bytes, n);
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    const weft_frame hidden = {
        .type = WEFT_FRAME_HIDDEN,
        .step = l->step,
        .group = CHAIN_GROUP,
        .tag = p->tag,
        .attempt = p->attempt,
        .body = body,
        .body_bytes = weft_stages_run_encode(p->run, body) - p->hidden_body_cut,
        .n_rows = p->hidden_rows,
        .row_bytes = row_bytes - p->row_bytes_cut,
    };
    const void *rows[ROWS];
    for (int32_t r = 0; r < ROWS; r++)
        rows[r] = l->rows + (ptrdiff_t)r * l->config.hidden_size;
    /* The stage may have hung up over the plan. */
    const weft_status st = weft_link_send(l->link, &hidden, rows, NULL);
    ck_assert(st == WEFT_OK || st == WEFT_UNAVAILABLE);
}

static void send_plan(lead *l, const plan *p)
{
    unsigned char body[2048];
    send_bytes(l, p, body, plan_body(l, p, body, sizeof body - 16));
}

static void send_plan_alone(lead *l, const plan *p)
{
    unsigned char body[2048];
    send_plan_bytes(l, p, body, plan_body(l, p, body, sizeof body - 16));
}

static void expect_answer(lead *l, const plan *p)
{
    weft_frame frame;
    uint64_t run = 0;
    ck_assert(next_frame(l, &frame));
    ck_assert_int_eq(frame.type, WEFT_FRAME_HIDDEN);
    ck_assert(weft_stages_run_decode(&frame, &run));
    ck_assert_uint_eq(run, p->run);
    ck_assert_uint_eq(frame.step, l->step);
    ck_assert_uint_eq(frame.attempt, p->attempt);
    ck_assert_uint_eq(frame.tag, p->tag);
    ck_assert_int_eq(frame.n_rows, p->n_wanted);
}

static void expect_works(lead *l)
{
    dial(l);
    l->step++;
    const plan p = good_plan(l);
    send_plan(l, &p);
    expect_answer(l, &p);
}

/* All plans of a try that gets no rows, and the next try. */
START_TEST(a_try_without_rows_makes_way)
{
    lead *const l = lead_open();
    dial(l);
    l->step++;
    plan p = good_plan(l);
    p.n_micros = WEFT_MICRO_MAX;
    for (p.tag = 0; p.tag < WEFT_MICRO_MAX; p.tag++) send_plan_alone(l, &p);
    plan next = good_plan(l);
    next.attempt = 1;
    send_plan(l, &next);
    expect_answer(l, &next);
    lead_close(l);
}
END_TEST

/* ---- wrong plans --------------------------------------------------------- */

/* False: there are not so many. */
static bool spoil(const lead *l, plan *p, int32_t i)
{
    const int64_t arena =
        (1 << 20) / l->layout.slab_bytes * l->layout.slab_bytes;
    switch (i) {
    case 0: p->slot = -1; break;
    case 1: p->slot = SEQS; break;
    case 2: p->slot = INT32_MAX; break;
    case 3: p->first = -1; break;
    case 4: p->first = CONTEXT - ROWS + 1; break;
    case 5: p->first = 4; break; /* nothing has been written before */
    case 6: p->first = INT32_MAX; break;
    case 7: p->piece_rows = 0; break;
    case 8: p->piece_rows = -5; break;
    case 9: p->piece_rows = ROWS - 1; break;
    case 10: p->piece_rows = INT32_MAX; break;
    case 11: p->n_rows = CHUNK + SEQS + 1; break;
    case 12: p->n_rows = ROWS - 1; break;
    case 13: p->n_rows = 0; break;
    case 14: p->n_pieces = 0; break;
    case 15: p->n_pieces = 2; break;
    case 16: p->n_pieces = SEQS + 1; break;
    case 17: p->n_pages = 0; break;
    case 18: p->n_pages = 3; break;
    case 19: p->offset_added = -1; break;
    case 20: p->offset_added = 4; break;
    case 21: p->offset_added = arena; break;
    case 22: p->offset_added = INT64_MIN; break;
    case 23: p->wanted[0] = ROWS; break;
    case 24: p->wanted[0] = -1; break;
    case 25:
        p->n_wanted = 2;
        p->wanted[0] = p->wanted[1] = 3;
        break;
    case 26: p->n_micros = 0; break;
    case 27: p->n_micros = WEFT_MICRO_MAX + 1; break;
    case 28: p->tag = 1; break;
    case 29: p->cut = 1; break;
    case 30: p->cut = -1; break;
    case 31: p->group_added = 1; break;
    case 32: p->hidden_rows = ROWS - 1; break;
    case 33: p->row_bytes_cut = 4; break;
    case 34: p->hidden_body_cut = 1; break;
    case 35: p->cut = 40; break;
    default: return false;
    }
    return true;
}

START_TEST(wrong_plans_break_the_link)
{
    lead *const l = lead_open();
    int32_t n = 0;
    for (int32_t i = 0; i < 40; i++) {
        dial(l);
        l->step++;
        plan p = good_plan(l);
        if (!spoil(l, &p, i)) continue;
        send_plan(l, &p);
        weft_frame frame;
        ck_assert_msg(!next_frame(l, &frame), "plan %d was taken", i);
        n++;
    }
    ck_assert_int_eq(n, 36);
    expect_works(l);
    lead_close(l);
}
END_TEST

/* Within a page that is there, but past what has been written of it. */
START_TEST(a_gap_breaks_the_link)
{
    lead *const l = lead_open();
    weft_frame frame;
    dial(l);
    for (int32_t gap = 0; gap < 2; gap++) {
        l->step++;
        plan p = good_plan(l);
        send_plan(l, &p);
        expect_answer(l, &p);
        l->step++;
        p.first = ROWS + gap;
        p.n_rows = p.piece_rows = p.hidden_rows = 8 - p.first;
        p.n_pages = 0; /* positions 6 and 7 lie in the second page */
        p.wanted[0] = 0;
        send_plan(l, &p);
        if (gap == 0)
            expect_answer(l, &p);
        else
            ck_assert(!next_frame(l, &frame));
    }
    expect_works(l);
    lead_close(l);
}
END_TEST

START_TEST(wrong_frames_break_the_link)
{
    lead *const l = lead_open();
    static const weft_frame_type types[] = {
        WEFT_FRAME_DISPATCH, WEFT_FRAME_ANSWER, WEFT_FRAME_SUBMIT,
        WEFT_FRAME_STUCK,    WEFT_FRAME_RESET,  WEFT_FRAME_PLAN,
        WEFT_FRAME_HIDDEN,   WEFT_FRAME_STATE,
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        weft_frame frame;
        dial(l);
        send(l, types[i], "abc", 3);
        ck_assert_msg(!next_frame(l, &frame), "\"%s\" was taken",
                      weft_frame_type_name(types[i]));
    }
    expect_works(l);
    lead_close(l);
}
END_TEST

/* Bytes of a good plan turned at random: answered, or hung up on. */
START_TEST(spoiled_bytes)
{
    lead *const l = lead_open();
    unsigned char body[2048];
    int32_t n_broken = 0, n_answered = 0;
    uint64_t draw = 0;
    dial(l);
    for (int32_t i = 0; i < 600; i++) {
        l->step++;
        const plan p = good_plan(l);
        const size_t n = plan_body(l, &p, body, sizeof body - 16);
        const int32_t n_flips = (int32_t)(weft_rng_u64(5, draw++) % 3);
        for (int32_t f = 0; f < n_flips; f++) {
            const uint64_t r = weft_rng_u64(5, draw++);
            body[8 + r % (n - 8)] ^= (unsigned char)(1U << (r >> 32) % 8);
        }
        send_bytes(l, &p, body, n);
        weft_frame frame;
        const bool answered = next_frame(l, &frame);
        n_answered += answered;
        n_broken += !answered;
        if (!answered) dial(l);
        if (n_flips == 0) ck_assert(answered);
    }
    ck_assert_int_gt(n_broken, 100);
    ck_assert_int_gt(n_answered, 100);
    lead_close(l);
}
END_TEST

/* ---- what is out of date ------------------------------------------------- */

START_TEST(earlier_runs_and_tries_are_dropped)
{
    lead *const l = lead_open();
    dial(l);
    l->step = 9;
    plan old = good_plan(l);
    old.run--;
    send_plan(l, &old); /* no answer, and the link stands */
    plan p = good_plan(l);
    p.attempt = 2;
    send_plan(l, &p);
    expect_answer(l, &p);
    /* Rows without a plan, then the try that counts. */
    l->step = 10;
    p.attempt = 0;
    unsigned char body[2048];
    const size_t n = plan_body(l, &p, body, sizeof body - 16);
    const weft_frame lonely = {.type = WEFT_FRAME_PLAN,
                               .step = l->step,
                               .group = CHAIN_GROUP,
                               .body = body,
                               .body_bytes = n};
    for (int32_t i = 0; i < 3 * WEFT_MICRO_MAX; i++) {
        weft_frame again = lonely;
        again.attempt = (uint32_t)i;
        OK(weft_link_send(l->link, &again, NULL, &err));
    }
    p.attempt = 3 * WEFT_MICRO_MAX;
    send_plan(l, &p);
    expect_answer(l, &p);
    lead_close(l);
}
END_TEST

START_TEST(other_values_are_refused_with_both)
{
    lead *const l = lead_open();
    static const size_t at[] = {
        offsetof(weft_stages_values, n_stages),
        offsetof(weft_stages_values, stage),
        offsetof(weft_stages_values, page_tokens),
        offsetof(weft_stages_values, chunk_tokens),
        offsetof(weft_stages_values, max_seqs),
        offsetof(weft_stages_values, max_context),
        offsetof(weft_stages_values, profile),
        offsetof(weft_stages_values, hidden_size),
    };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        dial(l);
        l->run++;
        weft_stages_values values = values_of(l);
        *(int32_t *)(void *)((char *)&values + at[i]) = 7777;
        unsigned char body[WEFT_STAGES_BODY_BYTES];
        send(l, WEFT_FRAME_RESET, body,
             weft_stages_values_encode(&values, body));
        weft_frame frame;
        weft_stuck stuck;
        ck_assert(next_frame(l, &frame) && frame.type == WEFT_FRAME_STUCK);
        ck_assert(weft_stuck_decode(&frame, &stuck));
        ck_assert_uint_eq(stuck.why, WEFT_STUCK_REFUSED);
        ck_assert_uint_eq(stuck.run, l->run);
        ck_assert_ptr_nonnull(strstr(stuck.text, "7777 at the lead and "));
    }
    expect_works(l);
    lead_close(l);
}
END_TEST

static bool is_connected(const lead *l)
{
    weft_stage_state state;
    weft_stage_get_state(l->stage, &state);
    return state.connected;
}

/* Answers that nobody reads fill the queue of the link, which ends for that. */
START_TEST(a_lead_that_reads_nothing_loses_its_link)
{
    lead *const l = lead_open();
    FILE *said = NULL;
    int before = -1;
    dial(l);
    l->run++;
    weft_stages_values values = values_of(l);
    values.page_tokens++;
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    const weft_frame reset = {.type = WEFT_FRAME_RESET,
                              .group = CHAIN_GROUP,
                              .body = body,
                              .body_bytes =
                                  weft_stages_values_encode(&values, body)};
    kit_catch_stderr(&said, &before);
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    while (!is_connected(l) && weft_clock_now_ns() < deadline_ns)
        (void)sched_yield(); /* until the stage has taken the link */
    while (is_connected(l) && weft_clock_now_ns() < deadline_ns) {
        /* Its queue may be full, too, until the stage has read. */
        if (weft_link_send(l->link, &reset, NULL, NULL) != WEFT_OK)
            (void)sched_yield();
    }
    ck_assert(!is_connected(l));
    expect_works(l); /* the stage has said what it had to say by then */
    char text[65536];
    (void)kit_release_stderr(said, before, text, sizeof text);
    ck_assert_msg(strstr(text, "stage lead_lost from") != NULL &&
                      strstr(text, "reason \"its queue is full\"") != NULL,
                  "%.500s", text);
    lead_close(l);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_try_without_rows_makes_way,
                                  wrong_plans_break_the_link,
                                  a_gap_breaks_the_link,
                                  wrong_frames_break_the_link,
                                  spoiled_bytes,
                                  earlier_runs_and_tries_are_dropped,
                                  other_values_are_refused_with_both,
                                  a_lead_that_reads_nothing_loses_its_link};
    return WEFT_SUITE_RUN("stage frames", tests);
}

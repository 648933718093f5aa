/* A stage whose rows are not read: it waits while its next one computes and
 * pulses come, and for its lead while no other lead is there. */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/step/stages_internal.h"
#include "tests/support/chain.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"
#define MS    UINT64_C(1000000)

enum { ROWS = 768, PAGE = 16, RUN = 9 };

static const uint64_t SILENCE_NS = 200 * MS;
static const uint64_t STALL_NS = 120000 * MS; /* no test takes so long */

typedef struct scene {
    harness h;
    weft_model_config config;
    weft_engine_options engine;
    weft_kv_layout layout;
    int32_t n_stages;
    weft_stage *stage;      /* 1 of them */
    weft_link *lead, *next; /* our ends; of a last stage there is no next */
    weft_pulse *pulse;      /* on both of them */
    weft_poller *poller;    /* of both */
} scene;

/* So small that rows from b to a do not fit. */
static void shrink(int a, int b)
{
    const int bytes = 16384;
    ck_assert_int_eq(setsockopt(b, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes),
                     0);
    ck_assert_int_eq(setsockopt(a, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes),
                     0);
}

static void open_link(const scene *s, bool small, weft_link **ours,
                      weft_link **theirs)
{
    int a = -1, b = -1;
    weft_link_options o = {.limits =
                               weft_stages_limits(&s->config, &s->engine)};
    kit_sockets(&a, &b);
    if (small) shrink(a, b);
    OK(weft_link_create_tcp(a, NULL, false, &o, ours, &err));
    o.silence_ns = SILENCE_NS;
    o.stall_ns = STALL_NS;
    OK(weft_link_create_tcp(b, NULL, false, &o, theirs, &err));
}

static weft_frame recv_lead(scene *s)
{
    const uint64_t deadline_ns = kit_deadline();
    for (;;) {
        weft_frame frame;
        bool got = false;
        OK(weft_link_recv(s->lead, &frame, &got, &err));
        if (got) return frame;
        ck_assert(weft_clock_now_ns() < deadline_ns);
        weft_poller_wait(s->poller, deadline_ns, 0);
    }
}

static void send_lead(scene *s, weft_frame frame, const void *const *rows)
{
    frame.group = CHAIN_GROUP;
    OK(weft_link_send(s->lead, &frame, rows, &err));
    OK(weft_link_flush(s->lead, kit_deadline(), &err));
}

static void begin_run(scene *s)
{
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    const weft_stages_values values = {.run = RUN,
                                       .n_stages = s->n_stages,
                                       .stage = 1,
                                       .page_tokens = PAGE,
                                       .chunk_tokens = ROWS,
                                       .max_seqs = 1,
                                       .max_context = ROWS,
                                       .profile = WEFT_EXACT,
                                       .hidden_size = s->config.hidden_size,
                                       .kv_bytes = 1000};
    ck_assert_int_eq(recv_lead(s).type, WEFT_FRAME_RESET);
    send_lead(
        s,
        (weft_frame){.type = WEFT_FRAME_RESET,
                     .body = body,
                     .body_bytes = weft_stages_values_encode(&values, body)},
        NULL);
    weft_stages_hail hail = {0};
    while (hail.run != RUN) {
        const weft_frame frame = recv_lead(s);
        ck_assert(weft_stages_hail_decode(&frame, &hail));
    }
}

static void open_next(scene *s)
{
    weft_link *theirs = NULL;
    open_link(s, true, &s->next, &theirs);
    OK(weft_pulse_add(s->pulse, s->next, &err));
    OK(weft_stage_set_next(s->stage, theirs, &err));
}

static void open_lead(scene *s, bool small)
{
    weft_link *theirs = NULL;
    open_link(s, small, &s->lead, &theirs);
    OK(weft_pulse_add(s->pulse, s->lead, &err));
    OK(weft_poller_add(s->poller, s->lead, &err));
    OK(weft_stage_add_link(s->stage, 0, theirs, &err));
}

static void open_scene(scene *s, int32_t n_stages)
{
    memset(s, 0, sizeof *s);
    s->n_stages = n_stages;
    s->h = harness_open(MODEL, WEFT_EXACT);
    s->engine = (weft_engine_options){.kv_bytes = 32 << 20,
                                      .page_tokens = PAGE,
                                      .chunk_tokens = ROWS,
                                      .max_seqs = 1,
                                      .max_context = ROWS,
                                      .threads = 1,
                                      .profile = WEFT_EXACT,
                                      .ops = harness_ops(NULL)};
    OK(weft_partition_cut(&s->h.config, n_stages, 1, &s->config, &err));
    OK(weft_kv_layout_make(&s->config, WEFT_F32, PAGE, &s->layout, &err));
    const weft_stage_options o = {.config = &s->config,
                                  .weights = weft_model_weights(s->h.model),
                                  .engine = s->engine,
                                  .stage = 1,
                                  .n_stages = n_stages,
                                  .group = CHAIN_GROUP};
    OK(weft_stage_start(&o, &s->stage, &err));
    OK(weft_pulse_start(10 * MS, &s->pulse, &err));
    OK(weft_poller_create(&s->poller, &err));
    if (n_stages > 2) open_next(s);
    open_lead(s, n_stages == 2);
    begin_run(s);
}

static void close_scene(scene *s)
{
    weft_pulse_stop(s->pulse);
    weft_poller_destroy(s->poller);
    weft_link_close(s->lead);
    weft_link_close(s->next);
    weft_stage_stop(s->stage);
    harness_close(&s->h);
}

/* A step of one sequence: its plan and its rows, which the stage then has to
 * pass on. */
static void send_step(scene *s)
{
    unsigned char body[16384];
    weft_pack p = weft_pack_into(body, sizeof body);
    weft_pack_u64(&p, RUN);
    const int32_t head[] = {1, ROWS, 1, 0, 0, ROWS};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        weft_pack_i32(&p, head[i]);
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        const int32_t n = s->layout.page_bytes[k] == 0 ? 0 : ROWS / PAGE;
        weft_pack_i32(&p, n);
        for (int32_t i = 0; i < n; i++)
            weft_pack_i64(&p, (2 * i + k) * s->layout.slab_bytes);
    }
    /* Of a last stage all are wanted. */
    const int32_t n_wanted = s->n_stages == 2 ? ROWS : 0;
    weft_pack_i32(&p, n_wanted);
    for (int32_t i = 0; i < n_wanted; i++) weft_pack_i32(&p, i);
    ck_assert(!p.full);
    send_lead(s,
              (weft_frame){.type = WEFT_FRAME_PLAN,
                           .step = 1,
                           .body = body,
                           .body_bytes = p.n},
              NULL);
    const int32_t width = s->config.hidden_size;
    float *const row = weft_mem_new((size_t)width, sizeof *row);
    const void *rows[ROWS];
    for (int32_t i = 0; i < width; i++) row[i] = (float)(i % 7) * 0.25F;
    for (int32_t i = 0; i < ROWS; i++) rows[i] = row;
    send_lead(s,
              (weft_frame){.type = WEFT_FRAME_HIDDEN,
                           .step = 1,
                           .body = body,
                           .body_bytes = weft_stages_run_encode(RUN, body),
                           .n_rows = ROWS,
                           .row_bytes = (uint32_t)width * sizeof(float)},
              rows);
    weft_mem_free(row);
}

/* What the lead hears until then; *said_out: the first frame, 0: none. */
static void listen_until(scene *s, uint64_t until_ns, weft_frame_type *said_out,
                         weft_stuck *stuck_out)
{
    *said_out = 0;
    while (weft_clock_now_ns() < until_ns) {
        weft_frame frame;
        bool got = false;
        OK(weft_link_recv(s->lead, &frame, &got, &err));
        if (got) {
            *said_out = frame.type;
            if (frame.type == WEFT_FRAME_STUCK)
                ck_assert(weft_stuck_decode(&frame, stuck_out));
            return;
        }
        weft_poller_wait(s->poller, until_ns, 0);
    }
}

START_TEST(who_computes_for_long_is_waited_for)
{
    scene s;
    weft_frame_type said = 0;
    weft_stuck stuck = {0};
    open_scene(&s, 3);
    send_step(&s);
    listen_until(&s, weft_clock_now_ns() + 5 * SILENCE_NS, &said, &stuck);
    ck_assert_msg(said == 0, "%s", stuck.text);
    const weft_frame frame = kit_recv(s.next, NULL);
    ck_assert_int_eq(frame.type, WEFT_FRAME_HIDDEN);
    ck_assert_int_eq(frame.n_rows, ROWS);
    close_scene(&s);
}
END_TEST

START_TEST(who_is_silent_is_not)
{
    scene s;
    weft_frame_type said = 0;
    weft_stuck stuck = {0};
    open_scene(&s, 3);
    weft_pulse_remove(s.pulse, s.next);
    send_step(&s);
    listen_until(&s, kit_deadline(), &said, &stuck);
    ck_assert_int_eq(said, WEFT_FRAME_STUCK);
    ck_assert_int_eq(stuck.why, WEFT_STUCK_BROKEN);
    ck_assert_msg(strstr(stuck.text, "silent") != NULL, "%s", stuck.text);
    close_scene(&s);
}
END_TEST

/* A lead that does not read its rows holds the stage up only until there is
 * another lead. */
START_TEST(another_lead_is_met)
{
    scene s;
    open_scene(&s, 2);
    send_step(&s);
    weft_link *const old = s.lead;
    struct pollfd rows = {.fd = old->fd, .events = POLLIN};
    ck_assert_int_eq(poll(&rows, 1, 20000), 1);
    weft_poller_remove(s.poller, old);
    open_lead(&s, false);
    begin_run(&s);
    weft_pulse_remove(s.pulse, old);
    weft_link_close(old);
    close_scene(&s);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {who_computes_for_long_is_waited_for,
                                  who_is_silent_is_not, another_lead_is_met};
    return WEFT_SUITE_RUN("slow stages", tests);
}

/* An engine whose further stages are this test: they read and answer, or do
 * not. */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"
#include "shard/step/stages_lead.h"
#include "tests/support/chain.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/fixtures/dots3-mixed"
#define MS    UINT64_C(1000000)

enum { ROWS = 512, FEW = 16, PAGE = 16, STAGES_MAX = 3, KV_BYTES = 8 << 20 };

static const uint64_t SILENCE_NS = 200 * MS;
static const uint64_t WAIT_NS = 20000 * MS;

typedef struct scene {
    harness h;
    weft_model_config config; /* of stage 0 */
    weft_engine_options engine_options;
    weft_stages *stages;
    weft_engine *engine;
    weft_pulse *pulse;            /* of our ends */
    weft_link *links[STAGES_MAX]; /* our ends; [0] is unused */
    weft_poller *poller;          /* of those */
    int32_t n_stages;
    bool stuck; /* stage 1 cannot compute what it is told */
    int32_t n_stuck;
    weft_ring *events;
    int32_t prompt[ROWS];
    weft_job job;
} scene;

static bool keep_event(void *arg, const weft_event *event)
{
    return weft_ring_push(arg, event);
}

/* So small that rows of a step do not fit. */
static void shrink(int fd)
{
    const int least = 1;
    ck_assert_int_eq(
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
    ck_assert_int_eq(
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
}

/* -- what the stages say --------------------------------------------------- */

static void say(scene *s, int32_t stage, weft_frame frame)
{
    frame.group = CHAIN_GROUP;
    OK(weft_link_send(s->links[stage], &frame, NULL, &err));
}

static void say_hail(scene *s, int32_t stage, uint64_t run)
{
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    const weft_stages_hail hail = {.run = run, .kv_bytes = KV_BYTES};
    const size_t n = weft_stages_hail_encode(&hail, body);
    say(s, stage,
        (weft_frame){.type = WEFT_FRAME_RESET, .body = body, .body_bytes = n});
}

static void say_stuck(scene *s, int32_t stage, const weft_frame *plan)
{
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    weft_plan_head head;
    ck_assert(weft_plan_decode_head(plan->body, plan->body_bytes, &head));
    const weft_stuck stuck = {
        .run = head.run, .why = WEFT_STUCK_EXPERTS, .text = "no experts"};
    const size_t n = weft_stuck_encode(&stuck, body);
    s->n_stuck++;
    say(s, stage,
        (weft_frame){.type = WEFT_FRAME_STUCK,
                     .step = plan->step,
                     .attempt = plan->attempt,
                     .body = body,
                     .body_bytes = n});
}

/* What one stage hears next, if anything; runs are answered at once. The type,
 * or 0. */
static weft_frame_type hear(scene *s, int32_t stage)
{
    weft_frame frame;
    bool got = false;
    OK(weft_link_recv(s->links[stage], &frame, &got, &err));
    if (!got) return 0;
    if (frame.type == WEFT_FRAME_RESET) {
        weft_stages_values values;
        ck_assert(weft_stages_values_decode(&frame, &values));
        say_hail(s, stage, values.run);
    }
    if (frame.type == WEFT_FRAME_PLAN && s->stuck && stage == 1)
        say_stuck(s, stage, &frame);
    return frame.type;
}

static void rest(scene *s, uint64_t deadline_ns)
{
    ck_assert(weft_clock_now_ns() < deadline_ns);
    weft_poller_wait(s->poller, weft_clock_now_ns() + 10 * MS, 0);
}

static void wait_for(scene *s, int32_t stage, weft_frame_type type)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    for (;;) {
        const weft_frame_type heard = hear(s, stage);
        if (heard == type) return;
        if (heard == 0) rest(s, deadline_ns);
    }
}

/* -- the scene ------------------------------------------------------------- */

static void open_link(scene *s, int32_t stage)
{
    weft_link *theirs = NULL;
    int a = -1, b = -1;
    weft_link_options o = {
        .limits = weft_stages_limits(&s->config, &s->engine_options)};
    kit_sockets(&a, &b);
    if (!s->stuck) shrink(a);
    if (!s->stuck) shrink(b);
    OK(weft_link_create_tcp(a, NULL, false, &o, &s->links[stage], &err));
    o.silence_ns = SILENCE_NS;
    OK(weft_link_create_tcp(b, NULL, false, &o, &theirs, &err));
    OK(weft_poller_add(s->poller, s->links[stage], &err));
    OK(weft_pulse_add(s->pulse, s->links[stage], &err));
    OK(weft_stages_add_link(s->stages, stage, theirs, &err));
    say_hail(s, stage, 0);
}

static void create_engine(scene *s)
{
    int64_t kv_bytes[STAGES_MAX];
    OK(weft_stages_wait(s->stages, weft_clock_now_ns() + WAIT_NS, kv_bytes,
                        &err));
    s->engine_options.stages = s->stages;
    s->engine_options.stage_kv_bytes = kv_bytes;
    OK(weft_ring_create(sizeof(weft_event), 64, &s->events, &err));
    OK(weft_engine_create(
        &s->config, weft_model_weights(s->h.model), &s->engine_options,
        (weft_event_sink){.take = keep_event, .arg = s->events}, NULL, NULL,
        &s->engine, &err));
    OK(weft_engine_start(s->engine, &err));
}

/* A job of one chunk is under way when this returns. */
static void open_scene(scene *s, int32_t n_stages, bool stuck)
{
    memset(s, 0, sizeof *s);
    s->n_stages = n_stages;
    s->stuck = stuck;
    s->h = harness_open(MODEL, WEFT_EXACT);
    s->engine_options = (weft_engine_options){.kv_bytes = KV_BYTES,
                                              .page_tokens = PAGE,
                                              .chunk_tokens = ROWS,
                                              .max_seqs = 1,
                                              .max_waiting = 1,
                                              .max_context = ROWS + PAGE,
                                              .threads = 1,
                                              .profile = WEFT_EXACT,
                                              .ops = harness_ops(NULL)};
    OK(weft_partition_cut(&s->h.config, n_stages, 0, &s->config, &err));
    OK(weft_pulse_start(10 * MS, &s->pulse, &err));
    OK(weft_poller_create(&s->poller, &err));
    const weft_stages_options o = {
        .n_stages = n_stages, .group = CHAIN_GROUP, .micro_batches = 1};
    OK(weft_stages_create(&o, &s->stages, &err));
    for (int32_t i = 1; i < n_stages; i++) open_link(s, i);
    create_engine(s);
    for (int32_t i = 1; i < n_stages; i++) wait_for(s, i, WEFT_FRAME_RESET);
    /* A try that is stuck is a short one. */
    const int32_t n_rows = stuck ? FEW : ROWS;
    for (int32_t i = 0; i < n_rows; i++) s->prompt[i] = (7 * i + 3) % 150;
    s->job = (weft_job){.handle = 1,
                        .deadline_ns = UINT64_MAX,
                        .tokens = s->prompt,
                        .n_prompt = n_rows,
                        .n_tokens = n_rows,
                        .max_tokens = 2,
                        .sampling = {.top_p = 1.0F, .repetition_penalty = 1.0F},
                        .logprobs = -1,
                        .prompt_logprobs = -1};
    OK(weft_engine_submit(s->engine, &s->job));
    wait_for(s, 1, WEFT_FRAME_PLAN);
}

static void end_engine(scene *s)
{
    weft_engine_destroy(s->engine); /* NULL is fine */
    s->engine = NULL;
}

static void close_scene(scene *s)
{
    end_engine(s);
    weft_stages_destroy(s->stages);
    weft_pulse_stop(s->pulse);
    weft_poller_destroy(s->poller);
    for (int32_t i = 1; i < s->n_stages; i++) weft_link_close(s->links[i]);
    weft_ring_destroy(s->events);
    harness_close(&s->h);
}

/* -- tests ----------------------------------------------------------------- */

/* A stage that does not read has rows of the engine still to come when it
 * ends: its link ends, too, before the rows do. */
START_TEST(an_end_takes_back_what_was_lent)
{
    scene s;
    open_scene(&s, 2, false);
    weft_link *const link = s.links[1];
    struct pollfd rows = {.fd = link->fd, .events = POLLIN};
    ck_assert_int_eq(poll(&rows, 1, (int)(WAIT_NS / MS)), 1);
    end_engine(&s);
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    weft_frame frame;
    bool got = false;
    weft_err told = {0};
    while (weft_link_recv(link, &frame, &got, &told) == WEFT_OK) {
        ck_assert(!got);
        /* As the pulse thread does, which knows nothing of engines. */
        if (s.stages->at[1].link != NULL)
            weft_link_pulse(s.stages->at[1].link, 1);
        rest(&s, deadline_ns);
    }
    ck_assert_msg(strstr(told.text, "in the middle of a frame") != NULL, "%s",
                  told.text);
    close_scene(&s);
}
END_TEST

/* While one stage keeps saying that it cannot compute, the silence of another
 * is seen all the same. */
START_TEST(a_silent_stage_is_seen_beside_a_stuck_one)
{
    scene s;
    open_scene(&s, 3, true);
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    weft_frame frame;
    bool got = false;
    weft_pulse_remove(s.pulse, s.links[2]);
    weft_err told = {0};
    while (weft_link_recv(s.links[2], &frame, &got, &told) == WEFT_OK)
        if (hear(&s, 1) == 0) rest(&s, deadline_ns);
    ck_assert_msg(s.n_stuck > 2, "%s", told.text);
    while (weft_stages_is_whole(s.stages)) rest(&s, deadline_ns);
    close_scene(&s);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {an_end_takes_back_what_was_lent,
                                  a_silent_stage_is_seen_beside_a_stuck_one};
    return WEFT_SUITE_RUN("stages by hand", tests);
}

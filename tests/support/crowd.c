#include "tests/support/crowd.h"

#include <check.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"
#include "tests/support/expect.h"

static const uint64_t WAIT_NS = 120ULL * 1000 * 1000 * 1000;

crowd_job crowd_make(const int32_t *prompt, int32_t n_prompt, int32_t n_new)
{
    crowd_job j = {.prompt = prompt, .n_prompt = n_prompt, .n_new = n_new};
    j.tokens = weft_mem_new((size_t)n_prompt + (size_t)n_new, sizeof *j.tokens);
    j.logprobs = weft_mem_new((size_t)n_new, sizeof *j.logprobs);
    memcpy(j.tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    j.n_tokens = n_prompt;
    return j;
}

void crowd_free(crowd_job *job)
{
    weft_mem_free(job->tokens);
    weft_mem_free(job->logprobs);
}

static weft_kv_layout layout_of(const harness *h, const harness_run *run)
{
    weft_kv_layout layout;
    OK(weft_kv_layout_make(
        &h->config, h->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16,
        run->page_tokens > 0 ? run->page_tokens : 64, &layout, &err));
    return layout;
}

int64_t crowd_bytes(const harness *h, const crowd_job *job,
                    const harness_run *run)
{
    const weft_kv_layout layout = layout_of(h, run);
    int64_t slabs = 0;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (h->config.n_kind[k] == 0) continue;
        const int64_t pages =
            weft_kv_pages_for(&h->config, &layout, (weft_kind)k,
                              (int64_t)job->n_prompt + job->n_new,
                              run->chunk_tokens > 0 ? run->chunk_tokens : 512);
        slabs += (pages + layout.slab_pages[k] - 1) / layout.slab_pages[k];
    }
    return slabs * layout.slab_bytes;
}

static bool keep_event(void *ring, const weft_event *event)
{
    return weft_ring_push(ring, event);
}

static weft_job job_of(const crowd_job *c, uint64_t handle)
{
    return (weft_job){
        .handle = handle,
        .age = handle,
        .deadline_ns = c->timeout_ns == 0 ? UINT64_MAX
                                          : weft_clock_now_ns() + c->timeout_ns,
        .tokens = c->tokens,
        .n_prompt = c->n_prompt,
        .n_tokens = c->n_tokens,
        .max_tokens = c->n_new,
        .sampling = {.temperature = c->temperature,
                     .top_p = 1.0F,
                     .repetition_penalty = 1.0F,
                     .seed = c->seed},
        .logprobs = 0,
        .prompt_logprobs = -1,
    };
}

static void take_token(crowd_job *c, const weft_event *event)
{
    ck_assert_msg(event->position == c->n_tokens,
                  "token for position %d, expected %d", event->position,
                  c->n_tokens);
    ck_assert_int_lt(c->n_tokens, c->n_prompt + c->n_new);
    c->logprobs[c->n_tokens - c->n_prompt] = event->logprob;
    c->tokens[c->n_tokens++] = event->token;
}

/* Returns whether the job is over. */
static bool take_event(weft_engine *engine, crowd_job *c, weft_job *job,
                       const weft_event *event)
{
    if (event->kind == WEFT_EVENT_TOKEN) take_token(c, event);
    if (event->finish == WEFT_FINISH_NONE) {
        if (event->kind == WEFT_EVENT_TOKEN && c->cancel_after > 0 &&
            c->n_tokens - c->n_prompt == c->cancel_after)
            OK(weft_engine_cancel(engine, event->handle));
        return false;
    }
    if (event->finish == WEFT_FINISH_PREEMPTED) {
        c->n_preempted++;
        const uint64_t deadline_ns = job->deadline_ns;
        *job = job_of(c, event->handle);
        job->deadline_ns = deadline_ns;
        OK(weft_engine_submit(engine, job));
        return false;
    }
    c->finish = event->finish;
    c->status = event->status;
    c->n_last_events++;
    return true;
}

static void wait_until_unused(weft_engine *engine)
{
    const uint64_t deadline_ns = weft_clock_now_ns() + WAIT_NS;
    weft_engine_load load;
    do {
        ck_assert(weft_clock_now_ns() < deadline_ns);
        weft_engine_get_load(engine, &load);
    } while (!load.idle || load.sched.n_running + load.sched.n_waiting > 0);
    ck_assert_int_eq(load.kv.pages_used[WEFT_FULL], 0);
    ck_assert_int_eq(load.kv.pages_used[WEFT_WINDOW], 0);
    ck_assert_int_eq(load.kv.slabs, load.kv.slabs_free);
    ck_assert_int_eq(load.kv_group.slabs, load.kv_group.slabs_free);
}

/* One run of the crowd. */
typedef struct meeting {
    const harness *h;
    crowd_job *jobs;
    weft_job *submitted;
    int32_t n, n_silent; /* jobs in time that have told nothing yet */
    const crowd_watch *watch;
    weft_engine *engine;
    weft_ring *ring;
} meeting;

static void see_step(void *arg, uint64_t step_ns, int32_t n_rows)
{
    const meeting *const m = arg;
    weft_engine_load load;
    (void)step_ns, (void)n_rows;
    if (m->engine == NULL || m->watch->on_load == NULL) return;
    weft_engine_get_load(m->engine, &load);
    m->watch->on_load(m->watch->arg, &load);
}

static void submit_some(meeting *m, bool late)
{
    for (int32_t i = 0; i < m->n; i++) {
        if (m->jobs[i].late != late) continue;
        m->submitted[i] = job_of(&m->jobs[i], (uint64_t)i);
        if (m->watch->on_submit != NULL) m->watch->on_submit(m->watch->arg, i);
        OK(weft_engine_submit(m->engine, &m->submitted[i]));
    }
}

static weft_engine_options options_of(const meeting *m, const harness_run *run,
                                      int32_t max_seqs)
{
    int32_t longest = 0;
    int64_t bytes = 0;
    for (int32_t i = 0; i < m->n; i++) {
        const int32_t tokens = m->jobs[i].n_prompt + m->jobs[i].n_new;
        if (tokens > longest) longest = tokens;
        bytes += crowd_bytes(m->h, &m->jobs[i], run);
    }
    const weft_kv_layout layout = layout_of(m->h, run);
    return (weft_engine_options){
        .kv_bytes =
            run->kv_bytes > 0 ? run->kv_bytes : bytes + 2 * layout.slab_bytes,
        .page_tokens = layout.page_tokens,
        .chunk_tokens = run->chunk_tokens > 0 ? run->chunk_tokens : 512,
        .max_seqs = max_seqs,
        .max_waiting = m->n,
        .max_context = longest + 1,
        .threads = run->threads > 0 ? run->threads : 1,
        .profile = m->h->profile,
        .ops = harness_ops(run->cpu_path),
    };
}

/* Returns whether a job is over. */
static bool hear(meeting *m, const weft_event *event)
{
    crowd_job *const c = &m->jobs[event->handle];
    const bool silent = c->n_tokens == c->n_prompt;
    if (m->watch->on_event != NULL) m->watch->on_event(m->watch->arg, event);
    const bool over =
        take_event(m->engine, c, &m->submitted[event->handle], event);
    if (!c->late && silent && (over || c->n_tokens > c->n_prompt))
        if (--m->n_silent == 0) submit_some(m, true);
    return over;
}

int32_t crowd_run_watched(const harness *h, crowd_job *jobs, int32_t n,
                          const harness_run *run, int32_t max_seqs,
                          const crowd_watch *watch)
{
    meeting m = {.h = h, .jobs = jobs, .n = n, .watch = watch};
    weft_rank_parts parts[WEFT_COMM_GROUP_RANKS_MAX - 1];
    weft_engine_options options = options_of(&m, run, max_seqs);
    harness_add_ranks(h, parts, &options);
    const weft_model_config *config = &h->config;
    if (watch->on_make != NULL) config = watch->on_make(watch->arg, &options);
    OK(weft_ring_create(sizeof(weft_event), 16, &m.ring, &err));
    OK(weft_engine_create(config, weft_model_weights(h->model), &options,
                          (weft_event_sink){.take = keep_event, .arg = m.ring},
                          see_step, &m, &m.engine, &err));
    m.submitted = weft_mem_new((size_t)n, sizeof *m.submitted);
    for (int32_t i = 0; i < n; i++) m.n_silent += !jobs[i].late;
    OK(weft_engine_start(m.engine, &err));
    submit_some(&m, false);
    weft_event event;
    for (int32_t left = n; left > 0;) {
        weft_ring_wait(m.ring, weft_clock_now_ns() + WAIT_NS);
        ck_assert_msg(weft_ring_pop(m.ring, &event), "%d jobs never ended",
                      left);
        weft_mem_free(event.top);
        left -= hear(&m, &event);
    }
    int32_t n_preempted = 0;
    for (int32_t i = 0; i < n; i++) n_preempted += jobs[i].n_preempted;
    wait_until_unused(m.engine);
    ck_assert_msg(!weft_ring_pop(m.ring, &event),
                  "an event after the last one");
    weft_engine_destroy(m.engine);
    weft_ring_destroy(m.ring);
    weft_mem_free(m.submitted);
    return n_preempted;
}

int32_t crowd_run(const harness *h, crowd_job *jobs, int32_t n,
                  const harness_run *run, int32_t max_seqs)
{
    const crowd_watch nothing = {0};
    return crowd_run_watched(h, jobs, n, run, max_seqs, &nothing);
}

/* The text thread: what nobody waits for is passed over. */
#include <semaphore.h>
#include <time.h>

#include "router/text_thread.h"
#include "tests/support/suite.h"

static weft_tokenizer *tokenizer;
static weft_text_thread *thread;
static sem_t came;

typedef struct asked {
    bool wanted;
    weft_status status;
    size_t n;
} asked;

static bool call_wanted(void *arg)
{
    return ((const asked *)arg)->wanted;
}

static bool prompt_wanted(void *arg, const weft_entry *entry)
{
    (void)entry;
    return *(const bool *)arg;
}

static void prompt_done(void *arg, weft_entry *entry)
{
    (void)arg;
    (void)entry;
    (void)sem_post(&came);
}

static weft_status charge(void *arg, weft_entry *entry, weft_err *err)
{
    (void)arg;
    (void)entry;
    (void)err;
    return WEFT_OK;
}

static void got_ids(void *arg, const weft_err *err, const int32_t *ids,
                    size_t n)
{
    asked *const a = arg;
    (void)ids;
    a->status = err == NULL ? WEFT_OK : err->status;
    a->n = n;
    (void)sem_post(&came);
}

static void got_text(void *arg, const weft_err *err, weft_span text)
{
    got_ids(arg, err, NULL, text.n);
}

static void wait_for_one(void)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    ck_assert_int_eq(sem_timedwait(&came, &until), 0);
}

static void begin(const weft_admit_limits *limits, bool *prompts_wanted)
{
    const weft_text_hooks hooks = {
        .done = prompt_done,
        .charge = charge,
        .prompt_wanted = prompt_wanted,
        .call_wanted = call_wanted,
        .arg = prompts_wanted,
    };
    (void)sem_init(&came, 0, 0);
    ck_assert_int_eq(weft_tokenizer_read("tests/data/tiny-model/tokenizer.json",
                                         1 << 20, &tokenizer, NULL),
                     WEFT_OK);
    ck_assert_int_eq(
        weft_text_thread_create(tokenizer, limits, 4, &hooks, &thread, NULL),
        WEFT_OK);
    ck_assert_int_eq(weft_text_thread_start(thread, NULL), WEFT_OK);
}

static void end(void)
{
    weft_text_thread_destroy(thread);
    weft_tokenizer_destroy(tokenizer);
    (void)sem_destroy(&came);
}

START_TEST(calls_of_clients_that_left_are_passed_over)
{
    static const uint32_t ids[] = {40, 41};
    const weft_admit_limits limits = {.vocab_size = 5000};
    bool prompts_wanted = true;
    begin(&limits, &prompts_wanted);
    for (int wanted = 0; wanted < 2; wanted++) {
        asked a = {.wanted = wanted == 1, .n = 99};
        const weft_status status = a.wanted ? WEFT_OK : WEFT_CANCELLED;
        ck_assert_int_eq(
            weft_text_thread_tokenize(thread, (weft_span){"ab cd", 5}, true,
                                      false, got_ids, &a, NULL),
            WEFT_OK);
        wait_for_one();
        ck_assert_int_eq(a.status, status);
        ck_assert(a.wanted ? a.n > 0 : a.n == 0);
        ck_assert_int_eq(weft_text_thread_detokenize(thread, ids, 2, true,
                                                     got_text, &a, NULL),
                         WEFT_OK);
        wait_for_one();
        ck_assert_int_eq(a.status, status);
        ck_assert(a.wanted ? a.n > 0 : a.n == 0);
    }
    end();
}
END_TEST

START_TEST(prompts_of_clients_that_left_are_passed_over)
{
    static char text[] = "ab cd";
    const weft_admit_limits limits = {.vocab_size = 5000, .max_context = 60};
    bool prompts_wanted = false;
    weft_arena *arena = NULL;
    ck_assert_int_eq(weft_arena_create(1 << 20, &arena, NULL), WEFT_OK);
    weft_entry entry = {.arena = arena,
                        .prompt_text = text,
                        .prompt_text_bytes = sizeof text - 1};
    begin(&limits, &prompts_wanted);
    weft_text_thread_push(thread, &entry);
    wait_for_one();
    ck_assert_int_eq(entry.text_err.status, WEFT_CANCELLED);
    ck_assert_int_eq(entry.ask.job.n_prompt, 0);
    prompts_wanted = true;
    weft_text_thread_push(thread, &entry);
    wait_for_one();
    ck_assert_msg(entry.text_err.status == WEFT_OK, "%s", entry.text_err.text);
    ck_assert_int_gt(entry.ask.job.n_prompt, 0);
    end();
    weft_arena_destroy(arena);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        calls_of_clients_that_left_are_passed_over,
        prompts_of_clients_that_left_are_passed_over,
    };
    return WEFT_SUITE_RUN("text_thread", tests);
}

#include "router/text_thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "node/base/ring.h"

typedef struct text_call {
    bool is_tokenize;
    weft_span text; /* this and ids: the caller's, until done */
    const uint32_t *ids;
    size_t n_ids;
    bool add_special, parse_special, skip_special;
    weft_tokenize_fn tokenized;
    weft_detokenize_fn detokenized;
    void *arg;
} text_call;

struct weft_text_thread {
    const weft_tokenizer *tokenizer;
    const weft_admit_limits *limits;
    weft_text_hooks hooks;
    weft_ring *entries; /* weft_entry *; the one the thread waits on */
    weft_ring *calls;   /* text_call */
    _Atomic bool stopping;
    pthread_t thread;
    bool started;
};

/* -- the thread ----------------------------------------------------------- */

static weft_status encode_prompt(weft_text_thread *thread, weft_entry *entry,
                                 weft_err *err)
{
    /* Text of users never becomes control tokens. */
    const weft_encode_options options = {.add_special = true};
    weft_ids ids = {0};
    weft_status st =
        weft_tokenizer_encode(thread->tokenizer, entry->prompt_text,
                              entry->prompt_text_bytes, options, &ids, err);
    if (st == WEFT_OK)
        st = weft_admit_prompt(thread->limits, (const uint32_t *)ids.data,
                               ids.n, entry->arena, &entry->ask, err);
    weft_ids_deinit(&ids);
    if (st != WEFT_OK) return st;
    return thread->hooks.charge(thread->hooks.arg, entry, err);
}

static void do_entry(weft_text_thread *thread, weft_entry *entry)
{
    entry->text_err = (weft_err){0};
    if (thread->hooks.prompt_wanted(thread->hooks.arg, entry))
        entry->text_err.status = encode_prompt(thread, entry, &entry->text_err);
    else
        entry->text_err.status =
            WEFT_FAIL(&entry->text_err, WEFT_CANCELLED, "the client cancelled");
    thread->hooks.done(thread->hooks.arg, entry);
}

static void do_tokenize(const weft_text_thread *thread, const text_call *call)
{
    const weft_encode_options options = {.add_special = call->add_special,
                                         .parse_special = call->parse_special};
    weft_err err = {0};
    weft_ids ids = {0};
    const weft_status st = weft_tokenizer_encode(
        thread->tokenizer, call->text.data, call->text.n, options, &ids, &err);
    if (st == WEFT_OK)
        call->tokenized(call->arg, NULL, ids.data, ids.n);
    else
        call->tokenized(call->arg, &err, NULL, 0);
    weft_ids_deinit(&ids);
}

static weft_status decode(const weft_text_thread *thread, const text_call *call,
                          weft_buf *text, weft_err *err)
{
    int32_t *const ids = weft_mem_new(call->n_ids, sizeof *ids);
    if (ids == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "ids: no memory for %zu of them", call->n_ids);
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < call->n_ids && st == WEFT_OK; i++) {
        ids[i] = (int32_t)call->ids[i];
        if (call->ids[i] >= (uint32_t)thread->limits->vocab_size)
            st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                           "ids[%zu] is %u: token ids are 0 to %d", i,
                           call->ids[i], thread->limits->vocab_size - 1);
    }
    if (st == WEFT_OK)
        st = weft_tokenizer_decode(thread->tokenizer, ids, call->n_ids,
                                   call->skip_special, text, err);
    weft_mem_free(ids);
    return st;
}

static void do_detokenize(const weft_text_thread *thread, const text_call *call)
{
    weft_err err = {0};
    weft_buf text = {0};
    const weft_status st = decode(thread, call, &text, &err);
    const weft_span told = {.data = text.data, .n = text.n};
    call->detokenized(call->arg, st == WEFT_OK ? NULL : &err, told);
    weft_buf_deinit(&text);
}

static void refuse_call(const text_call *call, weft_status status,
                        const char *text)
{
    weft_err err = {0};
    (void)WEFT_FAIL(&err, status, "%s", text);
    if (call->is_tokenize)
        call->tokenized(call->arg, &err, NULL, 0);
    else
        call->detokenized(call->arg, &err, (weft_span){0});
}

static void do_call(const weft_text_thread *thread, const text_call *call)
{
    bool (*const wanted)(void *arg) = thread->hooks.call_wanted;
    if (wanted != NULL && !wanted(call->arg))
        refuse_call(call, WEFT_CANCELLED, "the client is gone");
    else if (call->is_tokenize)
        do_tokenize(thread, call);
    else
        do_detokenize(thread, call);
}

static void *run(void *arg)
{
    weft_text_thread *const thread = arg;
    while (!atomic_load(&thread->stopping)) {
        weft_entry *entry = NULL;
        text_call call;
        const bool has_entry = weft_ring_pop(thread->entries, &entry);
        const bool has_call = weft_ring_pop(thread->calls, &call);
        if (has_entry) do_entry(thread, entry);
        if (has_call) do_call(thread, &call);
        if (!has_entry && !has_call)
            weft_ring_wait(thread->entries, UINT64_MAX);
    }
    text_call call;
    while (weft_ring_pop(thread->calls, &call))
        refuse_call(&call, WEFT_UNAVAILABLE, "the server has stopped");
    return NULL;
}

/* -- the way in ----------------------------------------------------------- */

void weft_text_thread_push(weft_text_thread *thread, weft_entry *entry)
{
    /* Room for every live request, and each comes here once. */
    const bool pushed = weft_ring_push(thread->entries, &entry);
    WEFT_ASSERT(pushed);
}

static weft_status push_call(weft_text_thread *thread, const text_call *call,
                             weft_err *err)
{
    if (thread->tokenizer == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: this model has no tokenizer.json",
                         call->is_tokenize ? "text" : "ids");
    if (!weft_ring_push(thread->calls, call))
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "%d Tokenize and Detokenize calls are in line already",
                         WEFT_TEXT_CALLS_MAX);
    weft_ring_wake(thread->entries);
    return WEFT_OK;
}

weft_status weft_text_thread_tokenize(weft_text_thread *thread, weft_span text,
                                      bool add_special, bool parse_special,
                                      weft_tokenize_fn done, void *arg,
                                      weft_err *err)
{
    const text_call call = {.is_tokenize = true,
                            .text = text,
                            .add_special = add_special,
                            .parse_special = parse_special,
                            .tokenized = done,
                            .arg = arg};
    return push_call(thread, &call, err);
}

weft_status weft_text_thread_detokenize(weft_text_thread *thread,
                                        const uint32_t *ids, size_t n,
                                        bool skip_special,
                                        weft_detokenize_fn done, void *arg,
                                        weft_err *err)
{
    const text_call call = {.ids = ids,
                            .n_ids = n,
                            .skip_special = skip_special,
                            .detokenized = done,
                            .arg = arg};
    const size_t longest =
        thread->tokenizer == NULL
            ? 1
            : weft_tokenizer_longest_text_bytes(thread->tokenizer);
    if (longest > 0 && n > WEFT_DETOKENIZE_BYTES_MAX / longest)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "ids has %zu ids of up to %zu bytes of text: allowed "
                         "are at most %zu",
                         n, longest, WEFT_DETOKENIZE_BYTES_MAX / longest);
    return push_call(thread, &call, err);
}

/* -- life ----------------------------------------------------------------- */

weft_status weft_text_thread_create(const weft_tokenizer *tokenizer,
                                    const weft_admit_limits *limits,
                                    int32_t n_entries,
                                    const weft_text_hooks *hooks,
                                    weft_text_thread **thread_out,
                                    weft_err *err)
{
    weft_text_thread *const thread = weft_mem_new(1, sizeof *thread);
    if (thread == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the text thread");
    thread->tokenizer = tokenizer;
    thread->limits = limits;
    thread->hooks = *hooks;
    weft_status st = weft_ring_create(sizeof(weft_entry *), (size_t)n_entries,
                                      &thread->entries, err);
    if (st == WEFT_OK)
        st = weft_ring_create(sizeof(text_call), WEFT_TEXT_CALLS_MAX,
                              &thread->calls, err);
    if (st != WEFT_OK) {
        weft_text_thread_destroy(thread);
        return st;
    }
    *thread_out = thread;
    return WEFT_OK;
}

weft_status weft_text_thread_start(weft_text_thread *thread, weft_err *err)
{
    const int code = pthread_create(&thread->thread, NULL, run, thread);
    if (code != 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "cannot start the text thread: %s", strerror(code));
    thread->started = true;
    return WEFT_OK;
}

void weft_text_thread_stop(weft_text_thread *thread)
{
    atomic_store(&thread->stopping, true);
    if (!thread->started) return;
    weft_ring_wake(thread->entries);
    (void)pthread_join(thread->thread, NULL);
    thread->started = false;
}

void weft_text_thread_destroy(weft_text_thread *thread)
{
    if (thread == NULL) return;
    weft_text_thread_stop(thread);
    weft_ring_destroy(thread->entries);
    weft_ring_destroy(thread->calls);
    weft_mem_free(thread);
}

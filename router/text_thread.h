/* text_thread.h - the thread that makes ids of texts: prompts first in line,
 * then calls of Tokenize and Detokenize, in turns. What nobody waits for any
 * more is passed over: clients that leave cost nobody time, nor do they delay
 * the end of the process.
 *
 * Internal to router.c. It is separate from the router's thread because a text
 * can take seconds, and tokens of others must not wait for it.
 *
 * Threads: create, start, stop and destroy by one thread; push, tokenize and
 * detokenize by any.
 */
#ifndef WEFT_ROUTER_TEXT_THREAD_H
#define WEFT_ROUTER_TEXT_THREAD_H

#include "router/router.h"

typedef struct weft_text_thread weft_text_thread;

enum {
    WEFT_TEXT_CALLS_MAX = 64,             /* Tokenize, Detokenize in line */
    WEFT_DETOKENIZE_BYTES_MAX = 64 << 20, /* what an answer may grow to */
};

typedef struct weft_text_hooks {
    /* The entry's ids are in entry->ask, or text_err says why not. */
    void (*done)(void *arg, weft_entry *entry);
    /* Counts what the entry has grown by; RESOURCE_EXHAUSTED: too much. */
    weft_status (*charge)(void *arg, weft_entry *entry, weft_err *err);
    /* Whether the request has not been cancelled. */
    bool (*prompt_wanted)(void *arg, const weft_entry *entry);
    /* As weft_router_options has it. */
    bool (*call_wanted)(void *call_arg);
    void *arg;
} weft_text_hooks;

/* n_entries: prompts that can be in line. */
WEFT_MUST_CHECK weft_status weft_text_thread_create(
    const weft_tokenizer *tokenizer, const weft_admit_limits *limits,
    int32_t n_entries, const weft_text_hooks *hooks,
    weft_text_thread **thread_out, weft_err *err);
WEFT_MUST_CHECK weft_status weft_text_thread_start(weft_text_thread *thread,
                                                   weft_err *err);
/* Calls that are in line end with UNAVAILABLE; prompts in line are left there
 * and stay their owner's. Prompts may be pushed while and after it runs, with
 * the same end; a call may not, since nobody would answer it. */
void weft_text_thread_stop(weft_text_thread *thread);
void weft_text_thread_destroy(weft_text_thread *thread); /* NULL is fine */

/* The entry is the thread's until hooks.done gives it back, or stop. */
void weft_text_thread_push(weft_text_thread *thread, weft_entry *entry);
WEFT_MUST_CHECK weft_status weft_text_thread_tokenize(
    weft_text_thread *thread, weft_span text, bool add_special,
    bool parse_special, weft_tokenize_fn done, void *arg, weft_err *err);
WEFT_MUST_CHECK weft_status weft_text_thread_detokenize(
    weft_text_thread *thread, const uint32_t *ids, size_t n, bool skip_special,
    weft_detokenize_fn done, void *arg, weft_err *err);

#endif

/* failpoint.h - named places where a test makes the process die, stand still,
 * be late or fail. Compiled in only with -DWEFT_FAILPOINTS=ON; otherwise the
 * macros are empty and nothing of this is in the program.
 *
 * What happens where is said in the environment as WEFT_FAILPOINTS:
 *
 *   name=action[@n][;name=action[@n]]...
 *
 *   abort     the process is killed (SIGKILL: nothing is tidied up)
 *   stop      the process is stopped (SIGSTOP), until somebody continues it
 *   sleep:MS  the thread sleeps that long
 *   error     WEFT_FAILPOINT_FAILS is true; elsewhere it has no meaning
 *
 * With @n only the n-th time that the place is passed, from 1; else every time.
 * A place may be named more than once. The places are WEFT_FAILPOINT_LIST; a
 * name that is not among them is refused, so that a campaign does not wait for
 * what never happens.
 *
 * Threads: set before others are started; passing by any.
 */
#ifndef WEFT_NODE_BASE_FAILPOINT_H
#define WEFT_NODE_BASE_FAILPOINT_H

#include <stdbool.h>

#include "node/base/err.h"

/* X(name, where) */
#define WEFT_FAILPOINT_LIST(X)                                                 \
    X("experts.before_load", "a plan has come; nothing is loaded yet")         \
    X("experts.mid_load", "before each expert; error: it cannot be loaded")    \
    X("experts.after_load", "all is loaded; nobody knows")                     \
    X("experts.before_ack", "just before the ack is handed to be written")     \
    X("experts.after_ack", "just after it")                                    \
    X("experts.after_commit", "the shard has seen the commit")                 \
    X("experts.before_drop", "retired: before weights are let go")             \
    X("experts.before_answer", "computed; nothing of the answer is sent")      \
    X("experts.after_answer", "the last piece of an answer is on its way")     \
    X("lead.before_switch", "the lead knows of a commit; its steps do not")    \
    X("lead.after_switch", "a step has begun with it; nobody is told yet")     \
    X("layers.mid_step", "between two layers of a step")                       \
    X("controller.after_plan", "placement written; no ack yet")                \
    X("controller.before_commit", "all acks are there; not committed")         \
    X("controller.after_commit", "committed; no switch yet")                   \
    X("controller.before_retire", "all have switched; not retired")            \
    X("front.before_events", "tokens of a step are there; the router has "     \
                             "none of them")

/* INVALID_ARGUMENT: names the entry and what is wrong with it. Replaces all
 * that was set; "" sets none. */
WEFT_MUST_CHECK weft_status weft_failpoints_set(const char *text,
                                                weft_err *err);
/* The place `name` is passed: acts, and says whether it is to fail. */
bool weft_failpoint_pass(const char *name);

#ifdef WEFT_FAILPOINTS
#define WEFT_FAILPOINT(name)       ((void)weft_failpoint_pass(name))
#define WEFT_FAILPOINT_FAILS(name) weft_failpoint_pass(name)
#else
#define WEFT_FAILPOINT(name)       ((void)0)
#define WEFT_FAILPOINT_FAILS(name) false
#endif

#endif

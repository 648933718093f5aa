/* err.h - how every fallible function in this tree reports failure.
 *
 * A function that can fail returns weft_status and takes `weft_err *err` last.
 * The first function that knows what went wrong fills *err with WEFT_FAIL;
 * callers on the way up may add where they were with WEFT_WRAP; only the edge
 * (an RPC handler, a command's main) tells it, once. `err` may be NULL when the
 * caller needs the code alone. Nothing here allocates, so out-of-memory can be
 * reported like any other failure.
 */
#ifndef WEFT_NODE_BASE_ERR_H
#define WEFT_NODE_BASE_ERR_H

#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEFT_MUST_CHECK        __attribute__((warn_unused_result))
#define WEFT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define WEFT_MUST_CHECK
#define WEFT_PRINTF(fmt, args)
#endif

/* Numbered as in gRPC's status.h, so a code crosses the wire unchanged;
 * node/rpc asserts each pair at compile time. Choose by what the caller can
 * do: fix the call, retry later, retry elsewhere, give up. */
typedef enum weft_status {
    WEFT_OK = 0,
    WEFT_CANCELLED = 1,        /* the client left, or the node is draining */
    WEFT_INVALID_ARGUMENT = 3, /* wrong whatever the state; never retried */
    WEFT_DEADLINE_EXCEEDED = 4,
    WEFT_NOT_FOUND = 5,
    WEFT_RESOURCE_EXHAUSTED = 8,  /* memory, KV pages, queue: retry later */
    WEFT_FAILED_PRECONDITION = 9, /* right call, wrong state */
    WEFT_UNIMPLEMENTED = 12,      /* known, and not built */
    WEFT_INTERNAL = 13,           /* a bug of ours: also counted and alerted */
    WEFT_UNAVAILABLE = 14,        /* a peer is gone: retry elsewhere */
    WEFT_DATA_LOSS = 15,          /* checksum or truncation: do not retry */
    WEFT_UNAUTHENTICATED = 16,    /* no key, or a wrong one */
} weft_status;

enum { WEFT_ERR_TEXT_BYTES = 384 };

typedef struct weft_err {
    weft_status status; /* WEFT_OK: nothing was reported */
    int line;
    const char *file;               /* where it was first raised; static */
    char text[WEFT_ERR_TEXT_BYTES]; /* NUL-terminated, may be truncated */
} weft_err;

/* Fill *err and return st, so that `return WEFT_FAIL(...)` reads as one act. */
#define WEFT_FAIL(err, st, ...)                                                \
    weft_err_set((err), (st), __FILE__, __LINE__, __VA_ARGS__)

/* Put "<text>: " before what *err already says, keep its code, return st. */
#define WEFT_WRAP(err, st, ...) weft_err_wrap((err), (st), __VA_ARGS__)

/* Return early with the callee's status. Only where nothing needs undoing;
 * where something does, set a local `st` and goto the label that undoes it. */
#define WEFT_TRY(call)                                                         \
    do {                                                                       \
        const weft_status weft_try_ = (call);                                  \
        if (weft_try_ != WEFT_OK) return weft_try_;                            \
    } while (0)

weft_status weft_err_set(weft_err *err, weft_status st, const char *file,
                         int line, const char *format, ...) WEFT_PRINTF(5, 6);
weft_status weft_err_wrap(weft_err *err, weft_status st, const char *format,
                          ...) WEFT_PRINTF(3, 4);

/* The gRPC name of a status, such as "INVALID_ARGUMENT"; never NULL. */
const char *weft_status_name(weft_status st);

#ifdef __cplusplus
}
#endif

#endif

#include "router/text/stops.h"

#include <string.h>

#include "node/base/mem.h"

enum { TOTAL_BYTES_MAX = 512 << 20 };

/* A node is a prefix of one or more stop strings; 0 is the empty one. Children
 * of the root are found by table, those of others along a list. */
typedef struct node {
    int32_t child, sibling; /* 0: none */
    int32_t fail;           /* the longest proper suffix that is a node */
    int32_t match;          /* longest stop string that is a suffix, or -1 */
    int32_t depth;          /* bytes of the prefix */
    uint8_t byte;           /* the last of them */
} node;

struct weft_stops {
    node *nodes;
    int32_t n_nodes;
    int32_t root[256];
    int32_t *lengths; /* bytes of each stop string */
    bool include;
    int32_t at;      /* node: the longest suffix of the text that is one */
    int32_t matched; /* -1: not yet */
    weft_buf held;   /* the last `depth of at` bytes of the text */
};

static int32_t child_of(const weft_stops *s, int32_t at, uint8_t byte)
{
    if (at == 0) return s->root[byte];
    int32_t child = s->nodes[at].child;
    while (child != 0 && s->nodes[child].byte != byte)
        child = s->nodes[child].sibling;
    return child;
}

static void insert(weft_stops *s, const char *text, int32_t n, int32_t index)
{
    int32_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)text[i];
        int32_t child = child_of(s, at, byte);
        if (child == 0) {
            child = s->n_nodes++;
            s->nodes[child] = (node){.sibling = s->nodes[at].child,
                                     .match = -1,
                                     .depth = i + 1,
                                     .byte = byte};
            s->nodes[at].child = child;
            if (at == 0) s->root[byte] = child;
        }
        at = child;
    }
    if (s->nodes[at].match < 0) s->nodes[at].match = index;
}

/* The node after one more byte. */
static int32_t step(const weft_stops *s, int32_t at, uint8_t byte)
{
    for (;;) {
        const int32_t child = child_of(s, at, byte);
        if (child != 0 || at == 0) return child;
        at = s->nodes[at].fail;
    }
}

/* Failure links, by rising depth; `queue` has room for every node. */
static void link_failures(weft_stops *s, int32_t *queue)
{
    int32_t first = 0, last = 0;
    queue[last++] = 0;
    while (first < last) {
        const int32_t at = queue[first++];
        for (int32_t c = s->nodes[at].child; c != 0; c = s->nodes[c].sibling) {
            if (at != 0)
                s->nodes[c].fail = step(s, s->nodes[at].fail, s->nodes[c].byte);
            if (s->nodes[c].match < 0)
                s->nodes[c].match = s->nodes[s->nodes[c].fail].match;
            queue[last++] = c;
        }
    }
}

static weft_status check(const char *const *strings, size_t n,
                         size_t *total_out, weft_err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = strlen(strings[i]);
        if (bytes == 0)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "stop[%zu] is an empty string", i);
        if (!weft_utf8_valid(strings[i], bytes))
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "stop[%zu] is not UTF-8", i);
        total += bytes;
        if (total > TOTAL_BYTES_MAX)
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                             "stop strings of more than %d bytes in all",
                             TOTAL_BYTES_MAX);
    }
    *total_out = total;
    return WEFT_OK;
}

weft_status weft_stops_create(const char *const *strings, size_t n,
                              bool include, weft_stops **stops_out,
                              weft_err *err)
{
    size_t total = 0;
    WEFT_TRY(check(strings, n, &total, err));
    weft_stops *const s = weft_mem_new(1, sizeof *s);
    int32_t *const queue = weft_mem_new(total + 1, sizeof *queue);
    if (s == NULL || queue == NULL) goto no_memory;
    s->include = include;
    s->matched = -1;
    s->nodes = weft_mem_new(total + 1, sizeof *s->nodes);
    s->lengths = weft_mem_new(n, sizeof *s->lengths);
    if (s->nodes == NULL || s->lengths == NULL) goto no_memory;
    s->nodes[0].match = -1;
    s->n_nodes = 1;
    for (size_t i = 0; i < n; i++) {
        s->lengths[i] = (int32_t)strlen(strings[i]);
        insert(s, strings[i], s->lengths[i], (int32_t)i);
    }
    link_failures(s, queue);
    weft_mem_free(queue);
    *stops_out = s;
    return WEFT_OK;

no_memory:
    weft_mem_free(queue);
    weft_stops_destroy(s);
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no memory for stop strings of %zu bytes", total);
}

void weft_stops_destroy(weft_stops *stops)
{
    if (stops == NULL) return;
    weft_mem_free(stops->nodes);
    weft_mem_free(stops->lengths);
    weft_buf_deinit(&stops->held);
    weft_mem_free(stops);
}

/* Append the first n bytes of held text and `text`, taken as one, to `out`. */
static weft_status show(const weft_stops *s, const char *text, size_t n,
                        weft_buf *out, weft_err *err)
{
    const size_t from_held = n < s->held.n ? n : s->held.n;
    WEFT_TRY(weft_buf_add(out, s->held.data, from_held, err));
    return weft_buf_add(out, text, n - from_held, err);
}

/* Drop the first `gone` bytes of held text and `text`, hold the rest. */
static weft_status hold(weft_stops *s, const char *text, size_t n, size_t gone,
                        weft_err *err)
{
    if (gone >= s->held.n) {
        const size_t cut = gone - s->held.n;
        weft_buf_clear(&s->held);
        return weft_buf_add(&s->held, text + cut, n - cut, err);
    }
    if (gone > 0) {
        memmove(s->held.data, s->held.data + gone, s->held.n - gone);
        s->held.n -= gone;
    }
    return weft_buf_add(&s->held, text, n, err);
}

/* A match ends the stream: show what is before it, or the match too. */
static weft_status cut(weft_stops *s, const char *text, size_t start,
                       size_t end, weft_buf *out, weft_err *err)
{
    WEFT_TRY(show(s, text, s->include ? end : start, out, err));
    weft_buf_clear(&s->held);
    return WEFT_OK;
}

static weft_status take(weft_stops *s, const char *text, size_t n, bool armed,
                        weft_buf *out, weft_err *err)
{
    if (s->matched >= 0 || n == 0) return WEFT_OK;
    size_t best_start = 0, best_end = 0;
    int32_t best = -1;
    for (size_t i = 0; i < n; i++) {
        s->at = step(s, s->at, (uint8_t)text[i]);
        const int32_t match = s->nodes[s->at].match;
        if (match < 0 || !armed) continue;
        /* Of strings that end here the longest starts first; a later end with
         * the same start is longer. */
        const size_t end = s->held.n + i + 1;
        const size_t start = end - (size_t)s->lengths[match];
        if (best >= 0 && start > best_start) continue;
        best = match;
        best_start = start;
        best_end = end;
    }
    if (best >= 0) {
        s->matched = best;
        return cut(s, text, best_start, best_end, out, err);
    }
    const size_t kept = (size_t)s->nodes[s->at].depth;
    const size_t gone = s->held.n + n - kept;
    WEFT_TRY(show(s, text, gone, out, err));
    return hold(s, text, n, gone, err);
}

weft_status weft_stops_push(weft_stops *stops, const char *text, size_t n,
                            weft_buf *out, int32_t *matched_out, weft_err *err)
{
    WEFT_TRY(take(stops, text, n, true, out, err));
    *matched_out = stops->matched;
    return WEFT_OK;
}

weft_status weft_stops_pass(weft_stops *stops, const char *text, size_t n,
                            weft_buf *out, weft_err *err)
{
    return take(stops, text, n, false, out, err);
}

weft_status weft_stops_finish(weft_stops *stops, weft_buf *out, weft_err *err)
{
    if (stops->matched >= 0) return WEFT_OK;
    const weft_status st =
        weft_buf_add(out, stops->held.data, stops->held.n, err);
    weft_buf_clear(&stops->held);
    stops->at = 0;
    return st;
}

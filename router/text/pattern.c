#include "router/text/pattern.h"

#include "node/base/mem.h"
#include "node/base/str.h"
#include "router/text/pattern_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    JIT_STACK_BYTES_MIN = 32 << 10,
    JIT_STACK_BYTES_MAX = 1 << 20,
    HEAP_KIB_MAX = 64 << 10, /* of the interpreter, where there is no JIT */
    PATTERN_BYTES_MAX = 64 << 10,
    NESTING_MAX = 100,
    MESSAGE_BYTES = 128,
    QUOTED_BYTES = 80,
    COMPILE_NO_MEMORY = 121, /* a compile error that PCRE2 does not name */
    /* Steps of one attempt: a run as long as the text, walked and walked back
     * by each alternative, is a few steps for each byte. */
    STEPS_A_BYTE = 64,
    STEPS_MIN = 10 * 1000 * 1000,
};

struct weft_pattern {
    pcre2_code *code;
    char quoted[QUOTED_BYTES + 1];
};

struct weft_matcher {
    pcre2_general_context *general;
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
};

static void *take(PCRE2_SIZE n, void *unused)
{
    (void)unused;
    return weft_mem_new(n, 1);
}

static void give(void *mem, void *unused)
{
    (void)unused;
    weft_mem_free(mem);
}

weft_status weft_matcher_create(size_t text_bytes_max,
                                weft_matcher **matcher_out, weft_err *err)
{
    weft_matcher *const m = weft_mem_new(1, sizeof *m);
    if (m == NULL) goto no_memory;
    m->general = pcre2_general_context_create(take, give, NULL);
    if (m->general == NULL) goto no_memory;
    m->context = pcre2_match_context_create(m->general);
    m->data = pcre2_match_data_create(1, m->general);
    if (m->context == NULL || m->data == NULL) goto no_memory;
    /* NULL where PCRE2 has no JIT: the interpreter then runs the patterns. */
    uint32_t jit = 0;
    if (pcre2_config(PCRE2_CONFIG_JIT, &jit) == 0 && jit != 0) {
        m->stack = pcre2_jit_stack_create(JIT_STACK_BYTES_MIN,
                                          JIT_STACK_BYTES_MAX, m->general);
        if (m->stack == NULL) goto no_memory;
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    }
    uint64_t steps = (uint64_t)text_bytes_max * STEPS_A_BYTE;
    if (steps < STEPS_MIN) steps = STEPS_MIN;
    if (steps > UINT32_MAX) steps = UINT32_MAX;
    (void)pcre2_set_match_limit(m->context, (uint32_t)steps);
    (void)pcre2_set_heap_limit(m->context, HEAP_KIB_MAX);
    *matcher_out = m;
    return WEFT_OK;

no_memory:
    weft_matcher_destroy(m);
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no memory to match patterns");
}

void weft_matcher_destroy(weft_matcher *matcher)
{
    if (matcher == NULL) return;
    pcre2_jit_stack_free(matcher->stack);
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_general_context_free(matcher->general);
    weft_mem_free(matcher);
}

/* For errors: the beginning of the pattern, cut at a character. */
static void quote(weft_pattern *pattern, const char *text, size_t n)
{
    size_t used = 0;
    if (n > QUOTED_BYTES) {
        bool broken = false;
        n = weft_utf8_prefix(text, QUOTED_BYTES, &broken);
    }
    for (; used < n; used++) {
        const unsigned char c = (unsigned char)text[used];
        pattern->quoted[used] = text[used];
        if (c < 0x20 || c == 0x7F) pattern->quoted[used] = '?';
    }
    pattern->quoted[used] = '\0';
}

static weft_status compile(weft_pattern *pattern, const weft_buf *text,
                           bool literal, weft_err *err)
{
    weft_status st = WEFT_OK;
    pcre2_compile_context *context = NULL;
    pcre2_general_context *const general =
        pcre2_general_context_create(take, give, NULL);
    if (general != NULL) context = pcre2_compile_context_create(general);
    if (context == NULL) {
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for a pattern");
        goto free_general;
    }
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    (void)pcre2_set_parens_nest_limit(context, NESTING_MAX);
    const uint32_t options =
        PCRE2_UTF | PCRE2_NO_UTF_CHECK |
        (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
    int code = 0;
    PCRE2_SIZE offset = 0;
    pattern->code = pcre2_compile((PCRE2_SPTR)text->data, text->n, options,
                                  &code, &offset, context);
    if (pattern->code == NULL) {
        PCRE2_UCHAR message[MESSAGE_BYTES] = "";
        (void)pcre2_get_error_message(code, message, sizeof message);
        st = code == COMPILE_NO_MEMORY ? WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                                                   "no memory for a pattern")
                                       : WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                                                   "%s", (const char *)message);
        goto free_context;
    }
    /* Without JIT (not built, or no executable memory) the same matches come
     * out, slower. */
    (void)pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE);

free_context:
    pcre2_compile_context_free(context);
free_general:
    pcre2_general_context_free(general);
    return st;
}

weft_status weft_pattern_create(const char *text, size_t n, bool literal,
                                weft_pattern **pattern_out, weft_err *err)
{
    weft_status st = WEFT_OK;
    weft_buf translated = {0};
    if (n > PATTERN_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "pattern of %zu bytes, limit %d", n,
                         PATTERN_BYTES_MAX);
    if (!weft_utf8_valid(text, n))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "pattern is not UTF-8");
    weft_pattern *const pattern = weft_mem_new(1, sizeof *pattern);
    if (pattern == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a pattern");
    quote(pattern, text, n);
    st = literal ? weft_buf_add(&translated, text, n, err)
                 : weft_pattern_translate(text, n, &translated, err);
    if (st == WEFT_OK && translated.n == 0)
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "pattern is empty");
    if (st == WEFT_OK) st = compile(pattern, &translated, literal, err);
    weft_buf_deinit(&translated);
    if (st != WEFT_OK) {
        (void)WEFT_WRAP(err, st, "pattern \"%s\"", pattern->quoted);
        weft_pattern_destroy(pattern);
        return st;
    }
    *pattern_out = pattern;
    return WEFT_OK;
}

void weft_pattern_destroy(weft_pattern *pattern)
{
    if (pattern == NULL) return;
    pcre2_code_free(pattern->code);
    weft_mem_free(pattern);
}

weft_status weft_pattern_find(const weft_pattern *pattern,
                              weft_matcher *matcher, const char *text,
                              weft_span piece, uint32_t from,
                              weft_span *match_out, weft_err *err)
{
    const int rc =
        pcre2_match(pattern->code, (PCRE2_SPTR)text + piece.start,
                    piece.end - piece.start, from - piece.start,
                    PCRE2_NO_UTF_CHECK, matcher->data, matcher->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *match_out = (weft_span){.start = 1, .end = 0};
        return WEFT_OK;
    }
    if (rc < 0) {
        PCRE2_UCHAR message[MESSAGE_BYTES] = "";
        (void)pcre2_get_error_message(rc, message, sizeof message);
        return WEFT_FAIL(err,
                         rc == PCRE2_ERROR_NOMEMORY ? WEFT_RESOURCE_EXHAUSTED
                                                    : WEFT_INVALID_ARGUMENT,
                         "text cannot be split by pattern \"%s\": %s",
                         pattern->quoted, (const char *)message);
    }
    const PCRE2_SIZE *const pair = pcre2_get_ovector_pointer(matcher->data);
    *match_out = (weft_span){.start = piece.start + (uint32_t)pair[0],
                             .end = piece.start + (uint32_t)pair[1]};
    return WEFT_OK;
}

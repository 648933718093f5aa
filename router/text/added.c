#include "router/text/added.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "node/base/mem.h"
#include "router/text/grow.h"

weft_status weft_added_set_add(weft_added_set *set,
                               const weft_added_token *token, weft_err *err)
{
    char *const content = weft_mem_copy_text(token->content, token->n);
    void *const grown =
        weft_grow(set->tokens, &set->capacity, set->n + 1, sizeof *set->tokens);
    if (grown != NULL) set->tokens = grown;
    if (content == NULL || grown == NULL) {
        weft_mem_free(content);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu added tokens", set->n + 1);
    }
    set->tokens[set->n] = *token;
    set->tokens[set->n++].content = content;
    set->begins[(uint8_t)content[0]] = true;
    return WEFT_OK;
}

void weft_added_set_deinit(weft_added_set *set)
{
    for (size_t i = 0; i < set->n; i++) weft_mem_free(set->tokens[i].content);
    weft_mem_free(set->tokens);
    *set = (weft_added_set){0};
}

/* By bytes, a prefix before what continues it, then by id. */
static int compare(const void *left, const void *right)
{
    const weft_added_token *const a = left, *const b = right;
    const size_t common = a->n < b->n ? a->n : b->n;
    const int order = memcmp(a->content, b->content, common);
    if (order != 0) return order;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

void weft_added_set_seal(weft_added_set *set)
{
    if (set->n > 0) qsort(set->tokens, set->n, sizeof *set->tokens, compare);
}

/* First token of [low, high), which share `depth` bytes, whose next byte is at
 * least `byte`. None of them ends at `depth`. */
static size_t lower_bound(const weft_added_set *set, size_t low, size_t high,
                          uint32_t depth, unsigned byte)
{
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uint8_t)set->tokens[middle].content[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token at text[at]; NULL: none. */
static const weft_added_token *longest_at(const weft_added_set *set,
                                          const char *text, size_t n, size_t at)
{
    const weft_added_token *found = NULL;
    size_t low = 0, high = set->n;
    for (uint32_t depth = 0; at + depth < n && low < high; depth++) {
        const unsigned byte = (uint8_t)text[at + depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
        if (low < high && set->tokens[low].n == depth + 1)
            found = &set->tokens[low];
        while (low < high && set->tokens[low].n == depth + 1) low++;
    }
    return found;
}

static int32_t character_at(const char *text, size_t n, size_t at)
{
    utf8proc_int32_t c = 0;
    (void)utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                           (utf8proc_ssize_t)(n - at), &c);
    return c;
}

static size_t character_before(const char *text, size_t at)
{
    at--;
    while (at > 0 && ((uint8_t)text[at] & 0xC0) == 0x80) at--;
    return at;
}

static size_t character_after(const char *text, size_t n, size_t at)
{
    at++;
    while (at < n && ((uint8_t)text[at] & 0xC0) == 0x80) at++;
    return at;
}

/* Alphabetic, mark, decimal number, connector, joiner: \w of Unicode's UTS 18,
 * annex C. Alphabetic is letters, letter numbers, and the symbols below. */
static bool is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
    }
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189) ||
           c == 0x200C || c == 0x200D;
}

/* White_Space of the Unicode character database. */
static bool is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static bool stands_alone(const weft_added_scan *scan, size_t start, size_t end)
{
    if (start > 0 && is_word(character_at(scan->text, scan->n,
                                          character_before(scan->text, start))))
        return false;
    return end == scan->n || !is_word(character_at(scan->text, scan->n, end));
}

static size_t strip_left(const weft_added_scan *scan, size_t start)
{
    while (start > scan->done) {
        const size_t before = character_before(scan->text, start);
        if (!is_space(character_at(scan->text, scan->n, before))) break;
        start = before;
    }
    return start;
}

static size_t strip_right(const weft_added_scan *scan, size_t end)
{
    while (end < scan->n && is_space(character_at(scan->text, scan->n, end)))
        end = character_after(scan->text, scan->n, end);
    return end;
}

bool weft_added_scan_next(const weft_added_set *set, weft_added_scan *scan,
                          size_t *start_out, int32_t *id_out)
{
    while (set->n > 0 && scan->at < scan->n) {
        if (!set->begins[(uint8_t)scan->text[scan->at]]) {
            scan->at++;
            continue;
        }
        const weft_added_token *const token =
            longest_at(set, scan->text, scan->n, scan->at);
        if (token == NULL) {
            scan->at++;
            continue;
        }
        size_t start = scan->at, end = scan->at + token->n;
        scan->at = end;
        if (token->special && !scan->specials) continue;
        if (token->single_word && !stands_alone(scan, start, end)) continue;
        if (token->lstrip) start = strip_left(scan, start);
        if (token->rstrip) end = strip_right(scan, end);
        *start_out = start > scan->done ? start : scan->done;
        scan->done = end;
        *id_out = token->id;
        return true;
    }
    return false;
}

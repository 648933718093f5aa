/* added.h - finds added tokens in text before it is cut into words.
 *
 * The leftmost token wins, then the longest. One that is passed over because
 * it is special and specials were not asked for, or because it must stand as a
 * word and does not, still uses up its text: what is inside of it is not looked
 * at again. So do Hugging Face tokenizers.
 *
 * Cost: O(n L log k) for a text of n bytes with k tokens of at most L bytes; a
 * byte with which no token begins costs a look-up.
 *
 * Threads: a set is read-only once made; a scan has one owner.
 */
#ifndef WEFT_ROUTER_TEXT_ADDED_H
#define WEFT_ROUTER_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

enum { WEFT_ADDED_BYTES_MAX = 1024 };

typedef struct weft_added_token {
    char *content; /* what is looked for; owned by the set */
    uint32_t n;    /* its bytes, at least 1 */
    int32_t id;
    bool single_word;    /* only where no word character touches it */
    bool lstrip, rstrip; /* takes the white space before, after it along */
    bool special;
} weft_added_token;

/* {0} is an empty set. */
typedef struct weft_added_set {
    weft_added_token *tokens; /* [n], sorted by content once sealed */
    size_t n, capacity;
    bool begins[256]; /* whether a token begins with this byte */
} weft_added_set;

/* Add a copy. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_added_set_add(weft_added_set *set,
                                               const weft_added_token *token,
                                               weft_err *err);
/* After the last add, before the first scan. */
void weft_added_set_seal(weft_added_set *set);
void weft_added_set_deinit(weft_added_set *set);

/* One walk over a text. Set `text`, `n` and `specials`; the rest is zero. */
typedef struct weft_added_scan {
    const char *text; /* valid UTF-8 */
    size_t n;
    bool specials; /* look for special tokens too */
    size_t at;     /* where the search goes on */
    size_t done;   /* end of the last match, stripped space included */
} weft_added_scan;

/* The next token: its id, and where it starts, with the space it takes along;
 * the text from the `done` before the call to *start_out is ordinary. False:
 * there is no further token, and the text from `done` on is ordinary.
 *
 * Space that a token took along is still searched, so that a token which
 * begins with space is found in it, as Hugging Face tokenizers does; if such a
 * one ends there, `done` goes back to its end. */
bool weft_added_scan_next(const weft_added_set *set, weft_added_scan *scan,
                          size_t *start_out, int32_t *id_out);

#endif

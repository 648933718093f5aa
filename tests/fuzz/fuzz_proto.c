/* Any bytes as each of the messages that a client or a server may send.
 *
 * The first byte chooses the message. Beyond not crashing: a request that is
 * accepted is the same after encoding and decoding again, its texts are UTF-8,
 * and it takes no more memory than it was given. */
#include <string.h>

#include "node/base/arena.h"
#include "node/base/check.h"
#include "node/base/str.h"
#include "proto/codec.h"
#include "proto/reflect.h"

enum { ARENA_BYTES = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static bool same(weft_span a, weft_span b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.data, b.data, a.n) == 0);
}

static weft_arena *new_arena(void)
{
    weft_arena *arena;
    WEFT_ASSERT(weft_arena_create(ARENA_BYTES, &arena, NULL) == WEFT_OK);
    return arena;
}

struct place {
    weft_arena *arena;
    char *bytes;
    size_t n;
};

static void *place(void *arg, size_t n)
{
    struct place *p = arg;
    p->bytes = weft_arena_alloc(p->arena, n);
    p->n = n;
    return p->bytes;
}

static void check_again(const weft_generate_request *first)
{
    weft_arena *arena = new_arena(), *encoded = new_arena();
    weft_generate_request second;
    struct place p = {.arena = encoded};
    if (weft_encode_generate(first, (weft_place){place, &p}, NULL) == WEFT_OK &&
        weft_decode_generate(arena, (weft_span){p.bytes, p.n}, &second, NULL) ==
            WEFT_OK) {
        const weft_sampling_params *a = &first->sampling, *b = &second.sampling;
        WEFT_ASSERT(same(first->text, second.text));
        WEFT_ASSERT(same(first->request_id, second.request_id));
        WEFT_ASSERT(first->prompt == second.prompt);
        WEFT_ASSERT(first->n_ids == second.n_ids);
        WEFT_ASSERT(first->stream == second.stream);
        WEFT_ASSERT(a->n_stop == b->n_stop && a->n_bias == b->n_bias);
        WEFT_ASSERT(a->seed.set == b->seed.set &&
                    a->seed.value == b->seed.value);
        WEFT_ASSERT(a->max_tokens.set == b->max_tokens.set);
        for (size_t i = 0; i < a->n_stop; i++)
            WEFT_ASSERT(same(a->stop[i], b->stop[i]));
        for (size_t i = 0; i < a->n_bias; i++)
            WEFT_ASSERT(a->bias_ids[i] == b->bias_ids[i] &&
                        (i == 0 || a->bias_ids[i - 1] < a->bias_ids[i]));
    }
    weft_arena_destroy(arena);
    weft_arena_destroy(encoded);
}

static void generate(weft_arena *arena, weft_span bytes)
{
    weft_generate_request request;
    if (weft_decode_generate(arena, bytes, &request, NULL) != WEFT_OK) return;
    WEFT_ASSERT(weft_utf8_valid(request.text.data, request.text.n));
    WEFT_ASSERT(weft_utf8_valid(request.request_id.data, request.request_id.n));
    check_again(&request);
}

static void others(weft_arena *arena, int which, weft_span bytes)
{
    weft_tokenize_request tokenize;
    weft_detokenize_request detokenize;
    weft_abort_request abort;
    weft_generate_response response;
    weft_model_info model;
    weft_load_info load;
    weft_cluster_info cluster;
    weft_span file;
    char name[WEFT_SYMBOL_BYTES_MAX];
    weft_status st = WEFT_OK;
    switch (which) {
    case 1: st = weft_decode_tokenize(arena, bytes, &tokenize, NULL); break;
    case 2: st = weft_decode_detokenize(arena, bytes, &detokenize, NULL); break;
    case 3: st = weft_decode_abort(arena, bytes, &abort, NULL); break;
    case 4: st = weft_decode_response(arena, bytes, &response, NULL); break;
    case 5: st = weft_decode_model(arena, bytes, &model, NULL); break;
    case 6: st = weft_decode_load(arena, bytes, &load, NULL); break;
    case 7: st = weft_decode_empty(bytes, NULL); break;
    case 9: st = weft_decode_cluster(arena, bytes, &cluster, NULL); break;
    default:
        for (size_t i = 0; weft_reflect_service(bytes, i, name); i++) {
        }
        (void)weft_reflect_symbol(bytes, (weft_span){"a.B.c", 5}, &file);
        (void)weft_reflect_file(bytes, (weft_span){"a", 1}, &file);
        break;
    }
    WEFT_ASSERT(st == WEFT_OK || st == WEFT_INVALID_ARGUMENT ||
                st == WEFT_RESOURCE_EXHAUSTED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    weft_arena *arena = new_arena();
    const weft_span bytes = {(const char *)data + 1, n - 1};
    const int which = data[0] % 10;
    if (which == 0)
        generate(arena, bytes);
    else
        others(arena, which, bytes);
    WEFT_ASSERT(weft_arena_used(arena) <= ARENA_BYTES);
    weft_arena_destroy(arena);
    return 0;
}

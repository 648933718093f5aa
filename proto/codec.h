/* codec.h - public messages between bytes and plain C (messages.h).
 *
 * Decoding is for bytes that anyone may have sent. It validates them strictly
 * (validate.h), then lets protobuf-c decode into an arena, so that a message
 * takes no more memory than the arena's limit, however it is made. A scalar
 * that is given twice has the last value, as protobuf says.
 *
 * Encoding packs in one piece, in place: the caller gives a function that
 * places n bytes.
 *
 * Threads: any; nothing here is shared.
 * Errors of decode: INVALID_ARGUMENT: not such a message; the text names the
 * field. RESOURCE_EXHAUSTED: more than the arena allows. On failure *out is
 * left as it was. Errors of encode: RESOURCE_EXHAUSTED: no memory.
 */
#ifndef WEFT_PROTO_CODEC_H
#define WEFT_PROTO_CODEC_H

#include "node/base/arena.h"
#include "node/base/err.h"
#include "proto/messages.h"

enum {
    /* Entries of logit_bias as sent, repeated keys included: what a decoder
     * sorts without thinking. How many are meant is for the router to limit. */
    WEFT_BIAS_ENTRIES_MAX = 16384,
};

/* What decode gives lies in the arena; `bytes` may go. */
WEFT_MUST_CHECK weft_status weft_decode_generate(weft_arena *arena,
                                                 weft_span bytes,
                                                 weft_generate_request *out,
                                                 weft_err *err);
WEFT_MUST_CHECK weft_status weft_decode_tokenize(weft_arena *arena,
                                                 weft_span bytes,
                                                 weft_tokenize_request *out,
                                                 weft_err *err);
WEFT_MUST_CHECK weft_status weft_decode_detokenize(weft_arena *arena,
                                                   weft_span bytes,
                                                   weft_detokenize_request *out,
                                                   weft_err *err);
WEFT_MUST_CHECK weft_status weft_decode_abort(weft_arena *arena,
                                              weft_span bytes,
                                              weft_abort_request *out,
                                              weft_err *err);
/* GetModelRequest and GetLoadRequest: any fields are unknown ones. */
WEFT_MUST_CHECK weft_status weft_decode_empty(weft_span bytes, weft_err *err);

/* The client's side. */
typedef struct weft_generate_response {
    bool is_complete; /* which of the two */
    weft_chunk chunk;
    weft_complete complete;
} weft_generate_response;

WEFT_MUST_CHECK weft_status weft_decode_response(weft_arena *arena,
                                                 weft_span bytes,
                                                 weft_generate_response *out,
                                                 weft_err *err);
WEFT_MUST_CHECK weft_status weft_decode_model(weft_arena *arena,
                                              weft_span bytes,
                                              weft_model_info *out,
                                              weft_err *err);
WEFT_MUST_CHECK weft_status weft_decode_load(weft_arena *arena, weft_span bytes,
                                             weft_load_info *out,
                                             weft_err *err);

WEFT_MUST_CHECK weft_status weft_decode_cluster(weft_arena *arena,
                                                weft_span bytes,
                                                weft_cluster_info *out,
                                                weft_err *err);

/* Called once with the packed size; gives that many bytes to write, or NULL for
 * want of memory. weft_arena_alloc is one such function. */
typedef void *(*weft_place_fn)(void *arg, size_t n);

typedef struct weft_place {
    weft_place_fn fn;
    void *arg;
} weft_place;

WEFT_MUST_CHECK weft_status weft_encode_chunk(const weft_chunk *chunk,
                                              weft_place place, weft_err *err);
WEFT_MUST_CHECK weft_status weft_encode_complete(const weft_complete *complete,
                                                 weft_place place,
                                                 weft_err *err);
WEFT_MUST_CHECK weft_status weft_encode_tokens(const int32_t *ids, size_t n_ids,
                                               weft_place place, weft_err *err);
WEFT_MUST_CHECK weft_status weft_encode_text(weft_span text, weft_place place,
                                             weft_err *err);
WEFT_MUST_CHECK weft_status weft_encode_model(const weft_model_info *model,
                                              weft_place place, weft_err *err);
WEFT_MUST_CHECK weft_status weft_encode_load(const weft_load_info *load,
                                             weft_place place, weft_err *err);
WEFT_MUST_CHECK weft_status weft_encode_aborted(uint32_t aborted,
                                                weft_place place,
                                                weft_err *err);
/* The arena is for the encoder's own use; what it takes goes with it. */
WEFT_MUST_CHECK weft_status
weft_encode_cluster(const weft_cluster_info *cluster, weft_arena *arena,
                    weft_place place, weft_err *err);
/* The client's side. */
WEFT_MUST_CHECK weft_status weft_encode_generate(
    const weft_generate_request *request, weft_place place, weft_err *err);

#endif

/* Decoding of what anyone may send. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/packed.h"
#include "tests/support/suite.h"

/* --- bytes that are no request ------------------------------------------- */

static const struct {
    const char *name;
    weft_span bytes;
    const char *says; /* what the error must name */
} BROKEN[] = {
    {"wire type 7", BYTES("\x0f\x01"), "wire type 7"},
    {"wire type 6", BYTES("\x0e\x01"), "wire type 6"},
    {"field number 0", BYTES("\x00\x01"), "field number 0"},
    {"tag of 6 bytes", BYTES("\x88\x80\x80\x80\x80\x00\x01"), "tag"},
    {"tag cut short", BYTES("\x80"), "tag"},
    {"length beyond the end",
     BYTES("\x12\xff\xff\xff\xff\x07"
           "ab"),
     "field 2"},
    {"length of 2^63",
     BYTES("\x1a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"
           "a"),
     "field 3"},
    {"varint of 11 bytes",
     BYTES("\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
           "\x01"),
     "field 5"},
    {"varint of 65 bits", BYTES("\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
     "field 5"},
    {"varint cut short", BYTES("\x28\xff"), "field 5"},
    {"number missing", BYTES("\x28"), "field 5"},
    {"fixed32 cut short", BYTES("\x22\x03\x0d\x00\x00"), "sampling_params"},
    {"fixed64 cut short", BYTES("\x09\x00\x00\x00"), "field 1"},
    {"start group", BYTES("\x0b\x0c"), "wire type 3"},
    {"end group", BYTES("\x0c"), "wire type 4"},
    {"packed ids cut short", BYTES("\x12\x04\x12\x02\x80\x80"),
     "tokenized.input_ids"},
    {"packed id of 33 bits", BYTES("\x12\x07\x12\x05\x80\x80\x80\x80\x10"),
     "tokenized.input_ids"},
    {"id of 33 bits", BYTES("\x12\x06\x10\x80\x80\x80\x80\x10"),
     "tokenized.input_ids"},
    {"top_k of 33 bits", BYTES("\x22\x06\x18\x80\x80\x80\x80\x10"),
     "sampling_params.top_k"},
    {"stream of fixed32", BYTES("\x2d\x01\x00\x00\x00"), "stream"},
    {"text as a number", BYTES("\x18\x01"), "text"},
    {"sampling_params as a number", BYTES("\x20\x01"), "sampling_params"},
    {"temperature as a varint", BYTES("\x22\x02\x08\x01"),
     "sampling_params.temperature"},
    {"temperature as a double", BYTES("\x22\x09\x09\0\0\0\0\0\0\0\0"),
     "sampling_params.temperature"},
    {"bias value as a varint", BYTES("\x22\x05\xd2\x01\x02\x10\x01"),
     "sampling_params.logit_bias.value"},
    {"sampling_params twice", BYTES("\x22\x00\x1a\x00\x22\x00"),
     "sampling_params is given twice"},
    {"tokenized twice", BYTES("\x12\x00\x1a\x00\x12\x00"),
     "tokenized is given twice"},
    {"text not UTF-8", BYTES("\x1a\x01\xff"), "text is not UTF-8"},
    {"text with half a character",
     BYTES("\x1a\x04"
           "abc\xc3"),
     "text is not UTF-8"},
    {"text with a surrogate", BYTES("\x1a\x03\xed\xa0\x80"), "text"},
    {"text overlong", BYTES("\x1a\x02\xc0\x80"), "text"},
    {"request_id not UTF-8", BYTES("\x0a\x01\xff"), "request_id"},
    {"cache_salt not UTF-8", BYTES("\xaa\x01\x01\xff"), "cache_salt"},
    {"original_text not UTF-8", BYTES("\x12\x03\x0a\x01\xff"),
     "tokenized.original_text"},
    {"stop not UTF-8", BYTES("\x22\x06\x52\x01g\x52\x01\xff"),
     "sampling_params.stop"},
};

START_TEST(broken_messages_are_refused_by_name)
{
    for (size_t i = 0; i < sizeof BROKEN / sizeof *BROKEN; i++) {
        weft_arena *arena = new_arena(ROOM);
        weft_err err = {0};
        weft_generate_request out = {.n_ids = 77};
        const weft_status st =
            weft_decode_generate(arena, BROKEN[i].bytes, &out, &err);
        ck_assert_msg(st == WEFT_INVALID_ARGUMENT, "%s: %s", BROKEN[i].name,
                      weft_status_name(st));
        ck_assert_msg(strstr(err.text, BROKEN[i].says) != NULL, "%s: %s",
                      BROKEN[i].name, err.text);
        ck_assert_uint_eq(out.n_ids, 77);
        weft_arena_destroy(arena);
    }
}
END_TEST

/* As the outermost message of each other request. */
START_TEST(other_requests_are_strict_too)
{
    static const weft_span bad = BYTES("\x0a\x02\xc3");
    static const weft_span bad_id = BYTES("\x0a\x01\xff");
    weft_arena *arena = new_arena(ROOM);
    weft_tokenize_request tokenize;
    weft_detokenize_request detokenize;
    weft_abort_request abort;
    ck_assert_int_eq(weft_decode_tokenize(arena, bad, &tokenize, NULL),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_decode_tokenize(arena, bad_id, &tokenize, NULL),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_decode_detokenize(arena, bad, &detokenize, NULL),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_decode_abort(arena, bad_id, &abort, NULL),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_decode_empty(bad, NULL), WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_decode_empty(bad_id, NULL), WEFT_OK); /* unknown */
    ck_assert_int_eq(weft_decode_empty((weft_span){0}, NULL), WEFT_OK);
    weft_arena_destroy(arena);
}
END_TEST

/* --- requests ------------------------------------------------------------ */

static const uint32_t IDS[] = {0, 1, 127, 128, UINT32_MAX};
static const uint32_t STOP_IDS[] = {5, 6};
static const int32_t BIAS_IDS[] = {-4, 0, 9};
static const float BIAS[] = {-100.0F, 0.5F, 100.0F};
static const weft_span STOP[] = {{"a\0b", 3}, {"", 0}, {"\xc3\xa9", 2}};

static weft_generate_request full_request(void)
{
    return (weft_generate_request){
        .request_id = text("id-1"),
        .prompt = WEFT_PROMPT_IDS,
        .ids = IDS,
        .n_ids = 5,
        .stream = true,
        .priority = -3,
        .cache_salt = text("salt"),
        .sampling = {.temperature = {true, 0.0F},
                     .top_p = {true, 0.9F},
                     .min_p = {true, 0.1F},
                     .top_k = {true, 0},
                     .frequency_penalty = {true, -1.5F},
                     .presence_penalty = {true, 1.5F},
                     .repetition_penalty = {true, 1.1F},
                     .max_tokens = {true, 0},
                     .min_tokens = {true, 3},
                     .stop = STOP,
                     .n_stop = 3,
                     .stop_token_ids = STOP_IDS,
                     .n_stop_token_ids = 2,
                     .skip_special_tokens = {true, false},
                     .ignore_eos = {true, true},
                     .include_stop_str = {true, true},
                     .n = {true, 1},
                     .logprobs = {true, 512},
                     .prompt_logprobs = {true, 0},
                     .seed = {true, UINT64_MAX},
                     .bias_ids = BIAS_IDS,
                     .bias = BIAS,
                     .n_bias = 3},
    };
}

static void ck_sampling(const weft_sampling_params *a,
                        const weft_sampling_params *b)
{
#define SAME(field)                                                            \
    do {                                                                       \
        ck_assert_msg(a->field.set == b->field.set, #field);                   \
        ck_assert_msg(a->field.value == b->field.value, #field);               \
    } while (0)
    SAME(temperature);
    SAME(top_p);
    SAME(min_p);
    SAME(top_k);
    SAME(frequency_penalty);
    SAME(presence_penalty);
    SAME(repetition_penalty);
    SAME(max_tokens);
    SAME(min_tokens);
    SAME(skip_special_tokens);
    SAME(ignore_eos);
    SAME(include_stop_str);
    SAME(n);
    SAME(logprobs);
    SAME(prompt_logprobs);
    SAME(seed);
#undef SAME
    ck_assert_uint_eq(a->n_stop, b->n_stop);
    for (size_t i = 0; i < a->n_stop; i++)
        ck_span(a->stop[i], b->stop[i].data, b->stop[i].n);
    ck_assert_uint_eq(a->n_stop_token_ids, b->n_stop_token_ids);
    for (size_t i = 0; i < a->n_stop_token_ids; i++)
        ck_assert_uint_eq(a->stop_token_ids[i], b->stop_token_ids[i]);
    ck_assert_uint_eq(a->n_bias, b->n_bias);
    for (size_t i = 0; i < a->n_bias; i++) {
        ck_assert_int_eq(a->bias_ids[i], b->bias_ids[i]);
        ck_assert_float_eq(a->bias[i], b->bias[i]);
    }
}

START_TEST(every_field_arrives)
{
    static struct packed packed;
    weft_arena *arena = new_arena(ROOM);
    const weft_generate_request in = full_request();
    weft_generate_request out;
    weft_err err = {0};
    ck_assert_int_eq(weft_encode_generate(&in, into(&packed), NULL), WEFT_OK);
    const weft_status st =
        weft_decode_generate(arena, span_of(&packed), &out, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    memset(packed.bytes, 0x55, packed.n); /* what was decoded is a copy */
    ck_span(out.request_id, "id-1", 4);
    ck_span(out.cache_salt, "salt", 4);
    ck_assert_int_eq(out.prompt, WEFT_PROMPT_IDS);
    ck_assert_uint_eq(out.n_ids, 5);
    ck_assert_int_eq(memcmp(out.ids, IDS, sizeof IDS), 0);
    ck_assert(out.stream);
    ck_assert_int_eq(out.priority, -3);
    ck_sampling(&out.sampling, &in.sampling);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(what_is_not_set_is_told)
{
    static const weft_span bare = BYTES("\x1a\x02hi");
    static const weft_span empty_params = BYTES("\x1a\x02hi\x22\x00");
    const weft_span *const all[] = {&bare, &empty_params};
    for (size_t i = 0; i < 2; i++) {
        weft_arena *arena = new_arena(ROOM);
        weft_generate_request out;
        ck_assert_int_eq(weft_decode_generate(arena, *all[i], &out, NULL),
                         WEFT_OK);
        const weft_sampling_params none = {0};
        ck_sampling(&out.sampling, &none);
        ck_assert_int_eq(out.prompt, WEFT_PROMPT_TEXT);
        ck_span(out.text, "hi", 2);
        ck_assert(!out.stream);
        weft_arena_destroy(arena);
    }
    weft_arena *arena = new_arena(ROOM);
    weft_generate_request out;
    ck_assert_int_eq(weft_decode_generate(arena, (weft_span){0}, &out, NULL),
                     WEFT_OK);
    ck_assert_int_eq(out.prompt, WEFT_PROMPT_NONE);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(text_keeps_its_nuls)
{
    static const weft_span bytes = BYTES("\x1a\x05"
                                         "a\0b\0c");
    weft_arena *arena = new_arena(ROOM);
    weft_generate_request out;
    ck_assert_int_eq(weft_decode_generate(arena, bytes, &out, NULL), WEFT_OK);
    ck_span(out.text, "a\0b\0c", 5);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(last_of_a_repeated_scalar_wins)
{
    /* text then ids then text; seed 1 then 2; logit_bias 3: 1.0, 1: 1.0, then
     * 3: -1.0; unknown fields between. */
    static const weft_span bytes =
        BYTES("\x1a\x01x\x12\x03\x12\x01\x07\x1a\x01y\xc0\x3e\x05"
              "\x22\x24\xc0\x01\x01\xc0\x01\x02"
              "\xd2\x01\x07\x08\x03\x15\x00\x00\x80\x3f"
              "\xd2\x01\x07\x08\x01\x15\x00\x00\x80\x3f"
              "\xd2\x01\x07\x08\x03\x15\x00\x00\x80\xbf");
    weft_arena *arena = new_arena(ROOM);
    weft_generate_request out;
    weft_err err = {0};
    const weft_status st = weft_decode_generate(arena, bytes, &out, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    ck_assert_int_eq(out.prompt, WEFT_PROMPT_TEXT);
    ck_span(out.text, "y", 1);
    ck_assert_uint_eq(out.sampling.seed.value, 2);
    ck_assert_uint_eq(out.sampling.n_bias, 2);
    ck_assert_int_eq(out.sampling.bias_ids[0], 1);
    ck_assert_float_eq(out.sampling.bias[0], 1.0F);
    ck_assert_int_eq(out.sampling.bias_ids[1], 3);
    ck_assert_float_eq(out.sampling.bias[1], -1.0F);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(a_bias_entry_may_lack_key_or_value)
{
    static const weft_span bytes =
        BYTES("\x22\x0c\xd2\x01\x02\x08\x04\xd2\x01\x00\xd2\x01\x00");
    weft_arena *arena = new_arena(ROOM);
    weft_generate_request out;
    ck_assert_int_eq(weft_decode_generate(arena, bytes, &out, NULL),
                     WEFT_INVALID_ARGUMENT); /* a byte is left over */
    static const weft_span good =
        BYTES("\x22\x0b\xd2\x01\x02\x08\x04\xd2\x01\x00\xd2\x01\x00");
    ck_assert_int_eq(weft_decode_generate(arena, good, &out, NULL), WEFT_OK);
    ck_assert_uint_eq(out.sampling.n_bias, 2); /* 0: 0 and 4: 0 */
    ck_assert_int_eq(out.sampling.bias_ids[1], 4);
    ck_assert_float_eq(out.sampling.bias[1], 0.0F);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(cut_at_every_byte_it_is_decoded_or_refused)
{
    static struct packed packed;
    const weft_generate_request in = full_request();
    ck_assert_int_eq(weft_encode_generate(&in, into(&packed), NULL), WEFT_OK);
    int refused = 0;
    for (size_t n = 0; n <= packed.n; n++) {
        /* Of its own length, so that a sanitizer sees any read behind it. */
        char *cut = malloc(n > 0 ? n : 1);
        memcpy(cut, packed.bytes, n);
        weft_arena *arena = new_arena(ROOM);
        weft_generate_request out;
        const weft_status st =
            weft_decode_generate(arena, (weft_span){cut, n}, &out, NULL);
        ck_assert(st == WEFT_OK || st == WEFT_INVALID_ARGUMENT);
        if (n == packed.n) ck_assert_int_eq(st, WEFT_OK);
        refused += st != WEFT_OK;
        weft_arena_destroy(arena);
        free(cut);
    }
    ck_assert_int_gt(refused, (int)packed.n / 2);
}
END_TEST

/* Two bytes for an empty stop string, 16 and more decoded. */
START_TEST(memory_is_limited_whatever_is_sent)
{
    enum { N = 20000, HEAD = 5 };
    static char bytes[HEAD + 2 * N + 1];
    const char head[] = {'\x22', '\xc0', '\xb8', 2}; /* 40,000 of params */
    const char stop[] = {'\x52', 0};
    memcpy(bytes, head, sizeof head);
    for (size_t i = 0; i < N; i++) memcpy(bytes + 4 + 2 * i, stop, sizeof stop);
    const weft_span span = {bytes, 4 + 2 * N};
    weft_generate_request out;
    weft_err err = {0};

    weft_arena *arena = new_arena((size_t)ROOM * 8);
    ck_assert_int_eq(weft_decode_generate(arena, span, &out, &err), WEFT_OK);
    ck_assert_uint_eq(out.sampling.n_stop, N);
    weft_arena_destroy(arena);

    arena = new_arena(65536);
    ck_assert_int_eq(weft_decode_generate(arena, span, &out, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_uint_le(weft_arena_used(arena), 65536);
    weft_arena_destroy(arena);
}
END_TEST

START_TEST(bias_entries_are_limited)
{
    enum { N = WEFT_BIAS_ENTRIES_MAX + 1 };
    static char bytes[5 + 3 * N];
    const uint32_t n = 3 * N;
    const char head[] = {'\x22', (char)(0x80 | (n & 0x7f)),
                         (char)(0x80 | (n >> 7 & 0x7f)), (char)(n >> 14)};
    const char entry[] = {'\xd2', 1, 0};
    memcpy(bytes, head, 4);
    for (size_t i = 0; i < N; i++)
        memcpy(bytes + 4 + 3 * i, entry, sizeof entry);
    weft_arena *arena = new_arena((size_t)ROOM * 32);
    weft_generate_request out;
    weft_err err = {0};
    ck_assert_int_eq(
        weft_decode_generate(arena, (weft_span){bytes, 4 + n}, &out, &err),
        WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "logit_bias"));
    ck_assert_ptr_nonnull(strstr(err.text, "16385"));
    weft_arena_destroy(arena);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        broken_messages_are_refused_by_name,
        other_requests_are_strict_too,
        every_field_arrives,
        what_is_not_set_is_told,
        text_keeps_its_nuls,
        last_of_a_repeated_scalar_wins,
        a_bias_entry_may_lack_key_or_value,
        cut_at_every_byte_it_is_decoded_or_refused,
        memory_is_limited_whatever_is_sent,
        bias_entries_are_limited,
    };
    return WEFT_SUITE_RUN("codec", tests);
}

/* Encoding of what we answer, and the descriptors that clients are shown. */
#include <math.h>
#include <string.h>

#include "node/base/mem.h"
#include "proto/descriptors.h"
#include "proto/reflect.h"
#include "tests/support/packed.h"
#include "tests/support/suite.h"

/* --- answers ------------------------------------------------------------- */

static const int32_t OUT_IDS[] = {3, 0, 2147483647};
static const float VALUES[] = {-0.5F, -1.5F, -INFINITY};
static const int32_t N_TOP[] = {2, 0, 1};
static const float TOP_VALUES[] = {-0.1F, -0.2F, -0.3F};
static const int32_t TOP_IDS[] = {1, 2, 3};

static weft_logprobs full_logprobs(void)
{
    return (weft_logprobs){.n_tokens = 3,
                           .values = VALUES,
                           .ids = OUT_IDS,
                           .n_top = N_TOP,
                           .top_values = TOP_VALUES,
                           .top_ids = TOP_IDS};
}

static void ck_logprobs(const weft_logprobs *seen, bool has_top)
{
    ck_assert_uint_eq(seen->n_tokens, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert(seen->values[i] == VALUES[i]);
        ck_assert_int_eq(seen->ids[i], OUT_IDS[i]);
        if (has_top) ck_assert_int_eq(seen->n_top[i], N_TOP[i]);
        if (has_top) ck_assert_float_eq(seen->top_values[i], TOP_VALUES[i]);
        if (has_top) ck_assert_int_eq(seen->top_ids[i], TOP_IDS[i]);
    }
    if (!has_top) ck_assert_ptr_null(seen->n_top);
}

START_TEST(a_chunk_arrives_as_it_was)
{
    static struct packed packed;
    weft_chunk in = {.ids = OUT_IDS,
                     .n_ids = 3,
                     .text = {"x\0y", 3},
                     .prompt_tokens = 7,
                     .completion_tokens = 300,
                     .cached_tokens = 1,
                     .logprobs = full_logprobs()};
    for (int has_top = 0; has_top < 2; has_top++) {
        if (has_top == 0) in.logprobs.n_top = NULL;
        if (has_top == 1) in.logprobs = full_logprobs();
        weft_arena *arena = new_arena(ROOM);
        weft_generate_response out;
        ck_assert_int_eq(weft_encode_chunk(&in, into(&packed), NULL), WEFT_OK);
        ck_assert_int_eq(
            weft_decode_response(arena, span_of(&packed), &out, NULL), WEFT_OK);
        ck_assert(!out.is_complete);
        ck_assert_uint_eq(out.chunk.n_ids, 3);
        ck_assert_int_eq(out.chunk.ids[2], 2147483647);
        ck_span(out.chunk.text, "x\0y", 3);
        ck_assert_uint_eq(out.chunk.prompt_tokens, 7);
        ck_assert_uint_eq(out.chunk.completion_tokens, 300);
        ck_assert_uint_eq(out.chunk.cached_tokens, 1);
        ck_logprobs(&out.chunk.logprobs, has_top == 1);
        weft_arena_destroy(arena);
    }
}
END_TEST

START_TEST(a_complete_arrives_as_it_was)
{
    static struct packed packed;
    for (int matched = WEFT_MATCHED_NONE; matched <= WEFT_MATCHED_STRING;
         matched++) {
        const weft_complete in = {.ids = OUT_IDS,
                                  .n_ids = 3,
                                  .text = text("whole"),
                                  .finish_reason = text("stop"),
                                  .prompt_tokens = 4,
                                  .completion_tokens = 3,
                                  .cached_tokens = 2,
                                  .logprobs = full_logprobs(),
                                  .input_logprobs = full_logprobs(),
                                  .matched = (weft_matched)matched,
                                  .matched_token = 0,
                                  .matched_string = text("")};
        weft_arena *arena = new_arena(ROOM);
        weft_generate_response out;
        ck_assert_int_eq(weft_encode_complete(&in, into(&packed), NULL),
                         WEFT_OK);
        ck_assert_int_eq(
            weft_decode_response(arena, span_of(&packed), &out, NULL), WEFT_OK);
        ck_assert(out.is_complete);
        ck_assert_int_eq(out.complete.matched, matched);
        ck_assert_int_eq(out.complete.matched_token, 0);
        ck_span(out.complete.text, "whole", 5);
        ck_span(out.complete.finish_reason, "stop", 4);
        ck_assert_uint_eq(out.complete.cached_tokens, 2);
        ck_logprobs(&out.complete.logprobs, true);
        ck_logprobs(&out.complete.input_logprobs, true);
        weft_arena_destroy(arena);
    }
}
END_TEST

START_TEST(a_cluster_arrives_as_it_was)
{
    static struct packed packed;
    const weft_member_info members[] = {
        {.id = text("layers-0-1"),
         .role = text("layers"),
         .state = text("joining"),
         .address = text("127.0.0.1:1"),
         .device = text("cuda:0 A"),
         .group = {true, 0},
         .stage = {true, 1},
         .incarnation = UINT64_MAX},
        {.id = text("experts-0"), .role = text("experts"), .experts = 5},
    };
    const weft_group_info groups[] = {{.group = 7,
                                       .connected = true,
                                       .epoch = 3,
                                       .running = 2,
                                       .kv_bytes_total = 10,
                                       .reason = text("why")}};
    const weft_cluster_info info = {
        .epoch = 9,
        .members = members,
        .n_members = 2,
        .groups = groups,
        .n_groups = 1,
        .load = {.running = 4, .pages_used = {{"full", 6}}, .n_kinds = 1},
        .experts_min = 1,
        .experts_max = 2,
        .replicas = 3,
        .planned_epoch = 10,
        .moved_bytes = 11,
        .moved_least_bytes = 12,
        .retired_epoch = 8,
        .waiting = text("for x"),
        .registry_reachable = true,
    };
    weft_arena *const arena = new_arena(ROOM), *const own = new_arena(ROOM);
    weft_cluster_info out;
    ck_assert_int_eq(weft_encode_cluster(&info, own, into(&packed), NULL),
                     WEFT_OK);
    ck_assert_int_eq(weft_decode_cluster(arena, span_of(&packed), &out, NULL),
                     WEFT_OK);
    ck_assert_uint_eq(out.n_members, 2);
    const weft_member_info *const m = out.members;
    ck_span(m[0].id, "layers-0-1", 10);
    ck_span(m[0].state, "joining", 7);
    ck_span(m[0].device, "cuda:0 A", 8);
    ck_assert(m[0].group.set && m[0].group.value == 0 && m[0].stage.set &&
              m[0].stage.value == 1 && m[0].incarnation == UINT64_MAX);
    ck_assert(!m[1].group.set && !m[1].stage.set && m[1].experts == 5);
    ck_assert_uint_eq(out.n_groups, 1);
    ck_assert(out.groups[0].group == 7 && out.groups[0].connected &&
              !out.groups[0].whole && out.groups[0].running == 2 &&
              out.groups[0].kv_bytes_total == 10);
    ck_span(out.groups[0].reason, "why", 3);
    ck_assert(out.epoch == 9 && out.load.running == 4 &&
              out.load.n_kinds == 1 && out.load.pages_used[0].pages == 6 &&
              out.experts_min == 1 && out.experts_max == 2 &&
              out.replicas == 3 && out.planned_epoch == 10 &&
              out.moved_bytes == 11 && out.moved_least_bytes == 12 &&
              out.retired_epoch == 8 && out.registry_reachable);
    ck_span(out.waiting, "for x", 5);
    weft_arena_destroy(arena);
    weft_arena_destroy(own);
}
END_TEST

START_TEST(answers_that_break_the_rules_are_refused)
{
    static const weft_span broken[] = {
        BYTES(""),                                     /* neither */
        BYTES("\x0a\x06\x0a\x04\xff\xff\xff"),         /* cut short */
        BYTES("\x0a\x07\x0a\x05\xff\xff\xff\xff\x0f"), /* an id of 32 bits */
        BYTES("\x0a\x08\x2a\x06\x0a\x04\0\0\0\0"), /* a value without its id */
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        weft_arena *arena = new_arena(ROOM);
        weft_generate_response out;
        ck_assert_int_eq(weft_decode_response(arena, broken[i], &out, NULL),
                         WEFT_INVALID_ARGUMENT);
        weft_arena_destroy(arena);
    }
}
END_TEST

static void *no_place(void *arg, size_t n)
{
    (void)arg;
    (void)n;
    return NULL;
}

/* Fail each allocation in turn: an error, nothing lost, nothing half done. */
START_TEST(encoding_survives_want_of_memory)
{
    static struct packed packed;
    static const weft_span stop = {"x", 1};
    static const int32_t bias_ids[] = {1};
    static const float bias[] = {0.5F};
    const weft_generate_request request = {.sampling = {.stop = &stop,
                                                        .n_stop = 1,
                                                        .bias_ids = bias_ids,
                                                        .bias = bias,
                                                        .n_bias = 1}};
    const weft_complete complete = {.ids = OUT_IDS,
                                    .n_ids = 3,
                                    .logprobs = full_logprobs(),
                                    .input_logprobs = full_logprobs()};
    const long live = weft_mem_live();
    weft_status st = WEFT_RESOURCE_EXHAUSTED;
    int failures = 0;
    for (; st != WEFT_OK; failures += st != WEFT_OK) {
        ck_assert_int_lt(failures, 100);
        weft_mem_fail_after(failures);
        st = weft_encode_complete(&complete, into(&packed), NULL);
        if (st == WEFT_OK)
            st = weft_encode_generate(&request, into(&packed), NULL);
        weft_mem_fail_after(-1);
        ck_assert(st == WEFT_OK || st == WEFT_RESOURCE_EXHAUSTED);
        ck_assert_int_eq(weft_mem_live(), live);
    }
    ck_assert_int_eq(failures, 7);
    ck_assert_int_eq(
        weft_encode_text(text("x"), (weft_place){no_place, NULL}, NULL),
        WEFT_RESOURCE_EXHAUSTED);
}
END_TEST

/* --- descriptors --------------------------------------------------------- */

static weft_span set_of(void)
{
    return (weft_span){(const char *)weft_descriptors, weft_descriptors_bytes};
}

START_TEST(names_are_found_in_the_descriptors)
{
    static const char *const good[] = {
        "weft.v1.Generation",
        "weft.v1.Generation.Generate",
        "weft.v1.SamplingParams",
        "weft.v1.SamplingParams.top_k",
        "weft.v1.SamplingParams._top_k",
        "weft.v1.SamplingParams.LogitBiasEntry.key",
        "grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo",
    };
    static const char *const bad[] = {
        "",
        ".",
        "weft",
        "weft.v1",
        "weft.v1.",
        "weft.v1..",
        "weft.v1.Gen",
        "weft.v1.Generation.",
        "weft.v1.Generation.Generate.x",
        "weft.v1.SamplingParams.top_k.top_k",
        "weft.v2.Generation",
        "Generation",
    };
    weft_span file;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        ck_assert_msg(weft_reflect_symbol(set_of(), text(good[i]), &file), "%s",
                      good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!weft_reflect_symbol(set_of(), text(bad[i]), &file), "%s",
                      bad[i]);
    ck_assert(weft_reflect_file(set_of(), text("weft.proto"), &file));
    ck_assert(!weft_reflect_file(set_of(), text("weft"), &file));
    char name[WEFT_SYMBOL_BYTES_MAX];
    ck_assert(weft_reflect_service(set_of(), 0, name));
    ck_assert_str_eq(name, "weft.v1.Generation");
    ck_assert(weft_reflect_service(set_of(), 1, name));
    ck_assert_str_eq(name, "weft.v1.Cluster");
    ck_assert(weft_reflect_service(set_of(), 4, name));
    ck_assert(!weft_reflect_service(set_of(), 5, name));
}
END_TEST

START_TEST(a_broken_set_has_no_names)
{
    for (size_t n = 0; n < weft_descriptors_bytes; n += 7) {
        weft_span file;
        const weft_span cut = {set_of().data, n};
        char name[WEFT_SYMBOL_BYTES_MAX];
        (void)weft_reflect_symbol(cut, text("weft.v1.AbortResponse"), &file);
        ck_assert(!weft_reflect_file(cut, text("nothing"), &file));
        ck_assert(!weft_reflect_service(cut, 5, name));
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_chunk_arrives_as_it_was,
        a_complete_arrives_as_it_was,
        a_cluster_arrives_as_it_was,
        answers_that_break_the_rules_are_refused,
        encoding_survives_want_of_memory,
        names_are_found_in_the_descriptors,
        a_broken_set_has_no_names,
    };
    return WEFT_SUITE_RUN("codec_answers", tests);
}

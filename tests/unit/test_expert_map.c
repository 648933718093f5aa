/* Maps of experts and the bodies of frames between shards: what is encoded is
 * decoded, and nothing else is. */
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "shard/expert/body.h"
#include "shard/expert/map.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

enum { LAYERS = 3, EXPERTS = 5, REPLICAS = 2, PEERS = 4 };

static weft_expert_map *make_map(void)
{
    weft_expert_map *map = NULL;
    OK(weft_expert_map_create(9, LAYERS, EXPERTS, REPLICAS, PEERS, &map, &err));
    for (int32_t i = 0; i < PEERS; i++) {
        map->peers[i].id[0] = (char)('a' + i);
        memcpy(map->peers[i].address, "127.0.0.1:80", 13);
        map->peers[i].incarnation = 100 + (uint64_t)i;
    }
    for (int32_t l = 1; l < LAYERS; l++)
        for (int32_t e = 0; e < EXPERTS; e++) {
            weft_expert_map_owners(map, l, e)[0] = (uint16_t)((l + e) % PEERS);
            if (e % 2 == 0)
                weft_expert_map_owners(map, l, e)[1] =
                    (uint16_t)((l + e + 1) % PEERS);
        }
    return map;
}

/* The bytes, in a block of exactly that size. */
static unsigned char *encode(const weft_expert_map *map, size_t *n_out)
{
    *n_out = weft_expert_map_bytes(map);
    unsigned char *const bytes = weft_mem_new(*n_out, 1);
    ck_assert_uint_eq(weft_expert_map_encode(map, bytes, *n_out), *n_out);
    return bytes;
}

static weft_status decode(const void *bytes, size_t n)
{
    weft_expert_map *map = NULL;
    weft_err err = {0};
    /* A copy without room behind, so that reading on is seen. */
    unsigned char *const copy = weft_mem_new(n, 1);
    memcpy(copy, bytes, n);
    const weft_status st =
        weft_expert_map_decode(copy, n, LAYERS, EXPERTS, &map, &err);
    ck_assert((st == WEFT_OK) == (map != NULL));
    ck_assert(st == WEFT_OK || err.text[0] != '\0');
    weft_expert_map_release(map);
    weft_mem_free(copy);
    return st;
}

START_TEST(there_and_back)
{
    weft_expert_map *const map = make_map();
    size_t n = 0;
    unsigned char *const bytes = encode(map, &n);
    weft_expert_map *back = NULL;
    OK(weft_expert_map_decode(bytes, n, LAYERS, EXPERTS, &back, &err));
    ck_assert(back->epoch == 9 && back->n_replicas == REPLICAS &&
              back->n_peers == PEERS);
    ck_assert_mem_eq(back->owners, map->owners,
                     sizeof(uint16_t) * LAYERS * EXPERTS * REPLICAS);
    for (int32_t i = 0; i < PEERS; i++) {
        ck_assert_str_eq(back->peers[i].id, map->peers[i].id);
        ck_assert_str_eq(back->peers[i].address, map->peers[i].address);
        ck_assert_uint_eq(back->peers[i].incarnation,
                          map->peers[i].incarnation);
    }
    ck_assert_uint_eq(weft_expert_map_owners(back, 0, 0)[0], WEFT_NO_OWNER);
    ck_assert_ptr_eq(weft_expert_map_retain(back), back);
    weft_expert_map_release(back);
    weft_expert_map_release(back);
    weft_expert_map_release(map);
    weft_mem_free(bytes);
}
END_TEST

START_TEST(cut_or_longer_is_refused)
{
    weft_expert_map *const map = make_map();
    size_t n = 0;
    unsigned char *const bytes = encode(map, &n);
    unsigned char *const longer = weft_mem_new(n + 1, 1);
    memcpy(longer, bytes, n);
    for (size_t cut = 0; cut < n; cut++)
        ck_assert_int_eq(decode(bytes, cut), WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(decode(bytes, n), WEFT_OK);
    ck_assert_int_eq(decode(longer, n + 1), WEFT_INVALID_ARGUMENT);
    weft_expert_map_release(map);
    weft_mem_free(bytes);
    weft_mem_free(longer);
}
END_TEST

START_TEST(malformed_maps_are_refused)
{
    weft_expert_map *const map = make_map();
    switch (_i) {
    case 0: map->epoch = 0; break;
    case 1: map->peers[2].id[0] = '\0'; break;
    case 2: map->peers[2].id[0] = 'a'; break;
    case 3: weft_expert_map_owners(map, 1, 1)[0] = PEERS; break;
    case 4: weft_expert_map_owners(map, 1, 0)[1] = 1; break;
    case 5: weft_expert_map_owners(map, 1, 0)[0] = WEFT_NO_OWNER; break;
    default: break;
    }
    size_t n = 0;
    unsigned char *const bytes = encode(map, &n);
    const size_t at[] = {8, 12, 16, 16, 20, 20};
    const unsigned char value[] = {LAYERS + 1, EXPERTS - 1, 0, 5, 255, 0};
    if (_i >= 6) bytes[at[_i - 6]] = value[_i - 6];
    if (_i == 11) memset(bytes + 20, 0xff, 4);
    ck_assert_int_eq(decode(bytes, n), WEFT_INVALID_ARGUMENT);
    weft_expert_map_release(map);
    weft_mem_free(bytes);
}
END_TEST

/* Any byte may be anything: refused, or a map that is in order. */
START_TEST(flipped_bytes_do_no_harm)
{
    weft_expert_map *const map = make_map();
    size_t n = 0;
    unsigned char *const bytes = encode(map, &n);
    for (uint64_t i = 0; i < 20000; i++) {
        const uint64_t r = weft_rng_u64(3, i);
        unsigned char *const at = &bytes[r % n];
        const unsigned char was = *at;
        *at = (unsigned char)(r >> 56);
        (void)decode(bytes, n);
        *at = was;
    }
    weft_expert_map_release(map);
    weft_mem_free(bytes);
}
END_TEST

START_TEST(without_memory_nothing_is_left)
{
    weft_expert_map *map = make_map(), *other = NULL;
    size_t n = 0;
    unsigned char *const bytes = encode(map, &n);
    weft_expert_map_release(map);
    const long live = weft_mem_live();
    for (long k = 0; k < 3; k++) {
        weft_mem_fail_after(k);
        ck_assert_int_eq(
            weft_expert_map_decode(bytes, n, LAYERS, EXPERTS, &other, NULL),
            WEFT_RESOURCE_EXHAUSTED);
        weft_mem_fail_after(-1);
        ck_assert_int_eq(weft_mem_live(), live);
    }
    weft_mem_free(bytes);
}
END_TEST

/* -- bodies ---------------------------------------------------------------- */

static weft_model_config config_of(void)
{
    weft_model_config c = {
        .hidden_size = 4, .n_layer = 2, .n_expert = 6, .top_k = 2};
    c.moe[1] = true;
    return c;
}

START_TEST(dispatch_there_and_back)
{
    const weft_model_config c = config_of();
    weft_dispatch_pair pairs[3] = {{0, 5, 77}, {1, 0, 0}, {1, 3, UINT32_MAX}};
    static weft_dispatch_pair back[WEFT_DISPATCH_PAIRS_MAX];
    static unsigned char body[WEFT_DISPATCH_BODY_BYTES_MAX];
    int32_t n = 0;
    weft_frame f = {.type = WEFT_FRAME_DISPATCH,
                    .layer = 1,
                    .n_rows = 2,
                    .row_bytes = 16,
                    .body = body,
                    .body_bytes = weft_dispatch_encode(pairs, 3, body)};
    OK(weft_dispatch_decode(&f, &c, back, &n, &err));
    ck_assert_int_eq(n, 3);
    ck_assert_mem_eq(back, pairs, sizeof pairs);
    const weft_frame good = f;
    for (size_t cut = 0; cut < good.body_bytes; cut++) {
        f.body_bytes = cut;
        ck_assert_int_eq(weft_dispatch_decode(&f, &c, back, &n, NULL),
                         WEFT_INVALID_ARGUMENT);
    }
    f = good;
    f.n_rows = 1;
    ck_assert_int_eq(weft_dispatch_decode(&f, &c, back, &n, NULL),
                     WEFT_INVALID_ARGUMENT);
    f = good;
    f.layer = 0;
    ck_assert_int_eq(weft_dispatch_decode(&f, &c, back, &n, NULL),
                     WEFT_INVALID_ARGUMENT);
    f.layer = -1;
    ck_assert_int_eq(weft_dispatch_decode(&f, &c, back, &n, NULL),
                     WEFT_INVALID_ARGUMENT);
}
END_TEST

START_TEST(rejects_there_and_back)
{
    unsigned char body[WEFT_REJECT_TEXT_BYTES];
    char text[WEFT_REJECT_TEXT_BYTES];
    weft_reject_reason reason = WEFT_REJECT_EPOCH;
    weft_frame f = {.type = WEFT_FRAME_REJECT, .body = body};
    f.body_bytes = weft_reject_encode(WEFT_REJECT_EXPERT, "not\nheld", body);
    OK(weft_reject_decode(&f, &reason, text, &err));
    ck_assert_int_eq(reason, WEFT_REJECT_EXPERT);
    ck_assert_str_eq(text, "not?held");
    char longest[1000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    f.body_bytes = weft_reject_encode(WEFT_REJECT_EPOCH, longest, body);
    ck_assert_uint_eq(f.body_bytes, WEFT_REJECT_TEXT_BYTES);
    OK(weft_reject_decode(&f, &reason, text, &err));
    ck_assert_uint_lt(strlen(text), WEFT_REJECT_TEXT_BYTES);
    f.body_bytes = 0;
    ck_assert_int_eq(weft_reject_decode(&f, &reason, text, NULL),
                     WEFT_INVALID_ARGUMENT);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, there_and_back);
    tcase_add_test(tests, cut_or_longer_is_refused);
    tcase_add_loop_test(tests, malformed_maps_are_refused, 0, 12);
    tcase_add_test(tests, flipped_bytes_do_no_harm);
    tcase_add_test(tests, without_memory_nothing_is_left);
    tcase_add_test(tests, dispatch_there_and_back);
    tcase_add_test(tests, rejects_there_and_back);
}

int main(void)
{
    return weft_suite_run_added("expert maps and bodies", add);
}

#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/pack.h"
#include "shard/link/crc32c.h"
#include "shard/link/hello.h"
#include "shard/link/inbox.h"
#include "shard/link/outbox.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/suite.h"

static const weft_frame_limits limits = {
    .body_bytes_max = 1000, .rows_max = 100, .row_bytes_max = 4096};

/* -- checksums ------------------------------------------------------------ */

/* RFC 3720, appendix B.4, and the catalogue's check value. */
START_TEST(crc_as_published)
{
    unsigned char bytes[32];
    ck_assert_uint_eq(weft_crc32c(0, "123456789", 9), 0xE3069283U);
    memset(bytes, 0, sizeof bytes);
    ck_assert_uint_eq(weft_crc32c(0, bytes, 32), 0x8A9136AAU);
    memset(bytes, 0xff, sizeof bytes);
    ck_assert_uint_eq(weft_crc32c(0, bytes, 32), 0x62A8AB43U);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    ck_assert_uint_eq(weft_crc32c(0, bytes, 32), 0x46DD794EU);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)(31 - i);
    ck_assert_uint_eq(weft_crc32c(0, bytes, 32), 0x113FDB5CU);
    ck_assert_uint_eq(weft_crc32c(0, bytes, 0), 0);
}
END_TEST

/* Of any length, from any address, in any pieces. */
START_TEST(crc_is_one_whatever_the_way)
{
    enum { BYTES = 40000 };
    unsigned char *const bytes = malloc(BYTES);
    ck_assert_ptr_nonnull(bytes);
    uint32_t random = 7;
    for (size_t i = 0; i < BYTES; i++) {
        random = random * 1664525U + 1013904223U;
        bytes[i] = (unsigned char)(random >> 24);
    }
    for (size_t n = 0; n < BYTES - 9; n = n < 1700 ? n + 1 : n + 997) {
        const size_t from = n % 9;
        const uint32_t crc = weft_crc32c_software(5, bytes + from, n);
        ck_assert_uint_eq(weft_crc32c(5, bytes + from, n), crc);
        if (weft_crc32c_has_hardware())
            ck_assert_uint_eq(weft_crc32c_hardware(5, bytes + from, n), crc);
        if (weft_crc32c_has_wide())
            ck_assert_uint_eq(weft_crc32c_wide(5, bytes + from, n), crc);
        const size_t cut = n * 3 / 7;
        const uint32_t half = weft_crc32c(5, bytes + from, cut);
        ck_assert_uint_eq(weft_crc32c(half, bytes + from + cut, n - cut), crc);
    }
    free(bytes);
}
END_TEST

/* -- headers -------------------------------------------------------------- */

static weft_frame example(void)
{
    return (weft_frame){.type = WEFT_FRAME_ANSWER,
                        .epoch = 0x1122334455667788U,
                        .step = UINT64_MAX,
                        .layer = -1,
                        .attempt = 3,
                        .group = 4,
                        .tag = 5,
                        .body_bytes = 1000,
                        .n_rows = 100,
                        .row_bytes = 4096};
}

static weft_status decode(const unsigned char *header, weft_err *err)
{
    weft_frame frame;
    uint32_t crc = 0;
    return weft_frame_decode(header, &limits, &frame, &crc, err);
}

/* With another value at an offset, and a checksum that fits. */
static weft_status decode_with(size_t at, uint32_t value, size_t bytes,
                               weft_err *err)
{
    unsigned char header[WEFT_FRAME_HEADER_BYTES];
    const weft_frame frame = example();
    weft_frame_encode(&frame, 9, header);
    for (size_t i = 0; i < bytes; i++)
        header[at + i] = (unsigned char)(value >> (8 * i));
    weft_pack pack = weft_pack_into(header + 60, 4);
    weft_pack_u32(&pack, weft_crc32c(0, header, 60));
    return decode(header, err);
}

START_TEST(a_header_comes_back)
{
    unsigned char header[WEFT_FRAME_HEADER_BYTES];
    const weft_frame sent = example();
    weft_frame got;
    uint32_t crc = 0;
    weft_frame_encode(&sent, 0xdeadbeefU, header);
    ck_assert_mem_eq(header, "WEFT\1\0\21\0", 8);
    OK(weft_frame_decode(header, &limits, &got, &crc, &err));
    ck_assert_uint_eq(crc, 0xdeadbeefU);
    ck_assert_int_eq(got.type, sent.type);
    ck_assert_uint_eq(got.epoch, sent.epoch);
    ck_assert_uint_eq(got.step, sent.step);
    ck_assert_int_eq(got.layer, sent.layer);
    ck_assert_uint_eq(got.attempt, sent.attempt);
    ck_assert_uint_eq(got.group, sent.group);
    ck_assert_uint_eq(got.tag, sent.tag);
    ck_assert_uint_eq(got.body_bytes, sent.body_bytes);
    ck_assert_int_eq(got.n_rows, sent.n_rows);
    ck_assert_uint_eq(got.row_bytes, sent.row_bytes);
    ck_assert(got.body == NULL && got.rows == NULL);
}
END_TEST

START_TEST(every_damaged_bit_is_found)
{
    unsigned char header[WEFT_FRAME_HEADER_BYTES];
    const weft_frame frame = example();
    weft_frame_encode(&frame, 9, header);
    for (size_t bit = 0; bit < 8 * sizeof header; bit++) {
        header[bit / 8] ^= (unsigned char)(1U << bit % 8);
        ck_assert_int_eq(decode(header, NULL), WEFT_DATA_LOSS);
        header[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    ck_assert_int_eq(decode(header, NULL), WEFT_OK);
}
END_TEST

static void check_refused(size_t at, uint32_t value, size_t bytes,
                          weft_status expected, const char *text)
{
    weft_err told = {0};
    ck_assert_int_eq(decode_with(at, value, bytes, &told), expected);
    ck_assert_msg(strstr(told.text, text) != NULL, "%s, and not %s", told.text,
                  text);
}

START_TEST(each_field_has_its_limit)
{
    ck_assert_int_eq(decode_with(8, 1000, 4, NULL), WEFT_OK);
    check_refused(4, 2, 2, WEFT_FAILED_PRECONDITION,
                  "a frame of version 2, and version 1 is spoken here");
    check_refused(4, 0, 2, WEFT_FAILED_PRECONDITION, "version 0");
    check_refused(6, 0, 2, WEFT_INVALID_ARGUMENT, "of type 0");
    check_refused(6, 6, 2, WEFT_INVALID_ARGUMENT, "of type 6");
    check_refused(6, 0xffff, 2, WEFT_INVALID_ARGUMENT, "of type 65535");
    check_refused(8, 1001, 4, WEFT_INVALID_ARGUMENT,
                  "\"answer\" with body bytes 1001, and the limit is 1000");
    check_refused(8, UINT32_MAX, 4, WEFT_INVALID_ARGUMENT, "4294967295");
    check_refused(12, 101, 4, WEFT_INVALID_ARGUMENT,
                  "rows 101, and the limit is 100");
    check_refused(12, UINT32_MAX, 4, WEFT_INVALID_ARGUMENT, "4294967295");
    check_refused(16, 4097, 4, WEFT_INVALID_ARGUMENT,
                  "row bytes 4097, and the limit is 4096");
    check_refused(16, UINT32_MAX, 4, WEFT_INVALID_ARGUMENT, "4294967295");
    check_refused(16, 0, 4, WEFT_INVALID_ARGUMENT, "100 rows of no bytes");
    check_refused(56, 1, 4, WEFT_INVALID_ARGUMENT, "has none");
    check_refused(56, 2, 4, WEFT_INVALID_ARGUMENT, "unknown flags 0x2");
}
END_TEST

START_TEST(near_rows_do_not_follow_the_body)
{
    unsigned char header[WEFT_FRAME_HEADER_BYTES];
    weft_frame_limits near = limits;
    weft_frame sent = example(), got;
    uint32_t crc = 0;
    near.near = sent.is_near = true;
    weft_frame_encode(&sent, 7, header);
    OK(weft_frame_decode(header, &near, &got, &crc, &err));
    ck_assert(got.is_near && got.n_rows == sent.n_rows);
    ck_assert_uint_eq(weft_frame_stream_bytes(&got), 0);
    sent.is_near = false;
    ck_assert_uint_eq(weft_frame_stream_bytes(&sent), UINT64_C(100) * 4096);
    sent.is_near = true;
    sent.row_bytes = 4095;
    weft_frame_encode(&sent, 7, header);
    ck_assert_int_eq(weft_frame_decode(header, &near, &got, &crc, NULL),
                     WEFT_INVALID_ARGUMENT);
    sent.n_rows = 0;
    sent.row_bytes = 4096;
    weft_frame_encode(&sent, 7, header);
    ck_assert_int_eq(weft_frame_decode(header, &near, &got, &crc, NULL),
                     WEFT_INVALID_ARGUMENT);
}
END_TEST

START_TEST(types_have_names)
{
    int named = 0;
    for (int type = -1; type < 1000; type++) {
        const char *const name = weft_frame_type_name((weft_frame_type)type);
        ck_assert_int_eq(name != NULL, decode_with(6, (uint32_t)type & 0xffff,
                                                   2, NULL) == WEFT_OK);
        named += name != NULL;
    }
    ck_assert_int_eq(named, 17);
    ck_assert_str_eq(weft_frame_type_name(WEFT_FRAME_DISPATCH), "dispatch");
}
END_TEST

START_TEST(capacities_are_powers_of_two)
{
    static const int32_t pairs[][2] = {
        {0, 8},   {1, 8},   {8, 8},       {9, 16},      {16, 16},
        {17, 32}, {33, 64}, {4096, 4096}, {4097, 8192}, {65536, 65536}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        ck_assert_int_eq(weft_frame_capacity(pairs[i][0]), pairs[i][1]);
}
END_TEST

/* -- the receiving buffer ------------------------------------------------- */

static void put_bytes(weft_inbox *inbox, const weft_frame_limits *held,
                      const unsigned char *bytes, size_t n)
{
    while (n > 0) {
        unsigned char *at = NULL;
        size_t room = 0;
        OK(weft_inbox_room(inbox, held, &at, &room, &err));
        ck_assert_uint_gt(room, 0);
        if (room > n) room = n;
        memcpy(at, bytes, room);
        weft_inbox_filled(inbox, room);
        bytes += room;
        n -= room;
    }
}

/* A frame that announces gigabytes costs a megabyte until they come. */
START_TEST(what_is_announced_takes_no_memory)
{
    static const weft_frame_limits wide = {
        .body_bytes_max = WEFT_FRAME_BODY_BYTES_MAX,
        .rows_max = WEFT_FRAME_ROWS_MAX,
        .row_bytes_max = WEFT_FRAME_ROW_BYTES_MAX};
    unsigned char header[WEFT_FRAME_HEADER_BYTES];
    static unsigned char zeros[1 << 20];
    weft_frame frame = example();
    frame.n_rows = WEFT_FRAME_ROWS_MAX;
    frame.row_bytes = WEFT_FRAME_ROW_BYTES_MAX;
    weft_frame_encode(&frame, 0, header);
    weft_inbox inbox;
    weft_inbox_init(&inbox, 2048);
    put_bytes(&inbox, &wide, header, sizeof header);
    ck_assert_uint_le(inbox.capacity, 2048);
    put_bytes(&inbox, &wide, zeros, 1);
    ck_assert_uint_le(inbox.capacity, (1 << 20) + 8192);
    for (size_t came = 1; came < 8 << 20; came += sizeof zeros) {
        put_bytes(&inbox, &wide, zeros, sizeof zeros);
        ck_assert_uint_le(inbox.capacity, 2 * (came + sizeof zeros) + 8192);
    }
    weft_inbox_deinit(&inbox);
}
END_TEST

START_TEST(nothing_is_taken_for_what_is_refused)
{
    unsigned char header[WEFT_FRAME_HEADER_BYTES];
    weft_frame frame = example();
    frame.row_bytes = limits.row_bytes_max + 1;
    weft_frame_encode(&frame, 0, header);
    weft_inbox inbox;
    weft_inbox_init(&inbox, 2048);
    put_bytes(&inbox, &limits, header, sizeof header);
    unsigned char *at = NULL;
    size_t room = 0;
    weft_err told = {0};
    ck_assert_int_eq(weft_inbox_room(&inbox, &limits, &at, &room, &told),
                     WEFT_INVALID_ARGUMENT);
    ck_assert(weft_inbox_is_ready(&inbox, &limits));
    ck_assert_uint_le(inbox.capacity, 2048);
    bool got = true;
    ck_assert_int_eq(weft_inbox_next(&inbox, &limits, &frame, &got, &told),
                     WEFT_INVALID_ARGUMENT);
    ck_assert(!got);
    weft_inbox_deinit(&inbox);
}
END_TEST

/* A frame that was given out stays where it is, however the next one comes:
 * beside it in the same buffer, or so long that it needs another. */
START_TEST(a_lent_frame_is_not_moved)
{
    enum { BYTES = 1 << 17 };
    static unsigned char stream[BYTES], body[1000];
    static char row[4096];
    const void *rows[100];
    for (int i = 0; i < 100; i++) rows[i] = row;
    memset(row, 'r', sizeof row);
    for (size_t turn = 0; turn < 300; turn++) {
        memset(body, 'a', sizeof body);
        weft_frame frame = {.type = WEFT_FRAME_PLAN,
                            .body = body,
                            .body_bytes = 900 - turn % 7,
                            .n_rows = (int32_t)(turn % 5) * 25,
                            .row_bytes = 256};
        size_t n = kit_print(&frame, rows, stream);
        weft_inbox inbox;
        weft_inbox_init(&inbox, turn % 2 == 0 ? 2048 : 32768);
        put_bytes(&inbox, &limits, stream, n);
        weft_frame lent;
        bool got = false;
        OK(weft_inbox_next(&inbox, &limits, &lent, &got, &err));
        ck_assert(got);
        memset(body, 'b', sizeof body);
        frame.body_bytes = turn * 3;
        frame.n_rows = (int32_t)(turn % 16);
        frame.row_bytes = 1 + (uint32_t)turn * 13 % 4096;
        n = kit_print(&frame, rows, stream);
        for (size_t at = 0; at < n; at++)
            put_bytes(&inbox, &limits, stream + at, 1);
        for (size_t i = 0; i < lent.body_bytes; i++)
            ck_assert_uint_eq(((const unsigned char *)lent.body)[i], 'a');
        weft_inbox_give_back(&inbox);
        weft_frame next;
        OK(weft_inbox_next(&inbox, &limits, &next, &got, &err));
        ck_assert(got && next.n_rows == frame.n_rows);
        ck_assert_mem_eq(next.body, body, next.body_bytes);
        weft_inbox_deinit(&inbox);
    }
}
END_TEST

/* -- the sending queue ---------------------------------------------------- */

/* Rows that lie one after another leave as one piece, and pieces may be taken
 * in any size. */
START_TEST(rows_leave_from_where_they_lie)
{
    static char memory[6][16];
    const void *const together[3] = {memory[0], memory[1], memory[2]};
    const void *const apart[3] = {memory[0], memory[2], memory[3]};
    const weft_frame frame = {.type = WEFT_FRAME_HIDDEN,
                              .body = "body",
                              .body_bytes = 4,
                              .n_rows = 3,
                              .row_bytes = 16};
    struct iovec pieces[8];
    weft_outbox outbox;
    OK(weft_outbox_init(&outbox, 2, &err));
    ck_assert(weft_outbox_put(&outbox, &frame, together));
    ck_assert(weft_outbox_put(&outbox, &frame, apart));
    ck_assert(!weft_outbox_put(&outbox, &frame, apart));
    ck_assert_int_eq(weft_outbox_gather(&outbox, pieces, 8, SIZE_MAX), 7);
    ck_assert_ptr_eq(pieces[2].iov_base, memory[0]);
    ck_assert_uint_eq(pieces[2].iov_len, 48);
    ck_assert_uint_eq(pieces[5].iov_len, 16);
    ck_assert_ptr_eq(pieces[6].iov_base, memory[2]);
    ck_assert_uint_eq(pieces[6].iov_len, 32);
    ck_assert_int_eq(weft_outbox_gather(&outbox, pieces, 8, 65), 2);
    ck_assert_uint_eq(pieces[1].iov_len, 1);
    weft_outbox_sent(&outbox, 64 + 4 + 20); /* into the second row */
    ck_assert_int_eq(weft_outbox_gather(&outbox, pieces, 1, SIZE_MAX), 1);
    ck_assert_ptr_eq(pieces[0].iov_base, memory[1] + 4);
    ck_assert_uint_eq(pieces[0].iov_len, 28);
    weft_outbox_sent(&outbox, 28 + 64 + 4 + 48);
    ck_assert_int_eq(outbox.n, 0);
    ck_assert_int_eq(weft_outbox_gather(&outbox, pieces, 8, SIZE_MAX), 0);
    weft_outbox_deinit(&outbox);
}
END_TEST

/* -- hellos --------------------------------------------------------------- */

static weft_hello hello(void)
{
    return (weft_hello){.protocol_min = 1,
                        .protocol_max = 1,
                        .release = "0.1.0 abcdef",
                        .cluster = "blue",
                        .id = "layers-0-1",
                        .role = WEFT_ROLE_LAYERS,
                        .incarnation = 12,
                        .group = 2,
                        .stage = 1,
                        .n_stages = 2,
                        .config_hash = 77,
                        .weights_hash = 88,
                        .identity = "cpu",
                        .profile = "exact"};
}

START_TEST(a_hello_comes_back)
{
    unsigned char bytes[WEFT_HELLO_BYTES_MAX + 1];
    const weft_hello sent = hello();
    weft_hello got;
    const size_t n = weft_hello_encode(&sent, bytes);
    OK(weft_hello_decode(bytes, n, &got, &err));
    /* By its bytes: what lies between members of a struct is nobody's. */
    unsigned char again[WEFT_HELLO_BYTES_MAX];
    ck_assert_uint_eq(weft_hello_encode(&got, again), n);
    ck_assert_mem_eq(again, bytes, n);
    ck_assert_int_eq(got.group, sent.group);
    ck_assert_int_eq(got.stage, sent.stage);
    for (size_t cut = 0; cut < n; cut++)
        ck_assert_int_eq(weft_hello_decode(bytes, cut, &got, NULL),
                         WEFT_INVALID_ARGUMENT);
    bytes[n] = 0;
    ck_assert_int_eq(weft_hello_decode(bytes, n + 1, &got, NULL),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_hello_decode(bytes, sizeof bytes, &got, NULL),
                     WEFT_INVALID_ARGUMENT);
    bytes[4] = WEFT_PROTOCOL_MAX + 1; /* a later one may say more */
    OK(weft_hello_decode(bytes, n + 1, &got, &err));
}
END_TEST

static void check_flaw(const weft_hello *bad, const char *text)
{
    unsigned char bytes[WEFT_HELLO_BYTES_MAX];
    weft_hello got;
    weft_err told = {0};
    const size_t n = weft_hello_encode(bad, bytes);
    ck_assert_int_eq(weft_hello_decode(bytes, n, &got, &told),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_msg(strstr(told.text, text) != NULL, "%s, and not %s", told.text,
                  text);
}

START_TEST(the_highest_common_protocol_is_spoken)
{
    weft_hello old = hello(), later = hello();
    old.protocol_max = WEFT_PROTOCOL_MIN;
    later.protocol_max = WEFT_PROTOCOL_MAX;
    ck_assert_uint_eq(weft_hello_protocol(&old, &later), WEFT_PROTOCOL_MIN);
    ck_assert_uint_eq(weft_hello_protocol(&later, &old), WEFT_PROTOCOL_MIN);
    ck_assert_uint_eq(weft_hello_protocol(&later, &later), WEFT_PROTOCOL_MAX);
    OK(weft_hello_check(&old, &later, &err));
}
END_TEST

START_TEST(a_hello_is_looked_at)
{
    weft_hello bad = hello();
    bad.protocol_min = 2;
    check_flaw(&bad, "protocol versions");
    bad = hello();
    bad.protocol_min = 0;
    check_flaw(&bad, "protocol versions");
    bad = hello();
    bad.id[0] = '\0';
    check_flaw(&bad, "id is empty");
    bad = hello();
    bad.cluster[1] = '\n';
    check_flaw(&bad, "printable");
    bad = hello();
    bad.profile[0] = (char)0x80;
    check_flaw(&bad, "printable");
    bad = hello();
    bad.role = (weft_role)0;
    check_flaw(&bad, "role");
    bad.role = (weft_role)4;
    check_flaw(&bad, "role");
    bad = hello();
    bad.group = -1;
    check_flaw(&bad, "group or stage");
    bad = hello();
    bad.stage = 2;
    check_flaw(&bad, "stage is not below");
}
END_TEST

static void check_differs(const weft_hello *peer, const char *text)
{
    const weft_hello own = hello();
    weft_err told = {0};
    ck_assert_int_eq(weft_hello_check(&own, peer, &told),
                     WEFT_FAILED_PRECONDITION);
    ck_assert_str_eq(told.text, text);
    ck_assert_int_eq(weft_hello_check(peer, &own, NULL),
                     WEFT_FAILED_PRECONDITION);
}

static weft_hello other(void)
{
    weft_hello peer = hello();
    strcpy(peer.id, "experts-3");
    peer.role = WEFT_ROLE_EXPERTS;
    return peer;
}

START_TEST(each_difference_is_named_with_both_values)
{
    weft_hello peer = other();
    const weft_hello own = hello();
    OK(weft_hello_check(&own, &peer, &err));
    strcpy(peer.cluster, "green");
    check_differs(&peer, "cluster differs: layers-0-1 has \"blue\", experts-3 "
                         "has \"green\"");
    peer = other();
    peer.protocol_min = 2;
    peer.protocol_max = 3;
    strcpy(peer.release, "0.9");
    check_differs(&peer, "no common protocol: layers-0-1 speaks 1 to 1 "
                         "(release 0.1.0 abcdef), experts-3 speaks 2 to 3 "
                         "(release 0.9)");
    peer.protocol_min = 1;
    OK(weft_hello_check(&own, &peer, &err));
    peer = other();
    peer.config_hash = 78;
    check_differs(&peer, "hash of config.json differs: layers-0-1 has "
                         "000000000000004d, experts-3 has 000000000000004e");
    peer = other();
    peer.weights_hash = 89;
    check_differs(&peer, "hash of the weights differs: layers-0-1 has "
                         "0000000000000058, experts-3 has 0000000000000059");
    peer.weights_hash = 0; /* does not know it */
    OK(weft_hello_check(&own, &peer, &err));
    peer = other();
    strcpy(peer.identity, "cuda");
    check_differs(&peer, "numeric identity differs: layers-0-1 has \"cpu\", "
                         "experts-3 has \"cuda\"");
    peer.identity[0] = '\0';
    OK(weft_hello_check(&own, &peer, &err));
    strcpy(peer.identity, "cpu.tp2");
    OK(weft_hello_check(&own, &peer, &err));
    peer.role = WEFT_ROLE_LAYERS;
    check_differs(&peer, "numeric identity differs: layers-0-1 has \"cpu\", "
                         "experts-3 has \"cpu.tp2\"");
    peer = other();
    strcpy(peer.profile, "bf16");
    check_differs(&peer, "numeric profile differs: layers-0-1 has \"exact\", "
                         "experts-3 has \"bf16\"");
    peer.profile[0] = '\0';
    OK(weft_hello_check(&own, &peer, &err));
    ck_assert_str_eq(weft_role_name(WEFT_ROLE_EXPERTS), "experts");
}
END_TEST

START_TEST(a_pool_has_one_identity)
{
    static const struct {
        const char *a, *b;
        bool same;
    } pairs[] = {
        {"cpu", "cpu", true},
        {"cpu", "cpu.tp2", true},
        {"cpu.tp8", "cpu.tp2", true},
        {"cpu.tp12", "cpu", true},
        {"cpu", "cuda-1.sm90.bf16", false},
        {"cuda-1.sm90.bf16.tp4", "cuda-1.sm90.bf16", true},
        {"cuda-1.sm90.bf16.tp4", "cuda-1.sm90.exact.tp4", false},
        {"cuda-1.sm90.bf16.tp4", "cuda-1.sm100.bf16.tp4", false},
        {"cpu.tp", "cpu", false},
        {"cpu2", "cpu", false},
        {".tp2", "", true},
        {"tp2", "", false},
        {"", "", true},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        ck_assert_msg(weft_identity_is_same_pool(pairs[i].a, pairs[i].b) ==
                          pairs[i].same,
                      "%s, %s", pairs[i].a, pairs[i].b);
        ck_assert(weft_identity_is_same_pool(pairs[i].b, pairs[i].a) ==
                  pairs[i].same);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {crc_as_published,
                                  crc_is_one_whatever_the_way,
                                  a_header_comes_back,
                                  every_damaged_bit_is_found,
                                  each_field_has_its_limit,
                                  near_rows_do_not_follow_the_body,
                                  types_have_names,
                                  capacities_are_powers_of_two,
                                  what_is_announced_takes_no_memory,
                                  nothing_is_taken_for_what_is_refused,
                                  a_lent_frame_is_not_moved,
                                  rows_leave_from_where_they_lie,
                                  a_hello_comes_back,
                                  a_hello_is_looked_at,
                                  the_highest_common_protocol_is_spoken,
                                  each_difference_is_named_with_both_values,
                                  a_pool_has_one_identity};
    return WEFT_SUITE_RUN("frame", tests);
}

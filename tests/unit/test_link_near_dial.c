/* Near rows of links that were dialled (shard/link/near.h), plain and through
 * TLS: what both ends speak decides whether they are tried. */
#include <string.h>

#include "tests/support/dial_kit.h"
#include "tests/support/expect.h"
#include "tests/support/near_kit.h"

typedef struct scene {
    near_kit_scene pair; /* a dialled */
    kit_taken taken;
    weft_link_server *server;
    weft_tls *a_tls, *b_tls;
} scene;

/* Of releases that speak up to these protocols. */
static void open_dialled(scene *s, int transport, uint32_t a_max,
                         uint32_t b_max)
{
    weft_hello a = kit_hello("a"), b = kit_hello("b"), peer;
    *s = (scene){.taken = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    near_kit_reset();
    a.protocol_max = a_max;
    b.protocol_max = b_max;
    s->pair.a_near = near_kit_create(0, 1);
    s->pair.b_near = near_kit_create(1, 1);
    weft_link_server_options options = kit_server_options(&b, &s->taken);
    weft_link_options own = kit_options();
    if (transport == KIT_TLS) {
        s->a_tls = kit_tls("a", "ca");
        s->b_tls = options.tls = kit_tls("b", "ca");
    }
    own.limits = options.link.limits = near_kit_limits();
    own.near = s->pair.a_near;
    options.link.near = s->pair.b_near;
    s->server = kit_server(&options);
    OK(weft_link_dial(weft_link_server_address(s->server), &a, s->a_tls, &own,
                      kit_deadline(), &s->pair.a, &peer, &err));
    kit_wait_taken(&s->taken, 1);
    s->pair.b = s->taken.links[0];
    near_kit_settle(s->pair.a, s->pair.b);
}

static void close_dialled(scene *s)
{
    weft_link_server_stop(s->server);
    near_kit_scene_close(&s->pair);
    weft_tls_destroy(s->a_tls);
    weft_tls_destroy(s->b_tls);
}

START_TEST(dialled_links_become_near)
{
    scene s;
    open_dialled(&s, _i, WEFT_PROTOCOL_MAX, WEFT_PROTOCOL_MAX + 1);
    ck_assert(weft_link_is_near(s.pair.a) && weft_link_is_near(s.pair.b));
    for (uint64_t step = 1; step <= 20; step++) {
        OK(near_kit_send(s.pair.a, step, 9, 33, true, &err));
        OK(near_kit_send(s.pair.b, step, 5, 50, false, &err));
        weft_frame got = kit_recv(s.pair.b, NULL);
        near_kit_check(&got, step, 9, 33);
        got = kit_recv(s.pair.a, NULL);
        near_kit_check(&got, step, 5, 50);
    }
    close_dialled(&s);
}
END_TEST

/* It would break a link at a frame that it does not know. */
START_TEST(an_older_release_is_offered_nothing)
{
    const uint32_t old = WEFT_PROTOCOL_NEAR - 1;
    for (int32_t turn = 0; turn < 2; turn++) {
        scene s;
        open_dialled(&s, _i, turn == 0 ? old : WEFT_PROTOCOL_NEAR,
                     turn == 0 ? WEFT_PROTOCOL_NEAR : old);
        ck_assert_ptr_null(s.pair.a->near);
        ck_assert_ptr_null(s.pair.b->near);
        ck_assert(!weft_link_is_near(s.pair.a));
        const weft_frame frame = {.type = WEFT_FRAME_PLAN};
        OK(weft_link_send(s.pair.a, &frame, NULL, &err));
        const weft_frame got = kit_recv(s.pair.b, s.pair.a);
        ck_assert_int_eq(got.type, WEFT_FRAME_PLAN);
        close_dialled(&s);
    }
}
END_TEST

int main(void)
{
    const TTest *const raw[] = {dialled_links_become_near,
                                an_older_release_is_offered_nothing};
    return kit_run("link_near_dial", &(kit_tests){.raw = raw, .n_raw = 2});
}

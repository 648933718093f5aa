#include "tests/support/served.h"

#include <check.h>

served serve(weft_rpc_options options)
{
    served s = {.fake = weft_fake_create()};
    weft_err err = {0};
    options.listen = "127.0.0.1:0";
    options.ops = &weft_fake_ops;
    options.ops_arg = s.fake;
    const weft_status st = weft_rpc_server_start(&options, &s.server, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    return s;
}

static bool is_idle(const weft_fake_counts *counts, int value)
{
    return counts->live == value;
}

void serve_end(served *s)
{
    weft_rpc_server_stop(s->server, SECONDS(20));
    weft_rpc_server_destroy(s->server);
    ck_assert(weft_fake_wait(s->fake, is_idle, 0));
    weft_fake_destroy(s->fake);
}

weft_client *serve_client(const served *s)
{
    weft_client *client = NULL;
    weft_err err = {0};
    const weft_status st = weft_client_create(
        weft_rpc_server_address(s->server), SECONDS(20), &client, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    return client;
}

#include "tests/support/dial_kit.h"

#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"

void kit_take(void *arg, weft_link *link, const weft_hello *peer)
{
    kit_taken *const all = arg;
    (void)pthread_mutex_lock(&all->lock);
    ck_assert_int_lt(all->n, KIT_TAKEN_MAX);
    all->links[all->n] = link;
    all->peers[all->n++] = *peer;
    (void)pthread_mutex_unlock(&all->lock);
}

int kit_count_taken(kit_taken *all)
{
    (void)pthread_mutex_lock(&all->lock);
    const int n = all->n;
    (void)pthread_mutex_unlock(&all->lock);
    return n;
}

void kit_wait_taken(kit_taken *all, int n)
{
    const uint64_t deadline = kit_deadline();
    while (kit_count_taken(all) < n) {
        ck_assert(weft_clock_now_ns() < deadline);
        (void)sched_yield();
    }
}

void kit_close_taken(kit_taken *all)
{
    for (int i = 0; i < all->n; i++) weft_link_close(all->links[i]);
    all->n = 0;
}

weft_hello kit_hello(const char *id)
{
    weft_hello own = {.protocol_min = 1,
                      .protocol_max = 1,
                      .release = "0.1.0",
                      .cluster = "blue",
                      .role = WEFT_ROLE_EXPERTS,
                      .incarnation = 5,
                      .config_hash = 1,
                      .identity = "cpu"};
    (void)snprintf(own.id, sizeof own.id, "%s", id);
    return own;
}

weft_link_server_options kit_server_options(const weft_hello *own,
                                            kit_taken *all)
{
    return (weft_link_server_options){.listen = "127.0.0.1:0",
                                      .own = own,
                                      .link = kit_options(),
                                      .take = kit_take,
                                      .arg = all};
}

weft_link_server *kit_server(const weft_link_server_options *options)
{
    weft_link_server *server = NULL;
    OK(weft_link_server_start(options, &server, &err));
    return server;
}

void kit_catch_stderr(FILE **file, int *before)
{
    *file = tmpfile();
    ck_assert_ptr_nonnull(*file);
    *before = dup(STDERR_FILENO);
    (void)dup2(fileno(*file), STDERR_FILENO);
}

size_t kit_release_stderr(FILE *file, int before, char *text, size_t n)
{
    (void)dup2(before, STDERR_FILENO);
    (void)close(before);
    rewind(file);
    const size_t got = fread(text, 1, n - 1, file);
    text[got] = '\0';
    (void)fclose(file);
    return got;
}

/* dial_kit.h - a listener that keeps what it was given, for the tests of
 * shard/link/dial.h.
 *
 * Test support: whatever fails ends the test with a message.
 */
#ifndef WEFT_TESTS_SUPPORT_DIAL_KIT_H
#define WEFT_TESTS_SUPPORT_DIAL_KIT_H

#include <pthread.h>
#include <stdio.h>

#include "shard/link/dial.h"

enum { KIT_TAKEN_MAX = 16 };

/* What a server handed over. Begins as {.lock = PTHREAD_MUTEX_INITIALIZER}. */
typedef struct kit_taken {
    pthread_mutex_t lock;
    weft_link *links[KIT_TAKEN_MAX];
    weft_hello peers[KIT_TAKEN_MAX];
    int n;
} kit_taken;

void kit_take(void *arg, weft_link *link, const weft_hello *peer);
int kit_count_taken(kit_taken *all);
void kit_wait_taken(kit_taken *all, int n); /* until there are n */
void kit_close_taken(kit_taken *all);       /* after the server's end */

/* An expert shard of cluster "blue", incarnation 5. */
weft_hello kit_hello(const char *id);
/* On loopback, with kit_options, into `all`. */
weft_link_server_options kit_server_options(const weft_hello *own,
                                            kit_taken *all);
weft_link_server *kit_server(const weft_link_server_options *options);

/* What is written to standard error between the two, cut to n bytes with a
 * NUL; how many. */
void kit_catch_stderr(FILE **file, int *before);
size_t kit_release_stderr(FILE *file, int before, char *text, size_t n);

#endif

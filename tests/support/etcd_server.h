/* etcd_server.h - etcd of a test's own: one member or three, on free ports of
 * loopback, in a folder that is removed, ended with the test whatever happens.
 *
 * What goes wrong here ends the test with a message.
 */
#ifndef WEFT_TESTS_SUPPORT_ETCD_SERVER_H
#define WEFT_TESTS_SUPPORT_ETCD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { ETCD_MEMBERS_MAX = 3 };

typedef struct etcd_server {
    int n;
    pid_t pids[ETCD_MEMBERS_MAX]; /* 0: not running */
    int ports[ETCD_MEMBERS_MAX], peer_ports[ETCD_MEMBERS_MAX];
    char folder[64];
    char endpoints[128];  /* HOST:PORT,... */
    const char *extra[8]; /* more flags, NULL behind the last */
    bool tls;             /* clients speak TLS: health is not asked for */
} etcd_server;

/* Whether there is an etcd at all; says so in a line if not. */
bool etcd_is_here(void);

/* Ports and folder, nothing running. */
void etcd_prepare(etcd_server *e, int n);
void etcd_start(etcd_server *e, int i);            /* returns at once */
bool etcd_is_healthy(const etcd_server *e, int i); /* at this moment */
void etcd_wait_healthy(const etcd_server *e, int i);
void etcd_signal(etcd_server *e, int i, int number);
void etcd_kill(etcd_server *e, int i);  /* SIGKILL, and gone */
void etcd_empty(etcd_server *e, int i); /* its folder */
void etcd_end(etcd_server *e);

/* A line for the shell, in which $E stands for the endpoints; its standard
 * output, cut at out_bytes. */
void etcd_shell(const etcd_server *e, const char *line, char *out,
                int out_bytes);

#endif

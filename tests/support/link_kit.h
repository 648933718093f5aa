/* link_kit.h - pairs of links over every transport, raw ends of connections,
 * and certificates, for the tests of shard/link.
 *
 * Test support: whatever fails ends the test with a message.
 */
#ifndef WEFT_TESTS_SUPPORT_LINK_KIT_H
#define WEFT_TESTS_SUPPORT_LINK_KIT_H

#include <check.h>
#include <stdbool.h>

#include "shard/link/link_internal.h"

typedef enum kit_transport { KIT_LOCAL, KIT_TCP, KIT_TLS } kit_transport;
enum { KIT_TRANSPORTS = 3 };

/* Certificates in a temporary folder: a CA that signed "a" and "b", another
 * that signed "c". Before the suite runs; false: there is no openssl command.
 */
bool kit_certificates_make(void);
void kit_certificates_remove(void);
/* The path of a file there, such as "a.pem"; static, overwritten by the eighth
 * call after. */
const char *kit_certificate(const char *file);
/* Of "a", "b" or "c", who trusts what "ca" or "ca2" signed. */
weft_tls *kit_tls(const char *who, const char *ca);

/* 1 MiB of body, 4096 rows of 256 KiB, no silence and no stall. */
weft_link_options kit_options(void);

/* Two ends that are ready. */
void kit_open(kit_transport transport, const weft_link_options *a,
              const weft_link_options *b, weft_link **a_out, weft_link **b_out);
/* With kit_options. */
void kit_open_pair(kit_transport transport, weft_link **a_out,
                   weft_link **b_out);
void kit_close_pair(weft_link *a, weft_link *b);

/* One end that is ready, and the other one's bytes; not local. */
typedef struct kit_raw {
    int fd;
    weft_tls_session *session;
} kit_raw;
weft_link *kit_open_raw(kit_transport transport,
                        const weft_link_options *options, kit_raw *raw_out);
void kit_raw_write(const kit_raw *raw, const void *bytes, size_t n);
/* FIN, after TLS's goodbye; reset: RST, without one. */
void kit_raw_close(kit_raw *raw, bool reset);

/* Two connected sockets over loopback, non-blocking. */
void kit_sockets(int *a_out, int *b_out);

/* A frame as it travels, into out; its size. */
size_t kit_print(const weft_frame *frame, const void *const *rows,
                 unsigned char *out);

/* The next frame of `link`, while `other` (may be NULL) sends on and must get
 * none. */
weft_frame kit_recv(weft_link *link, weft_link *other);
/* Reads until the link is broken; its reason, static. It must get no frame. */
const char *kit_recv_broken(weft_link *link);

/* Now and a minute: what no test waits for. */
uint64_t kit_deadline(void);

/* Tests whose turn is a transport: `all` over each that there is, `raw`, which
 * write bytes themselves, over all but the local one. */
typedef struct kit_tests {
    const TTest *const *all;
    size_t n_all;
    const TTest *const *raw;
    size_t n_raw;
} kit_tests;
/* Runs them as the suite `name`, with certificates; what main is to return. */
int kit_run(const char *name, const kit_tests *tests);

#endif
